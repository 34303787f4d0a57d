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
    track             experiment trackers, by name or as objects (docs/tracking.md)
    listener          receives the run's events (`core/events.py`); by default progress is shown on standard error,
                      elsewhere than on a terminal a line a step
    quiet             show warnings only

Those of `recipe.overrides.AgentChanges` change the recipe as the options of commands do: `model`, `provider`, `tools`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeGuard, TypeVar, Unpack, get_args, get_type_hints

from midstream import process
from midstream.components import own
from midstream.components.component import Table
from midstream.components.kinds import agent_type, modules_of
from midstream.core.errors import RecipeError, RunError, UsageError
from midstream.core.events import Listener, Note, Phase
from midstream.core.metrics import Spent
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.run import every_set, metric_of, separate_learned
from midstream.evaluation.session import JournalStore, evaluate_sets, reopen, task_digests
from midstream.exports.write import export as export
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
from midstream.recipe.sessions import parts_of, refuse_strategy, require_sets, session_of
from midstream.report import comparison
from midstream.report.comparison import Comparison
from midstream.report.progress import print_warnings, progress
from midstream.rollout import Environment, rollout
from midstream.runs import EvaluationInfo, RunDirectory
from midstream.runs.budget import Budget, BudgetConfig, parse_limits
from midstream.runs.segments import result_name
from midstream.sources.finite import Finite
from midstream.torchrun import joined, leave_to_rank_0, rank
from midstream.trackers import tracked, trackers_of
from midstream.training.protocols import TrainableWorld
from midstream.training.settings import TrainingConfig
from midstream.view.bundle import AT_END, write_runs

if TYPE_CHECKING:
    from midstream.lessons.lesson_set import LessonSet
    from midstream.lessons.validation import Validation
    from midstream.training.trial import RecipeTrial

P = ParamSpec("P")
T = TypeVar("T")
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


def _work(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function of this file callable in a notebook, and refuse arguments that it does not have."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        known = signature(function).parameters
        if unknown := kwargs.keys() - known:
            [options] = get_args(get_type_hints(function)["options"])
            if unknown := unknown - options.__annotations__.keys():
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}")
        return function(*args, **kwargs)

    return allow_event_loop(call)


_screen = threading.Lock()  # of the terminal: one run at a time shows its progress


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


@_work
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
        raise UsageError(
            f"the question is empty or no text: {question!r:.100}",
            code="empty-value",
            fix='e.g. midstream solve "What is 45 plus 17 ?"; in Python, solve(agent, question)',
        )
    changes = changes_in(AgentChanges, options)
    recipe = agent_recipe(opened(agent, changes)[0], **changes)
    if any(engine.config.needs_world for engine in recipe.engines.values()):
        with Build(recipe) as build:  # a model whose vocabulary is its world's
            if isinstance(build.source, TrainableWorld):
                question = build.source.readable(question)
    listener = options.get("listener") or print_warnings
    with answering(agent, recipe, temperature=temperature, unsafe=unsafe, **options) as (environment, run, seed):
        task = Task(id="question", question=question, answer="")
        [group] = run(rollout(environment, [task], seed=seed, listener=listener))
    [trajectory] = group.trajectories
    if trajectory.error is not None:
        listener(Note(NO_ANSWER + trajectory.error.summary))
    # There is no gold answer to score by.
    return trajectory.model_copy(update={"gold": None, "reward": None})


@contextmanager
def answering(
    agent: AnyAgent,
    recipe: Recipe | None = None,
    *,
    temperature: float | None = None,
    unsafe: bool = False,
    continuous: bool = False,
    **options: Unpack[SolveOptions],
) -> Iterator[tuple[Environment, RunCoroutine, int]]:
    """The agent of a recipe or run, built to answer questions: what a rollout needs, what runs it, and the seed.

    Arguments as of `solve`. `recipe`: that of the agent, if the caller has it. `continuous`: engines in this process
    answer each request as it comes, so that questions may come at any time; a strategy is refused.
    """
    changes, listener = changes_in(AgentChanges, options), options.get("listener") or print_warnings
    source, run, step = opened(agent, changes)
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
    adapters = run.root / "adapters" / "asked" if run else Path("adapters")
    build = process.build_for(recipe, options, adapters=adapters, unsafe=unsafe, continuous=continuous)
    with event_loop(build) as run_coroutine, ExitStack() as servers:
        process.announce("solve", build, listener)  # before servers start and weights are loaded, which takes time
        process.require_keys(build)
        servers.enter_context(served(recipe, listener))  # a served model's weights are an adapter that it loads
        if run is not None and inputs.has_weights(run):
            step = process.load_weights(build, run, run_coroutine, step=step)
            temperature = 0.0 if temperature is None else temperature
        environment = build.environment(temperature=temperature)
        process.check_proven(build, process.weights_digest(run, step), listener)
        yield environment, run_coroutine, recipe.seed


# --- evaluate ---------------------------------------------------------------------------------------------------------


@_work
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
        raise UsageError(
            "retry_errors without out does nothing: a new evaluation has no errors yet",
            code="option-without-effect",
            fix="name the evaluation: midstream resume EVALUATION --retry-errors",
        )
    changes = changes_in(EvaluationChanges, options)
    source, trained, step = opened(agent, changes)
    if _is_given(tasks):
        counted = {} if tasks.count is None else {"count": tasks.count}
        changes["sets"] = [{"name": tasks.chosen, "tasks": tasks.source, "split": tasks.chosen, **counted}]
        if isinstance(source, Mapping):  # as the recipe of a run that learns from these tasks has it
            source = {**source, "tasks": tasks.source}
    elif isinstance(agent, AgentSpec) and trained is None:
        raise UsageError("no tasks are named", code="missing-option", fix="evaluate(agent, tasks.test)")
    recipe = evaluation_recipe(source, **changes)
    record, replay = (os.path.abspath(place) if place else None for place in map(options.get, ("record", "replay")))
    run = os.path.abspath(trained.root) if trained and inputs.has_weights(trained) else None
    asked = EvaluationInfo(run=run, step=step, unsafe=unsafe, record=record, replay=replay)
    root = Path(out) if out else new_root(f"eval-{recipe.name}")
    begun = RunDirectory.open(root) if (root / "run.json").exists() else None
    if begun is not None:
        asked = _same_evaluation(begun, recipe, asked)
        engines = inputs.run_recipe(begun).engines  # with the prices that it began with
        priced = {name: engine for name, engine in engines.items() if not own.is_reference(engine.type)}
        recipe = recipe.model_copy(update={"engines": {**recipe.engines, **priced}})
    return _evaluate_in(root, begun, recipe, asked, options, retry_errors=retry_errors)


def _same_evaluation(begun: RunDirectory, recipe: Recipe, asked: EvaluationInfo) -> EvaluationInfo:
    """What the directory evaluates, if that is what is asked for. Raises `RunError` if it is not."""
    held = begun.info().evaluation
    given = {"run", "unsafe", "record", "replay"}
    other_step = held is not None and asked.step not in (None, held.step)
    if held is None or other_step or held.model_dump(include=given) != asked.model_dump(include=given):
        what = f"a {begun.info().kind} run" if held is None else "an evaluation of something else, or with other tools"
    elif changes := inputs.differing(begun, recipe):
        what = f"an evaluation with other settings (its own | those given: {'; '.join(changes[:_SHOWN])})"
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
    options: RunOptions,
    *,
    retry_errors: bool,
) -> Run:
    """Evaluate what is not done yet in `begun`, or in a new directory at `root`."""
    if begun is not None and begun.status().state == "finished" and not retry_errors:
        return Run(begun)
    trackers = trackers_of(options.get("track", ()))
    trained = RunDirectory.open(Path(asked.run)) if asked.run else None
    adapters = (trained.root if trained else root) / "adapters" / "asked"
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(options))
        process.emit_loads(recipe, root, listener, learns=trained is not None)
        asks: WorkOptions = {"record": asked.record, "replay": asked.replay}
        build = process.build_for(recipe, asks, adapters=adapters, unsafe=asked.unsafe, kept=root / "strategy")
        run_coroutine = stack.enter_context(event_loop(build))
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
        process.require_keys(build)
        run_coroutine(try_rewards(build))
        tasks = task_digests(evaluations)
        stack.enter_context(served(recipe, listener))  # a served model's weights are an adapter that it loads
        step, checkpoint = None, None
        if trained is not None:
            step = process.load_weights(build, trained, run_coroutine, step=asked.step)
            checkpoint = trained.checkpoints.digest(step)
        evaluations = [replace(part, step=step, numbered=False) for part in evaluations]
        if begun is None:
            about = asked.model_copy(update={"tasks": tasks, "step": step, "checkpoint": checkpoint})
            begun = inputs.create_run(root, build, about)
        process.begin_work(begun, build, listener, tasks=tasks, checkpoint=checkpoint)
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
        stack.enter_context(begun.lock())
        listener = stack.enter_context(tracked(begun, trackers, listener))
        stack.enter_context(process.status_on_failure(begun))
        stack.enter_context(process.open_budget(begun, build.budget))
        stack.enter_context(closing(store))
        # A crash may have left trajectories in the journal of sets whose numbers are written.
        done = {result_name(result.set_name, result.sampling) for result in begun.evaluations.read()}
        if done:
            store.retain(lambda name, failed: name not in done)
        if retry_errors:
            reopen(begun, evaluations, store)
        run_coroutine(evaluate_sets(begun, evaluations, store, listener))
        begun.set_status("finished")
        write_runs([begun.root], begun.report_path)
    if not any(result.errors for result in begun.evaluations.read()):  # `--retry-errors` needs them
        shutil.rmtree(root / "strategy", ignore_errors=True)
    return Run(begun)


# --- learn ------------------------------------------------------------------------------------------------------------


@_work
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
        table["evaluation"]["validation"] = _set("validation", tasks if validation is None else validation, tasks)
    chosen = {"epochs": epochs, "batch_size": batch_size, "group_size": group_size}
    return _learned(table, "lessons", chosen, out, options)


@_work
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
        table["evaluation"]["validation"] = {**_set("validation", curve, tasks), "count": min(20, len(curve))}
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
    return _learned(table, "training", chosen, out, options, exist_ok=exist_ok)


def _learner(agent: AnyAgent, tasks: Tasks | None) -> Table:
    """The table of an agent or recipe that learns from tasks."""
    source = _source(agent)
    if isinstance(source, RunDirectory):
        raise UsageError(
            f"the agent of the run {source.root} does not learn further",
            code="wrong-kind-of-run",
            fix='give the agent that the run began with; its lessons: settings={"lessons.start": RUN}',
        )
    table = read_table(source) if isinstance(source, str) else {**source}
    if tasks is None and isinstance(agent, AgentSpec):
        raise UsageError("no tasks are named", code="missing-option", fix="train(agent, tasks.train)")
    if _is_given(tasks):
        if tasks.chosen != "train":
            raise UsageError(
                f"tasks.{tasks.chosen} to learn from: only tasks.train is",
                code="unknown-split",
                fix="give tasks.train; where rows name no split, tasks.split(train=0.8).train",
            )
        if isinstance(agent, AgentSpec):  # its recipe's sets are not asked for
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


def _set(name: str, tasks: Tasks, learned: Tasks) -> Table:
    """The table of an evaluation set next to the tasks that are learned from."""
    table: Table = {"name": name, "split": tasks.chosen}
    return table if tasks.source == learned.source else {**table, "tasks": tasks.source}


def _learned(
    table: Table,
    section: str,
    chosen: Mapping[str, float | None],
    out: Place | None,
    options: LearnOptions,
    *,
    exist_ok: bool = True,
) -> Run:
    """The run of the table, with what was chosen in its section."""
    if values := {key: value for key, value in chosen.items() if value is not None}:
        table = merge(table, {section: values})
    recipe = changed_recipe(table, **changes_in(LearningChanges, options))
    root = Path(out) if out else new_root(f"{recipe.name}-s{recipe.seed}")
    run = RunDirectory.open(root) if exist_ok and (root / "run.json").exists() else None
    if run is not None and (run.info().kind == "evaluation" or inputs.differing(run, recipe)):
        raise RunError(
            f"{root} already holds a run with other settings",
            code="run-exists",
            fix=f"choose another directory with --out, or move {root} away",
        )
    return _learn_in(root, run, recipe, options)


def _learn_in(
    root: Path, run: RunDirectory | None, recipe: Recipe, options: RunOptions, *, limited: bool = False
) -> Run:
    """Run a session to its end in `run`, or in a new directory at `root`; a finished one only if it was `limited`."""
    if run is not None and run.status().state == "finished" and not limited:
        leave_to_rank_0()
        return Run(run)
    trackers = trackers_of(options.get("track", ()))
    learns = recipe.training is not None or recipe.warm_start is not None
    with _listening(options) as shown:
        listener: Listener = shown if rank() == 0 else lambda event: None
        process.emit_loads(recipe, root, listener, learns=learns)
        process.use_threads(recipe, learns=learns)
        build = process.build_for(recipe, options, adapters=root / "adapters")
        with event_loop(build) as run_coroutine, joined(build):
            # Before the directory is created: a recipe that cannot run leaves none behind.
            make_session = recipe.learner.session(build) or session_of(build)
            process.require_keys(build)
            run_coroutine(try_rewards(build))
            run = run or inputs.create_run(root, build)
            process.begin_work(run, build, listener)
            with (
                run.lock(),
                tracked(run, trackers, listener) as listener,
                process.status_on_failure(run),
                process.open_budget(run, None if recipe.lessons else build.budget),  # a lesson session opens its own
                served(recipe, listener),
            ):
                ended = run_coroutine(make_session(run, listener).run())
                step = None
                if recipe.lessons is not None:
                    from midstream.lessons.commit import read_updates

                    step = len(read_updates(run))
                run.set_status("finished", ended, step=step)
                write_runs([run.root], run.report_path, most=AT_END)  # which shows the state, too
    return Run(run)


@_work
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
    run = (
        run.directory
        if isinstance(run, Run)
        else run
        if isinstance(run, RunDirectory)
        else RunDirectory.open(Path(run))
    )
    kind, asked = run.info().kind, run.info().evaluation
    limits = {f"budget.{name}": value for name, value in (parse_limits(budget) if budget is not None else {}).items()}
    settings = [*map(parse_override, overrides), *limits.items()]
    refused = [name for name, _ in settings if not name.startswith("budget.")]
    if refused:
        raise UsageError(
            f"--set {refused[0]} cannot be changed in {run.root} ({kind})",
            code="inputs-changed",
            fix="start over with another --out; only budget.* may change",
        )
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
        return _evaluate_in(run.root, run, recipe, asked, options, retry_errors=retry_errors)
    if retry_errors:
        raise UsageError(
            f"{run.root} is a {kind} run: --retry-errors does nothing there",
            code="option-without-effect",
            fix=f"midstream resume {run.root}",
        )
    # A lesson run that a limit ended is finished: other limits may let it continue.
    limited = bool(settings) and recipe.lessons is not None and run.status().message != ""
    return _learn_in(run.root, run, recipe, options, limited=limited)


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


@allow_event_loop
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

        process.use_threads(recipe, learns=True)
        return asyncio.run(measure(parts))


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonsTest:
    """A tested lesson set: its place, the agent, the effects, the cost; `notes` name lessons that copy a task."""

    where: str
    lesson_set: LessonSet
    agent: str
    found: Validation
    spent: Spent
    notes: Sequence[str]


@_work
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
        budget = process.budget_of(chosen) or Budget(BudgetConfig())
        adapters = (run.root if run else Path()) / "adapters"
        build = process.build_for(chosen, options, adapters=adapters, unsafe=unsafe, budget=budget)
        with served(chosen, listener), event_loop(build) as run_coroutine:
            step = None
            if run is not None and inputs.has_weights(run):
                step = process.load_weights(build, run, run_coroutine)
            agent = identity(build.resolved, process.weights_digest(run, step))
            tasks = build.set_tasks(validation_set)
            process.require_keys(build)
            process.announce("validation", build, listener)
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


def opened(agent: AnyAgent, changes: AgentChanges) -> tuple[Source, RunDirectory | None, int | None]:
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


_naming = threading.Lock()
_new_roots: set[Path] = set()  # directories of this process, whose runs may begin in one second, and in several threads


def new_root(name: str) -> Path:
    """A run directory under `runs/` that nothing has."""
    base = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    places = chain([base], (base.with_name(f"{base.name}-{number}") for number in count(2)))
    with _naming:
        root = next(place for place in places if place not in _new_roots and not place.exists())
        _new_roots.add(root)
    return Path(os.path.relpath(root))
