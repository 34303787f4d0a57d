"""`midstream serve RECIPE --sessions` and `--train`: an agent that runs elsewhere, whose callers open sessions.

--sessions   callers bring tasks of their own; each session is scored and recorded
--train      callers run the agent that learns: they get the tasks of the training
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.components.tables import validate
from midstream.core.errors import RewardError, StorageError, UsageError
from midstream.core.events import Listener, Note
from midstream.core.seeds import derive_seed
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.gateway.settings import ServeConfig, SessionSettings
from midstream.process import build_for, open_budget, running
from midstream.recipe.inputs import create_run
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.recipe.sessions import refuse_strategy
from midstream.report.progress import print_warnings, progress
from midstream.rewards.rule import BaseReward
from midstream.rollout import rollout
from midstream.runs import EvaluationInfo, Journal, RunDirectory, results
from midstream.runs.budget import BudgetedAgent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to `serve`."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sessions", action="store_true", help="open sessions for agents that run elsewhere")
    how.add_argument("--train", action="store_true", help="likewise, with the tasks of the recipe's training")
    shared.add(parser, "--tasks", "--reward", "--out")


def instead(options: argparse.Namespace) -> int | None:
    """Open sessions until Ctrl-C, or until a service manager ends it; None to answer clients with an agent."""
    if not (options.train or options.sessions):
        for name in ("tasks", "reward", "out"):
            if value := getattr(options, name):
                raise UsageError(
                    f"--{name} {value} does nothing: answers to clients are neither scored nor recorded",
                    code="option-without-effect",
                    fix="leave it out; --sessions and --train record what they serve",
                )
        return None
    shared.allow_interrupts()

    def ready(address: str) -> None:
        if not options.quiet:
            when = "answers" if not options.train else "will answer, once its agent is loaded,"
            print(
                f"{options.target} {when} at POST {address}/v1/sessions (Ctrl-C ends it)", file=sys.stderr, flush=True
            )

    config = validate(ServeConfig, {"host": options.host, "port": options.port}, "serve")
    work = serve_training if options.train else serve_sessions
    with progress(quiet=options.quiet) as listener:
        changes = shared.changes(LearningChanges, options)
        done = work(options.target, options.out, config=config, listener=listener, ready=ready, **changes)
    if options.train:
        show_done(done, as_json=False)
        return 0
    counts = Counter("lost" if one.error else "scored" for one in done.trajectories.open("sessions"))
    print(f"{counts.total()} sessions in {done.root}: {counts['scored']} scored, {counts['lost']} lost to errors")
    print(f"one of them: midstream show {done.root} ID")
    return 0


def serve_training(
    source: str,
    out: Path | None = None,
    *,
    config: ServeConfig,
    listener: Listener = print_warnings,
    ready: Callable[[str], object] = lambda _: None,
    **changes: Unpack[LearningChanges],
) -> RunDirectory:
    """Train a recipe with an agent that runs elsewhere: its callers get the tasks. Arguments as of `api.train`."""
    recipe = external_recipe(source, config, **changes)
    ready(f"http://{config.host}:{config.port}")
    return api.train(recipe, out=out, exist_ok=False, listener=listener).directory


def external_recipe(source: str, config: ServeConfig, **changes: Unpack[LearningChanges]) -> Recipe:
    """A recipe whose agent runs elsewhere, and asks the engine of the recipe's policy.

    Raises `RecipeError` for one with a strategy.
    """
    recipe = changed_recipe(source, **changes)
    refuse_strategy(recipe)
    table = recipe.table()
    policy = recipe.modules[recipe.trained]
    if table["agent"]["type"] != "external":
        sampling = getattr(policy.config, "sampling", None)
        given = {} if sampling is None else {"sampling": sampling.model_dump(mode="json")}
        if isinstance(policy.config, SessionSettings):
            # Its limits are those of the sessions.
            given = policy.config.model_dump(mode="json", include=set(SessionSettings.model_fields), exclude_none=True)
        table["agent"] = {**given, "type": "external", "engine": policy.engine}
        table["tools"] = {}
    table["serve"] = {**table["serve"], "host": config.host, "port": config.port}
    return parse_recipe(table)


def serve_sessions(
    source: str,
    out: Path | None = None,
    *,
    config: ServeConfig,
    listener: Listener = print_warnings,
    ready: Callable[[str], object] = lambda _: None,
    **changes: Unpack[LearningChanges],
) -> RunDirectory:
    """Open sessions for callers with tasks of their own, and record each as it ends, until Ctrl-C.

    A session is scored by its caller's reward, or by the recipe's if its task has an answer; else it has no reward.
    """
    recipe = external_recipe(source, config, **changes).model_copy(update={"training": None})
    root = Path(out or api.new_root(recipe.name))
    build = build_for(recipe, {})
    with ExitStack() as opened:
        run_coroutine = opened.enter_context(running("evaluation", build, listener))
        begun = (root / "run.json").exists()
        run = RunDirectory.open(root) if begun else create_run(root, build, EvaluationInfo())
        opened.enter_context(run.lock())
        opened.enter_context(open_budget(run, build.budget))
        journal = opened.enter_context(closing(Journal(run.results_path)))
        run.set_status("running")
        environment = build.environment()
        # A caller who gave up does not come back for another attempt.
        once = environment.config.model_copy(update={"max_attempts": 1})
        environment = replace(environment, reward=_WithAnswer(environment.reward), config=once)

        async def work() -> None:
            full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def one(task: Task) -> str:
                try:
                    [group] = await rollout(environment, [task], seed=derive_seed(recipe.seed, task.id))
                    results.append(journal, "sessions", group.trajectories)
                except Exception as failure:  # noqa: BLE001  # whatever a caller brought ends only its own session
                    listener(Note(f"session {task.id!r} is lost: {failure!r:.500}"))
                    # No session can be recorded any more.
                    if isinstance(failure, StorageError) and not full.done():
                        full.set_exception(failure)
                    return str(failure) or repr(failure)
                return ""

            agent: Any = environment.agent
            while isinstance(agent, BudgetedAgent):
                agent = agent.agent
            # Ids of sessions that an earlier server has recorded are taken.
            ended = [result.place[0] for result in results.read(run.results_path)]
            agent.take_tasks(one, ended)
            build.gateway.start()
            ready(build.gateway.address)
            # Or until Ctrl-C.
            await full

        try:
            with suppress(KeyboardInterrupt):
                run_coroutine(work())
        finally:
            with run.trajectories.writing("sessions") as write:
                for result in results.read(run.results_path):
                    write(result.trajectory)
            run.set_status("finished")
    return run


class _WithAnswer(BaseReward):
    """A reward that refuses to score a task without an answer: an answer that nothing compares with is not wrong."""

    def __init__(self, reward: Reward) -> None:
        # Its owner closes it.
        self._reward, self.name, self.judged = reward, reward.name, reward.judged

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The reward's score. Raises `RewardError` for a task without an answer."""
        if not task.answer:
            raise RewardError(
                f"task {task.id!r} has no answer to score by, and its caller gave no reward",
                code="reward-missing",
                fix="open the session with an answer, or end it with a reward",
                retryable=False,
            )
        return await self._reward.score(task, trajectory)
