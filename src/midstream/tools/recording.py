"""Record and replay tool results: the same run again with the network off, and no request made or paid for twice.

`DIR/tools.sqlite` holds the answers of tools by a key of tool, settings and arguments; it holds no key of a service.

    Recording(DIR, write=True).record(tools, origin)    answers from the file, else calls the tool and stores its answer
    Recording(DIR).replay(origin)                       answers from the file, else raises ToolServerError

A recording is therefore also a cache: equal requests have one answer, in one process or several. Every answer of a
tool is stored, including "gave no result within 30 s"; a failure of its back end is not, and the next request calls it
again. Replay reads names, descriptions, parameters and limits from the file: no tool is created, nothing connects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pydantic import Json, JsonValue, TypeAdapter, ValidationError

from midstream.components.own import portable
from midstream.core.data import Frozen, JsonObject
from midstream.core.errors import ToolServerError, UsageError
from midstream.core.sqlite_file import SqliteFile
from midstream.core.text import shorten
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Call

FILE = "tools.sqlite"
# The file's user_version, which any change raises that older code would misread.
FORMAT = 2
# The file's application_id, "mstm".
APPLICATION = 0x6D73746D
SCHEMA = (
    "CREATE TABLE tables (origin TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE results (key TEXT PRIMARY KEY, tool TEXT, arguments TEXT, ok INTEGER, text TEXT, calls TEXT, "
    "duration_s REAL)",
)
# Of a recorded tool: the limit of the tool inside applies, and must end first.
OUTER_TIMEOUT_S = 86_400.0
# Room for the note in a text that is already cut.
NOTE_TOKENS = 64
_CALLS = TypeAdapter(tuple[Call, ...])
_ANSWER = TypeAdapter(tuple[str, bool, Json[tuple[Call, ...]]])


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingOrigin:
    """The source of tools: a recipe's table by name, its resolved settings, the sandbox in which they run code.

    Settings that end in `_env` or are named `env_pass` name variables that hold keys. They do not affect results, so
    they are not part of the key.
    """

    table: str
    settings: Mapping[str, JsonValue]
    sandbox: str = ""

    @property
    def relevant(self) -> JsonObject:
        """The settings that affect results: code without its directory, so that another machine can replay it."""
        return portable(
            {name: value for name, value in self.settings.items() if not name.endswith("_env") and name != "env_pass"}
        )

    @property
    def key(self) -> str:
        """Identifies the table and its settings."""
        return digest([self.table, self.relevant])


class ToolSpec(Frozen):
    """What an agent sees of a tool."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    timeout_s: float
    output_tokens: int


class RecordedTable(Frozen):
    """The tools of a recipe's table, as they were recorded."""

    table: str
    settings: dict[str, JsonValue]
    sandbox: str
    tools: tuple[ToolSpec, ...]


class Recording:
    """A recording, open for the tools of one run; with `write`, created if it does not exist.

    Several processes may write at once, and every method may be called from any thread.

    Raises:
        UsageError: there is no recording, or the file is not one, or of another version.
        StorageError: the file cannot be read or written; also raised by the methods.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.directory = directory
        # By event loop and key: equal requests wait for the first of them.
        self.locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()
        path = directory / FILE
        if not write and not path.is_file():
            raise UsageError(
                f"no recording at {path}", code="file-not-found", fix=f"run once with --record {directory}"
            )
        self.file = SqliteFile(
            path,
            application=APPLICATION,
            version=FORMAT,
            schema=SCHEMA,
            what="recording",
            setting="--record" if write else "--replay",
            write=write,
        )

    def record(self, tools: Sequence[Tool], origin: RecordingOrigin) -> list[Tool]:
        """Return the tools of one recipe table as recorded tools, and store their specs in place of earlier ones.

        Raises `UsageError` if the recording holds their results from another sandbox.
        """
        names = ToolSpec.model_fields
        specs = tuple(ToolSpec(**{name: getattr(tool, name) for name in names}) for tool in tools)
        known = self._tables().get(origin.key)
        if known is not None and known.sandbox != origin.sandbox:
            raise UsageError(
                f"{self.directory} holds results of [tools.{origin.table}] from sandbox {known.sandbox!r}, "
                f"not {origin.sandbox!r}",
                code="setting-conflict",
                fix="record into another directory, or choose that sandbox.tier",
            )
        table = RecordedTable(table=origin.table, settings=origin.relevant, sandbox=origin.sandbox, tools=specs)
        with self.file.access() as connection:
            connection.execute("INSERT OR REPLACE INTO tables VALUES (?, ?)", (origin.key, table.model_dump_json()))
        return [RecordedTool(tool, self, origin.relevant) for tool in tools]

    def replay(self, origin: RecordingOrigin) -> list[Tool]:
        """Return the recorded tools of one recipe table, in their order; `origin.sandbox` does not matter.

        Raises `UsageError` if the table was not recorded with these settings.
        """
        tables, here = self._tables(), origin.relevant
        if origin.key in tables:
            return [RecordedTool(spec, self, here) for spec in tables[origin.key].tools]
        others = [known.settings for known in tables.values() if known.table == origin.table]
        cause = f"it holds {', '.join(sorted({known.table for known in tables.values()})) or 'nothing'}"
        if others:
            there = others[-1]
            cause = "; ".join(
                shorten(f"{name} was {there.get(name)!r}, and is {here.get(name)!r}", 200)
                for name in {**there, **here}
                if there.get(name) != here.get(name)
            )
        raise UsageError(
            f"{self.directory} holds no recording of [tools.{origin.table}]{' with these settings' if others else ''}",
            code="not-recorded",
            cause=cause,
            fix=f"record it with --record {self.directory}, "
            + ("or use the settings that it was recorded with" if others else f"or leave [tools.{origin.table}] out"),
        )

    def sandbox(self, origin: RecordingOrigin) -> str:
        """The tier in which the table's tools ran code when they were recorded, "" if they ran none."""
        known = self._tables().get(origin.key)
        return known.sandbox if known else ""

    def _tables(self) -> dict[str, RecordedTable]:
        """The recorded tables, by the keys of their origins."""
        try:
            with self.file.access() as connection:
                rows = connection.execute("SELECT * FROM tables ORDER BY rowid").fetchall()
            return {key: RecordedTable.model_validate_json(text) for key, text in rows}
        except ValidationError as error:
            raise self.file.unusable(error) from error

    def find(self, key: str) -> ToolResult | None:
        """The stored answer to a request."""
        with self.file.access() as connection:
            found = connection.execute("SELECT text, ok, calls FROM results WHERE key = ?", (key,)).fetchone()
        try:
            text, ok, calls = _ANSWER.validate_python(found) if found else (None, False, ())
            return None if text is None else ToolResult(text=text, ok=ok, calls=calls)
        except ValidationError as error:
            raise self.file.unusable(error) from error

    def keep(
        self, key: str, tool: str, arguments: Mapping[str, JsonValue], result: ToolResult, duration_s: float
    ) -> ToolResult:
        """Store an answer and return it, or the one that another process stored first."""
        calls = _CALLS.dump_json(result.calls).decode()
        row = (key, tool, canonical(arguments), result.ok, result.text, calls, duration_s)
        # Another process may have been faster: its answer serves every equal request.
        with self.file.access() as connection:
            connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return self.find(key) or result

    async def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self.file.close()


class RecordedTool:
    """A tool whose answers come from a recording; `tool` itself, unless it is a spec, is called for missing ones.

    `settings` are those that affect results: they are part of a request's key.
    """

    def __init__(self, tool: Tool | ToolSpec, recording: Recording, settings: Mapping[str, JsonValue]) -> None:
        self.name, self.description = tool.name, tool.description
        self.parameters: Mapping[str, JsonValue] = tool.parameters
        self.timeout_s, self.output_tokens = OUTER_TIMEOUT_S, tool.output_tokens + NOTE_TOKENS
        self._tool = None if isinstance(tool, ToolSpec) else tool
        self._recording, self._settings = recording, settings

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The recorded answer, or the tool's, within its limits; equal requests at once wait for the first.

        Raises:
            ToolServerError: nothing was recorded, and there is no tool; trying again cannot help.
            InfrastructureError: the tool's; nothing is stored.
            StorageError: the recording could not be read or written.
        """
        key = digest([self.name, self._settings, arguments])
        if self._tool is None:
            found = self._recording.find(key)
            if found is not None:
                return found
            shown = canonical(arguments)
            raise ToolServerError(
                f"{self._recording.directory} holds no answer of {self.name} to {shorten(shown, 300)}",
                code="not-recorded",
                cause="the request differs from those recorded: another model, seed, prompt or setting",
                fix=f"--record {self._recording.directory} makes the missing requests and keeps the recorded ones",
                retryable=False,
            )
        async with self._recording.locks.setdefault((asyncio.get_running_loop(), key), asyncio.Lock()):
            # In threads: a write waits for the disk, and a concurrent read waits for the write.
            found = await asyncio.to_thread(self._recording.find, key)
            if found is None:
                clock = time.monotonic()
                result = await call_tool(self._tool, arguments)
                duration_s = time.monotonic() - clock
                found = await asyncio.to_thread(self._recording.keep, key, self.name, arguments, result, duration_s)
            return found

    async def close(self) -> None:
        """Close the tool and the recording."""
        try:
            if self._tool is not None:
                await self._tool.close()
        finally:
            await self._recording.close()


def canonical(value: object) -> str:
    """JSON with sorted keys, no white space and ASCII only: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """SHA-256, in hexadecimal, of the canonical JSON of a value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
