"""The other side of a stateful task: a user who speaks in turns, and functions that change the state of one rollout.

    begin() -> "Fill the tank." [fillFuelTank, displayCarStatus]    the agent calls functions, then replies
    reply("The tank is full.") -> "Now start the engine." [...]     ...
    reply("It runs.") -> over                                        nothing more is said; outcome() says how it went

A dialogue is opened afresh for every attempt at a task and belongs to it alone: no state is shared by two rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import JsonValue

from midstream.core.task import Task
from midstream.core.trajectory import Call

if TYPE_CHECKING:
    from midstream.core.protocols import Tool


@dataclass(frozen=True, kw_only=True, slots=True)
class UserTurn:
    """What a user says, and the functions that the agent has from now on.

    `over`: the dialogue has ended, and the agent is asked for nothing more. `calls` are the requests behind it, where a
    model plays the user.
    """

    text: str
    tools: Sequence[Tool] = ()
    over: bool = False
    calls: tuple[Call, ...] = ()


OVER = UserTurn(text="", over=True)


class Dialogue(Protocol):
    """One rollout's user and state, which calls of its tools change. `system` are rules for the agent ("" for none)."""

    system: str

    async def begin(self) -> UserTurn:
        """The first message."""
        ...

    async def reply(self, text: str) -> UserTurn:
        """What the user says to the reply that ended the agent's turn.

        Raises `EngineError` if the model that plays the user fails.
        """
        ...

    def outcome(self) -> dict[str, JsonValue]:
        """How it went, as facts for rewards: "success" (bool), and what each benchmark's check compares."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...


@runtime_checkable
class Dialogues(Protocol):
    """A source of tasks whose tasks are dialogues."""

    def open(self, task: Task, *, seed: int) -> Dialogue:
        """A fresh dialogue of one of its tasks, gold answer and all: agents never see the task, only what is said."""
        ...
