"""Protocols of tools: what agents call, and what makes a tool for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from midstream.core.data import JsonSchema
from midstream.core.task import Task
from midstream.core.texts import TOOLS, Lessons
from midstream.core.trajectory import Call


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """A tool's answer.

    `ok=False` is still an answer, such as "no document matches"; a broken tool raises instead. `calls` are the requests
    that the tool made to its own engine. `marks` say what a simulated or degraded tool did; no agent sees them.
    """

    text: str
    ok: bool = True
    calls: tuple[Call, ...] = ()
    marks: tuple[str, ...] = field(default=(), repr=False)


@runtime_checkable
class Tool(Protocol):
    """Something that an agent can call."""

    name: str  # what agents call it
    description: str  # what it does, as the prompt says it
    parameters: JsonSchema  # of the arguments of `call`; its type is object
    timeout_s: float  # time limit of one call
    output_tokens: int  # limit of a result's text, at four characters a token

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run the tool with arguments that satisfy `parameters`.

        Raises:
            ToolServerError: the tool's back end failed.
        """
        ...

    async def close(self) -> None:
        """Release processes and connections; a subclass without any inherits this method."""


class Wrapper(Tool):
    """A tool around another one, which it looks like. Any tool: `name` may be a property."""

    def __init__(self, inner: Tool) -> None:
        self.name, self.description, self.parameters = inner.name, inner.description, inner.parameters
        self.timeout_s, self.output_tokens = inner.timeout_s, inner.output_tokens


class Renamed(Wrapper):
    """Another tool, which others may share, under another name, or with another description."""

    def __init__(self, inner: Tool, name: str, description: str = "") -> None:
        super().__init__(inner)
        self.name, self.call, self.close = name, inner.call, inner.close
        self.description = description or inner.description
        if isinstance(inner, PerRun):
            self.for_run = lambda run: Renamed(inner.for_run(run), name, description)
            self.probabilities = inner.probabilities


def described(tools: Sequence[Tool], lessons: Lessons) -> list[Tool]:
    """The tools, with the descriptions that were learned for them."""
    learned = ((tool, lessons.get(TOOLS + tool.name)) for tool in tools)
    return [Renamed(tool, tool.name, text) if text else tool for tool, text in learned]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """Progress of a run that learns: its step (0 before the first) of `steps`, and the agent's running success."""

    step: int
    steps: int
    success: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRun:
    """Material of a tool of one run: the task with its gold answer, the run's seed, and how far training is.

    `progress` is None outside the steps of training: in evaluations, in a warm start, in `midstream solve`.
    """

    task: Task
    seed: int
    progress: RunProgress | None = None


@runtime_checkable
class PerRun(Protocol):
    """Makes one tool for each run of an agent, as simulated and degraded tools do; the agent sees only that tool."""

    def for_run(self, run: ToolRun) -> Tool:
        """Make the tool of one run. Nobody closes it: what it uses belongs to this object."""
        ...

    def probabilities(self, progress: RunProgress) -> dict[str, float]:
        """The probabilities at a step, by the names of their settings, for the step's record."""
        ...
