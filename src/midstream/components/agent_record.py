"""What every agent loop shares: the turn under way, the record of a run, and its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, JsonValue, field_validator

from midstream.components.component import ComponentConfig
from midstream.core.agent import RunContext
from midstream.core.data import Frozen
from midstream.core.errors import DeadlineError, InfrastructureError, PromptTooLongError, RefusedError, UnsupportedError
from midstream.core.events import Emit
from midstream.core.task import Task
from midstream.core.text import spoken
from midstream.core.tool import Tool
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    EventKind,
    Observation,
    Score,
    StopReason,
    Trajectory,
    Turn,
    Verdict,
)

# Of the calls of an own agent that training learns from.
ROLE = "policy"
# Engines keep the deadline themselves, and then report the request and its failures.
_GRACE_S = 0.25


# Characters.
LONGEST_TEXT = 1 << 20


class Outcome(Frozen):
    """What an agent may return in place of an answer: a reward in [0, 1] of its own, and why, in words.

    Texts are cut to `LONGEST_TEXT`, and halves of a surrogate pair, which no file holds, become question marks.
    """

    answer: str | None = None
    reward: float | None = Field(default=None, ge=0, le=1)
    feedback: str = ""

    @field_validator("answer", "feedback", mode="before")
    @classmethod
    def _fit(cls, text: object) -> object:
        return text[:LONGEST_TEXT].encode("utf-8", "replace").decode() if isinstance(text, str) else text


@dataclass(kw_only=True)
class Draft:
    """The turn under way, with the fields of a `Turn`. If something breaks, the trajectory keeps what it holds."""

    index: int
    user: str = ""
    events: list[EventKind] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    action: Action | None = None
    command: Command | None = None
    observation: Observation | None = None
    verdict: Verdict | None = None
    appended: str = ""

    def add_calls(self, calls: Sequence[Call]) -> None:
        """Add a module's requests."""
        self.calls += calls
        self.events.extend("call" for _ in calls)

    def add(self, kind: EventKind, emit: Emit, calls: Sequence[Call] = ()) -> None:
        """Record that the field `kind` is set, after the requests that led to it, and emit its value."""
        self.add_calls(calls)
        self.events.append(kind)
        emit(kind, getattr(self, kind))

    def turn(self, error: ErrorInfo | None = None) -> Turn:
        """The turn as it is recorded."""
        return Turn(**vars(self), error=error)


@dataclass(kw_only=True)
class RunRecord:
    """What one run produces; a new one for each run, never kept on the agent."""

    opening_calls: tuple[Call, ...] = ()
    analysis: str = ""
    turns: list[Turn] = field(default_factory=list)
    draft: Draft | None = None
    closing_calls: tuple[Call, ...] = ()
    answer: str | None = None
    final: str = ""
    stop_reason: StopReason = "turn_limit"
    reward: Score | None = None  # the agent's own
    outcome: dict[str, JsonValue] = field(default_factory=dict)

    def begin_turn(self) -> Draft:
        """Begin the next turn."""
        self.draft = Draft(index=len(self.turns) + 1)
        return self.draft

    def end_turn(self) -> Turn:
        """End the turn under way."""
        assert self.draft is not None, "a turn ends once, after it began"
        turn, self.draft = self.draft.turn(), None
        self.turns.append(turn)
        return turn

    def end_at_limit(self, failure: PromptTooLongError | DeadlineError) -> Turn:
        """End the turn under way at the limit that `failure` reports, which is the run's stop reason."""
        self.stop_reason = "context_limit" if isinstance(failure, PromptTooLongError) else "time_limit"
        self.end_broken(failure)
        return self.turns[-1]

    def end_broken(self, failure: InfrastructureError) -> ErrorInfo:
        """Add the failure and its requests to the turn under way, which ends; return the error.

        Between turns, the requests count as before the first turn or after the last.
        """
        error = ErrorInfo(type=type(failure).__name__, message=str(failure), retryable=failure.retryable)
        if self.draft is None and not self.turns:
            self.opening_calls += failure.calls
        elif self.draft is None:
            self.closing_calls += failure.calls
        else:
            self.draft.add_calls(failure.calls)
            self.turns.append(self.draft.turn(error))
            self.draft = None
        return error


@asynccontextmanager
async def until(deadline_s: float | None) -> AsyncGenerator[None]:
    """Raise `DeadlineError` in the block soon after `deadline_s`, a time of `time.monotonic()`."""
    # The event loop has another clock. An engine that keeps the deadline itself raises before this one does.
    limit = asyncio.timeout(None if deadline_s is None else deadline_s + _GRACE_S - time.monotonic())
    try:
        async with limit:
            yield
    except TimeoutError as failure:
        if not limit.expired():
            # A time-out of another clock than this run's.
            raise
        raise DeadlineError("a tool or a module was still running at the deadline", code="deadline") from failure


class AgentSettings(ComponentConfig):
    """Settings of an agent of your own, next to those that it takes itself."""

    asks = "optional"
    role: ClassVar[str] = ROLE  # of the calls that are trained
    dialogues: ClassVar[bool] = False  # it holds dialogues


class RecordedAgent:
    """An agent (`core.agent.Agent`) whose runs are recorded; a subclass implements `work`."""

    name: str
    dialogues = False  # whether it holds dialogues

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run a task once.

        A failed engine or tool, or a deadline that leaves no answer, gives a trajectory with `status="error"`, the
        turns so far and the broken one as far as it got: a failure around the model is not the model's. Raises
        `UnsupportedError` for a dialogue, if the agent holds none.
        """
        if context.dialogue is not None and not self.dialogues:
            raise UnsupportedError(
                f"the agent {self.name} was given a task that is a dialogue, and answers single questions",
                code="dialogues-not-supported",
                fix='set agent.type = "interleaved", or write a class with `run` and `dialogues = True`',
            )
        record = RunRecord()
        started, clock = time.time(), time.monotonic()
        error: ErrorInfo | None = None
        try:
            await self.work(record, task, context)
        except DeadlineError as failure:
            record.stop_reason = "time_limit"
            late = DeadlineError(
                f"the run's deadline passed after {len(record.turns)} turns, and no answer came",
                code="deadline",
                cause=failure.what,
                fix="raise rollout.deadline_s or agent.answer_s, or lower agent.max_turns or max_tokens",
                calls=failure.calls,
            )
            error = record.end_broken(late)
        except RefusedError:
            # It is the same for every task, so it ends the run.
            raise
        except InfrastructureError as failure:
            record.stop_reason = "error"
            error = record.end_broken(failure)
        calls = [call for turn in record.turns for call in turn.calls] + [*record.opening_calls, *record.closing_calls]
        return Trajectory(
            id=task.id,
            task_id=task.id,
            question=task.question,
            agent=self.name,
            seed=context.seed,
            turns=tuple(record.turns),
            opening_calls=record.opening_calls,
            analysis=record.analysis,
            closing_calls=record.closing_calls,
            answer=record.answer,
            final=spoken(record.final).strip(),
            reward=record.reward,
            outcome=record.outcome,
            stop_reason=record.stop_reason,
            status="error" if error else "ok",
            error=error,
            cost_usd=sum(call.usage.cost_usd for call in calls),
            request_failures=sum(max(len(call.failures), call.error is not None) for call in calls),
            started_at=started,
            duration_s=time.monotonic() - clock,
        )

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Fill the record, and keep the deadline; what is raised ends the turn under way."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release what the agent holds, here nothing."""


async def observe(tool: Tool, arguments: Mapping[str, JsonValue]) -> tuple[Observation, tuple[Call, ...]]:
    """A tool's answer to valid arguments, and the requests that the tool made."""
    started, clock = time.time(), time.monotonic()
    result = await call_tool(tool, arguments)
    status, took = "ok" if result.ok else "error", time.monotonic() - clock
    text, marks = result.text, result.marks
    return Observation(status=status, text=text, started_at=started, duration_s=took, marks=marks), result.calls
