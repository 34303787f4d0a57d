"""Functions of one rollout's state as tools, which dialogues offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from midstream.core.tool import Tool, ToolResult


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """A function as agents see it: `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Invocation:
    """A function and its arguments by name: one call, made or expected."""

    name: str
    arguments: Mapping[str, Any]


class StateFunction(Tool):
    """A tool whose call changes the state that `act` belongs to, at once and without waiting.

    Two calls of one rollout can therefore never overlap. `act` must copy the arguments that it stores: they are part of
    the trajectory.
    """

    timeout_s = 60.0  # required of tools; nothing here waits

    def __init__(self, spec: FunctionSpec, act: Callable[[Invocation], ToolResult], output_tokens: int) -> None:
        self.name, self.description, self.parameters = spec.name, spec.description, spec.parameters
        self.act, self.output_tokens = act, output_tokens

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Act on the state."""
        return self.act(Invocation(name=self.name, arguments=arguments))
