"""Start and continue work: train, resume, evaluate, solve, export, validate a set of lessons.

    from midstream import api

    run = api.train("flow-grpo-tiny", out="runs/mine")
    api.evaluate("runs/mine", benchmarks=["bamboogle"])
    trajectory = api.solve("What is 45 plus 17 ?", "runs/mine")

The command line, studies and notebooks call these functions. Each one returns when its work is done; one that is
interrupted leaves a run directory that `resume` continues. Each runs an event loop: where one already runs, as in a
notebook, `await asyncio.to_thread(api.solve, "What is 45 plus 17 ?", "runs/mine")`. Several have these arguments:

    unsafe      run code that a model writes without a sandbox
    record      the directory to record tools' answers in
    replay      the directory to replay tools' answers from
    listener    receives the run's events (`core/events.py`); by default warnings are printed
    track       experiment trackers: names ("wandb", "mlflow"), or objects (docs/tracking.md)
    changes     what differs from the recipe (`recipe/overrides.py`)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from midstream.components import own
from midstream.components.component import EngineConfig
from midstream.components.kinds import MODULES
from midstream.core.agent import lessons_digest
from midstream.core.errors import RecipeError, RunError, UsageError
from midstream.core.events import AgentBuilt, Listener, Note, Phase, RunLoads, Work
from midstream.core.metrics import Spent
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.run import every_set, metric_of, separate_learned
from midstream.evaluation.session import JournalStore, check_unchanged, evaluate_sets, has_results, reopen, task_digests
from midstream.exports.write import Exported
from midstream.exports.write import export as write_export
from midstream.lessons.commit import read_updates
from midstream.lessons.feedback import digest, read_votes
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, identity, render_modules
from midstream.lessons.similarity import leak_guard
from midstream.lessons.validation import Validation
from midstream.lessons.validation import validate as measure_lessons
from midstream.process import RunCoroutine, event_loop, status_on_failure, use_threads
from midstream.recipe.build import Build, prompt_notes, try_rewards, unset_keys
from midstream.recipe.check import check, is_dialogues, set_reward
from midstream.recipe.files import shipped_recipes, to_toml, with_overrides
from midstream.recipe.lessons import check_shown, editable_lessons, learned_keys, split, unproven
from midstream.recipe.overrides import (
    RECIPE,
    AgentChanges,
    EvaluationChanges,
    LearningChanges,
    Source,
    agent_recipe,
    changed_recipe,
    evaluation_recipe,
    has_weights,
    recipe_changes,
    run_recipe,
    run_table,
    validation_recipe,
)
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.recipe.serving import served
from midstream.recipe.sessions import parts_of, refuse_strategy, require_sets, session_of, validation_settings
from midstream.report.progress import print_warnings
from midstream.rollout import Environment, OnDone, rollout
from midstream.runs import EvaluationInfo, Journal, RunDirectory, results
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.directory import write_info
from midstream.runs.info import collect_info, differing_settings
from midstream.runs.segments import result_name
from midstream.sources.finite import Finite
from midstream.torchrun import joined, leave_to_rank_0, rank
from midstream.trackers import Track, tracked, trackers_of
from midstream.training.protocols import TrainableWorld
from midstream.view.bundle import AT_END, write_report

if TYPE_CHECKING:
    from midstream.training.trial import RecipeTrial

_SETTINGS_SHOWN = 3


def train(
    recipe: Recipe | str,
    out: str | Path | None = None,
    *,
    exist_ok: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    track: Track = (),
    listener: Listener = print_warnings,
) -> RunDirectory:
    """Train a recipe's weights ([training]) or its set of lessons ([lessons]) to the end.

    Args:
        recipe: a recipe, or the name or file of one.
        out: the run directory; by default a new one under `runs/`.
        exist_ok: if `out` holds a run of this very recipe, resume it, or return it if it is finished.

    Raises:
        RunError: `out` is not empty, or with `exist_ok` holds a run of another recipe.
    """
    recipe = changed_recipe(recipe) if isinstance(recipe, str) else recipe
    root = Path(out) if out else _new_root(f"{recipe.name}-s{recipe.seed}")
    run = RunDirectory.open(root) if exist_ok and (root / "run.json").exists() else None
    if run is not None and (run.info().kind == "evaluation" or differing(run, recipe)):
        raise RunError(
            f"{root} already holds a run with other settings",
            code="run-exists",
            fix=f"choose another directory with --out, or move {root} away",
        )
    return _train(root, run, recipe, record=record, replay=replay, track=track, listener=listener)


def try_training(recipe: Recipe | str) -> RecipeTrial:
    """Play some tasks and make one step of a recipe, which is thrown away, to see if training can work.

    Raises `UsageError` for a recipe that trains no weights, or begins with a warm start.
    """
    recipe = changed_recipe(recipe) if isinstance(recipe, str) else recipe
    if recipe.training is None or recipe.training.algorithm != "flow_grpo" or recipe.warm_start is not None:
        raise UsageError(
            f"recipe {recipe.name!r} has no reinforcement of a pretrained model to try",
            code="not-trainable",
            fix="midstream train it without --try; --dry-run says how much there is to do",
        )
    with Build(recipe) as build:
        parts = parts_of(build)
        from midstream.training.trial import measure  # needs torch, which `parts_of` has checked

        use_threads(recipe, learns=True)
        return asyncio.run(measure(parts))


def resume(
    run: RunDirectory | str | Path,
    *,
    overrides: Sequence[str] = (),
    retry_errors: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    track: Track = (),
    listener: Listener = print_warnings,
) -> RunDirectory:
    """Resume an interrupted or failed training run, lesson run or evaluation; a finished one stays as it is.

    Args:
        run: the run directory, or its path.
        overrides: `budget.LIMIT=VALUE` settings; a run that ended at a limit then continues.
        retry_errors: of an evaluation, run again what ended in an infrastructure error.

    Raises:
        UsageError: a setting that cannot change, or `retry_errors` of a training run.
    """
    run = run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))
    kind, asked = run.info().kind, run.info().evaluation
    refused = [text for text in overrides if not text.startswith("budget.")]
    if refused:
        raise UsageError(
            f"--set {refused[0]} cannot be changed in {run.root} ({kind})",
            code="inputs-changed",
            fix="start over with another --out; only budget.* may change",
        )
    if changed := recipe_changes(run):
        raise UsageError(
            f"{run.recipe_path} was changed (the run's own | now): {'; '.join(changed[:_SETTINGS_SHOWN])}",
            code="inputs-changed",
            fix=f"undo the change, or start over with it: midstream train {run.recipe_path} --out ANOTHER",
        )
    # Before any of it is imported.
    check_own(run, run_table(run))
    recipe = parse_recipe(with_overrides(run_table(run), overrides))
    if asked is not None:
        return _evaluate_in(run.root, run, recipe, asked, retry_errors=retry_errors, track=track, listener=listener)
    if retry_errors:
        raise UsageError(
            f"{run.root} is a {kind} run: --retry-errors does nothing there",
            code="option-without-effect",
            fix=f"midstream resume {run.root}",
        )
    # A lesson run that a limit ended is finished: other limits may let it continue.
    limited = bool(overrides) and recipe.lessons is not None and run.status().message != ""
    return _train(run.root, run, recipe, limited=limited, record=record, replay=replay, track=track, listener=listener)


def evaluate(
    target: Source | Path,
    out: str | Path | None = None,
    *,
    retry_errors: bool = False,
    unsafe: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    track: Track = (),
    listener: Listener = print_warnings,
    **changes: Unpack[EvaluationChanges],
) -> RunDirectory:
    """Evaluate a run's newest checkpoint or lesson set, or a recipe's agent, on sets of tasks.

    Each trajectory is kept as it ends: one that has a result never runs again.

    Args:
        target: a training or lesson run, or a recipe by name, file or table. `RUN@STEP` is the run's checkpoint of
            that step, of a lesson run `RUN@VERSION` that version of its lesson set.
        out: the evaluation's directory, by default a new one under `runs/`. If it holds this very evaluation, what is
            missing is run.
        retry_errors: run again what ended in an infrastructure error.

    Raises:
        RunError: `out` holds something else, or its tasks or weights have changed.
    """
    target, trained, step = _opened(target, changes)
    recipe = evaluation_recipe(target, **changes)
    asked = EvaluationInfo(
        run=os.path.abspath(trained.root) if trained and has_weights(trained) else None,
        step=step,
        unsafe=unsafe,
        record=os.path.abspath(record) if record else None,
        replay=os.path.abspath(replay) if replay else None,
    )
    root = Path(out) if out else _new_root(f"eval-{recipe.name}")
    begun = RunDirectory.open(root) if (root / "run.json").exists() else None
    if retry_errors and out is None:
        raise UsageError(
            "--retry-errors without --out does nothing: a new evaluation has no errors yet",
            code="option-without-effect",
            fix="name the evaluation: midstream resume EVALUATION --retry-errors",
        )
    if begun is not None:
        asked = _same_evaluation(begun, recipe, asked)
        engines = run_recipe(begun).engines  # with the prices that it began with
        priced = {name: engine for name, engine in engines.items() if not own.is_reference(engine.type)}
        recipe = recipe.model_copy(update={"engines": {**recipe.engines, **priced}})
    return _evaluate_in(root, begun, recipe, asked, retry_errors=retry_errors, track=track, listener=listener)


def solve(
    question: str,
    source: Source | Path = RECIPE,
    *,
    temperature: float | None = None,
    unsafe: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    listener: Listener = print_warnings,
    **changes: Unpack[AgentChanges],
) -> Trajectory:
    """Answer one question with the agent of a recipe or run.

    Args:
        question: the question.
        source: a training or lesson run, or a recipe by name, file or table.
        temperature: the planner's; by default 0 with the weights of a run, else the recipe's.

    Returns:
        The trajectory, without a reward; `error` is set if the run was lost to an infrastructure error.
    """
    if not question.strip():
        raise UsageError(
            f"the question is empty: {question!r}",
            code="empty-value",
            fix='e.g. midstream solve "What is 45 plus 17 ?"',
        )
    recipe = agent_recipe(_opened(source, changes)[0], **changes)
    question = _readable(question, recipe)
    with answering(
        source,
        recipe,
        temperature=temperature,
        unsafe=unsafe,
        record=record,
        replay=replay,
        listener=listener,
        **changes,
    ) as (environment, run_coroutine, seed):
        task = Task(id="question", question=question, answer="")
        [group] = run_coroutine(rollout(environment, [task], seed=seed, listener=listener))
    # There is no gold answer to score by.
    return group.trajectories[0].model_copy(update={"gold": None, "reward": None})


def _readable(question: str, recipe: Recipe) -> str:
    """The question as the recipe's model reads it, where its vocabulary is its world's; others read any text."""
    if not any(engine.config.needs_world for engine in recipe.engines.values()):
        return question
    with Build(recipe) as build:
        return build.source.readable(question) if isinstance(build.source, TrainableWorld) else question


@contextmanager
def answering(
    source: Source | Path,
    recipe: Recipe | None = None,
    *,
    temperature: float | None = None,
    unsafe: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    listener: Listener = print_warnings,
    continuous: bool = False,
    **changes: Unpack[AgentChanges],
) -> Iterator[tuple[Environment, RunCoroutine, int]]:
    """The agent of a recipe or run, built to answer questions: what a rollout needs, what runs it, and the seed.

    Arguments as of `solve`. `recipe`: that of the agent, if the caller has it. `continuous`: engines in this process
    answer each request as it comes, so that questions may come at any time; a strategy is refused.
    """
    source, run, step = _opened(source, changes)
    recipe = recipe or agent_recipe(source, **changes)
    if continuous:
        refuse_strategy(recipe)
    named = str(run.root) if run else source if isinstance(source, str) else recipe.name
    if is_dialogues(recipe.tasks):
        raise RecipeError(
            f"the agent of recipe {recipe.name!r} cannot answer a single question",
            code="dialogues-not-supported",
            cause=f"its tasks, tasks.type = {recipe.tasks.type!r}, are dialogues with their own functions",
            fix=f"midstream eval {named}, then midstream show DIR TRAJECTORY",
        )
    if run is None and recipe.warm_start is not None:
        raise RecipeError(
            f"the {recipe.trained} of recipe {recipe.name!r} is not trained",
            code="untrained",
            cause="its weights come from a warm start and training",
            fix=f"midstream train {named} --out runs/mine, then midstream solve ... --planner runs/mine",
        )
    build = Build(
        recipe,
        adapters=(run.root / "adapters" / "asked") if run else Path("adapters"),
        unsafe=unsafe,
        record=record,
        replay=replay,
        budget=_budget_of(recipe),
        continuous=continuous,
    )
    with event_loop(build) as run_coroutine, ExitStack() as servers:
        _announce("solve", build, listener)  # before servers start and weights are loaded, which takes time
        _require_keys(build)
        servers.enter_context(served(recipe, listener))  # a served model's weights are an adapter that it loads
        if run is not None and has_weights(run):
            step = load_weights(build, run, run_coroutine, step=step, listener=listener)
            temperature = 0.0 if temperature is None else temperature
        environment = build.environment(temperature=temperature)
        _check_proven(build, _weights_digest(run, step), listener)
        yield environment, run_coroutine, recipe.seed


@contextmanager
def recording(
    recipe: Recipe, out: str | Path | None = None, *, listener: Listener = print_warnings
) -> Iterator[tuple[RunDirectory, Build, RunCoroutine, OnDone]]:
    """A run directory for rollouts that others start; the context yields a function that keeps trajectories.

    They are in a journal as they end, and at the end of the context in the part `sessions` of the run.
    """
    root = Path(out) if out else _new_root(recipe.name)
    run = RunDirectory.open(root) if (root / "run.json").exists() else None
    build = Build(recipe, budget=_budget_of(recipe))
    with event_loop(build) as run_coroutine, served(recipe, listener):
        _require_keys(build)
        _announce("evaluation", build, listener)
        run = run or _create_run(root, build, EvaluationInfo())
        with run.lock(), _counted(run, build.budget), closing(Journal(run.results_path)) as journal:
            run.set_status("running")
            try:
                yield run, build, run_coroutine, partial(results.append, journal, "sessions")
            finally:
                with run.trajectories.writing("sessions") as write:
                    for result in results.read(run.results_path):
                        write(result.trajectory)
                run.set_status("finished")


def export(
    run: RunDirectory | str | Path,
    format: str,
    out: str | Path,
    *,
    part: str = "",
    module: str | None = None,
    everything: bool = False,
) -> Exported:
    """Write trajectories of a run in the format of another tool (docs/tracking.md).

    Args:
        run: the run directory, or its path.
        format: "trl", "sft", "parquet", or one of an installed package.
        out: the new file.
        part: a pattern of parts of the run, e.g. "step-*"; by default all that the format is for.
        module: of "trl" and "sft", whose replies; by default the module that learns, of an agent of your own all.
        everything: of "sft", failures too.

    Raises:
        UsageError: nothing is left to write, or `out` is there.
    """
    run = run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))
    if module is None:
        agent: Any = run.info().resolved.get("agent", {})
        [module, *_] = MODULES.get(agent.get("type", "agentflow"), ("",))
    return write_export(run, format, Path(out), module=module, parts=part, everything=everything)


def validate_lessons(
    named: str,
    recipe: str | None = None,
    *,
    unsafe: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    listener: Listener = print_warnings,
    **changes: Unpack[LearningChanges],
) -> LessonsTest:
    """Measure whether a lesson set helps an agent, against no lessons and lesson by lesson, on new rollouts.

    The result is a new version of the lessons, with every lesson's effect and, if it helps, the agent that it is proven
    for. Each rollout is kept as it ends: a validation that was stopped continues when it is called again.

    Args:
        named: a lesson run or a JSON file.
        recipe: the agent's recipe; by default the run's own.
    """
    with editable_lessons(named) as place:
        chosen, run = validation_recipe(place, recipe, **changes), None if recipe else place.run
        lesson_set = place.lesson_set
        if not lesson_set.rendered:
            raise UsageError(f"{named} has no lessons", code="empty-lessons", fix="add some, or learn")
        check_shown(chosen.agent, render_modules(lesson_set), named)
        kept = place.path / "validation" if place.run else place.path.with_suffix(".validation")
        gate, validation_set = validation_settings(chosen)
        budget = _budget_of(chosen) or Budget(BudgetConfig())
        build = Build(
            chosen,
            adapters=(run.root if run else Path()) / "adapters",
            unsafe=unsafe,
            record=record,
            replay=replay,
            budget=budget,
        )
        with served(chosen, listener), event_loop(build) as run_coroutine:
            step = None
            if run is not None and has_weights(run):
                step = load_weights(build, run, run_coroutine, listener=listener)
            agent = identity(build.resolved, _weights_digest(run, step))
            tasks = build.set_tasks(validation_set)
            _require_keys(build)
            _announce("validation", build, listener)
            with closing(Ledger(kept)) as ledger:
                measuring = measure_lessons(
                    lesson_set,
                    tasks=tasks,
                    environment=build.environment(chosen=validation_set),
                    ledger=ledger,
                    agent=agent,
                    config=gate,
                    seed=chosen.seed,
                    report=lambda text: listener(Phase(text)),
                )
                found = run_coroutine(measuring)
        after = found.applied(lesson_set, agent)
        where = place.save(after, by="validation", note=f"{found.test.verdict} for {agent}")
        if place.run is not None:
            place.run.trajectories.write(f"validation-{split(where)[1]}", ledger.gathered(agent))
        shutil.rmtree(kept)
    guard = leak_guard(tasks)
    notes = [f"{lesson.id}: {reason}" for lesson in lesson_set.rendered if (reason := guard(lesson.text))]
    return LessonsTest(where=where, lesson_set=after, agent=agent, found=found, spent=budget.spent(), notes=notes)


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonsTest:
    """A tested lesson set: its place, the agent, the effects, the cost; `notes` name lessons that copy a task."""

    where: str
    lesson_set: LessonSet
    agent: str
    found: Validation
    spent: Spent
    notes: Sequence[str]


# --- training and lessons ---------------------------------------------------------------------------------------------


def _train(
    root: Path,
    run: RunDirectory | None,
    recipe: Recipe,
    *,
    limited: bool = False,
    record: Path | None,
    replay: Path | None,
    track: Track,
    listener: Listener,
) -> RunDirectory:
    """Run a session to its end in `run`, or in a new directory at `root`; a finished one only if it was `limited`."""
    if run is not None and run.status().state == "finished" and not limited:
        leave_to_rank_0()
        return run
    trackers = trackers_of(track)
    budget = _budget_of(recipe)
    listener = listener if rank() == 0 else lambda event: None
    learns = recipe.training is not None or recipe.warm_start is not None
    _emit_loads(recipe, root, listener, learns=learns)
    use_threads(recipe, learns=learns)
    build = Build(recipe, adapters=root / "adapters", record=record, replay=replay, budget=budget)
    with event_loop(build) as run_coroutine, joined(build):
        # Before the directory is created: a recipe that cannot run leaves none behind.
        make_session = recipe.learner.session(build) or session_of(build)
        _require_keys(build)
        run_coroutine(try_rewards(build))
        run = run or _create_run(root, build)
        _begin_work(run, build, "", listener)
        with (
            run.lock(),
            tracked(run, trackers, listener) as listener,
            status_on_failure(run),
            _counted(run, None if recipe.lessons else budget),  # a lesson session opens its own
            served(recipe, listener),
        ):
            ended = run_coroutine(make_session(run, listener).run())
            run.set_status("finished", ended, step=len(read_updates(run)) if recipe.lessons else None)
            write_report(run, most=AT_END)  # which shows the state, too
    return run


_naming = threading.Lock()
_new_roots: set[Path] = set()  # directories of this process, whose runs may begin in one second, and in several threads


def _budget_of(recipe: Recipe) -> Budget | None:
    """The budget of a run; None without limits: its requests are then not counted."""
    limits = recipe.budget or BudgetConfig()
    # What a lesson run used is on record, also without a limit.
    return Budget(limits) if limits.limits or recipe.lessons is not None else None


@contextmanager
def _counted(run: RunDirectory, budget: Budget | None) -> Iterator[None]:
    """Have `budget` count on from what the run has used before."""
    if budget is None:
        yield
        return
    budget.open(run.ledger_dir / "spent.jsonl")
    with closing(budget):
        yield


def differing(began: RunDirectory, recipe: Recipe) -> list[str]:
    """What differs between a run's recipe and another, apart from limits and from where files lie.

    Raises `RunError` if nothing does, but a component of your own has another digest.
    """
    settings = check(recipe)
    both = own.portable(check(run_recipe(began))), own.portable(settings)
    old, new = ({key: value for key, value in table.items() if key != "budget"} for table in both)
    if old != new:
        return differing_settings(old, new) or ["..."]
    check_own(began, settings)
    return []


def _new_root(name: str) -> Path:
    """A run directory under `runs/` that nothing has."""
    base = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    places = chain([base], (base.with_name(f"{base.name}-{number}") for number in count(2)))
    with _naming:
        root = next(place for place in places if place not in _new_roots and not place.exists())
        _new_roots.add(root)
    return Path(os.path.relpath(root))


def _create_run(root: Path, build: Build, asked: EvaluationInfo | None = None) -> RunDirectory:
    recipe = build.recipe
    shown, votes = lessons_digest(build.lessons), _votes_digest(recipe)
    info = collect_info(recipe.name, recipe.seed, build.resolved, asked, shown, votes)
    return RunDirectory.create(root, info, to_toml(build.resolved))


def _votes_digest(recipe: Recipe) -> str:
    """The digest of the votes of `agent.filter`; "" without it, and for a lesson run that itself votes."""
    if recipe.agent.filter is None or (recipe.lessons and recipe.lessons.feedback):
        return ""
    return digest(read_votes(recipe.agent.filter.votes))


def _begin_work(run: RunDirectory, build: Build, weights: str, listener: Listener) -> None:
    """Check that lessons and votes are those that the run began with, and emit its first events."""
    run.require_whole()
    held, now = run.info().lessons, lessons_digest(build.lessons)
    if held != now:
        raise RunError(
            f"the lessons of {run.root} have changed since it began: {held or 'none'}, now {now or 'none'}",
            code="inputs-changed",
            cause=f"{build.resolved['agent'].get('lessons')} was changed; results on both would be counted as one",
            fix="restore it (a version of a run's lesson set, RUN@VERSION, never changes), or start over with --out",
        )
    if run.info().votes != _votes_digest(build.recipe):
        raise RunError(
            f"the votes that agent.filter counts have changed since {run.root} began",
            code="inputs-changed",
            cause="somebody has voted meanwhile; answers held back by different votes would be counted as one",
            fix=f"restore {build.resolved['agent']['filter']['votes']}, or start over with --out; a copy of it for "
            "agent.filter.votes stays as it is",
        )
    check_own(run, build.resolved, correct=True)
    for path in dict.fromkeys(map(own.file_of, own.references(build.resolved))):
        if path is not None and path.is_relative_to(run.own_dir.resolve()):
            listener(Note(f"{path.name} is gone from its place; the run's copy is used: {path}"))
    _announce(run.info().kind, build, listener)
    _check_proven(build, weights, listener)


def check_own(run: RunDirectory, resolved: Mapping[str, Any], *, correct: bool = False) -> None:
    """Check that components of your own are those that a run began with. Raises `RunError` if not.

    A reward that has failed from the first run on may be corrected; with `correct`, of a locked run, it is recorded.
    """
    now, began = tuple(own.used(resolved)), run.info().own
    # By place: a run that was moved names its copies by another path.
    changed = {
        part.reference
        for part, other in zip_longest(now, began)
        if part is not None and (other is None or part.digest != other.digest)
    }
    if changed and run.info().evaluation and not has_results(run):
        rewards = [resolved["reward"], *(chosen.get("reward", {}) for chosen in resolved["evaluation"]["sets"])]
        if changed <= set(own.references(rewards)):
            if correct:
                write_info(run, run.info().model_copy(update={"own": now}))
            return
    if changed:
        raise RunError(
            f"{', '.join(sorted(changed))} {'has' if len(changed) == 1 else 'have'} changed since {run.root} began",
            code="inputs-changed",
            fix=f"restore what has changed (a copy of a file is in {run.own_dir}), or start over with --out",
        )


# --- evaluation -------------------------------------------------------------------------------------------------------


def _opened(source: Source | Path, changes: AgentChanges) -> tuple[Source, RunDirectory | None, int | None]:
    """The source with a run opened, the run if it is one, and the step of `RUN@STEP`.

    The version in `RUN@VERSION` of a lesson run becomes the lesson set in `changes`.
    """
    if isinstance(source, RunDirectory):
        return source, source, None
    if not isinstance(source, str | Path):  # a table
        return source, None, None
    run, number = trained_run(source), split(source)[1]
    if run is not None and number is not None and run.info().kind == "lessons":
        changes.setdefault("lessons", str(source))
        number = None
    return run or str(source), run, number


def trained_run(target: str | Path) -> RunDirectory | None:
    """The training or lesson run at `target`, which may be `RUN@STEP`; None for a recipe.

    Raises `RunError` if an evaluation is there.
    """
    target, _ = split(target)
    text = str(target)
    is_recipe = text.endswith(".toml") or text in shipped_recipes()
    is_recipe |= own.is_reference(text) and not os.path.exists(text)  # "agents/mine.py:solve"
    is_path = not is_recipe and (os.sep in text or os.path.isdir(text))
    if not is_path and not os.path.exists(Path(target) / "run.json"):
        return None
    run = RunDirectory.open(Path(target))
    if run.info().kind == "evaluation":
        raise RunError(
            f"{target} holds an evaluation, which cannot be evaluated",
            code="wrong-kind-of-run",
            fix=f"name a training or lesson run, or a recipe; midstream show {target} shows this one",
        )
    return run


def _same_evaluation(begun: RunDirectory, recipe: Recipe, asked: EvaluationInfo) -> EvaluationInfo:
    """What the directory evaluates, if that is what is asked for. Raises `RunError` if it is not."""
    held = begun.info().evaluation
    given = {"run", "unsafe", "record", "replay"}
    other_step = held is not None and asked.step not in (None, held.step)
    if held is None or other_step or held.model_dump(include=given) != asked.model_dump(include=given):
        what = f"a {begun.info().kind} run" if held is None else "an evaluation of something else, or with other tools"
    elif changes := differing(begun, recipe):
        changed = "; ".join(changes[:_SETTINGS_SHOWN])
        what = "an evaluation with other settings" + (f" (its own | those given: {changed})" if changed else "")
    else:
        return held
    raise RunError(
        f"{begun.root} holds {what}",
        code="run-exists",
        fix=f"choose another directory with --out, or resume that one: midstream resume {begun.root}",
    )


def _evaluate_in(
    root: Path,
    begun: RunDirectory | None,
    recipe: Recipe,
    asked: EvaluationInfo,
    *,
    retry_errors: bool,
    track: Track,
    listener: Listener,
) -> RunDirectory:
    """Evaluate what is not done yet in `begun`, or in a new directory at `root`."""
    if begun is not None and begun.status().state == "finished" and not retry_errors:
        return begun
    trackers = trackers_of(track)
    trained = RunDirectory.open(Path(asked.run)) if asked.run else None
    _emit_loads(recipe, root, listener, learns=trained is not None)
    build = Build(
        recipe,
        adapters=(trained.root if trained else root) / "adapters" / "asked",
        unsafe=asked.unsafe,
        record=Path(asked.record) if asked.record else None,
        replay=Path(asked.replay) if asked.replay else None,
        budget=_budget_of(recipe),
        kept=root,
    )
    with event_loop(build) as run_coroutine, ExitStack() as servers:
        # All tasks are drawn, and everything is built, before the directory is created.
        require_sets(recipe)
        evaluations = list(
            every_set(recipe.evaluation, build.set_tasks, build.environment, policy=recipe.name, seed=recipe.seed)
        )
        evaluations = separate_learned(evaluations, learned_keys(build.resolved, trained))
        for part in {part.chosen.name: part for part in evaluations if part.learned}.values():
            name = part.chosen.name.removesuffix("-learned")
            many = f"{len(part.tasks):,} tasks of {name} were learned from ({part.learned})"
            listener(Note(f"{many}: they are a set of their own, {part.chosen.name}, and say nothing of new tasks"))
        _require_keys(build)
        run_coroutine(try_rewards(build))
        tasks = task_digests(evaluations)
        servers.enter_context(served(recipe, listener))  # a served model's weights are an adapter that it loads
        step, checkpoint = None, None
        if trained is not None:
            step = load_weights(build, trained, run_coroutine, step=asked.step, listener=listener)
            checkpoint = trained.checkpoints.digest(step)
        evaluations = [replace(part, step=step, numbered=False) for part in evaluations]
        if begun is None:
            about = asked.model_copy(update={"tasks": tasks, "step": step, "checkpoint": checkpoint})
            begun = _create_run(root, build, about)
        check_unchanged(begun, tasks, checkpoint)
        _begin_work(begun, build, _weights_digest(trained, step), listener)
        usual = build.reward(recipe.reward).name if recipe.reward.config.asks == "never" else recipe.reward.type
        own = [one for one in evaluations if set_reward(recipe, one.chosen) not in (recipe.reward, one.chosen.reward)]
        for name, metric in {part.chosen.name: metric_of(part) for part in own}.items():
            if not metric.startswith(usual):  # a judge's name has its model
                listener(Note(f"{name} is scored by {metric}, its own reward, not by the recipe's: {usual}"))
        for chosen in recipe.evaluation.sets:
            source = build.tasks(chosen.tasks or recipe.tasks)
            left_out = source.left_out.get(chosen.split, {}) if isinstance(source, Finite) else {}
            for reason, count in left_out.items():
                listener(Note(f"{chosen.name}: {count:,} left out: {reason}"))
        store = JournalStore(begun.results_path, report=lambda text: listener(Note(text)))
        with (
            begun.lock(),
            tracked(begun, trackers, listener) as listener,
            status_on_failure(begun),
            _counted(begun, build.budget),
            closing(store),
        ):
            # A crash may have left trajectories in the journal of sets whose numbers are written.
            done = {result_name(result.set_name, result.sampling) for result in begun.evaluations.read()}
            if done:
                store.retain(lambda name, failed: name not in done)
            if retry_errors:
                reopen(begun, evaluations, store)
            run_coroutine(evaluate_sets(begun, evaluations, store, listener))
            begun.set_status("finished")
            if not any(result.errors for result in begun.evaluations.read()):  # `--retry-errors` needs them
                build.agent_runs.forget()
            write_report(begun)
    return begun


# --- the agent --------------------------------------------------------------------------------------------------------


def load_weights(
    build: Build,
    run: RunDirectory,
    run_coroutine: RunCoroutine,
    *,
    step: int | None = None,
    listener: Listener = print_warnings,
) -> int:
    """Have the planner of `build` sample from the run's checkpoint of `step`, or from its newest good one.

    `run_coroutine` is that of `event_loop(build)`. Returns the step of the checkpoint.
    """
    use_threads(build.recipe, learns=True)
    from midstream.training.session import load_policy

    found = None
    if step is None or step in run.checkpoints.steps():
        found = load_policy(build.policy.learner, run, max_step=step)
    if found is None or step not in (None, found):
        there = ", ".join(f"{run.root}@{saved}" for saved in run.checkpoints.steps())
        raise RunError(
            f"{run.root} has no checkpoint of step {step}",
            code="no-checkpoint",
            cause="a run keeps its newest checkpoints only",
            fix=f"evaluate one that is there, with another --out: {there or 'none'}",
        )
    run_coroutine(build.policy.publish(found))
    return found


def _weights_digest(run: RunDirectory | None, step: int | None) -> str:
    """The digest of the checkpoint of `step`; "" without a run and of step 0, the weights that a recipe begins with."""
    return run.checkpoints.digest(step) if run is not None and step else ""


def _check_proven(build: Build, weights: str, listener: Listener) -> None:
    """Warn if no test has accepted the agent's lesson set; `weights` is the digest of its checkpoint, or ""."""
    lesson_set = build.resolved["agent"].get("lessons")
    if lesson_set is not None and (warning := unproven(lesson_set, build.resolved, weights)):
        listener(Note(warning))


def _emit_loads(recipe: Recipe, root: Path, listener: Listener, *, learns: bool) -> None:
    """Emit what the run is about to load, before PyTorch's import leaves the screen empty for seconds."""
    engines = (engine.config for engine in recipe.engines.values())
    pytorch = learns or any(isinstance(config, EngineConfig) and config.in_process for config in engines)
    listener(RunLoads(recipe=recipe.name, directory=str(root), pytorch=pytorch))


def _require_keys(build: Build) -> None:
    """Raise `RecipeError` if a hosted server that is asked wants a key that is not set."""
    for engine, variable in unset_keys(build).items():
        raise RecipeError(
            f"{variable} is not set: engines.{engine} asks {build.recipe.engines[engine].table()['base_url']}",
            code="key-not-set",
            cause="this server requires a key",
            fix=f"export {variable}=<your key>; or a model on this machine: --provider ollama --model NAME",
        )


def _announce(work: Work, build: Build, listener: Listener) -> None:
    """Emit that the agent is built, and what to know about its prompt files."""
    replay = str(build.replay) if build.replay else ""
    listener(AgentBuilt(work=work, sandbox=build.sandbox_line, replay=replay, resolved=build.resolved))
    for name, simulated in build.recipe.simulated.items():
        if simulated.everywhere:
            listener(Note(f"{name} is simulated in evaluations too, by what knows the gold answers (simulated.{name})"))
    for note in prompt_notes(build.recipe):
        listener(Note(note))
