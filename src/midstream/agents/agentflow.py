"""AgentFlow: planner, executor, verifier and generator work together through an evolving memory.

Source: arXiv 2510.05592, section 3.1 and Algorithm 1. Per turn t: action a_t ~ planner(q, K, M_t); command and
observation e_t ~ executor(a_t, K); verdict v_t ~ verifier(q, e_t, M_t); M_{t+1} = f_mem(M_t, a_t, e_t, v_t). The loop
ends at a STOP verdict or at `max_turns`; then answer o ~ generator(q, M_T).

The agent object holds modules and settings only, nothing of a task: any number of runs may share it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.errors import DeadlineError, InfrastructureError
from midstream.core.events import Event, Listener, Tell, tell_nobody
from midstream.core.lessons import NO_LESSONS, Lessons
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.protocols import CodeRunner, Engine, Executor, Generator, ModuleContext, Planner, Tool, Verifier
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    EventKind,
    Observation,
    StopReason,
    Trajectory,
    Turn,
    Verdict,
)

_GRACE_S = 0.25  # an engine keeps the deadline itself, and then says what it asked and how often that failed


class Config(Frozen):
    """Settings of the loop. `memory_update="every_turn"` is Algorithm 1, "on_continue" section 3.1 of the paper."""

    max_turns: int = Field(default=3, ge=1)
    memory_update: Literal["every_turn", "on_continue"] = "every_turn"
    record_time: bool = False


@dataclass(kw_only=True)
class _Draft:
    """The turn under way: what it holds when something breaks is what the trajectory keeps of it."""

    index: int
    events: list[EventKind] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    action: Action | None = None
    command: Command | None = None
    observation: Observation | None = None
    verdict: Verdict | None = None

    def called(self, calls: Sequence[Call]) -> None:
        """Requests that a module made."""
        self.calls += calls
        self.events.extend("call" for _ in calls)

    def turn(self, error: ErrorInfo | None = None) -> Turn:
        """The turn as it is recorded."""
        return Turn(
            index=self.index,
            events=tuple(self.events),
            action=self.action,
            command=self.command,
            observation=self.observation,
            verdict=self.verdict,
            calls=tuple(self.calls),
            error=error,
        )


@dataclass(kw_only=True)
class _Run:
    """What one run gathers; made fresh in `run`, never kept on the agent."""

    memory: Memory = field(default_factory=Memory)
    turns: list[Turn] = field(default_factory=list)
    draft: _Draft | None = None
    closing_calls: tuple[Call, ...] = ()
    answer: str | None = None
    stop_reason: StopReason = "turn_limit"


class AgentFlow:
    """The four modules of AgentFlow as one agent (`core.protocols.Agent`)."""

    name = "agentflow"

    def __init__(
        self,
        *,
        planner: Planner,
        executor: Executor,
        verifier: Verifier,
        generator: Generator,
        config: Config,
        code_runner: CodeRunner | None = None,
    ) -> None:
        self.planner, self.executor, self.verifier, self.generator = planner, executor, verifier, generator
        self.config = config
        self.code_runner = code_runner

    async def run(
        self,
        task: Task,
        tools: Sequence[Tool],
        engines: Mapping[str, Engine],
        *,
        seed: int,
        order: int = 0,
        lessons: Lessons = NO_LESSONS,
        deadline_s: float | None = None,
        listener: Listener | None = None,
    ) -> Trajectory:
        """Run one task to an answer.

        A failed engine or tool, or a passed deadline, gives a trajectory with `status="error"`, the turns so far and
        what there is of the broken one: what broke around the model is no verdict on it.
        """
        run = _Run()
        started, clock = time.time(), time.monotonic()
        error: ErrorInfo | None = None
        contexts = _Contexts(
            engines=engines, seed=seed, order=order, lessons=lessons, deadline_s=deadline_s, listener=listener
        )
        limit = asyncio.timeout_at(_loop_time(deadline_s))
        try:
            async with limit:
                await self._turns(run, task.question, tools, contexts)
                await self._answer(run, task.question, contexts)
        except (TimeoutError, DeadlineError) as failure:
            if isinstance(failure, TimeoutError) and not limit.expired():
                raise  # by another clock than this run's
            run.stop_reason = "deadline"
            late = DeadlineError(
                f"the run's time was up after {len(run.turns)} whole turns",
                cause=failure.what if isinstance(failure, DeadlineError) else "a tool or a module was still at work",
                mend="raise rollout.deadline_s, or lower agent.max_turns or max_tokens",
            )
            error = ErrorInfo(type=DeadlineError.__name__, message=str(late))
            _keep_broken(run, error, getattr(failure, "calls", ()))
        except InfrastructureError as failure:
            run.stop_reason = "error"
            error = ErrorInfo(type=type(failure).__name__, message=str(failure), retryable=failure.retryable)
            _keep_broken(run, error, failure.calls)
        calls = [call for turn in run.turns for call in turn.calls] + list(run.closing_calls)
        return Trajectory(
            id=task.id,
            task_id=task.id,
            question=task.question,
            agent=self.name,
            seed=seed,
            turns=tuple(run.turns),
            closing_calls=run.closing_calls,
            answer=run.answer,
            stop_reason=run.stop_reason,
            status="error" if error else "ok",
            error=error,
            cost_usd=sum(call.usage.cost_usd for call in calls),
            request_failures=sum(max(len(call.failures), call.error is not None) for call in calls),
            started_at=started,
            duration_s=time.monotonic() - clock,
        )

    async def close(self) -> None:
        """End what runs commands' code."""
        if self.code_runner is not None:
            await self.code_runner.close()

    async def _turns(self, run: _Run, question: str, tools: Sequence[Tool], contexts: _Contexts) -> None:
        for index in range(1, self.config.max_turns + 1):
            clock = time.monotonic()
            run.draft = _Draft(index=index)
            await self._turn(run.draft, run.memory, question, tools, contexts)
            turn, run.draft = run.draft.turn(), None
            run.turns.append(turn)
            stop = turn.verdict is not None and turn.verdict.memory_sufficient
            if self.config.memory_update == "every_turn" or not stop:
                elapsed_s = time.monotonic() - clock if self.config.record_time else None
                run.memory = run.memory.append(_record(turn, elapsed_s))
            if stop:
                run.stop_reason = "verified"
                return

    async def _turn(
        self, draft: _Draft, memory: Memory, question: str, tools: Sequence[Tool], contexts: _Contexts
    ) -> None:
        """One decision: plan, act, observe, verify. A malformed action costs the turn: nothing is executed."""
        context = contexts.of("planner", draft.index)
        draft.action, calls = await self.planner.plan(question, tools, memory, context)
        draft.called(calls)
        draft.events.append("action")
        context.tell("action", draft.action)
        if draft.action.error:
            draft.observation = Observation(status="error", text=draft.action.error)
        else:
            context = contexts.of("executor", draft.index)
            draft.command, calls = await self.executor.command(draft.action, tools, context)
            draft.called(calls)
            draft.events.append("command")
            context.tell("command", draft.command)
            draft.observation, calls = await self._observe(draft.command, tools)
            draft.called(calls)
        draft.events.append("observation")
        context.tell("observation", draft.observation)
        context = contexts.of("verifier", draft.index)
        draft.verdict, calls = await self.verifier.verify(question, draft.observation, memory, context)
        draft.called(calls)
        draft.events.append("verdict")
        context.tell("verdict", draft.verdict)

    async def _answer(self, run: _Run, question: str, contexts: _Contexts) -> None:
        context = contexts.of("generator", len(run.turns) + 1)
        run.answer, run.closing_calls = await self.generator.generate(question, run.memory, context)
        context.tell("answer", run.answer)

    async def _observe(self, command: Command, tools: Sequence[Tool]) -> tuple[Observation, tuple[Call, ...]]:
        """What came of a command, and its tool's own requests; an invalid one is an error observation."""
        if command.error:
            return Observation(status="error", text=command.error), ()
        tool = next(tool for tool in tools if tool.name == command.tool)
        if command.code is None:
            clock = time.monotonic()
            result = await call_tool(tool, command.arguments)
            status = "ok" if result.ok else "error"
            return Observation(status=status, text=result.text, duration_s=time.monotonic() - clock), result.calls
        assert self.code_runner is not None, "build.py gives an agent whose executor writes code a runner"
        return await self.code_runner.run(command.code, tool)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contexts:
    """Makes each module's context: its engine and a seed from (run, turn, module)."""

    engines: Mapping[str, Engine]
    seed: int
    order: int
    lessons: Lessons
    deadline_s: float | None
    listener: Listener | None

    def of(self, module: str, turn: int) -> ModuleContext:
        tell = self._teller(module, turn)
        tell("start", None)
        return ModuleContext(
            engine=self.engines.get(module),
            seed=derive_seed(self.seed, turn, module),
            order=self.order,
            lessons=self.lessons.get(module, ""),
            deadline_s=self.deadline_s,
            tell=tell,
        )

    def _teller(self, module: str, turn: int) -> Tell:
        listener = self.listener
        if listener is None:
            return tell_nobody
        return lambda kind, value: listener(Event(turn=turn, role=module, kind=kind, value=value))


def _keep_broken(run: _Run, error: ErrorInfo, calls: tuple[Call, ...]) -> None:
    """Record what there is of the turn that broke, or of the generator's requests; `calls` are the failed module's."""
    if run.draft is None:
        run.closing_calls = calls
        return
    run.draft.called(calls)
    run.turns.append(run.draft.turn(error))


def _record(turn: Turn, elapsed_s: float | None) -> MemoryRecord:
    """f_mem: the turn as memory keeps it."""
    observation = turn.observation
    failed = observation is not None and observation.status == "error"
    return MemoryRecord(
        turn=turn.index,
        action=turn.action or Action(),
        command=turn.command,
        result=observation.text if observation and not failed else "",
        error=observation.text if observation and failed else None,
        verdict=turn.verdict,
        elapsed_s=elapsed_s,
    )


def _loop_time(deadline_s: float | None) -> float | None:
    """A little after a deadline of `time.monotonic()`, on the running loop's clock."""
    if deadline_s is None:
        return None
    return asyncio.get_running_loop().time() + deadline_s + _GRACE_S - time.monotonic()
