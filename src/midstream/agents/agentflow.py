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
from midstream.core.errors import DeadlineError, InfrastructureError, ToolServerError
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.protocols import Engine, Executor, Generator, ModuleContext, Planner, Tool, Verifier
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
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
)


class Config(Frozen):
    """Settings of the loop. `memory_update="every_turn"` is Algorithm 1, "on_continue" section 3.1 of the paper."""

    max_turns: int = Field(default=3, ge=1)
    memory_update: Literal["every_turn", "on_continue"] = "every_turn"
    record_time: bool = False


@dataclass(kw_only=True)
class _Run:
    """What one run gathers; made fresh in `run`, never kept on the agent."""

    memory: Memory = field(default_factory=Memory)
    turns: list[Turn] = field(default_factory=list)
    closing_calls: tuple[Call, ...] = ()
    answer: str | None = None
    stop_reason: StopReason = "turn_limit"


class AgentFlow:
    """The four modules of AgentFlow as one agent (`core.protocols.Agent`)."""

    name = "agentflow"

    def __init__(
        self, *, planner: Planner, executor: Executor, verifier: Verifier, generator: Generator, config: Config
    ) -> None:
        self.planner, self.executor, self.verifier, self.generator = planner, executor, verifier, generator
        self.config = config

    async def run(
        self,
        task: Task,
        tools: Sequence[Tool],
        engines: Mapping[str, Engine],
        *,
        seed: int,
        order: int = 0,
        lessons: str = "",
        deadline_s: float | None = None,
    ) -> Trajectory:
        """Run one task to an answer.

        A failed engine or tool, or a passed deadline, gives a trajectory with `status="error"` and the turns so far:
        what broke around the model is no verdict on it.
        """
        run = _Run()
        started, clock = time.time(), time.monotonic()
        error: ErrorInfo | None = None
        contexts = _Contexts(engines=engines, seed=seed, order=order, lessons=lessons, deadline_s=deadline_s)
        limit = asyncio.timeout_at(_loop_time(deadline_s))
        try:
            async with limit:
                await self._turns(run, task.question, tools, contexts)
                run.answer, run.closing_calls = await self.generator.generate(
                    task.question, run.memory, contexts.of("generator", len(run.turns) + 1)
                )
        except (TimeoutError, DeadlineError) as failure:
            if isinstance(failure, TimeoutError) and not limit.expired():
                raise  # by another clock than this run's
            run.stop_reason = "deadline"
            error = ErrorInfo(type=DeadlineError.__name__, message=f"no answer after {len(run.turns)} whole turns")
        except InfrastructureError as failure:
            run.stop_reason = "error"
            error = ErrorInfo(type=type(failure).__name__, message=str(failure), retryable=failure.retryable)
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
            started_at=started,
            duration_s=time.monotonic() - clock,
        )

    async def _turns(self, run: _Run, question: str, tools: Sequence[Tool], contexts: _Contexts) -> None:
        for index in range(1, self.config.max_turns + 1):
            clock = time.monotonic()
            turn = await self._turn(run.memory, question, tools, contexts, index)
            run.turns.append(turn)
            stop = turn.verdict is not None and turn.verdict.memory_sufficient
            if self.config.memory_update == "every_turn" or not stop:
                elapsed_s = time.monotonic() - clock if self.config.record_time else None
                run.memory = run.memory.append(_record(turn, elapsed_s))
            if stop:
                run.stop_reason = "verified"
                return

    async def _turn(
        self, memory: Memory, question: str, tools: Sequence[Tool], contexts: _Contexts, index: int
    ) -> Turn:
        """One decision: plan, act, observe, verify. A malformed action costs the turn: nothing is executed."""
        action, calls = await self.planner.plan(question, tools, memory, contexts.of("planner", index))
        events: list[EventKind] = [*_call_events(calls), "action"]
        command: Command | None = None
        if action.error:
            observation = Observation(status="error", text=action.error)
        else:
            command, more = await self.executor.command(action, tools, contexts.of("executor", index))
            calls += more
            events = [*events, *_call_events(more), "command"]
            observation = await _observe(command, tools)
        verdict, more = await self.verifier.verify(question, observation, memory, contexts.of("verifier", index))
        return Turn(
            index=index,
            events=(*events, "observation", *_call_events(more), "verdict"),
            action=action,
            command=command,
            observation=observation,
            verdict=verdict,
            calls=calls + more,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contexts:
    """Makes each module's context: its engine and a seed from (run, turn, module)."""

    engines: Mapping[str, Engine]
    seed: int
    order: int
    lessons: str
    deadline_s: float | None

    def of(self, module: str, turn: int) -> ModuleContext:
        return ModuleContext(
            engine=self.engines.get(module),
            seed=derive_seed(self.seed, turn, module),
            order=self.order,
            lessons=self.lessons,
            deadline_s=self.deadline_s,
        )


def _call_events(calls: Sequence[Call]) -> list[EventKind]:
    return ["call" for _ in calls]


async def _observe(command: Command, tools: Sequence[Tool]) -> Observation:
    """Run the command's tool within its time limit; an invalid command or a slow tool is an error observation."""
    if command.error:
        return Observation(status="error", text=command.error)
    tool = next(tool for tool in tools if tool.name == command.tool)
    clock = time.monotonic()
    limit = asyncio.timeout(tool.timeout_s)
    try:
        async with limit:
            result = await tool.call(command.arguments)
    except TimeoutError as failure:
        if not limit.expired():
            raise ToolServerError(f"{tool.name}: {failure!r}", cause="its back end timed out") from failure
        text = f"{tool.name} gave no result within {tool.timeout_s:g} s"
        return Observation(status="error", text=text, duration_s=time.monotonic() - clock)
    status = "ok" if result.ok else "error"
    return Observation(status=status, text=result.text, duration_s=time.monotonic() - clock)


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
    """A deadline of `time.monotonic()` on the running loop's clock."""
    if deadline_s is None:
        return None
    return asyncio.get_running_loop().time() + deadline_s - time.monotonic()
