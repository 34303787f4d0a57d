"""From a recipe's [lessons] to the parts of a lesson session, with every check that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from midstream.components.component import Context
from midstream.core.errors import RecipeError, name_place
from midstream.core.task import Task, same_question
from midstream.core.texts import kind_of
from midstream.evaluation.leakage import record_learned
from midstream.evaluation.settings import SetConfig
from midstream.lessons.access import read
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, identity, with_bases
from midstream.lessons.proposer import Proposer
from midstream.lessons.reflector import ROLES, Reflector
from midstream.lessons.session import LessonsParts, Prepare
from midstream.lessons.settings import GateConfig, LessonsConfig
from midstream.recipe.build import Build, require_scored
from midstream.recipe.check import teacher
from midstream.recipe.lessons import one_texts
from midstream.recipe.schema import Recipe
from midstream.recipe.sessions import check_warm_start, refuse_strategy, require_apart, require_sandbox
from midstream.runs import RunDirectory
from midstream.training.settings import WarmStartConfig


def lessons_parts_of(build: Build) -> LessonsParts:
    """The parts of a lesson session; `build.budget` is set. Raises `RecipeError` or `UnsupportedError`."""
    recipe, config, budget = build.recipe, build.recipe.lessons, build.budget
    assert config is not None
    assert budget is not None
    tasks, validation = draw_lesson_tasks(build, config, recipe.evaluation.sets)
    _, validation_set = validation_settings(recipe)
    return LessonsParts(
        seed=recipe.seed,
        tasks=tasks,
        validation=validation,
        validation_set=validation_set,
        set_tasks=build.set_tasks,
        make_environment=build.environment,
        proposers=proposers_of(build, config),
        engines={role: build.engine(config.role(role).engine) for role in ROLES},
        start=with_bases(read(config.start) if config.start else LessonSet(), bases_of(build, config.modules)),
        identity=identity(build.resolved),
        budget=budget,
        prepare=_warm_start(build, recipe.warm_start) if recipe.warm_start else None,
        lessons=config,
        evaluation=recipe.evaluation,
    )


def bases_of(build: Build, places: Sequence[str]) -> dict[str, str]:
    """The texts that the agent has without learning, of those places that have one text. Raises `RecipeError`."""
    known = one_texts(build.recipe.agent, build.tools, places, "lessons.modules")
    return {place: known[place] for place in places if kind_of(place) == "text"}


def proposers_of(build: Build, config: LessonsConfig) -> dict[str, Proposer]:
    """The proposers, by type. Raises `RecipeError` for one that does not fit the recipe."""
    return {each.type: each.config.build(Context(build, each, each.type)) for each in config.proposers}


def draw_lesson_tasks(build: Build, config: LessonsConfig, sets: Sequence[SetConfig]) -> tuple[list[Task], list[Task]]:
    """The tasks to learn from and those of the gate, with all checked that needs no model, the `sets` too."""
    recipe = build.recipe
    require_sandbox(build)
    # Reads the roles' prompt files.
    Reflector(config, {}, Ledger(), recipe.seed)
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
                learned=partial(record_learned, run, "warm start"),
            )
            run.checkpoints.save(0, build.policy.learner.save)
        await build.policy.publish(0)

    return prepare
