"""Rollouts and the optimiser's replies, kept on disk for other runs of the very same settings: SQLite, a row each.

A key is a digest of all that decides what comes of a rollout: the agent with its prompts, tools, models and reward, the
task, what it is run for (learning, the gate, an evaluation: so nothing is shared between splits), the lessons in the
prompts, seed and place. Another setting is another key. What ended in an error is never kept.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from midstream.core.errors import StorageError, UsageError
from midstream.core.lessons import Lessons
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory

FILE = "practice.sqlite"
APPLICATION = 0x6D737072  # its application_id, "mspr"
FORMAT = 1  # its user_version; raised by any change that older code would misread
LOCK_S = 60.0  # another process writes for milliseconds
_CALLS = TypeAdapter(tuple[Call, ...])


class Cache:
    """The file in `directory`, made if it is not there. `settings` is all of the recipe that decides what is said.

    Raises:
        UsageError: the directory cannot be made, or another program's file is there.
        StorageError: the file cannot be read or written; the methods, too.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self._path, self._settings = directory / FILE, json.dumps(settings, sort_keys=True, default=str)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=LOCK_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"the cache {directory} cannot be made: {error}",
                cause="it is a file, or the folder above it cannot be written to",
                mend="set practice.cache to a directory, or to the name of a new one",
            ) from error
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        """Make the table in a new file, and refuse one that is not ours."""
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("BEGIN IMMEDIATE")
            if self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                self._connection.execute("CREATE TABLE kept (key TEXT PRIMARY KEY, value TEXT)")
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            query = "SELECT * FROM pragma_application_id, pragma_user_version"
            [found] = self._connection.execute(query).fetchall()
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:  # what the machine does, not what is in the file
            raise self._unusable(error) from error
        except sqlite3.Error as error:
            found = (str(error), 0)
        if found != (APPLICATION, FORMAT):
            raise UsageError(
                f"{self._path} is no cache of version {FORMAT}: {found[0]}, {found[1]}",
                cause="another version of midstream wrote it, another program, or it is damaged",
                mend="set practice.cache to another directory, or move the file away",
            )

    def trajectory(self, purpose: str, task: Task, lessons: Lessons, seed: int, index: int) -> Trajectory | None:
        """What came of this very rollout before."""
        found = self._find(self._key(purpose, task.model_dump_json(), dict(lessons), seed, index))
        try:
            return None if found is None else Trajectory.model_validate_json(found)
        except ValidationError as error:
            raise self._unusable(error) from error

    def keep(self, purpose: str, task: Task, lessons: Lessons, seed: int, trajectory: Trajectory) -> None:
        """Keep a rollout that ended without an error."""
        if trajectory.status == "ok":
            key = self._key(purpose, task.model_dump_json(), dict(lessons), seed, trajectory.rollout_index)
            self._keep(key, trajectory.model_dump_json(exclude_defaults=True))

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """What the optimiser was asked and said under a ledger's `key`, which holds a digest of the request."""
        found = self._find(self._key("optimiser", key))
        try:
            return None if found is None else _CALLS.validate_json(found)
        except ValidationError as error:
            raise self._unusable(error) from error

    def keep_reply(self, key: str, calls: Sequence[Call]) -> None:
        """Keep what the optimiser said."""
        self._keep(self._key("optimiser", key), _CALLS.dump_json(tuple(calls)).decode())

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self._connection.close()

    def _key(self, *parts: object) -> str:
        text = json.dumps([self._settings, *parts], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _find(self, key: str) -> str | None:
        try:
            found = self._connection.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return found[0] if found else None

    def _keep(self, key: str, value: str) -> None:
        try:
            self._connection.execute("INSERT OR IGNORE INTO kept VALUES (?, ?)", (key, value))
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self._path} could not be read or written: {error}",
            cause="the disk is full, the file is damaged, write-protected or held by another process, or was closed",
            mend="free some space, or set practice.cache to another directory",
        )
