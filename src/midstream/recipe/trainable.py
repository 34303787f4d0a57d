"""From the objects of a recipe to what a training session needs; what cannot be trained is refused before any work."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.protocols import Engine, TrainableWorld
from midstream.recipe.build import Build
from midstream.recipe.check import no_world, teacher
from midstream.recipe.schema import Recipe

if TYPE_CHECKING:
    from midstream.training.session import Parts


def parts_of(build: Build) -> Parts:
    """Everything that a training session needs."""
    from midstream.training.session import Parts

    recipe = build.recipe
    if build.runs_code and build.sandbox.tier == "unsafe":
        raise UnsupportedError(
            f"recipe {recipe.name!r} would be trained without a sandbox",
            cause="in training a model writes code by the thousand and nobody looks at it",
            fix="leave out --unsafe; midstream doctor says what a sandbox needs on this machine",
        )
    if recipe.training is None:
        raise RecipeError(
            f"recipe {recipe.name!r} trains nothing",
            cause="it has no [training] and no [practice] table",
            fix="add one, or use `midstream eval`",
        )
    _check_trainable(recipe, build.policy.engine())
    check_warm_start(build)
    _draw_all(build)
    learner = build.policy.learner
    return Parts(
        seed=recipe.seed,
        source=build.source,
        families=build.source.families,
        set_tasks=build.set_tasks,
        student=build.policy.student(),
        learner=learner,
        make_environment=build.environment,
        role=recipe.trained,
        teacher=teacher(recipe),
        publish=build.policy.publish,
        warm_start=recipe.warm_start,
        training=recipe.training,
        evaluation=recipe.evaluation,
    )


def _draw_all(build: Build) -> None:
    """Draw what is trained and evaluated on: what a source cannot give is found before any work."""
    from midstream.training.supervised import at_once
    from midstream.training.transcripts import read_transcripts

    training = build.recipe.training
    assert training is not None
    warm = build.recipe.warm_start
    drawn = [at_once(warm)] if warm and warm.file is None else []
    if warm and warm.file is not None:
        deque(read_transcripts(warm.file), maxlen=0)
    if training.steps:
        imitates = training.algorithm == "supervised"
        drawn.append(at_once(training.supervised) if imitates else training.tasks_per_step)
    for count in drawn:
        build.source.sample("train", count, build.recipe.seed)
    for chosen in (*build.recipe.evaluation.sets, build.recipe.evaluation.validation):
        build.set_tasks(chosen)


def check_warm_start(build: Build) -> None:
    """Refuse, before any work, a warm start that could not be checked afterwards."""
    warm = build.recipe.warm_start
    if warm is not None and warm.file is None:
        if not isinstance(build.source, TrainableWorld):
            raise no_world(build.recipe, "warm_start")
        build.source.check_validation(build.set_tasks(build.recipe.evaluation.validation), warm.min_copy_rate)


def _check_trainable(recipe: Recipe, engine: Engine) -> None:
    """Token ids and log-probabilities of the planner's calls, over the whole distribution it samples from."""
    if not engine.token_exact:
        raise UnsupportedError(
            f"engine {engine.name!r} cannot be trained on",
            cause="it does not record sampled token ids and log-probabilities",
            fix="set token_ids = true for a server that gives them (vLLM), or use an in-process engine",
        )
    named = recipe.training and recipe.training.weights
    if named not in (None, engine.name) and not (recipe.learner.lora and hasattr(engine, "use_adapter")):
        raise RecipeError(
            f"training.weights = {named!r} cannot reach the planner's engine {engine.name!r}",
            cause="weights trained apart from the planner are handed to its server as a LoRA adapter before every step",
            fix="add [learner.lora] and give the planner an engine of type openai_compatible, or remove `weights`",
        )
    if named not in (None, engine.name) and "chat_template_kwargs" in getattr(
        recipe.engines[engine.name].config, "extra_body", {}
    ):
        raise RecipeError(
            f"engines.{engine.name}.extra_body.chat_template_kwargs would not be heard",
            cause=f"the planner's prompts go there as token ids, made with the chat template of engine {named!r}",
            fix=f"move chat_template_kwargs to [engines.{named}]",
        )
    config: Any = recipe.modules[recipe.trained].config
    if config.sampling.top_p < 1 or config.sampling.temperature == 0:
        raise RecipeError(
            f"agent.{recipe.trained}.sampling = {config.sampling!r} cannot be trained on",
            cause="greedy or nucleus sampling draws from another distribution than the recorded log-probabilities",
            fix="set temperature above 0 and top_p = 1",
        )
