"""Protocols of task sources, of the dialogues that some tasks are, and of rewards.

A dialogue is a simulated user who speaks in turns, and functions that change the state of one rollout. Every attempt at
a task opens a new one, so no two rollouts share state:

    begin() -> "Fill the tank." [fillFuelTank, displayCarStatus]    the agent calls functions, then replies
    reply("The tank is full.") -> "Now start the engine." [...]     ...
    reply("It runs.") -> over                                       the end; outcome() gives the facts to score
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from midstream.core.task import Task
from midstream.core.tool import Tool
from midstream.core.trajectory import Call, Score, Trajectory


class TaskSource(Protocol):
    """Where tasks come from.

    Splits are always called "train", "validation" and "test"; asking for a split that does not exist raises
    `RecipeError`. Task ids are unique within a split.
    """

    @property
    def families(self) -> Sequence[str]:
        """Task families that `sample` draws from, in a fixed order."""
        ...

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks for one training step; `weights` biases the draw by family."""
        ...

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),  # only these; empty for all
        per_family: int | None = None,  # tasks of each family
        count: int | None = None,  # tasks in all
    ) -> list[Task]:
        """Return a fixed evaluation set of distinct tasks: the whole split, or a sample of it drawn with `seed`.

        An endless source makes 60 tasks a family if neither number is given.

        Raises:
            RecipeError: the split has fewer tasks.
        """
        ...


@runtime_checkable
class World(Protocol):
    """A task source with a made-up world for offline use, whose facts a tool can search."""

    def documents(self) -> Iterable[tuple[str, str]]:
        """(id, text) of every fact, in a fixed order."""
        ...


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
        """Release resources; a subclass without any inherits this method."""


@runtime_checkable
class Dialogues(Protocol):
    """A task source whose tasks are dialogues."""

    def open(self, task: Task, *, seed: int) -> Dialogue:
        """Open a new dialogue of a task with its gold answer; agents see only the messages, never the task."""
        ...


class Reward(Protocol):
    """Scores a finished trajectory against its task.

    `name` is its name in tables, such as "exact match". `judged` is true if a model decides the score; reports never
    put scores of a model and scores of a rule in one column.
    """

    name: str
    judged: bool

    def check(self, task: Task) -> None:
        """Check, before any work and at almost no cost, that a task can be scored.

        Raises:
            RecipeError: it cannot.
        """
        ...

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score a trajectory: a value in [0, 1], 0 without an answer.

        Raises:
            RewardError: the judge or scorer failed, so there is no score.
        """
        ...

    async def close(self) -> None:
        """Release processes and connections."""
        ...
