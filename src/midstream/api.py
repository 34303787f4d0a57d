"""Solve, evaluate, train, learn lessons, resume, compare: what `import midstream as ms` has, and the commands call.

Each function works in a script, in a running event loop and in a notebook; the form with an `a` before its name is
awaited instead. It returns when its work is done. Ctrl-C, or cancelling what awaits, leaves a run that `resume`
continues, or the same call with the same `out`. Several functions have these arguments:

    seed              the run seed
    budget            the most that the run may use: "2 usd", "500 rollouts", "1000000 tokens", "3600 seconds", or
                      several of them with commas between. `evaluate` and `train` raise an error there, code
                      "budget-spent"; `resume` with a higher one continues
    out               the run directory, by default a new one under `runs/`; one that holds this very run is continued
    settings          others of a recipe, by their names (docs/recipes.md): `{"rollout.concurrency": 4}`
    unsafe            run code that a model writes without a sandbox
    record, replay    the directory to record tools' answers in, or to answer from
    cache             the directory in which replies of served models are kept, and found
    track             experiment trackers, by name or as objects (docs/tracking.md)
    listener          receives the run's events (`core/events.py`); by default progress is shown on standard error,
                      elsewhere than on a terminal a line a step
    quiet             show warnings only

Those of `recipe.overrides.AgentChanges` change the recipe as the options of commands do: `model`, `provider`, `tools`.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, Unpack

from midstream import process
from midstream.components import own
from midstream.components.component import Table
from midstream.components.kinds import agent_type, modules_of
from midstream.core.errors import RecipeError, RunError, UsageError
from midstream.core.events import Listener, Note, Phase, RunLoads
from midstream.core.metrics import Spent
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.run import SetEvaluation, every_set, metric_of, separate_learned
from midstream.evaluation.session import JournalStore, evaluate_sets, task_digests
from midstream.exports import export as export
from midstream.interface.agents import AgentSpec
from midstream.interface.results import Run, RunAgent
from midstream.interface.tasks import Tasks
from midstream.lessons.lesson_set import split
from midstream.process import Place, RunCoroutine, RunOptions, WorkOptions, allow_event_loop, event_loop, make_async
from midstream.recipe import inputs
from midstream.recipe.build import Build, try_rewards
from midstream.recipe.check import is_dialogues, set_reward
from midstream.recipe.files import merge, parse_override, read_table, shipped_recipes, with_settings
from midstream.recipe.lessons import check_shown, learned_keys
from midstream.recipe.overrides import (
    AgentChanges,
    EvaluationChanges,
    LearningChanges,
    Source,
    agent_recipe,
    changed_recipe,
    changes_in,
    evaluation_recipe,
    validation_recipe,
    with_tasks,
)
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.recipe.serving import served
from midstream.recipe.sessions import refuse_strategy, require_sets, session_of
from midstream.report import comparison
from midstream.report.comparison import Comparison
from midstream.report.progress import print_warnings, progress
from midstream.rollout import Environment, rollout
from midstream.runs import EvaluationInfo, RunDirectory
from midstream.runs.budget import Budget, BudgetConfig, parse_limits
from midstream.sources.finite import Finite
from midstream.torchrun import joined, leave_to_rank_0, rank
from midstream.trackers import tracked, trackers_of
from midstream.training.protocols import TrainableWorld
from midstream.training.settings import TrainingConfig
from midstream.view.bundle import AT_END, write_runs

if TYPE_CHECKING:
    from midstream.lessons.lesson_set import LessonSet
    from midstream.lessons.validation import Validation

AnyAgent = AgentSpec | Run | RunDirectory | Recipe | Table | Place
"""An agent, a run whose agent is meant, or a recipe or run, by its name or path or as it is."""

NO_ANSWER = "no answer: "
"""How the warning of `solve` about a lost run begins."""
_SHOWN = 3
_VALIDATION_TASKS = 100  # at most, where the caller names none


class SolveOptions(AgentChanges, WorkOptions, total=False):
    """Arguments of `solve`."""


class EvaluateOptions(EvaluationChanges, RunOptions, total=False):
    """Arguments of `evaluate`."""


class LearnOptions(AgentChanges, RunOptions, total=False):
    """Arguments of `train` and `learn_lessons`."""

    reward: object


class ValidateOptions(LearningChanges, WorkOptions, total=False):
    """Arguments of `validate_lessons`."""


# Of the terminal: one run at a time shows its progress.
_screen = threading.Lock()


@contextmanager
def _listening(options: RunOptions) -> Iterator[Listener]:
    """The caller's listener, or progress, or warnings where another run shows its progress."""
    listener, quiet = options.get("listener"), options.get("quiet", False)
    live = listener is None and not quiet and sys.stderr.isatty()
    if listener is not None or (live and not _screen.acquire(blocking=False)):
        yield listener or print_warnings
        return
    try:
        with progress(quiet=quiet) as shown:
            yield shown
    finally:
        if live:
            _screen.release()


# --- solve ------------------------------------------------------------------------------------------------------------


@allow_event_loop
def solve(
    agent: AnyAgent,
    question: str,
    *,
    temperature: float | None = None,
    unsafe: bool = False,
    **options: Unpack[SolveOptions],
) -> Trajectory:
    """Answer one question.

        trajectory = solve(agent, "How many words has 'to be or not'?")
        trajectory.answer, trajectory.turns[0].observation

    Args:
        agent: an agent, a run, or a recipe's name.
        question: the question.
        temperature: of the planner or policy; by default its own, and 0 with the weights of a run.
        unsafe: run code that a model writes without a sandbox.
        options: see above; `strategy`: several chains that verify and refine, and a vote, e.g. "dser:K=8,T=4"
            (docs/evaluation.md).

    Returns:
        The trajectory, without a reward. If it was lost, such as to a server that is down, `error` says to what, its
        answer is None, and the listener receives a warning: by default, on standard error.
    """
    if not isinstance(question, str) or not question.strip():
        what, fix = f"the question is empty or no text: {question!r:.100}", 'midstream solve "What is 45 plus 17 ?"'
        raise UsageError(what, code="empty-value", fix=f"e.g. {fix}; in Python, solve(agent, question)")
    listener, changes = options.get("listener") or print_warnings, changes_in(AgentChanges, options)
    source = opened(agent, changes)
    recipe = agent_recipe(source[0], **changes)
    if any(engine.config.needs_world for engine in recipe.engines.values()):
        # A model whose vocabulary is its world's knows no other words; its question is refused before it is loaded.
        with Build(recipe) as build:
            if isinstance(build.source, TrainableWorld):
                question = build.source.readable(question)
    found = source, recipe
    with answering(agent, found, temperature=temperature, unsafe=unsafe, **options) as (environment, run, build):
        task = Task(id="question", question=question, answer="")
        [group] = run(rollout(environment, [task], seed=build.recipe.seed, listener=listener))
    [trajectory] = group.trajectories
    if trajectory.error is not None:
        listener(Note(NO_ANSWER + trajectory.error.summary))
    # There is no gold answer to score by.
    return trajectory.model_copy(update={"gold": None, "reward": None})


@contextmanager
def answering(
    agent: AnyAgent,
    found: tuple[Opened, Recipe] | None = None,
    *,
    temperature: float | None = None,
    unsafe: bool = False,
    continuous: bool = False,
    **options: Unpack[SolveOptions],
) -> Iterator[tuple[Environment, RunCoroutine, Build]]:
    """The agent of a recipe or run, built to answer questions: what a rollout needs, what runs it, and its build.

    Arguments as of `solve`. `found`: the agent as `opened`, and its recipe, if the caller has them. `continuous`:
    engines in this process answer each request as it comes, so that questions may come at any time; a strategy is
    refused.
    """
    changes, listener = changes_in(AgentChanges, options), options.get("listener") or print_warnings
    (source, run, step), recipe = found or (opened(agent, changes), None)
    recipe = recipe or agent_recipe(source, **changes)
    if continuous:
        refuse_strategy(recipe)
    named = str(run.root) if run else source if isinstance(source, str) else recipe.name
    if is_dialogues(recipe.tasks):
        raise RecipeError(
            f"the agent of recipe {recipe.name!r} cannot answer a single question: tasks.type = {recipe.tasks.type!r}",
            code="dialogues-not-supported",
            cause="its tasks are dialogues with their own functions",
            fix=f"midstream eval {named}, then midstream show DIR TRAJECTORY",
        )
    if run is None and recipe.warm_start is not None:
        raise RecipeError(
            f"the {recipe.trained} of recipe {recipe.name!r} is not trained",
            code="untrained",
            cause="its weights come from a warm start and training",
            fix=f"midstream train {named} --out runs/mine, then midstream solve ... --planner runs/mine",
        )
    adapters = run.root / "adapters" / "asked" if run else Path("adapters")
    build = process.build_for(recipe, options, adapters=adapters, unsafe=unsafe, continuous=continuous)
    with process.running("solve", build, listener) as run_coroutine:
        if run is not None and inputs.has_weights(run):
            step = process.load_weights(build, run, run_coroutine, step=step)
            temperature = 0.0 if temperature is None else temperature
        environment = build.environment(temperature=temperature)
        process.check_proven(build, run.checkpoints.digest(step) if run is not None and step else "", listener)
        yield environment, run_coroutine, build


# --- evaluate ---------------------------------------------------------------------------------------------------------


@allow_event_loop
def evaluate(
    agent: AnyAgent,
    tasks: Tasks | None = None,
    *,
    out: Place | None = None,
    retry_errors: bool = False,
    unsafe: bool = False,
    **options: Unpack[EvaluateOptions],
) -> Run:
    """Run the agent on tasks and score its answers.

        run = evaluate(agent, tasks("questions.jsonl"), reward=exact)
        run.evaluations[0].success, run.frame()

    Each trajectory is kept as it ends: one that has a result never runs again.

    Args:
        agent: an agent, a run, or a recipe's name. `RUN@STEP` is the run's checkpoint of that step, of a lesson run
            `RUN@VERSION` that version of its lesson set; by default the newest.
        tasks: what to measure on; by default the sets of its recipe or run.
        out: see above.
        retry_errors: with `out`, run again what ended in an infrastructure error.
        unsafe: run code that a model writes without a sandbox.
        options: see above and `recipe.overrides.EvaluationChanges`: `reward`, a function, a reward's name, or its
            table, by default that which each task names, else the recipe's; `trials`, attempts at each task;
            `temperature` of the planner or policy, by default its own; `strategy` as in `solve`.

    Raises:
        RunError: `out` holds something else, or its tasks or weights have changed.
    """
    if retry_errors and out is None:
        what = "retry_errors without out does nothing: a new evaluation has no errors yet"
        raise UsageError(what, code="option-without-effect", fix="midstream resume EVALUATION --retry-errors")
    changes = changes_in(EvaluationChanges, options)
    source, trained, step = opened(agent, changes)
    if _is_given(tasks):
        counted = {} if tasks.count is None else {"count": tasks.count}
        changes["sets"] = [{"name": tasks.chosen, "tasks": tasks.source, "split": tasks.chosen, **counted}]
        # As the recipe of a run that learns from these tasks has it.
        if isinstance(source, Mapping):
            source = {**source, "tasks": tasks.source}
    elif isinstance(agent, AgentSpec) and trained is None:
        raise UsageError("no tasks are named", code="missing-option", fix="evaluate(agent, tasks.test)")
    recipe = evaluation_recipe(source, **changes)
    places = {name: os.path.abspath(place) for name in ("record", "replay", "cache") if (place := options.get(name))}
    run = os.path.abspath(trained.root) if trained and inputs.has_weights(trained) else None
    asked = EvaluationInfo(run=run, step=step, unsafe=unsafe, **places)
    root = Path(out) if out else new_root(f"eval-{recipe.name}")
    begun = _begun(root, recipe, asked)
    if begun is not None:
        asked = begun.info().evaluation
        # With the prices that it began with.
        engines = inputs.run_recipe(begun).engines
        priced = {name: engine for name, engine in engines.items() if not own.is_reference(engine.type)}
        recipe = recipe.model_copy(update={"engines": {**recipe.engines, **priced}})
    return _work_in(root, begun, recipe, options, asked, again=retry_errors)


def _evaluations(build: Build, trained: RunDirectory | None, listener: Listener) -> list[SetEvaluation]:
    """Every set of an evaluation, with its tasks drawn: those that were learned from are sets of their own.

    The listener gets notes on what a number does not say. `trained` is the run whose weights are evaluated.
    """
    recipe = build.recipe
    require_sets(recipe)
    sets = every_set(recipe.evaluation, build.set_tasks, build.environment, policy=recipe.name, seed=recipe.seed)
    found = separate_learned(list(sets), learned_keys(build.resolved, trained))
    usual = build.reward(recipe.reward).name if recipe.reward.config.asks == "never" else recipe.reward.type
    for name, part in {part.chosen.name: part for part in found}.items():
        if part.learned:
            many = f"{len(part.tasks):,} tasks of {name.removesuffix('-learned')} were learned from ({part.learned})"
            listener(Note(f"{many}: they are a set of their own, {name}, and say nothing of new tasks"))
        metric, other = metric_of(part), set_reward(recipe, part.chosen) not in (recipe.reward, part.chosen.reward)
        # A judge's name begins with its type, and has its model, too.
        if other and not metric.startswith(usual):
            listener(Note(f"{name} is scored by {metric}, its own reward, not by the recipe's: {usual}"))
    for chosen in recipe.evaluation.sets:
        source = build.tasks(chosen.tasks or recipe.tasks)
        left_out = source.left_out.get(chosen.split, {}) if isinstance(source, Finite) else {}
        for reason, tasks in left_out.items():
            listener(Note(f"{chosen.name}: {tasks:,} left out: {reason}"))
    return found


# --- learn ------------------------------------------------------------------------------------------------------------


@allow_event_loop
def learn_lessons(
    agent: AnyAgent,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    group_size: int | None = None,
    out: Place | None = None,
    **options: Unpack[LearnOptions],
) -> Run:
    """Learn lessons from the agent's own runs (Training-Free GRPO, arXiv 2510.08191); its model stays as it is.

        run = learn_lessons(agent, tasks.train, reward=exact, budget="2 usd", out="runs/mine")
        evaluate(run.agent, tasks.test, reward=exact)

    Args:
        agent: an agent, or a recipe's name.
        tasks: what to learn from: the split `train`; by default the recipe's own. They replace its tasks
            and validation; its other settings stay.
        validation: tasks on which a changed lesson set must prove itself; by default half of `tasks`, at most 100.
        epochs: passes over the tasks.
        batch_size: tasks of an update; by default all.
        group_size: rollouts of a task.
        out: see above.
        options: see above; `reward` as in `evaluate`.
    """
    table = _learner(agent, tasks)
    if tasks is not None:
        count, gate = len(tasks), min(_VALIDATION_TASKS, len(validation if validation is not None else tasks))
        if validation is None:
            gate = min(gate, max(2, count // 2))
            count -= gate
        module = modules_of(agent_type(table["agent"]))[0]
        asked = table["agent"].get(module, table["agent"])  # an agent of your own is its one module
        usual = {"batch_size": count, "modules": [module], "reflector": {"engine": asked.get("engine", "model")}}
        drawn = {"tasks": count, "gate": {"tasks": gate}}
        table["lessons"] = merge({**usual, **table.get("lessons", {})}, drawn)
        table["evaluation"]["validation"] = _validation_set(tasks if validation is None else validation, tasks)
    chosen = {"epochs": epochs, "batch_size": batch_size, "group_size": group_size}
    return _learned(agent, table, "lessons", chosen, out, options)


@allow_event_loop
def train(
    agent: AnyAgent,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    steps: int | None = None,
    tasks_per_step: int | None = None,
    group_size: int | None = None,
    learning_rate: float | None = None,
    lora: int | None = None,
    out: Place | None = None,
    exist_ok: bool = True,
    **options: Unpack[LearnOptions],
) -> Run:
    """Train the weights of the agent's planner or policy in its live loop (Flow-GRPO, arXiv 2510.05592).

        run = train(Interleaved(model="local/Qwen/Qwen2.5-0.5B-Instruct"), tasks.train, reward=exact, steps=50)
        run = train("flow-grpo-tiny", out="runs/demo")

    A recipe with [lessons] learns its lessons, from its own tasks.

    Args:
        agent: an agent whose model is loaded into this process (`model="local/NAME"`, of AgentFlow `planner_model`),
            or a recipe's name.
        tasks: what to learn from: the split `train`; by default the recipe's own. They replace its tasks
            and validation; its other settings stay.
        validation: tasks for the curve of the report, 20 of them; without it, no evaluation: `tasks` are learned from.
        steps: updates of the weights.
        tasks_per_step: tasks of a step.
        group_size: trajectories of a task.
        learning_rate: after the warm-up.
        lora: the rank of an adapter to train in place of all weights.
        out: see above.
        exist_ok: continue the run of this very recipe that `out` holds; otherwise it is an error.
        options: see above; `reward` as in `evaluate`.

    Raises:
        RunError: `out` holds something else.
    """
    table = _learner(agent, tasks)
    if tasks is not None and "lessons" in table:
        what, fix = "the recipe learns lessons, and train(agent, tasks) trains weights", "learn_lessons(agent, tasks)"
        raise UsageError(what, code="setting-conflict", fix=fix)
    if tasks is not None:
        usual = {"tasks_per_step": min(TrainingConfig().tasks_per_step, len(tasks))}
        table["training"] = {**usual, **table.get("training", {})}
        curve = tasks if validation is None else validation
        table["evaluation"]["validation"] = {**_validation_set(curve, tasks), "count": min(20, len(curve))}
        if validation is None:
            table["evaluation"] |= {"at": "none"}
    if lora is not None:
        table["learner"] = {**table.get("learner", {}), "lora": {"rank": lora}}
    chosen = {
        "steps": steps,
        "tasks_per_step": tasks_per_step,
        "group_size": group_size,
        "learning_rate": learning_rate,
    }
    return _learned(agent, table, "training", chosen, out, options, exist_ok=exist_ok)


def _learner(agent: AnyAgent, tasks: Tasks | None) -> Table:
    """The table of an agent or recipe that learns from tasks."""
    source = _source(agent)
    if isinstance(source, RunDirectory):
        fix = 'give the agent that the run began with; its lessons: settings={"lessons.start": RUN}'
        what = f"the agent of the run {source.root} does not learn further"
        raise UsageError(what, code="wrong-kind-of-run", fix=fix)
    table = read_table(source) if isinstance(source, str) else {**source}
    if tasks is None and isinstance(agent, AgentSpec):
        raise UsageError("no tasks are named", code="missing-option", fix="train(agent, tasks.train)")
    if _is_given(tasks):
        if tasks.chosen != "train":
            fix = "give tasks.train; where rows name no split, tasks.split(train=0.8).train"
            raise UsageError(f"tasks.{tasks.chosen} to learn from", code="unknown-split", fix=fix)
        if isinstance(agent, AgentSpec):
            # The sets of the recipe that it changes are not asked for.
            table |= {"tasks": tasks.drawn, "evaluation": {}}
        else:
            table = with_tasks(table, tasks.drawn)
    return table


def _is_given(tasks: Tasks | None) -> TypeGuard[Tasks]:
    """Whether there are tasks. Raises `UsageError` for anything else, such as the directory of a run."""
    if tasks is not None and not isinstance(tasks, Tasks):
        what, fix = f"{tasks!r:.100} is not tasks", 'give ms.tasks("questions.jsonl").train; a directory is out=...'
        raise UsageError(what, code="component-invalid", fix=fix)
    return tasks is not None


def _validation_set(tasks: Tasks, learned: Tasks) -> Table:
    """The table of the validation set next to the tasks that are learned from."""
    table: Table = {"name": "validation", "split": tasks.chosen}
    return table if tasks.source == learned.source else {**table, "tasks": tasks.source}


def _learned(
    agent: AnyAgent,
    table: Table,
    section: str,
    chosen: Mapping[str, float | None],
    out: Place | None,
    options: LearnOptions,
    *,
    exist_ok: bool = True,
) -> Run:
    """The run of the agent's table, with what was chosen in its section."""
    if values := {key: value for key, value in chosen.items() if value is not None}:
        table = merge(table, {section: values})
    # A command has parsed its recipe, which is parsed again only where an argument changes it.
    source = agent if isinstance(agent, Recipe) and table == agent.table() else table
    recipe = changed_recipe(source, **changes_in(LearningChanges, options))
    root = Path(out) if out else new_root(f"{recipe.name}-s{recipe.seed}")
    return _work_in(root, _begun(root, recipe) if exist_ok else None, recipe, options)


# --- the life of a run ------------------------------------------------------------------------------------------------


def _begun(root: Path, recipe: Recipe, asked: EvaluationInfo | None = None) -> RunDirectory | None:
    """The run in `root`, if it is the one that is asked for; None without one. Raises `RunError` for another."""
    if not (root / "run.json").exists():
        return None
    run = RunDirectory.open(root)
    held, given = run.info().evaluation, {"run", "unsafe", "record", "replay"}
    if held is None or asked is None:
        what = "" if held is asked else f"a run of another kind: {run.info().kind}"
    else:
        same = asked.step in (None, held.step) and held.model_dump(include=given) == asked.model_dump(include=given)
        what = "" if same else "an evaluation of something else, or with other tools"
    if not what and (changes := inputs.differing(run, recipe)):
        what = f"a run with other settings (its own | those given: {'; '.join(changes[:_SHOWN])})"
    if what:
        fix = f"choose another directory with --out, or resume that one: midstream resume {root}"
        raise RunError(f"{root} holds {what}", code="run-exists", fix=fix)
    return run


def _work_in(
    root: Path,
    run: RunDirectory | None,
    recipe: Recipe,
    options: RunOptions,
    asked: EvaluationInfo | None = None,
    *,
    again: bool = False,
) -> Run:
    """The life of every run, in `run` or in a new directory at `root`: build, check, create, lock, work, report.

    `asked` is what an evaluation evaluates, None where a session learns. A finished run stays as it is, but `again`: a
    limit that ended it was changed, or what ended in errors is run again.
    """
    if run is not None and run.status().state == "finished" and not again:
        leave_to_rank_0()
        return Run(run)
    trackers = trackers_of(options.get("track", ()))
    trained = RunDirectory.open(Path(asked.run)) if asked and asked.run else None
    if asked is None:
        learns, more = recipe.training is not None or recipe.warm_start is not None, {"adapters": root / "adapters"}
    else:
        learns, adapters = trained is not None, (trained.root if trained else root) / "adapters" / "asked"
        more = {"adapters": adapters, "unsafe": asked.unsafe, "kept": root / "strategy"}
        options = {**options, "record": asked.record, "replay": asked.replay, "cache": asked.cache}
    with ExitStack() as stack:
        shown = stack.enter_context(_listening(options))
        listener: Listener = shown if rank() == 0 else lambda event: None
        # Before PyTorch's import, which leaves the screen empty for seconds.
        pytorch = learns or any(getattr(engine.config, "in_process", False) for engine in recipe.engines.values())
        listener(RunLoads(recipe=recipe.name, directory=str(root), pytorch=pytorch))
        process.use_threads(recipe, learns=learns)
        build = process.build_for(recipe, options, **more)
        run_coroutine = stack.enter_context(event_loop(build))
        # All is built, and every task is drawn, before the directory is created: what cannot run leaves none behind.
        make_session, evaluations = None, list[SetEvaluation]()
        if asked is None:
            stack.enter_context(joined(build))
            make_session = recipe.learner.session(build) or session_of(build)
        else:
            evaluations = _evaluations(build, trained, listener)
            asked = asked.model_copy(update={"tasks": task_digests(evaluations)})
        process.require_keys(build)
        run_coroutine(try_rewards(build))
        if asked is not None:
            stack.enter_context(served(recipe, listener))
        if asked is not None and trained is not None:
            # A served model's weights are an adapter that it loads; the directory records which were found.
            step = process.load_weights(build, trained, run_coroutine, step=asked.step)
            asked = asked.model_copy(update={"step": step, "checkpoint": trained.checkpoints.digest(step)})
        run = run or inputs.create_run(root, build, asked)
        process.begin_work(run, build, listener, asked)
        stack.enter_context(run.lock())
        listener = stack.enter_context(tracked(run, trackers, listener))
        stack.enter_context(process.status_on_failure(run))
        if asked is None:
            stack.enter_context(served(recipe, listener))
        # A limit in seconds counts from here: a server may take minutes to start.
        stack.enter_context(process.open_budget(run, build.budget))
        if make_session is not None:
            ended, step = run_coroutine(make_session(run, listener).run()), None
            if run.info().kind == "lessons":
                from midstream.lessons.commit import read_updates

                step = len(read_updates(run))
            run.set_status("finished", ended, step=step)
            # It shows the state, too.
            write_runs([run.root], run.report_path, most=AT_END)
        elif asked is not None:
            parts = [replace(part, step=asked.step, numbered=False) for part in evaluations]
            store = JournalStore(run.results_path, report=lambda text: listener(Note(text)))
            stack.enter_context(closing(store))
            run_coroutine(evaluate_sets(run, parts, store, listener, again=again))
            run.set_status("finished")
            write_runs([run.root], run.report_path)
            # `--retry-errors` needs what a strategy has kept.
            if not any(result.errors for result in run.evaluations.read()):
                shutil.rmtree(root / "strategy", ignore_errors=True)
    return Run(run)


@allow_event_loop
def resume(
    run: Run | RunDirectory | Place,
    *,
    retry_errors: bool = False,
    budget: str | None = None,
    overrides: Sequence[str] = (),
    **options: Unpack[RunOptions],
) -> Run:
    """Continue an interrupted or failed run or evaluation; a finished one stays as it is.

        run = resume("runs/mine")

    Args:
        run: the run, or its directory.
        retry_errors: of an evaluation, run again what ended in an infrastructure error.
        budget: other limits; a run that ended at a limit then continues.
        overrides: the same as settings, `budget.LIMIT=VALUE`.
        options: see above.

    Raises:
        UsageError: a setting that cannot change, or `retry_errors` of a training run.
    """
    run = (run if isinstance(run, Run) else Run(run)).directory
    kind, asked = run.info().kind, run.info().evaluation
    limits = {f"budget.{name}": value for name, value in (parse_limits(budget) if budget is not None else {}).items()}
    settings = [*map(parse_override, overrides), *limits.items()]
    refused = [name for name, _ in settings if not name.startswith("budget.")]
    if refused:
        what, fix = f"--set {refused[0]} cannot be changed in {run.root} ({kind})", "only budget.* may change"
        raise UsageError(what, code="inputs-changed", fix=f"start over with another --out; {fix}")
    if changed := inputs.recipe_changes(run):
        raise UsageError(
            f"{run.recipe_path} was changed (the run's own | now): {'; '.join(changed[:_SHOWN])}",
            code="inputs-changed",
            fix=f"undo the change, or start over with it: midstream train {run.recipe_path} --out ANOTHER",
        )
    # Before any of it is imported.
    inputs.check_own(run, inputs.run_table(run))
    recipe = parse_recipe(with_settings(inputs.run_table(run), settings))
    if asked is not None and (options.get("record") or options.get("replay")):
        what = f"{run.root} is an evaluation, whose recording was chosen when it began"
        raise UsageError(what, code="option-without-effect", fix="leave out record and replay")
    if asked is not None:
        return _work_in(run.root, run, recipe, options, asked, again=retry_errors)
    if retry_errors:
        what, fix = f"{run.root} is a {kind} run: --retry-errors does nothing there", f"midstream resume {run.root}"
        raise UsageError(what, code="option-without-effect", fix=fix)
    # A lesson run that a limit ended is finished: other limits may let it continue.
    limited = bool(settings) and recipe.lessons is not None and run.status().message != ""
    if recipe.lessons is not None and run.status().state == "finished":
        from midstream.lessons.approval import settle

        # What was approved while the run wrote its report.
        settle(run)
    return _work_in(run.root, run, recipe, options, again=limited)


asolve = make_async(solve)
aevaluate = make_async(evaluate)
alearn_lessons = make_async(learn_lessons)
atrain = make_async(train)
aresume = make_async(resume)


def compare(first: Run | RunDirectory | Place, *others: Run | RunDirectory | Place) -> Comparison:
    """Compare evaluations of the same tasks with the first.

        print(compare(before, after))

    Args:
        first: an evaluation or a run, or its path; `RUN@STEP` for another step than the last.
        others: those to compare with it.
    """
    runs = (run.directory if isinstance(run, Run) else run for run in (first, *others))
    return comparison.compare(*(run if isinstance(run, RunDirectory) else os.fspath(run) for run in runs))


# --- before and after learning ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonsTest:
    """A tested lesson set: its place, the agent, the effects, the cost; `notes` name lessons that copy a task."""

    where: str
    lesson_set: LessonSet
    agent: str
    found: Validation
    spent: Spent
    notes: Sequence[str]


@allow_event_loop
def validate_lessons(
    named: str, recipe: str | None = None, *, unsafe: bool = False, **options: Unpack[ValidateOptions]
) -> LessonsTest:
    """Measure whether a lesson set helps an agent, against no lessons and lesson by lesson, on new rollouts.

    The result is a new version of the lessons, with every lesson's effect and, if it helps, the agent that it is proven
    for. Each rollout is kept as it ends: a validation that was stopped continues when it is called again.

    Args:
        named: a lesson run or a JSON file.
        recipe: the agent's recipe; by default the run's own.
        unsafe: run code that a model writes without a sandbox.
        options: see above.
    """
    # Only what learns or tests lessons needs these.
    from midstream.lessons.access import editable_lessons
    from midstream.lessons.ledger import Ledger
    from midstream.lessons.lesson_set import identity, render_modules
    from midstream.lessons.similarity import leak_guard
    from midstream.lessons.validation import validate as measure_lessons
    from midstream.recipe.lesson_sessions import validation_settings

    listener = options.get("listener") or print_warnings
    with editable_lessons(named) as place:
        chosen = validation_recipe(place, recipe, **changes_in(LearningChanges, options))
        run = None if recipe else place.run
        lesson_set = place.lesson_set
        if not lesson_set.rendered:
            raise UsageError(f"{named} has no lessons", code="empty-lessons", fix="add some, or learn")
        check_shown(chosen.agent, render_modules(lesson_set), named)
        kept = place.path / "validation" if place.run else place.path.with_suffix(".validation")
        gate, validation_set = validation_settings(chosen)
        budget = Budget(chosen.budget or BudgetConfig())
        adapters = (run.root if run else Path()) / "adapters"
        build = process.build_for(chosen, options, adapters=adapters, unsafe=unsafe, budget=budget)
        with process.running("validation", build, listener) as run_coroutine:
            weights = ""
            if run is not None and inputs.has_weights(run):
                step = process.load_weights(build, run, run_coroutine)
                weights = run.checkpoints.digest(step) if step else ""
            agent = identity(build.resolved, weights)
            tasks = build.set_tasks(validation_set)
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


# --- agents, recipes and runs -----------------------------------------------------------------------------------------


def _source(agent: AnyAgent) -> Source:
    if isinstance(agent, Run | RunAgent):
        return agent.directory
    if isinstance(agent, AgentSpec | Recipe):
        return agent.table()
    if isinstance(agent, RunDirectory | Mapping):
        return agent
    if isinstance(agent, str | os.PathLike):
        return os.fspath(agent)
    raise UsageError(
        f"{agent!r:.100} is not an agent of midstream",
        code="component-invalid",
        fix="give AgentFlow(...), Interleaved(...), a run, a recipe's name, or OwnAgent(...) around your own",
    )


Opened = tuple[Source, RunDirectory | None, int | None]


def opened(agent: AnyAgent, changes: AgentChanges) -> Opened:
    """The agent's recipe, the run if it is one, and the step of `RUN@STEP`.

    The version in `RUN@VERSION` of a lesson run becomes the lesson set in `changes`. Raises `RunError` for an
    evaluation.
    """
    source = _source(agent)
    if isinstance(source, Mapping):
        return source, None, None
    run, number = source, None
    if isinstance(source, str):
        path, number = split(source)
        text = str(path)
        is_recipe = text.endswith(".toml") or text in shipped_recipes()
        is_recipe |= own.is_reference(text) and not path.exists()  # "agents/mine.py:solve"
        if not (path / "run.json").exists() and (is_recipe or not (os.sep in text or path.is_dir())):
            return source, None, None
        run = RunDirectory.open(path)
    assert isinstance(run, RunDirectory)
    kind = run.info().kind
    if kind == "evaluation":
        raise RunError(
            f"{run.root} holds an evaluation, whose agent is that of its recipe or run",
            code="wrong-kind-of-run",
            fix=f"name a training or lesson run, or a recipe; midstream show {run.root} shows this one",
        )
    if isinstance(source, str) and kind == "lessons" and number is not None:
        changes.setdefault("lessons", source)
        number = None
    return run, run, number


# Runs of this process may begin in one second, and in several threads.
_naming, _new_roots = threading.Lock(), set[Path]()


def new_root(name: str) -> Path:
    """A run directory under `runs/` that nothing has."""
    base = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with _naming:
        places = (Path("runs", base if number == 1 else f"{base}-{number}") for number in count(1))
        root = next(place for place in places if place.absolute() not in _new_roots and not place.exists())
        _new_roots.add(root.absolute())
    return root
