"""Dialogues: tasks with a simulated user who speaks in turns, and functions that change the state of one rollout.

    begin() -> "Fill the tank." [fillFuelTank, displayCarStatus]    the agent calls functions, then replies
    reply("The tank is full.") -> "Now start the engine." [...]     ...
    reply("It runs.") -> over                                        the end; outcome() gives the facts to score

Every attempt at a task opens a new dialogue, so no two rollouts share state.
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
    """A user's message, and the functions that the agent has from now on.

    `over` is true at the end of the dialogue: the agent does not reply. `calls` are the requests of a model that plays
    the user.
    """

    text: str
    tools: Sequence[Tool] = ()
    over: bool = False
    calls: tuple[Call, ...] = ()


OVER = UserTurn(text="", over=True)


class Dialogue(Protocol):
    """The user and the state of one rollout; calls of its tools change the state. `system` are rules for the agent."""

    system: str

    async def begin(self) -> UserTurn:
        """Return the first message."""
        ...

    async def reply(self, text: str) -> UserTurn:
        """Return the user's answer to the reply that ended the agent's turn.

        Raises:
            EngineError: the model that plays the user failed.
        """
        ...

    def outcome(self) -> dict[str, JsonValue]:
        """Return facts for the reward: "success" (bool), and what the benchmark's check compares."""
        ...

    async def close(self) -> None:
        """Release resources."""
        ...


@runtime_checkable
class Dialogues(Protocol):
    """A task source whose tasks are dialogues."""

    def open(self, task: Task, *, seed: int) -> Dialogue:
        """Open a new dialogue of a task with its gold answer; agents see only the messages, never the task."""
        ...
