"""A disk that fills up, or a process that dies, at a chosen write below one directory.

Counted are the operations that change the disk: a write to the system, a file or directory made, renamed, cut or
removed, and a sync. A death is an exception that no code catches, after which nothing reaches the disk: what runs on,
such as `finally`, has no effect. So a case costs milliseconds, where a process of its own costs a second.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

# A death before, within or after the operation; one failure for want of space, or a disk that stays full; with "nearly
# full" there is room for half of the write.
Failure = Literal["die before", "die within", "die after", "full once", "full", "nearly full"]
DEATHS: tuple[Failure, ...] = ("die before", "die within", "die after")
FULL: tuple[Failure, ...] = ("full once", "full", "nearly full")
_GROWS = ("write", "create", "mkdir")


class Died(BaseException):
    """The process is dead."""


@dataclass
class FailingDisk:
    """`failure` happens at the operation number `at` (from 1) below `root`; `operations` are those so far."""

    root: Path
    at: int = 0
    failure: Failure = "die before"
    operations: list[str] = field(default_factory=list)
    dead: bool = False
    opened: list[io.FileIO] = field(default_factory=list)

    def below(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(f"{self.root}")

    def change(self, kind: str, path: Any, act: Callable[[int | None], Any]) -> Any:
        """Count an operation; `act` does it, wholly with None, or, of a write, the first bytes."""
        if self.dead:
            raise Died
        self.operations.append(f"{kind} {os.path.relpath(path, self.root)}")
        number = len(self.operations)
        if self.failure.startswith("die") and number == self.at:
            if self.failure == "die after":
                act(None)
            elif self.failure == "die within" and kind == "write":
                act(2)
            self.dead = True
            raise Died
        if self.failure == "nearly full" and number == self.at and kind == "write":
            return act(2)
        stays_full = self.failure != "full once" and self.at and number > self.at and kind in _GROWS
        if (self.failure in FULL and number == self.at and kind != "remove") or (self.failure in FULL and stays_full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        return act(None)


class _File(io.FileIO):
    """A file on the disk; `part` of a write is that share of its bytes."""

    def __init__(self, disk: FailingDisk, path: Any, mode: str) -> None:
        self._disk, self._path = disk, path
        disk.opened.append(self)
        if os.path.exists(path) and "w" not in mode:
            super().__init__(path, mode)
        else:
            disk.change("create", path, lambda part: io.FileIO.__init__(self, path, mode))

    def write(self, data: Any) -> int:
        if self._disk.dead:  # a buffer that is flushed when the file is closed
            return len(data)
        inner = super().write

        def act(part: int | None) -> int:
            return inner(bytes(data)[: len(data) // part] if part else data) or 0

        return self._disk.change("write", self._path, act)

    def truncate(self, size: int | None = None) -> int:
        inner = super().truncate
        return self._disk.change("cut", self._path, lambda part: inner(size))


@contextmanager
def failing_disk(
    monkeypatch: pytest.MonkeyPatch, root: Path, at: int = 0, failure: Failure = "die before"
) -> Iterator[FailingDisk]:
    """Let the disk below `root` fail; without `at` it never does, and only counts."""
    disk, open_file = FailingDisk(Path(os.path.abspath(root)), at, failure), io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **named: Any) -> Any:
        if not disk.below(file) or not set(mode) & set("wax+"):
            return open_file(file, mode, buffering, *arguments, **named)
        raw = _File(disk, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *arguments, **named)

    def counted(kind: str, inner: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            path = arguments[place]
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            if not disk.below(path) or (kind == "sync" and disk.dead):
                return None if kind == "sync" else inner(*arguments, **named)
            return disk.change(kind, path, lambda part: inner(*arguments, **named))

        return call

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        patch.setattr(os, "fsync", counted("sync", lambda descriptor: None))
        for name, kind, place in (
            ("replace", "rename", 1), ("rename", "rename", 1), ("mkdir", "mkdir", 0), ("write", "write", 0),
            ("unlink", "remove", 0), ("ftruncate", "cut", 0), ("rmdir", "remove", 0),
        ):  # fmt: skip
            patch.setattr(os, name, counted(kind, getattr(os, name), place))
        yield disk
    for file in disk.opened:  # a death leaves some open
        file.close()
