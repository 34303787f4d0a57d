"""Solve, evaluate, train, practice, compare: what the commands do, for agents, tasks and rewards as objects.

Each function works in a script, in a running event loop and in a notebook; the form with an `a` before its name is
awaited instead. Work in a directory (`out`) that was begun before continues there.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from midstream import api
from midstream.core.component import Table
from midstream.core.own import refuse_while_importing
from midstream.core.trajectory import Trajectory
from midstream.interface.agents import AgentSpec, named
from midstream.interface.results import Run
from midstream.interface.tasks import Tasks
from midstream.recipe.overrides import Source
from midstream.recipe.schema import merge, parse_recipe

P = ParamSpec("P")
T = TypeVar("T")
AnyAgent = AgentSpec | Run | str | os.PathLike[str]
"""An agent, a run whose agent is meant, or a recipe or run by its name or path."""


def solve(agent: AnyAgent, question: str) -> Trajectory:
    """Answer one question.

    print(solve(AgentFlow(model="ollama/qwen2.5:7b"), "What is 45 plus 17 ?").answer)
    """
    return _here("solve", api.solve, question, _source(agent))


def evaluate(
    agent: AnyAgent,
    tasks: Tasks | None = None,
    *,
    reward: Any = None,
    trials: int | None = None,
    temperature: float | None = None,
    out: str | None = None,
) -> Run:
    """Run the agent on tasks and score its answers.

    Args:
        agent: an agent, a run, or a recipe's name.
        tasks: what to measure on, by default the sets of its recipe.
        reward: a function, a reward's name, or a table; by default that of each task.
        trials: attempts at each task.
        temperature: of the planner or policy; by default its own.
        out: the evaluation's directory; by default a new one.
    """
    sets: list[Table] = [] if tasks is None else [_set(tasks, reward)]
    work = partial(api.evaluate, _source(agent), out, sets=sets, trials=trials, temperature=temperature)
    return Run(_here("evaluate", work))


def practice(
    agent: AgentSpec,
    tasks: Tasks,
    *,
    reward: Any = None,
    budget: str | None = None,
    out: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Learn lessons from the agent's own runs (Training-Free GRPO, arXiv 2510.08191); its model stays as it is.

    Args:
        agent: the agent.
        tasks: what to learn from.
        reward: as in `evaluate`.
        budget: the most that it may spend, such as "2 usd", "500 rollouts" or "1000000 tokens".
        out: the run's directory; by default a new one.
        settings: others of a recipe, by their names: `{"practice.epochs": 1}`.
    """
    table = _learning(agent, tasks, reward)
    table["practice"] = {"tasks": len(tasks), "batch_size": len(tasks), "reflector": {"engine": "model"}}
    return _trained("practice", table, out, settings)


def train(
    agent: AgentSpec | str,
    tasks: Tasks | None = None,
    *,
    reward: Any = None,
    out: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Train the weights of the agent's planner or policy in its live loop (Flow-GRPO, arXiv 2510.05592).

    Arguments as of `practice`; the agent's model is one in this process, `model="local/NAME"`. A recipe's name trains
    that recipe.
    """
    if isinstance(agent, str):
        return Run(_here("train", api.train, agent, out, exist_ok=out is not None))
    assert tasks is not None
    table = _learning(agent, tasks, reward)
    table["training"] = {}
    return _trained("train", table, out, settings)


def resume(run: Run | str | os.PathLike[str]) -> Run:
    """Continue an interrupted run or evaluation."""
    return Run(_here("resume", api.resume, run.directory if isinstance(run, Run) else os.fspath(run)))


def compare(first: Run | str, *others: Run | str) -> api.Comparison:
    """Compare evaluations of the same tasks with the first."""
    return api.compare(*(run.directory if isinstance(run, Run) else run for run in (first, *others)))


# --- tables -----------------------------------------------------------------------------------------------------------


def _source(agent: AnyAgent) -> Source:
    if isinstance(agent, AgentSpec):
        return agent.table()
    return agent.directory if isinstance(agent, Run) else os.fspath(agent)


def _set(tasks: Tasks, reward: Any) -> Table:
    """The table of an evaluation set."""
    table: Table = {"name": tasks.chosen, "tasks": tasks.source, "split": tasks.chosen}
    if tasks.count is not None:
        table["count"] = tasks.count
    return table if reward is None else {**table, "reward": _reward(reward)}


def _reward(reward: Any) -> Table:
    return dict(reward) if isinstance(reward, Mapping) else {"type": named(reward)}


def _learning(agent: AgentSpec, tasks: Tasks, reward: Any) -> Table:
    """The table of an agent that learns from tasks."""
    table = agent.table()
    table["tasks"] = tasks.source
    table["reward"] = {"type": "per_task"} if reward is None else _reward(reward)
    table["evaluation"] = {"validation": {"name": "validation", "split": tasks.chosen}}
    return table


def _trained(work: str, table: Table, out: str | None, settings: Mapping[str, Any] | None) -> Run:
    for key, value in (settings or {}).items():
        for part in reversed(key.split(".")):
            value = {part: value}
        table = merge(table, value)
    return Run(_here(work, api.train, parse_recipe(table), out, exist_ok=out is not None))


# --- where the work runs ----------------------------------------------------------------------------------------------


def _here(work: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's result; where an event loop runs, as in a notebook, the work has a thread of its own."""
    refuse_while_importing(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*args, **kwargs)
    done, stop = _started(partial(function, *args, **kwargs))
    try:
        return done.result()
    except KeyboardInterrupt:
        stop()
        return done.result()


async def _awaited(function: Callable[[], T]) -> T:
    done, stop = _started(function)
    try:
        return await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        stop()
        with_errors = asyncio.wrap_future(done)
        await asyncio.wait([with_errors])
        raise


def _started(function: Callable[[], T]) -> tuple[Future[T], api.Stop]:
    """Start the function in a thread; returns its result to come, and what stops it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    stop = api.Stop()

    def run() -> None:
        try:
            with api.stopped_by(stop):
                done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=[run], name="midstream", daemon=True).start()
    return done, stop
