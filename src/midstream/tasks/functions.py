"""What stateful benchmarks share: a function of one rollout's state as a tool, and the comparison of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from midstream.core.protocols import ToolResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Invocation:
    """A function and its arguments by name: one call, made or expected."""

    name: str
    arguments: Mapping[str, Any]


Act = Callable[[Invocation], ToolResult]


@dataclass(kw_only=True, slots=True)
class StateFunction:
    """A `core.protocols.Tool` whose call changes the state that `act` belongs to, at once and without waiting.

    Two calls of one rollout can so never run into each other. `timeout_s` is there for the protocol: nothing is waited
    for. What `act` stores of the arguments it copies: they are on record.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    act: Act
    output_tokens: int
    timeout_s: float = 60.0

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Act on the state."""
        return self.act(Invocation(name=self.name, arguments=arguments))

    async def close(self) -> None:
        """Nothing to release: the state goes with its dialogue."""


def matched_calls(made: Sequence[Invocation], expected: Sequence[Invocation]) -> int:
    """How many of the `expected` calls were made, by name and arguments, each as often as it is expected; any order."""
    left = [(one.name, one.arguments) for one in made]
    count = 0
    for one in expected:
        if (one.name, one.arguments) in left:
            left.remove((one.name, one.arguments))
            count += 1
    return count
