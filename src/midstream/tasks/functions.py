"""Shared parts of stateful benchmarks: a function of one rollout's state as a tool, and the comparison of calls."""

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

    Two calls of one rollout can therefore never overlap. The protocol asks for `timeout_s`; nothing waits for it. `act`
    must copy the arguments that it stores: they are part of the trajectory.
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
        """Do nothing: the state is released with its dialogue."""


def matched_calls(made: Sequence[Invocation], expected: Sequence[Invocation]) -> int:
    """Count the `expected` calls that were made, by name and arguments, in any order; each counts once."""
    left = list(made)
    count = 0
    for call in expected:
        if call in left:
            left.remove(call)
            count += 1
    return count
