"""A SQLite file that processes and threads share.

The file's `application_id` and `user_version` identify it; a file of another program or version is refused.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from midstream.core.errors import StorageError, UsageError

LOCK_S = 60.0  # other processes write for milliseconds


class SqliteFile:
    """A SQLite file; every method may be called from any thread.

    Raises:
        UsageError: the directory cannot be created, or another program's file is there.
        StorageError: the file cannot be read or written; also raised by the methods.
    """

    def __init__(
        self,
        path: Path,
        *,
        application: int,  # its `application_id`
        version: int,  # its `user_version`; raised by any change that older code would misread
        schema: Sequence[str],  # the statements that create the tables of a new file
        what: str,  # the name for it in errors, e.g. "judge's cache"
        setting: str,  # the setting or option that names its directory
        write: bool = True,  # create the file, with its directory, if it does not exist
    ) -> None:
        self._path, self._setting = path, setting
        self._lock = threading.Lock()
        if write:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"the {what} {path.parent} cannot be created: {error.strerror}",
                    code="directory-unusable",
                    fix=f"set {setting} to a directory, or to the name of a new one",
                ) from error
        # "rw" even for reading: SQLite then rolls back what a killed writer left incomplete.
        address = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}"
        try:
            self._connection = sqlite3.connect(
                address, uri=True, timeout=LOCK_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self.unusable(error) from error
        try:
            if write:
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute("BEGIN IMMEDIATE")
                # The connection's context commits, or rolls back.
                with self._connection:
                    if self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                        for statement in schema:
                            self._connection.execute(statement)
                        self._connection.execute(f"PRAGMA application_id = {application}")
                        self._connection.execute(f"PRAGMA user_version = {version}")
            found = self._connection.execute("SELECT * FROM pragma_application_id, pragma_user_version").fetchone()
        except sqlite3.OperationalError as error:
            # This is a problem of the machine, not of the file's content.
            self._connection.close()
            raise self.unusable(error) from error
        except sqlite3.Error as error:
            found = (str(error), 0)
        if found != (application, version):
            self._connection.close()
            raise UsageError(
                f"{path} is not a {what} of version {version}: {found[0]}, {found[1]}",
                code="file-invalid",
                fix=f"set {setting} to another directory, or move the file away",
            )

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        with self._lock:
            self._connection.close()

    def unusable(self, error: Exception) -> StorageError:
        """The error for a file that cannot be used, or that holds invalid content."""
        return StorageError(
            f"{self._path} could not be read or written: {error}",
            code="storage",
            fix=f"free some space, or set {self._setting} to another directory",
        )

    @contextmanager
    def access(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; with `write`, a transaction that excludes other processes."""
        try:
            with self._lock:
                if write:
                    self._connection.execute("BEGIN IMMEDIATE")
                # The connection's context commits or rolls back a transaction, if there is one.
                with self._connection:
                    yield self._connection
        except sqlite3.Error as error:
            raise self.unusable(error) from error
