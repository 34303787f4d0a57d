"""Texts by key on disk, so that nothing is paid twice: SQLite, one row a key, shared by processes and threads.

The file's `application_id` and `user_version` say what it is; one of another program or version is refused.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midstream.core.errors import StorageError, UsageError

LOCK_S = 60.0  # another process writes for milliseconds


class KeyedFile:
    """The file `path`, made with its directory if it is not there; every method may be called from any thread.

    Args:
        path: where it is.
        application: its `application_id`.
        version: its `user_version`; raised by any change that older code would misread.
        table: what its one table is called.
        what: what errors call it, e.g. "judge's cache".
        setting: what names its directory in a recipe.

    Raises:
        UsageError: the directory cannot be made, or another program's file is there.
        StorageError: the file cannot be read or written; the methods, too.
    """

    def __init__(self, path: Path, *, application: int, version: int, table: str, what: str, setting: str) -> None:
        self._path, self._table, self._what, self._setting = path, table, what, setting
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the {what} {path.parent} cannot be made: {error.strerror}",
                cause="it is a file, or the folder above it cannot be written to",
                fix=f"set {setting} to a directory, or to the name of a new one",
            ) from error
        try:
            self._connection = sqlite3.connect(path, timeout=LOCK_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self.unusable(error) from error
        try:
            self._open(application, version)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, application: int, version: int) -> None:
        """Make the table in a new file, and refuse one that is not ours."""
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("BEGIN IMMEDIATE")
            if self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                self._connection.execute(f"CREATE TABLE {self._table} (key TEXT PRIMARY KEY, value TEXT)")
                self._connection.execute(f"PRAGMA application_id = {application}")
                self._connection.execute(f"PRAGMA user_version = {version}")
            query = "SELECT * FROM pragma_application_id, pragma_user_version"
            [found] = self._connection.execute(query).fetchall()
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:  # what the machine does, not what is in the file
            raise self.unusable(error) from error
        except sqlite3.Error as error:
            found = (str(error), 0)
        if found != (application, version):
            raise UsageError(
                f"{self._path} is no {self._what} of version {version}: {found[0]}, {found[1]}",
                cause="another version of midstream wrote it, another program, or it is damaged",
                fix=f"set {self._setting} to another directory, or move the file away",
            )

    def find(self, key: str) -> str | None:
        """The text of that key."""
        with self._access() as connection:
            found = connection.execute(f"SELECT * FROM {self._table} WHERE key = ?", (key,)).fetchone()
        return found[1] if found else None

    def keep(self, key: str, text: str) -> None:
        """Keep a text, unless the key has one: the first stays."""
        with self._access() as connection:
            connection.execute(f"INSERT OR IGNORE INTO {self._table} VALUES (?, ?)", (key, text))

    def close(self) -> None:
        """Close the file; once more does nothing."""
        with self._lock:
            self._connection.close()

    def unusable(self, error: Exception) -> StorageError:
        """What a file that cannot be used, or a text in it, is told with."""
        return StorageError(
            f"{self._path} could not be read or written: {error}",
            cause="the disk is full, the file is damaged, write-protected or held by another process, or was closed",
            fix=f"free some space, or set {self._setting} to another directory",
        )

    @contextmanager
    def _access(self) -> Iterator[sqlite3.Connection]:
        """The connection, one thread at a time."""
        try:
            with self._lock:
                yield self._connection
        except sqlite3.Error as error:
            raise self.unusable(error) from error
