"""The file of a recording: SQLite, one table of tools and one of what they answered.

It is SQLite's rollback kind, so that a recording can be read where nobody may write; its `application_id` and
`user_version` say what it is. It holds arguments and results as they were, and no key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import StorageError, UsageError
from midstream.core.protocols import Tool, ToolResult
from midstream.core.trajectory import Call

FILE = "tools.sqlite"
FORMAT = 1  # the file's user_version; raised by any change that older code would misread
APPLICATION = 0x6D73746D  # its application_id, "mstm"
SCHEMA = (
    "CREATE TABLE tools (origin TEXT, place INTEGER, recipe_table TEXT, settings TEXT, sandbox TEXT, face TEXT, "
    "PRIMARY KEY (origin, place))",
    "CREATE TABLE results (key TEXT PRIMARY KEY, tool TEXT, arguments TEXT, ok INTEGER, text TEXT, calls TEXT, "
    "duration_s REAL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
LOCK_S = 60.0  # another process writes for milliseconds
_CALLS = TypeAdapter(tuple[Call, ...])


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where tools come from: a recipe's table by name, its resolved settings, the sandbox that they run code in.

    Settings ending in `_env` or named `env_pass` say where keys lie, and change no result: they do not count.
    """

    table: str
    settings: Mapping[str, Any]
    sandbox: str = ""

    @property
    def shown(self) -> dict[str, Any]:
        """The settings that count."""
        return {name: one for name, one in self.settings.items() if not name.endswith("_env") and name != "env_pass"}

    @property
    def key(self) -> str:
        """Names the table and its settings."""
        return digest([self.table, self.shown])


class Face(Frozen):
    """What an agent sees of a tool."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    timeout_s: float
    output_tokens: int

    @classmethod
    def of(cls, tool: Tool) -> Face:
        """The tool's."""
        return cls(
            name=tool.name,
            description=tool.description,
            parameters=dict(tool.parameters),
            timeout_s=tool.timeout_s,
            output_tokens=tool.output_tokens,
        )


class RecordingFile:
    """The file in `directory`, open; with `write`, made if it is not there.

    Several processes may write at once, and every method may be called from any thread; all raise `StorageError` if the
    file cannot be read or written.

    Raises:
        UsageError: no recording is there, or a file that is none, or one of another version.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.directory = directory
        self._connection = _open(directory / FILE, write=write)
        self._lock = threading.Lock()

    def describe(self, origin: Origin, faces: Sequence[Face]) -> None:
        """Write down the tools of one recipe table, in place of those that it had before.

        Raises:
            UsageError: the file holds what they answered in another sandbox.
        """
        shared = (origin.table, canonical(origin.shown), origin.sandbox)
        with self._access() as connection, _transaction(connection):
            known = connection.execute("SELECT sandbox FROM tools WHERE origin = ?", (origin.key,)).fetchone()
            if known is not None and known[0] != origin.sandbox:
                raise UsageError(
                    f"{self.directory} holds results of [tools.{origin.table}] from sandbox {known[0]!r}, "
                    f"not {origin.sandbox!r}",
                    cause="it was recorded on another machine, or with other settings of [sandbox]",
                    fix="record into another directory, or choose that sandbox.tier",
                )
            connection.execute("DELETE FROM tools WHERE origin = ?", (origin.key,))
            connection.executemany(
                "INSERT INTO tools VALUES (?, ?, ?, ?, ?, ?)",
                ((origin.key, place, *shared, face.model_dump_json()) for place, face in enumerate(faces)),
            )

    def faces(self, origin: Origin) -> list[Face]:
        """The tools of one recipe table in their order; `origin.sandbox` does not matter.

        Raises:
            UsageError: the table was not recorded with these settings.
        """
        with self._access() as connection:
            query = "SELECT face FROM tools WHERE origin = ? ORDER BY place"
            faces = [Face.model_validate_json(face) for (face,) in connection.execute(query, (origin.key,))]
        if not faces:
            raise self._not_recorded(origin)
        return faces

    def sandbox(self, origin: Origin) -> str:
        """The tier that the table's tools ran code in when they were recorded, "" where they ran none."""
        with self._access() as connection:
            found = connection.execute("SELECT sandbox FROM tools WHERE origin = ?", (origin.key,)).fetchone()
        return found[0] if found else ""

    def find(self, key: str) -> ToolResult | None:
        """What was answered to a request."""
        query = "SELECT text, ok, calls FROM results WHERE key = ?"
        with self._access() as connection:
            found = connection.execute(query, (key,)).fetchone()
            return ToolResult(text=found[0], ok=bool(found[1]), calls=_CALLS.validate_json(found[2])) if found else None

    def keep(
        self, key: str, tool: str, arguments: Mapping[str, JsonValue], result: ToolResult, duration_s: float
    ) -> ToolResult:
        """Keep an answer and give it back, or the one that another process kept first."""
        calls = _CALLS.dump_json(result.calls).decode()
        row = (key, tool, canonical(arguments), result.ok, result.text, calls, duration_s)
        with self._access() as connection:
            connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return self.find(key) or result

    def close(self) -> None:
        """Close the file; once more does nothing."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _access(self) -> Generator[sqlite3.Connection]:
        """The connection, one thread at a time.

        Raises:
            StorageError: the file could not be read or written.
        """
        try:
            with self._lock:
                yield self._connection
        except (sqlite3.Error, ValidationError) as error:
            raise _unusable(self.directory / FILE, error) from error

    def _not_recorded(self, origin: Origin) -> UsageError:
        with self._access() as connection:
            query = "SELECT DISTINCT recipe_table, settings FROM tools"
            rows = [(table, json.loads(settings)) for table, settings in connection.execute(query)]
        others = [settings for table, settings in rows if table == origin.table]
        tables = ", ".join(sorted({table for table, _ in rows})) or "nothing"
        return UsageError(
            f"{self.directory} holds no recording of [tools.{origin.table}]"
            + (" with these settings" if others else ""),
            cause=_difference(others[-1], origin.shown) if others else f"it holds {tables}",
            fix=f"record it with --record {self.directory}"
            + (", or set what it was recorded with" if others else f", or leave [tools.{origin.table}] out"),
        )


def _open(path: Path, *, write: bool) -> sqlite3.Connection:
    """The file, open and checked; "rw" for reading, too, since what a killed writer left half done is then undone."""
    fix = "give another directory, or move the file away"
    if write:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--record {path.parent} cannot be made: {error.strerror}",
                cause="it is a file, or the folder above it cannot be written to",
                fix="give a directory, or the name of a new one",
            ) from error
    elif not path.is_file():
        raise UsageError(
            f"no recording at {path}", cause="nothing was recorded there", fix=f"run once with --record {path.parent}"
        )
    mode = "rwc" if write else "rw"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=LOCK_S, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        try:
            if write:
                connection.execute("PRAGMA synchronous = NORMAL")
                _fill_if_new(connection)
            [found] = connection.execute("SELECT * FROM pragma_application_id, pragma_user_version").fetchall()
        except sqlite3.Error:
            connection.close()
            raise
    except sqlite3.OperationalError as error:  # what the machine does, not what is in the file
        raise _unusable(path, error) from error
    except sqlite3.Error as error:
        raise UsageError(
            f"{path} is no recording: {error}", cause="the file is damaged, or something else", fix=fix
        ) from error
    if found == (APPLICATION, FORMAT):
        return connection
    connection.close()
    is_ours = found[0] == APPLICATION
    raise UsageError(
        f"{path} is a recording of version {found[1]}, not {FORMAT}" if is_ours else f"{path} is no recording",
        cause="another version of midstream wrote it" if is_ours else "it is another program's database",
        fix=fix,
    )


def _unusable(path: Path, error: Exception) -> StorageError:
    return StorageError(
        f"{path} could not be read or written: {error}",
        cause="the disk is full, the file is damaged, write-protected or held by another process, or was closed",
        fix=f"free some space, or give another directory than {path.parent}",
    )


def _fill_if_new(connection: sqlite3.Connection) -> None:
    with _transaction(connection):
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            for statement in SCHEMA:
                connection.execute(statement)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All or nothing, and nobody else meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def canonical(value: Any) -> str:
    """Sorted keys, no white space, ASCII: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """SHA-256, in hexadecimal, of the canonical JSON of a value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What differs between two tables of settings, in a line."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    shown = (f"{name} was {there.get(name)!r}, and is {here.get(name)!r}" for name in names)
    return "; ".join(one if len(one) < 200 else f"{one[:200]} ..." for one in shown)
