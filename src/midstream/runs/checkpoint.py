"""Checkpoints that are either whole or absent.

A checkpoint is a directory `step-000123`. It is filled under another name, synced to the disk and renamed, so a crash
never leaves half of one under its final name.

This module knows nothing of tensors: the callbacks `write(directory)` and `read(directory)` do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from midstream.core.errors import MidstreamError
from midstream.runs.files import fsync_directory, storage_error, storage_errors

T = TypeVar("T")

KEPT = 2  # checkpoints
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, in the directory `root` (created by the first `save`)."""

    root: Path

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def path(self, step: int) -> Path:
        """The directory of the checkpoint of `step`, which may not exist."""
        return self.root / f"step-{step:06d}"

    def digest(self, step: int) -> str:
        """A digest of all files of a checkpoint, which are read."""
        digest = hashlib.sha256()
        for path in sorted(path for path in self.path(step).rglob("*") if path.is_file()):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
            digest.update(path.relative_to(self.path(step)).as_posix().encode() + content.digest())
        return digest.hexdigest()

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save the checkpoint of `step` finished steps, then remove all but the newest two; returns its directory.

        Write the step's records first. `write` fills the empty directory it is given, through files that it opens
        itself (`torch.save(state, file)`), so that a full disk shows as an `OSError` here. An earlier checkpoint of the
        same step is replaced. After a `StorageError` earlier ones are untouched, and the half-written one is removed.
        """
        final, temporary = self.path(step), self.root / f".tmp-{step}"
        with storage_errors(final):
            self.root.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary.mkdir()
            try:
                _fill(temporary, write)
                if final.exists():
                    os.rename(final, self.root / f".tmp-replaced-{step}")
                os.rename(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            fsync_directory(self.root)
            self.remove(self.steps()[:-KEPT])
        return final

    def remove(self, steps: list[int]) -> None:
        """Remove the checkpoints of `steps`, each atomically: it is renamed before its files are deleted."""
        self._remove_leftovers()
        with storage_errors(self.root):
            for step in steps:
                os.rename(self.path(step), self.root / f".tmp-removed-{step}")
            if steps:
                fsync_directory(self.root)
        self._remove_leftovers()

    def load_latest(self, read: Callable[[Path], T], *, max_step: int | None = None) -> tuple[int, T] | None:
        """Load the newest checkpoint, at or before `max_step` if given; returns its step and the result of `read`.

        `read` builds the state from a checkpoint's directory. Call `RunDirectory.rewind` with the returned step before
        training on. Returns None without a checkpoint.
        """
        for step in reversed(self.steps()):
            if max_step is not None and step > max_step:
                continue
            try:
                return step, read(self.path(step))
            except (OSError, MidstreamError):
                # A running trainer may have pruned it meanwhile.
                if self.path(step).exists():
                    raise
        return None

    def _remove_leftovers(self) -> None:
        """Delete temporary directories left by a crash or a removal."""
        for leftover in self.root.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _fill(directory: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill `directory`, and sync all of it to the disk."""
    try:
        write(directory)
    except RuntimeError as error:
        # torch reports a failed write as a RuntimeError with the OSError behind it.
        if isinstance(behind := error.__cause__ or error.__context__, OSError):
            raise storage_error(behind, directory) from error
        raise
    for path in directory.rglob("*"):
        if path.is_dir():
            fsync_directory(path)
            continue
        # Windows syncs only files that are open for writing; other systems also sync a read-only one.
        with path.open("r+b" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())
    fsync_directory(directory)
