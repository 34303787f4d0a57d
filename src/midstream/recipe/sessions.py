"""Make the parts of a training or lesson session from a build, and check them before any work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from midstream.components.component import Component, Context
from midstream.core.engine import Engine
from midstream.core.errors import RecipeError, UnsupportedError, name_place
from midstream.core.events import Listener
from midstream.core.task import Task, same_question
from midstream.core.texts import TOOLS
from midstream.evaluation.session import Session
from midstream.evaluation.settings import SetConfig
from midstream.recipe.build import Build, require_scored
from midstream.recipe.check import (
    in_process,
    no_world,
    reward_components,
    teacher,
)
from midstream.recipe.estimate import on_hub
from midstream.recipe.lessons import one_texts
from midstream.recipe.schema import Recipe
from midstream.runs import RunDirectory
from midstream.sources.finite import Finite, check_known
from midstream.training.protocols import TrainableWorld
from midstream.training.settings import TrainingConfig

if TYPE_CHECKING:
    from midstream.training.session import Parts

# Settings that name what must be there.
_INPUTS = ("cwd", "file", "index", "path", "prompt_file", "weights")
# Of a file or benchmark to train on: about half a second.
_TASKS_CHECKED = 1000


def session_of(build: Build) -> Callable[[RunDirectory, Listener], Session]:
    """Check a recipe's [training] or [lessons], and return a function that starts or continues it in a run directory.

    Raises `RecipeError` or `UnsupportedError` if the recipe can do neither.
    """
    refuse_strategy(build.recipe)
    texts = None
    if build.recipe.lessons is not None:
        # A training run needs none of it.
        from midstream.lessons.session import LessonsSession
        from midstream.recipe.lesson_sessions import lessons_parts_of

        texts = lessons_parts_of(build)
        if build.recipe.training is None:
            return partial(LessonsSession, texts)
    parts = parts_of(build)
    if texts is not None:
        from midstream.lessons.lesson_set import identity
        from midstream.recipe.both import BothSession

        return partial(BothSession, parts, texts, partial(identity, build.resolved))
    # It needs torch, which `parts_of` has checked.
    from midstream.training.session import TrainingSession

    return partial(TrainingSession, parts)


def parts_of(build: Build) -> Parts:
    """The parts of a training session. Raises `RecipeError` or `UnsupportedError` if the recipe cannot be trained."""
    from midstream.training.flow_grpo import FlowGRPO
    from midstream.training.session import Parts

    recipe, training = build.recipe, _draw_training_tasks(build, build.recipe.evaluation.sets)
    _check_trainable(recipe, build.policy.engine())
    learner, ahead = build.policy.learner, training.asynchrony
    return Parts(
        seed=recipe.seed,
        source=build.source,
        set_tasks=build.set_tasks,
        student=build.policy.student(),
        learner=learner,
        make_environment=build.environment,
        role=recipe.role,
        teacher=teacher(recipe),
        publish=build.policy.publish,
        warm_start=recipe.warm_start,
        training=training,
        evaluation=recipe.evaluation,
        algorithm=FlowGRPO if ahead is None else ahead.config.build(Context(build, ahead, "training.asynchrony")),
    )


def check_work(build: Build, work: Literal["train", "eval", "other"]) -> list[str]:
    """Check, for `--dry-run`, what a run checks before it begins, on all its tasks, without loading a model.

    The packages, programs, functions, files and recordings that it needs are on this machine: functions are imported,
    and a recording is opened. Nothing is downloaded: returns what would be. Raises `MidstreamError`.
    """
    recipe = needed = build.recipe
    if build.replay:
        # Its answers stand in for all tools.
        needed = recipe.model_copy(update={"tools": {}})
        assert build.tools is not None
    _check_machine(needed, "")
    if work == "other":
        return []
    away = [chosen for chosen in recipe.evaluation.sets if on_hub(build.tasks(chosen.tasks or recipe.tasks))]
    here, names = [chosen for chosen in recipe.evaluation.sets if chosen not in away], [chosen.name for chosen in away]
    if any(in_process(recipe, component.engine) for _, component, _ in reward_components(recipe)):
        # Such a judge cannot be built without its model.
        return names
    if work == "eval":
        require_sets(recipe)
        for chosen in here:
            build.set_tasks(chosen)
        return names
    refuse_strategy(recipe)
    if on_hub(build.source):
        return ["tasks", *names]
    if recipe.lessons is not None:
        from midstream.recipe.lesson_sessions import draw_lesson_tasks, proposers_of

        draw_lesson_tasks(build, recipe.lessons, here)
        proposers_of(build, recipe.lessons)
        # Tools may be servers, which do not start here.
        places = [place for place in recipe.lessons.modules if not place.startswith(TOOLS)]
        one_texts(recipe.agent, (), places, "lessons.modules")
        if recipe.training is None:
            return names
    _draw_training_tasks(build, here)
    policy = recipe.modules[recipe.trained].engine
    # An engine in this process would load its model.
    _check_trainable(recipe, None if in_process(recipe, policy) else build.policy.engine())
    if not in_process(recipe, recipe.trained_engine):
        # Raises: the weights are a server's.
        build.policy.student()
    return names


def _check_machine(value: object, where: str) -> None:
    if isinstance(value, Component):
        value = value.config
        with name_place(where):
            value.check_machine(where)
    if isinstance(value, Path) and where.rpartition(".")[2] in _INPUTS and not value.exists():
        raise RecipeError(f"{where}: there is no {str(value)!r}", code="file-not-found", fix="correct the path")
    if isinstance(value, BaseModel):
        value = dict(value)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if type(value) is tuple else ()):
        _check_machine(inner, f"{where}.{key}".lstrip("."))


def require_sets(recipe: Recipe) -> None:
    """Refuse a recipe without anything to evaluate on."""
    if not recipe.evaluation.sets:
        raise RecipeError(
            f"recipe {recipe.name!r} has nothing to evaluate on: no [[evaluation.sets]]",
            code="missing-key",
            fix='name one, e.g. --benchmark bamboogle, or add one: name = "test", split = "test", per_family = 60',
        )


def refuse_strategy(recipe: Recipe) -> None:
    """Refuse a strategy where the agent learns or is served: it learns from, and answers with, single runs."""
    if recipe.evaluation.strategy is not None:
        raise RecipeError(
            f"evaluation.strategy = {recipe.evaluation.strategy!r} where an agent learns or is served by single runs",
            code="setting-conflict",
            fix="leave it out here; then: midstream eval RUN --strategy ...",
        )


def _draw_training_tasks(build: Build, sets: Sequence[SetConfig]) -> TrainingConfig:
    """Check what needs no model, and draw all tasks that the run will need, with those of the `sets`."""
    recipe, training, warm = build.recipe, build.recipe.training, build.recipe.warm_start
    require_sandbox(build)
    if training is None:
        what = f"recipe {recipe.name!r} trains nothing: it has no [training] and no [lessons] table"
        raise RecipeError(what, code="not-trainable", fix="add one, or use `midstream eval`")
    check_warm_start(build)
    staged = [family for stage in training.stages for family in stage]
    if staged:
        # Only then: the families of a benchmark would have to be downloaded.
        check_known("family", staged, build.source.families, "training.stages", "name families of the tasks")
    # Draw all tasks that the run will need, to find a source with too few now.
    counts: list[tuple[int, dict[str, float] | None]] = [(warm.at_once, None)] if warm and warm.file is None else []
    if warm and warm.file is not None:
        # It needs torch.
        from midstream.training.transcripts import read_transcripts

        deque(read_transcripts(warm.file), maxlen=0)
    if training.steps:
        if training.algorithm == "supervised":
            counts.append((training.supervised.at_once, None))
        else:
            begun = training.stages[0] if staged else ()
            first = {family: float(family in begun) for family in build.source.families} if staged else None
            counts.append((training.tasks_per_step, first))
    tasks = [task for count, shares in counts for task in build.source.sample("train", count, recipe.seed, shares)]
    if isinstance(build.source, Finite):
        # Those of later steps, too.
        tasks += build.source.tasks("train")[:_TASKS_CHECKED]
    require_scored(build, recipe.reward, tasks)
    for chosen in (*sets, recipe.evaluation.validation):
        build.set_tasks(chosen)
    return training


def require_sandbox(build: Build) -> None:
    """Check the sandbox of a recipe that runs code. Raises `MidstreamError`."""
    if build.runs_code and build.sandbox.tier == "unsafe":
        raise UnsupportedError(
            f"recipe {build.recipe.name!r} would learn from thousands of unread programs without a sandbox",
            code="sandbox-required",
            fix="leave out --unsafe; midstream doctor says what a sandbox needs on this machine",
        )


def check_warm_start(build: Build) -> None:
    """Check, before any work, that the warm start can be validated afterwards."""
    warm = build.recipe.warm_start
    if warm is not None and warm.file is None:
        if not isinstance(build.source, TrainableWorld):
            raise no_world(build.recipe, "warm_start")
        build.source.check_validation(build.set_tasks(build.recipe.evaluation.validation), warm.min_copy_rate)


def _check_trainable(recipe: Recipe, engine: Engine | None) -> None:
    """Check that the policy's calls have token ids and log-probabilities of the distribution that it samples from.

    `engine` is the policy's, None for one in this process that is not to be built.
    """
    name = recipe.modules[recipe.trained].engine or ""
    if engine is not None and not engine.token_exact:
        raise UnsupportedError(
            f"engine {engine.name!r} does not record sampled token ids and log-probabilities",
            code="not-trainable",
            fix="set token_ids = true for a server that gives them (vLLM), or use an in-process engine",
        )
    weights = recipe.training.weights if recipe.training else None
    if weights not in (None, name) and (recipe.learner.lora is None or not hasattr(engine, "use_adapter")):
        raise RecipeError(
            f"training.weights = {weights!r} cannot reach the planner's engine {name!r}: not as a LoRA adapter",
            code="not-trainable",
            fix="add [learner.lora] and give the planner an engine of type openai_compatible, or remove `weights`",
        )
    for module, part in recipe.modules.items():
        if module not in (recipe.trained, *recipe.trained_modules):
            continue
        # An agent of your own may bring its own.
        sampling = getattr(part.config, "sampling", None)
        if sampling and (sampling.top_p < 1 or sampling.temperature == 0):
            raise RecipeError(
                f"agent.{module}.sampling = {sampling!r} does not draw by the recorded log-probabilities",
                code="not-trainable",
                fix="set temperature above 0 and top_p = 1",
            )


def require_apart(sets: dict[str, Sequence[Task]]) -> None:
    """Check that no two sets share a question, other than two that are only evaluated."""
    questions = {name: {same_question(task.question): task.id for task in tasks} for name, tasks in sets.items()}
    for (name, first), (other, second) in combinations(questions.items(), 2):
        same = first.keys() & second.keys()
        if same and not (name.startswith("the set") and other.startswith("the set")):
            ids = sorted(f"{first[question]} = {second[question]}" for question in same)
            raise RecipeError(
                f"{name} and {other} share {len(ids)} questions: {', '.join(ids[:3])}",
                code="tasks-overlap",
                fix="take them from different splits, or with other seeds or families",
            )
