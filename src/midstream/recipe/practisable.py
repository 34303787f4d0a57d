"""From the objects of a recipe to what a practice session needs; what cannot work is refused before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.task import Task
from midstream.evaluation import SetConfig
from midstream.practice.ledger import Cache, Ledger
from midstream.practice.library import Library, identity
from midstream.practice.reflector import ROLES, Reflector
from midstream.practice.session import PracticeParts, Prepare
from midstream.practice.settings import PracticeConfig
from midstream.recipe.build import Build
from midstream.recipe.check import teacher, warm_seed
from midstream.recipe.library import read
from midstream.recipe.trainable import check_warm_start
from midstream.runs import RunDirectory
from midstream.training.settings import WarmStartConfig

_CACHED = ("agent", "engines", "tools", "reward", "sandbox")  # what of a recipe decides what comes of a rollout
_NAMED = 3


def practice_parts_of(build: Build) -> PracticeParts:
    """Everything that a practice session needs."""
    recipe, config, budget = build.recipe, build.recipe.practice, build.budget
    if build.runs_code and build.sandbox.tier == "unsafe":
        raise UnsupportedError(
            f"recipe {recipe.name!r} would practise without a sandbox",
            cause="in practice a model writes code by the thousand and nobody looks at it",
            fix="leave out --unsafe; midstream doctor says what a sandbox needs on this machine",
        )
    assert config is not None
    assert budget is not None
    Reflector(config, {}, Ledger(), recipe.seed)  # reads the roles' prompt files
    validation_set = gate_set(recipe.evaluation.validation, config)
    with _asked_for("practice.gate.tasks"):
        validation = build.set_tasks(validation_set) if config.gate.enabled else []
    with _asked_for("practice.tasks"):
        tasks = _tasks(build, config, validation_set, validation)
    sets = {f"the set {chosen.name!r}": build.set_tasks(chosen) for chosen in recipe.evaluation.sets}
    require_apart({"practice.tasks": tasks, "the gate's validation tasks": validation, **sets})
    agent = identity(build.resolved)
    return PracticeParts(
        seed=recipe.seed,
        tasks=tasks,
        validation=validation,
        validation_set=validation_set,
        set_tasks=build.set_tasks,
        make_environment=build.environment,
        engines={role: build.engine((getattr(config, role) or config.reflector).engine) for role in ROLES},
        start=read(config.start) if config.start else Library(),
        identity=agent,
        budget=budget,
        cache=_cache(build, config, agent),
        prepare=_warm_start(build, recipe.warm_start) if recipe.warm_start else None,
        practice=config,
        evaluation=recipe.evaluation,
    )


def gate_set(validation: SetConfig, config: PracticeConfig) -> SetConfig:
    """What the gate tests on: `practice.gate.tasks` of the validation set's source and split, of the same families."""
    families = config.families or validation.families
    return validation.model_copy(update={"count": config.gate.tasks, "per_family": None, "families": families})


@contextmanager
def _asked_for(setting: str) -> Iterator[None]:
    """Say of tasks that are not there which setting asked for them."""
    try:
        yield
    except RecipeError as error:
        fix = f"{error.fix} (asked for by {setting} and practice.families)"
        raise RecipeError(error.what, cause=error.cause, fix=fix) from error


def _tasks(build: Build, config: PracticeConfig, chosen: SetConfig, validation: Sequence[Task]) -> list[Task]:
    """The tasks to learn from. Where validation is of the same split, what it asks is left out of them."""
    shared = chosen.tasks is None and chosen.split == "train" and config.gate.enabled
    asked = {_question(task) for task in validation} if shared else set[str]()
    count = config.tasks + len(asked)
    drawn = build.source.fixed("train", seed=build.recipe.seed, families=config.families, count=count)
    tasks = [task for task in drawn if _question(task) not in asked][: config.tasks]
    if len(tasks) < config.tasks:
        raise RecipeError(
            f"of {len(drawn)} tasks {len(tasks)} are left to learn from, fewer than practice.tasks = {config.tasks}",
            cause="the others ask what the gate's validation tasks ask, which are of the same split",
            fix="give them a split of their own, or lower one of the two",
        )
    for task in tasks:
        build.reward(build.recipe.reward).check(task)
    return tasks


def require_apart(sets: dict[str, Sequence[Task]]) -> None:
    """Refuse sets that have a question in common: what was learned from, or tested on, would be measured on.

    Raises:
        RecipeError: names them.
    """
    questions = {name: {_question(task): task.id for task in tasks} for name, tasks in sets.items()}
    for (one, first), (other, second) in combinations(questions.items(), 2):
        if one.startswith("the set") and other.startswith("the set"):
            continue  # what is only evaluated may overlap
        if same := first.keys() & second.keys():
            ids = sorted(f"{first[question]} = {second[question]}" for question in same)
            more = ", ..." if len(ids) > _NAMED else ""
            raise RecipeError(
                f"{one} and {other} ask the same in {len(ids)} cases: {', '.join(ids[:_NAMED])}{more}",
                cause="a lesson could hold what it is then measured on",
                fix="take them from different splits, or with other seeds or families",
            )


def _question(task: Task) -> str:
    return " ".join(task.question.split()).casefold()


def _cache(build: Build, config: PracticeConfig, agent: str) -> Cache | None:
    if config.cache is None:
        return None
    validation = build.resolved["evaluation"]["validation"]
    return Cache(
        config.cache, {**{key: build.resolved[key] for key in _CACHED}, "validation": validation, "identity": agent}
    )


def _warm_start(build: Build, config: WarmStartConfig) -> Prepare:
    """What makes the planner's weights those that a training run of this recipe would begin with, once a run."""
    check_warm_start(build)

    async def prepare(run: RunDirectory, report: Callable[[str], None]) -> None:
        from midstream.training.supervised import warm_start

        if run.checkpoints.load_latest(build.policy.learner.load, report=report) is None:
            await warm_start(
                config,
                learner=build.policy.learner,
                student=build.policy.student(),
                source=build.source,
                make_environment=build.environment,
                teacher=teacher(build.recipe),
                validation=build.set_tasks(build.recipe.evaluation.validation),
                seed=warm_seed(build.recipe),
                report=report,
            )
            run.checkpoints.save(0, build.policy.learner.save)
        await build.policy.publish(0)

    return prepare
