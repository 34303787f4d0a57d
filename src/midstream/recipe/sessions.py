"""Make the parts of a training or lesson session from a build, and check them before any work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from midstream.components.component import Stage
from midstream.core.engine import Engine
from midstream.core.errors import RecipeError, UnsupportedError, name_place
from midstream.core.events import Listener
from midstream.core.task import Task, same_question
from midstream.evaluation.session import Session
from midstream.evaluation.settings import SetConfig
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, identity
from midstream.lessons.reflector import ROLES, Reflector
from midstream.lessons.session import LessonsParts, LessonsSession, Prepare
from midstream.lessons.settings import GateConfig, LessonsConfig
from midstream.recipe.build import Build, require_scored
from midstream.recipe.check import (
    in_process,
    no_world,
    reward_components,
    tasks_config,
    teacher,
)
from midstream.recipe.estimate import on_hub
from midstream.recipe.lessons import read
from midstream.recipe.schema import Recipe
from midstream.runs import RunDirectory
from midstream.sources.finite import Finite, check_known
from midstream.training.protocols import TrainableWorld
from midstream.training.settings import TrainingConfig, WarmStartConfig

if TYPE_CHECKING:
    from midstream.training.session import Parts

_IDS_SHOWN = 3
_TASKS_CHECKED = 1000  # of a file or benchmark to train on: about half a second


def session_of(build: Build) -> Callable[[RunDirectory, Listener], Session]:
    """Check a recipe's [training] or [lessons], and return a function that starts or continues it in a run directory.

    Raises `RecipeError` or `UnsupportedError` if the recipe can do neither.
    """
    refuse_strategy(build.recipe)
    if build.recipe.lessons is not None:
        return partial(LessonsSession, lessons_parts_of(build))
    parts = parts_of(build)
    from midstream.training.session import TrainingSession  # needs torch, which `parts_of` has checked

    return partial(TrainingSession, parts)


def parts_of(build: Build) -> Parts:
    """The parts of a training session. Raises `RecipeError` or `UnsupportedError` if the recipe cannot be trained."""
    from midstream.training.session import Parts

    recipe, training = build.recipe, _check_training(build, build.recipe.evaluation.sets)
    _check_trainable(recipe, build.policy.engine())
    learner = build.policy.learner
    return Parts(
        seed=recipe.seed,
        source=build.source,
        stages=stages_of(build),
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
    )


def stages_of(build: Build) -> tuple[Stage, ...]:
    """The stages of a recipe's training tasks. Raises `RecipeError` for an unknown family."""
    stages = tasks_config(build.recipe.tasks).stages
    staged = [family for stage in stages for family in stage.families]
    if not staged:  # the families of a benchmark would have to be downloaded
        return ()
    check_known("family", staged, build.source.families, "tasks.stages", "name families of the tasks in tasks.stages")
    return stages


def check_work(build: Build, work: Literal["train", "eval"]) -> list[str]:
    """Check, for `--dry-run`, what a run checks before it begins, on all its tasks, without loading a model.

    Nothing is downloaded: returns what would be. Raises `MidstreamError`.
    """
    recipe = build.recipe
    away = [chosen for chosen in recipe.evaluation.sets if on_hub(build.tasks(chosen.tasks or recipe.tasks))]
    here, names = [chosen for chosen in recipe.evaluation.sets if chosen not in away], [chosen.name for chosen in away]
    if any(in_process(recipe, component.engine) for _, component, _ in reward_components(recipe)):
        return names  # such a judge cannot be built without its model
    if work == "train":
        refuse_strategy(recipe)
    if work == "eval":
        require_sets(recipe)
        for chosen in here:
            build.set_tasks(chosen)
    elif on_hub(build.source):
        return ["tasks", *names]
    elif recipe.lessons is not None:
        _draw_lesson_tasks(build, recipe.lessons, here)
        if recipe.lessons.start:
            read(recipe.lessons.start)
    else:
        _check_training(build, here)
        policy = recipe.modules[recipe.trained].engine
        # An engine in this process would load its model.
        _check_trainable(recipe, None if in_process(recipe, policy) else build.policy.engine())
        if not in_process(recipe, recipe.trained_engine):
            build.policy.student()  # raises: the weights are a server's
    return names


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


def _check_training(build: Build, sets: Sequence[SetConfig]) -> TrainingConfig:
    """Check what needs no model, and draw all tasks that the run will need, with those of the `sets`."""
    recipe, training, warm = build.recipe, build.recipe.training, build.recipe.warm_start
    _require_sandbox(build)
    if training is None:
        raise RecipeError(
            f"recipe {recipe.name!r} trains nothing: it has no [training] and no [lessons] table",
            code="not-trainable",
            fix="add one, or use `midstream eval`",
        )
    check_warm_start(build)
    stages = stages_of(build)
    # Draw all tasks that the run will need, to find a source with too few now.
    counts: list[tuple[int, dict[str, float] | None]] = [(warm.at_once, None)] if warm and warm.file is None else []
    if warm and warm.file is not None:
        from midstream.training.transcripts import read_transcripts  # needs torch

        deque(read_transcripts(warm.file), maxlen=0)
    if training.steps:
        if training.algorithm == "supervised":
            counts.append((training.supervised.at_once, None))
        else:
            first = (
                {family: float(family in stages[0].families) for family in build.source.families} if stages else None
            )
            counts.append((training.tasks_per_step, first))
    tasks = [task for count, shares in counts for task in build.source.sample("train", count, recipe.seed, shares)]
    if isinstance(build.source, Finite):  # those of later steps too
        tasks += build.source.tasks("train")[:_TASKS_CHECKED]
    require_scored(build, recipe.reward, tasks)
    for chosen in (*sets, recipe.evaluation.validation):
        build.set_tasks(chosen)
    return training


def _require_sandbox(build: Build) -> None:
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
    config: Any = recipe.modules[recipe.trained].config
    sampling = getattr(config, "sampling", None)  # one of your own may bring its own
    if sampling and (sampling.top_p < 1 or sampling.temperature == 0):
        raise RecipeError(
            f"agent.{recipe.trained}.sampling = {sampling!r} cannot be trained on",
            code="not-trainable",
            cause="greedy or nucleus sampling draws from another distribution than the recorded log-probabilities",
            fix="set temperature above 0 and top_p = 1",
        )


def lessons_parts_of(build: Build) -> LessonsParts:
    """The parts of a lesson session; `build.budget` is set. Raises `RecipeError` or `UnsupportedError`."""
    recipe, config, budget = build.recipe, build.recipe.lessons, build.budget
    assert config is not None
    assert budget is not None
    tasks, validation = _draw_lesson_tasks(build, config, recipe.evaluation.sets)
    _, validation_set = validation_settings(recipe)
    return LessonsParts(
        seed=recipe.seed,
        tasks=tasks,
        validation=validation,
        validation_set=validation_set,
        set_tasks=build.set_tasks,
        make_environment=build.environment,
        engines={role: build.engine((getattr(config, role) or config.reflector).engine) for role in ROLES},
        start=read(config.start) if config.start else LessonSet(),
        identity=identity(build.resolved),
        budget=budget,
        prepare=_warm_start(build, recipe.warm_start) if recipe.warm_start else None,
        lessons=config,
        evaluation=recipe.evaluation,
    )


def _draw_lesson_tasks(build: Build, config: LessonsConfig, sets: Sequence[SetConfig]) -> tuple[list[Task], list[Task]]:
    """The tasks to learn from and those of the gate, with all checked that needs no model, the `sets` too."""
    recipe = build.recipe
    _require_sandbox(build)
    Reflector(config, {}, Ledger(), recipe.seed)  # reads the roles' prompt files
    _, validation_set = validation_settings(recipe)
    with name_place("lessons.gate.tasks"):
        validation = build.set_tasks(validation_set) if config.gate.enabled else []
    # Where validation is of the same split, its questions are left out.
    shared = validation_set.tasks is None and validation_set.split == "train"
    excluded = {same_question(task.question) for task in validation} if shared else set[str]()
    with name_place("lessons.tasks"):
        count = config.tasks + len(excluded)
        drawn = build.source.fixed("train", seed=recipe.seed, families=config.families, count=count)
        tasks = [task for task in drawn if same_question(task.question) not in excluded][: config.tasks]
        if len(tasks) < config.tasks:
            raise RecipeError(
                f"lessons.tasks = {config.tasks}, and {len(tasks)} are left besides the gate's, of the same split",
                code="too-few-tasks",
                fix="give the gate a split of its own in evaluation.validation, or lower one of the two",
            )
        require_scored(build, recipe.reward, tasks)
    evaluated = {f"the set {chosen.name!r}": build.set_tasks(chosen) for chosen in sets}
    require_apart({"lessons.tasks": tasks, "the gate's validation tasks": validation, **evaluated})
    return tasks, validation


def validation_settings(recipe: Recipe) -> tuple[GateConfig, SetConfig]:
    """The gate, by default for a recipe without [lessons], and its tasks: some of the validation set's source."""
    refuse_strategy(recipe)
    lessons, validation = recipe.lessons, recipe.evaluation.validation
    gate = lessons.gate if lessons else GateConfig()
    families = (lessons and lessons.families) or validation.families
    return gate, validation.model_copy(update={"count": gate.tasks, "per_family": None, "families": families})


def require_apart(sets: dict[str, Sequence[Task]]) -> None:
    """Check that no two sets share a question, other than two that are only evaluated."""
    questions = {name: {same_question(task.question): task.id for task in tasks} for name, tasks in sets.items()}
    for (name, first), (other, second) in combinations(questions.items(), 2):
        if name.startswith("the set") and other.startswith("the set"):
            continue
        if same := first.keys() & second.keys():
            ids = sorted(f"{first[question]} = {second[question]}" for question in same)
            more = ", ..." if len(ids) > _IDS_SHOWN else ""
            raise RecipeError(
                f"{name} and {other} share {len(ids)} questions: {', '.join(ids[:_IDS_SHOWN])}{more}",
                code="tasks-overlap",
                fix="take them from different splits, or with other seeds or families",
            )


def _warm_start(build: Build, config: WarmStartConfig) -> Prepare:
    """A function that gives the planner the weights with which a training run of this recipe starts, once a run."""
    check_warm_start(build)

    async def prepare(run: RunDirectory, report: Callable[[str], None]) -> None:
        from midstream.training.supervised import warm_start

        if run.checkpoints.load_latest(build.policy.learner.load) is None:
            await warm_start(
                config,
                learner=build.policy.learner,
                student=build.policy.student(),
                source=build.source,
                make_environment=build.environment,
                teacher=teacher(build.recipe),
                validation=build.set_tasks(build.recipe.evaluation.validation),
                seed=build.recipe.warm_seed,
                report=report,
            )
            run.checkpoints.save(0, build.policy.learner.save)
        await build.policy.publish(0)

    return prepare
