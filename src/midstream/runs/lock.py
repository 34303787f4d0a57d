"""One trainer per run directory.

The lock belongs to an open file, so the system releases it however the process ends, `kill -9` included. A process
forked from the trainer without `exec` shares it and must not outlive the trainer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midstream.core.errors import RunError
from midstream.runs.files import storage_errors
from midstream.runs.journal import warn

if sys.platform != "win32":
    import fcntl

# `is_locked` holds a shared lock for an instant; a trainer that starts at that moment retries.
_ATTEMPTS, _PAUSE_S = 10, 0.02


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, which is created if missing and never removed; it names the holder.

    Without effect on Windows. On a file system that has no locks it logs a warning and continues. Raises `RunError`,
    which names the process, if another one holds it, and `StorageError` if the file cannot be written.
    """
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _acquire(descriptor, path):
            holder = path.read_text().strip() or "another process"
            raise RunError(
                f"{path.parent} is in use: {holder} is at work in it",
                code="run-in-use",
                fix="wait for it, stop it, or use another --out",
            )
        with storage_errors(path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock file `path`; always false on Windows."""
    if sys.platform == "win32" or not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # This file system has no locks.
            return False
    return False


def _acquire(descriptor: int, path: Path) -> bool:
    """Try to lock an open file for a fifth of a second; returns whether it worked."""
    if sys.platform == "win32":
        return True
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError as error:
            warn(f"{path}: this file system has no locks ({error.strerror}); do not train twice in this directory")
            return True
        else:
            return True
    return False
