"""Record and replay of tool results: the same run again with the network off, and nothing asked or paid twice.

`DIR/tools.sqlite` (`recording_file.py`) holds what tools answered, by a key of tool, settings and arguments:

    Recording(DIR, write=True).record(tools, origin)    RecordedTool: answers from the file, else calls and keeps
    Recording(DIR).replay(origin)                       ReplayedTool: answers from the file, else ToolServerError

A recording is thus a cache, too: equal requests have one answer, whoever comes first, in one process or several. What a
tool answered is kept, "gave no result within 30 s" included; a broken back end is not, and is asked again next time.
Replay knows names, descriptions, parameters and limits from the file: no tool is made, so nothing connects anywhere.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import InfrastructureError, ToolServerError
from midstream.core.protocols import Tool, ToolResult
from midstream.core.tool_calls import call_tool
from midstream.tools.recording_file import Face, Origin, RecordingFile, canonical, digest

PATIENCE_S = 86_400.0  # the recorded tool's own limit counts, within; a second one outside it must not fire first
NOTE_TOKENS = 64  # room for the note of a text that is cut already
_Flight = Future[ToolResult | InfrastructureError | None]


class Recording:
    """A recording, open for the tools of one run; with `write`, made if it is not there.

    Raises:
        UsageError: no recording is there, or a file that is none, or one of another version.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.file = RecordingFile(directory, write=write)
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}

    def record(self, tools: Sequence[Tool], origin: Origin) -> list[Tool]:
        """The tools of one recipe table, recorded from now on.

        Raises:
            UsageError: the recording holds what they answered in another sandbox.
        """
        self.file.describe(origin, [Face.of(tool) for tool in tools])
        return [RecordedTool(tool, self, origin.shown) for tool in tools]

    def replay(self, origin: Origin) -> list[Tool]:
        """The tools of one recipe table as they were recorded.

        Raises:
            UsageError: the table was not recorded with these settings.
        """
        return [ReplayedTool(face, self, origin.shown) for face in self.file.faces(origin)]

    async def close(self) -> None:
        """Close the file; once more does nothing."""
        self.file.close()

    def board(self, key: str) -> tuple[_Flight, bool]:
        """The request of that key that is under way, and whether the caller is to make it, and then to `land` it."""
        with self._lock:
            if key in self._flights:
                return self._flights[key], False
            flight = self._flights[key] = _Flight()
        flight.set_running_or_notify_cancel()  # or a caller that is cancelled while it waits would cancel it for all
        return flight, True

    def land(self, key: str, outcome: ToolResult | InfrastructureError | None) -> None:
        """Tell whoever waits: the result, what broke, or None where the caller was stopped and they must ask."""
        with self._lock:
            flight = self._flights.pop(key)
        flight.set_result(outcome)


def request_key(tool: str, settings: Mapping[str, Any], arguments: Mapping[str, JsonValue]) -> str:
    """SHA-256, in hexadecimal, of the canonical JSON of a request: sorted keys, no white space, ASCII."""
    return digest([tool, settings, arguments])


class _Answering:
    """What recorded and replayed tools share: the face of a tool, its key, the file."""

    def __init__(self, face: Tool | Face, recording: Recording, settings: Mapping[str, Any]) -> None:
        self.name, self.description = face.name, face.description
        self.parameters: Mapping[str, Any] = face.parameters
        self.timeout_s, self.output_tokens = PATIENCE_S, face.output_tokens + NOTE_TOKENS
        self._recording, self._settings = recording, settings

    def _key(self, arguments: Mapping[str, JsonValue]) -> str:
        return request_key(self.name, self._settings, arguments)


class RecordedTool(_Answering):
    """A tool that is called once for each request; the recording answers equal ones."""

    def __init__(self, tool: Tool, recording: Recording, settings: Mapping[str, Any]) -> None:
        super().__init__(tool, recording, settings)
        self._tool = tool

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The recorded answer, or the tool's, within its limits; callers of one request wait for one call.

        Raises:
            InfrastructureError: the tool's; nothing is recorded.
            StorageError: the recording could not be read or written.
        """
        key = self._key(arguments)
        while True:
            flight, mine = self._recording.board(key)
            if mine:
                return await self._lead(key, arguments)
            outcome = await asyncio.wrap_future(flight)
            if isinstance(outcome, ToolResult):
                return outcome
            if outcome is not None:
                raise copy.copy(outcome)  # each caller adds its own calls to it

    async def _lead(self, key: str, arguments: Mapping[str, JsonValue]) -> ToolResult:
        outcome: ToolResult | InfrastructureError | None = None
        try:
            # In threads: a write waits for the disk, and whoever reads meanwhile for the write.
            outcome = await asyncio.to_thread(self._recording.file.find, key)
            if outcome is None:
                clock = time.monotonic()
                result = await call_tool(self._tool, arguments)
                taken_s = time.monotonic() - clock
                outcome = await asyncio.to_thread(self._recording.file.keep, key, self.name, arguments, result, taken_s)
            return outcome
        except InfrastructureError as failure:
            outcome = failure
            raise
        finally:
            self._recording.land(key, outcome)

    async def close(self) -> None:
        """Close the tool, and the recording of all of them."""
        try:
            await self._tool.close()
        finally:
            await self._recording.close()


class ReplayedTool(_Answering):
    """A tool that only the recording answers for."""

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The recorded answer.

        Raises:
            ToolServerError: nothing was recorded for this request; trying again cannot help.
        """
        found = self._recording.file.find(self._key(arguments))
        if found is not None:
            return found
        shown = canonical(arguments)
        unseen = ToolServerError(
            f"{self._recording.file.directory} holds no answer of {self.name} to "
            + (shown if len(shown) <= 300 else f"{shown[:300]} ..."),
            cause="something else was asked than when it was recorded: another model, seed, prompt or setting",
            fix=f"--record {self._recording.file.directory} asks what is missing and keeps what is there",
        )
        unseen.retryable = False
        raise unseen

    async def close(self) -> None:
        """Close the recording."""
        await self._recording.close()
