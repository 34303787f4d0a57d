"""Episodes: environments that are reset and stepped, as dialogues of midstream's agents.

The first observation is the user's first message. An agent's reply is an action, and the next observation the user's
answer; an environment with tools offers them instead, or too. The outcome is the adapter's, after each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from pydantic import JsonValue

from midstream.core.errors import InfrastructureError
from midstream.core.source import Dialogue, UserTurn
from midstream.core.task import Task
from midstream.core.tool import Tool, ToolResult
from midstream_environments.cases import Cases, case_of
from midstream_environments.process import Process

# Until an environment that has no room for another episode is asked again.
_WAIT_S = 0.2


class EpisodeCases(Cases):
    """Cases that are episodes (`core.source.Dialogues`)."""

    def open(self, task: Task, *, seed: int) -> Episode:
        """Open a new episode of a task, whose case decides what is in it: all attempts have the same."""
        return Episode(self, task)


class Episode(Dialogue):
    """One episode under way, in one process of the library."""

    def __init__(self, source: EpisodeCases, task: Task) -> None:
        self._library, self._case = source.library, case_of(task)[1]
        self.system = ""
        self._name = uuid4().hex
        self._process: Process | None = None
        self._tools: dict[str, Tool] = {}
        self._outcome: dict[str, JsonValue] = {}

    async def begin(self) -> UserTurn:
        """Reset the environment; its first observation."""
        until = time.monotonic() + self._library.config.call_s
        while (opened := await self._ask("open", case=self._case)).get("full"):
            # Another process may have room. Where a model in process waits for all runs, none may ever come.
            self._leave()
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"{self._library.config.library} had no room for an episode for {self._library.config.call_s:g} s",
                    code="environment-full",
                    fix="lower rollout.concurrency, or let its server hold more sessions",
                )
            await asyncio.sleep(_WAIT_S)
        self.system = str(opened.get("system") or "")
        return self._turn(opened)

    async def reply(self, text: str) -> UserTurn:
        """Take a step; the next observation."""
        return self._turn(await self._ask("reply", text=text))

    async def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Call a tool of the environment."""
        said = await self._ask("call", tool=tool, arguments=dict(arguments))
        self._outcome = said.get("outcome") or self._outcome
        return ToolResult(text=str(said.get("text") or ""), ok=bool(said.get("ok", True)))

    def outcome(self) -> dict[str, JsonValue]:
        """`reward` and what else the adapter says after the latest step, and the `range` of the reward."""
        return {**self._outcome, "range": [*self._library.config.range]}

    async def close(self) -> None:
        """Close the environment."""
        if self._process is not None and not self._process.gone:
            # The run is over, and its result is there.
            with suppress(InfrastructureError):
                await self._ask("close")
        self._leave()

    def _leave(self) -> None:
        """Be no longer under way in a process."""
        if self._process is not None:
            self._process.hold(-1)
        self._process = None

    async def _ask(self, name: str, **arguments: JsonValue) -> Any:
        if self._process is None:
            self._process = await self._library.hold()
        return await self._library.ask(name, process=self._process, episode=self._name, **arguments)

    def _turn(self, said: Mapping[str, Any]) -> UserTurn:
        self._outcome = said.get("outcome") or self._outcome
        offered: Sequence[Mapping[str, Any]] = said.get("tools") or ()
        for spec in offered:
            self._tools[spec["name"]] = EpisodeTool(self, spec)
        return UserTurn(text=str(said.get("text") or ""), tools=[*self._tools.values()], over=bool(said.get("over")))


class EpisodeTool(Tool):
    """A tool of an environment."""

    output_tokens = 8192

    def __init__(self, episode: Episode, spec: Mapping[str, Any]) -> None:
        self.name, self.description = str(spec["name"]), str(spec.get("description") or "")
        self.parameters = spec.get("parameters") or {"type": "object", "properties": {}}
        self._episode = episode
        # The library's own limit is `call_s`.
        self.timeout_s = 86_400.0

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Call it."""
        return await self._episode.call(self.name, arguments)
