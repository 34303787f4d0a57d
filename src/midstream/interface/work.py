"""Solve, evaluate, train, learn lessons: what the commands do, for agents, tasks and rewards as objects.

Each function works in a script, in a running event loop and in a notebook; the form with an `a` before its name is
awaited instead. Ctrl-C, or cancelling what awaits, leaves a run that `resume` continues, or the same call with the same
`out`. Several functions have these arguments:

    seed              the run seed
    budget            the most that the run may use: "2 usd", "500 rollouts", "1000000 tokens", "3600 seconds", or
                      several of them with commas between. `evaluate` and `train` raise an error there, code
                      "budget-spent"; `resume` with a higher one continues
    out               the run directory, by default a new one under `runs/`; one that holds this very run is continued
    settings          others of a recipe, by their names (docs/recipes.md): `{"rollout.concurrency": 4}`
    unsafe            run code that a model writes without a sandbox
    record, replay    the directory to record tools' answers in, or to answer from
    track             experiment trackers, by name or as objects (docs/tracking.md)
    listener          receives the run's events; by default progress is shown on standard error, elsewhere than on a
                      terminal a line a step
    quiet             show warnings only
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from midstream import api
from midstream.components.component import Table
from midstream.components.kinds import agent_type, modules_of
from midstream.components.own import refuse_while_importing
from midstream.core.errors import UsageError
from midstream.core.events import Listener, Note
from midstream.core.threads import in_event_loop, start_thread
from midstream.core.trajectory import Trajectory
from midstream.interface.agents import AgentSpec, component_type
from midstream.interface.results import Run, RunAgent
from midstream.interface.tasks import Tasks
from midstream.process import Stop, stopped_by
from midstream.recipe.files import merge, overrides_of, read_table, with_overrides
from midstream.recipe.overrides import Source, with_tasks
from midstream.recipe.schema import parse_recipe
from midstream.report import comparison
from midstream.report.comparison import Comparison
from midstream.report.progress import print_warnings, progress
from midstream.runs.budget import limit_settings
from midstream.training.settings import TrainingConfig

P = ParamSpec("P")
T = TypeVar("T")
Place = str | os.PathLike[str]
AnyAgent = AgentSpec | Run | Place
"""An agent, a run whose agent is meant, or a recipe or run by its name or path."""

_VALIDATION_TASKS = 100  # at most, where the caller names none


# --- where the work runs ----------------------------------------------------------------------------------------------


def _allow_event_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Let the function be called where an event loop runs, as in a notebook: it then runs in a new thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_while_importing(function.__name__)
        if not in_event_loop():
            return function(*args, **kwargs)
        done, stop = _start(partial(function, *args, **kwargs))
        try:
            return done.result()
        except KeyboardInterrupt:
            stop()
            return done.result()  # raises KeyboardInterrupt again, once the run is left in order

    return call


def _make_async(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the form to await of a function with `_allow_event_loop`."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_while_importing(call.__name__)
        done, stop = _start(partial(function.__wrapped__, *args, **kwargs))  # type: ignore[attr-defined]
        result = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            stop()
            await asyncio.wait([result])
            result.exception()  # it is KeyboardInterrupt, or the run ended at this moment
            raise

    call.__name__ = call.__qualname__ = f"a{function.__name__}"
    call.__doc__ = f"`{function.__name__}`, awaited; cancelling it interrupts the run."
    return call


def _start(function: Callable[[], T]) -> tuple[Future[T], Stop]:
    """Start the function in a thread; return its future, and the `Stop` that interrupts it."""
    stop = Stop()

    def work() -> T:
        with stopped_by(stop):
            return function()

    return start_thread(work, "midstream"), stop


_screen = threading.Lock()  # of the terminal: one run at a time shows its progress


@contextmanager
def _listening(listener: Listener | None, quiet: bool) -> Iterator[Listener]:
    """The listener, or progress, or warnings alone."""
    live = listener is None and not quiet and sys.stderr.isatty()
    if listener is not None or quiet or (live and not _screen.acquire(blocking=False)):
        yield listener or print_warnings
        return
    try:
        with progress() as shown:
            yield shown
    finally:
        if live:
            _screen.release()


# --- work -------------------------------------------------------------------------------------------------------------


@_allow_event_loop
def solve(
    agent: AnyAgent,
    question: str,
    *,
    temperature: float | None = None,
    strategy: str | None = None,
    seed: int | None = None,
    budget: str | None = None,
    settings: Mapping[str, Any] | None = None,
    unsafe: bool = False,
    record: Place | None = None,
    replay: Place | None = None,
    listener: Listener = print_warnings,
) -> Trajectory:
    """Answer one question.

        trajectory = solve(agent, "How many words has 'to be or not'?")
        trajectory.answer, trajectory.turns[0].observation

    Args:
        agent: an agent, a run, or a recipe's name.
        question: the question.
        temperature: of the planner or policy; by default its own, and 0 with the weights of a run.
        strategy: makes one answer of several runs, e.g. "dser:K=8,T=4" (docs/evaluation.md).

    Returns:
        The trajectory, without a reward. If it was lost, such as to a server that is down, `error` says to what, its
        answer is None, and the listener receives a warning: by default, on standard error.
    """
    trajectory = api.solve(
        question,
        _source(agent),
        temperature=temperature,
        strategy=strategy,
        seed=seed,
        overrides=[*overrides_of(settings), *limit_settings(budget)],
        unsafe=unsafe,
        record=_path(record),
        replay=_path(replay),
        listener=listener,
    )
    if trajectory.error is not None:
        listener(Note(f"no answer: {trajectory.error.summary}"))
    return trajectory


@_allow_event_loop
def evaluate(
    agent: AnyAgent,
    tasks: Tasks | None = None,
    *,
    reward: Any = None,
    trials: int | None = None,
    temperature: float | None = None,
    strategy: str | None = None,
    seed: int | None = None,
    budget: str | None = None,
    out: Place | None = None,
    settings: Mapping[str, Any] | None = None,
    retry_errors: bool = False,
    unsafe: bool = False,
    record: Place | None = None,
    replay: Place | None = None,
    track: api.Track = (),
    listener: Listener | None = None,
    quiet: bool = False,
) -> Run:
    """Run the agent on tasks and score its answers.

        run = evaluate(agent, tasks("questions.jsonl"), reward=exact)
        run.evaluations[0].success, run.frame()

    Args:
        agent: an agent, a run, or a recipe's name.
        tasks: what to measure on; by default the sets of its recipe or run.
        reward: a function, a reward's name, or its table; by default that which each task names, else the recipe's.
        trials: attempts at each task.
        temperature: of the planner or policy; by default its own.
        strategy: as in `solve`.
        retry_errors: with `out`, run again what ended in an infrastructure error.
    """
    source = _source(agent)
    named: str | Table | None = None
    if tasks is not None:
        scored = {} if reward is None else {"reward": _reward(reward)}
        counted = {} if tasks.count is None else {"count": tasks.count}
        sets = [{"name": tasks.chosen, "tasks": tasks.source, "split": tasks.chosen, **counted, **scored}]
        if isinstance(source, Mapping):  # as the recipe of a run that learns from these tasks has it
            source = {**source, "tasks": tasks.source, **scored}
    elif isinstance(source, Mapping):
        raise UsageError("no tasks are named", code="missing-option", fix="evaluate(agent, tasks.test)")
    else:
        sets = []
        if reward is not None:
            named = dict(reward) if isinstance(reward, Mapping) else component_type(reward)
    with _listening(listener, quiet) as listener:
        directory = api.evaluate(
            source,
            _path(out),
            sets=sets,
            reward=named,
            trials=trials,
            temperature=temperature,
            strategy=strategy,
            seed=seed,
            overrides=[*overrides_of(settings), *limit_settings(budget)],
            retry_errors=retry_errors,
            unsafe=unsafe,
            record=_path(record),
            replay=_path(replay),
            track=track,
            listener=listener,
        )
    return Run(directory)


@_allow_event_loop
def learn_lessons(
    agent: AgentSpec | Place,
    tasks: Tasks | None = None,
    *,
    reward: Any = None,
    validation: Tasks | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    group_size: int | None = None,
    budget: str | None = None,
    seed: int | None = None,
    out: Place | None = None,
    settings: Mapping[str, Any] | None = None,
    record: Place | None = None,
    replay: Place | None = None,
    track: api.Track = (),
    listener: Listener | None = None,
    quiet: bool = False,
) -> Run:
    """Learn lessons from the agent's own runs (Training-Free GRPO, arXiv 2510.08191); its model stays as it is.

        run = learn_lessons(agent, tasks.train, reward=exact, budget="2 usd", out="runs/mine")
        evaluate(run.agent, tasks.test, reward=exact)

    Args:
        agent: an agent, or a recipe's name.
        tasks: what to learn from: the split `train`; by default the recipe's own. They replace its tasks
            and validation; its other settings stay.
        reward: as in `evaluate`.
        validation: tasks on which a changed lesson set must prove itself; by default half of `tasks`, at most 100.
        epochs: passes over the tasks.
        batch_size: tasks of an update; by default all.
        group_size: rollouts of a task.
        budget: the most that the run may use: "2 usd", "500 rollouts", "1000000 tokens", "3600 seconds", or several of
            them with commas.
    """
    table = _learner(agent, tasks, reward)
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
    return _learned(table, "lessons", chosen, seed, settings, budget, out, record, replay, track, listener, quiet)


@_allow_event_loop
def train(
    agent: AgentSpec | Place,
    tasks: Tasks | None = None,
    *,
    reward: Any = None,
    validation: Tasks | None = None,
    steps: int | None = None,
    tasks_per_step: int | None = None,
    group_size: int | None = None,
    learning_rate: float | None = None,
    lora: int | None = None,
    seed: int | None = None,
    budget: str | None = None,
    out: Place | None = None,
    settings: Mapping[str, Any] | None = None,
    record: Place | None = None,
    replay: Place | None = None,
    track: api.Track = (),
    listener: Listener | None = None,
    quiet: bool = False,
) -> Run:
    """Train the weights of the agent's planner or policy in its live loop (Flow-GRPO, arXiv 2510.05592).

        run = train(Interleaved(model="local/Qwen/Qwen2.5-0.5B-Instruct"), tasks.train, reward=exact, steps=50)
        run = train("flow-grpo-tiny", out="runs/demo")

    Args:
        agent: an agent whose model is loaded into this process (`model="local/NAME"`, of AgentFlow `planner_model`),
            or a recipe's name.
        tasks: what to learn from: the split `train`; by default the recipe's own. They replace its tasks
            and validation; its other settings stay.
        reward: as in `evaluate`.
        validation: tasks for the curve of the report, 20 of them; without it, no evaluation: `tasks` are learned from.
        steps: updates of the weights.
        tasks_per_step: tasks of a step.
        group_size: trajectories of a task.
        learning_rate: after the warm-up.
        lora: the rank of an adapter to train in place of all weights.
    """
    table = _learner(agent, tasks, reward)
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
    return _learned(table, "training", chosen, seed, settings, budget, out, record, replay, track, listener, quiet)


@_allow_event_loop
def resume(
    run: Run | Place,
    *,
    retry_errors: bool = False,
    budget: str | None = None,
    record: Place | None = None,
    replay: Place | None = None,
    track: api.Track = (),
    listener: Listener | None = None,
    quiet: bool = False,
) -> Run:
    """Continue an interrupted or failed run or evaluation; a finished one stays as it is.

        run = resume("runs/mine")

    Args:
        run: the run, or its directory.
        retry_errors: of an evaluation, run again what ended in an infrastructure error.
    """
    with _listening(listener, quiet) as listener:
        directory = api.resume(
            run.directory if isinstance(run, Run) else Path(run),
            overrides=limit_settings(budget),
            retry_errors=retry_errors,
            record=_path(record),
            replay=_path(replay),
            track=track,
            listener=listener,
        )
    return Run(directory)


asolve = _make_async(solve)
aevaluate = _make_async(evaluate)
alearn_lessons = _make_async(learn_lessons)
atrain = _make_async(train)
aresume = _make_async(resume)


def compare(first: Run | Place, *others: Run | Place) -> Comparison:
    """Compare evaluations of the same tasks with the first.

        print(compare(before, after))

    Args:
        first: an evaluation or a run, or its path; `RUN@STEP` for another step than the last.
        others: those to compare with it.
    """
    return comparison.compare(*(run.directory if isinstance(run, Run) else os.fspath(run) for run in (first, *others)))


# --- tables -----------------------------------------------------------------------------------------------------------


def _source(agent: AnyAgent) -> Source:
    if isinstance(agent, Run | RunAgent):
        return agent.directory
    if isinstance(agent, AgentSpec):
        return agent.table()
    if isinstance(agent, str | os.PathLike):
        return os.fspath(agent)
    raise UsageError(
        f"{agent!r:.100} is not an agent of midstream",
        code="component-invalid",
        fix="give AgentFlow(...), Interleaved(...), a run, a recipe's name, or OwnAgent(...) around your own",
    )


def _learner(agent: AgentSpec | Place, tasks: Tasks | None, reward: Any) -> Table:
    """The table of an agent or recipe that learns from tasks."""
    source = _source(agent)
    if not isinstance(source, str | Mapping):
        raise UsageError(
            f"the agent of the run {source.root} does not learn further",
            code="wrong-kind-of-run",
            fix='give the agent that the run began with; its lessons: settings={"lessons.start": RUN}',
        )
    table = read_table(source) if isinstance(source, str) else source
    if tasks is None and isinstance(agent, AgentSpec):
        raise UsageError("no tasks are named", code="missing-option", fix="train(agent, tasks.train)")
    if tasks is not None:
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
    if reward is not None:
        table["reward"] = _reward(reward)
    return table


def _set(name: str, tasks: Tasks, learned: Tasks) -> Table:
    """The table of an evaluation set next to the tasks that are learned from."""
    table: Table = {"name": name, "split": tasks.chosen}
    return table if tasks.source == learned.source else {**table, "tasks": tasks.source}


def _reward(reward: Any) -> Table:
    return dict(reward) if isinstance(reward, Mapping) else {"type": component_type(reward)}


def _learned(
    table: Table,
    section: str,
    chosen: Mapping[str, Any],
    seed: int | None,
    settings: Mapping[str, Any] | None,
    budget: str | None,
    out: Place | None,
    record: Place | None,
    replay: Place | None,
    track: api.Track,
    listener: Listener | None,
    quiet: bool,
) -> Run:
    """The run of the table, with what was chosen in its section."""
    if values := {key: value for key, value in chosen.items() if value is not None}:
        table = merge(table, {section: values})
    if seed is not None:
        table["seed"] = seed
    recipe = parse_recipe(with_overrides(table, [*overrides_of(settings), *limit_settings(budget)]))
    with _listening(listener, quiet) as listener:
        directory = api.train(
            recipe,
            _path(out),
            exist_ok=out is not None,
            record=_path(record),
            replay=_path(replay),
            track=track,
            listener=listener,
        )
    return Run(directory)


def _path(place: Place | None) -> Path | None:
    return None if place is None else Path(place)
