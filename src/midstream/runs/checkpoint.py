"""Checkpoints that are either whole or absent.

A checkpoint is a directory `step-000123` with a `MANIFEST.json` of sizes and SHA-256 sums. It is filled under another
name, synced to the disk and renamed, so a crash never leaves half of one under its final name. Later damage (a bad
disk, a lost file) is found by the sums on loading: it is reported, the directory is renamed to `step-000123.corrupt`,
and the previous checkpoint is used.

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

from pydantic import ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import CheckpointError, RunError
from midstream.runs.files import (
    FileDigest,
    atomic_write,
    digest_of,
    fsync_directory,
    read_file,
    storage_error,
    storage_errors,
)
from midstream.runs.journal import Report, warn

T = TypeVar("T")

MANIFEST = "MANIFEST.json"
KEPT = 2  # checkpoints
_NAME = re.compile(r"step-(\d{6,})")


class Manifest(Frozen):
    """All files of a checkpoint by their path relative to it."""

    step: int
    files: dict[str, FileDigest]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, in the directory `root` (created by the first `save`)."""

    root: Path

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending; without the corrupt ones that were set aside."""
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def path(self, step: int) -> Path:
        """The directory of the checkpoint of `step`, which may not exist."""
        return self.root / f"step-{step:06d}"

    def digest(self, step: int) -> str:
        """The SHA-256 of the manifest: different for any two checkpoints of a step with different content."""
        return hashlib.sha256((self.path(step) / MANIFEST).read_bytes()).hexdigest()

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
                _fill(temporary, step, write)
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

    def load_latest(
        self, read: Callable[[Path], T], *, max_step: int | None = None, report: Report = warn
    ) -> tuple[int, T] | None:
        """Load the newest intact checkpoint, at or before `max_step` if given.

        `read` builds the state from a checkpoint's verified directory, `report` receives a line of text for each
        damaged checkpoint that was set aside. Call `RunDirectory.rewind` with the returned step before training on.

        Returns the step and the result of `read`, or None if there never was a checkpoint. Raises `CheckpointError` if
        there are checkpoints, but none can be used.
        """
        for step in reversed(self.steps()):
            if max_step is not None and step > max_step:
                continue
            directory = self.path(step)
            damage = find_damage(directory)
            if damage is None:
                return step, read(directory)
            if not directory.exists():
                continue  # a running trainer has pruned it meanwhile
            report(f"checkpoint {directory} is damaged: {damage}; set aside as {_set_aside(directory).name}")
        # Starting over without a word would throw a run away: refuse if there is, or was, any checkpoint.
        found = sorted(path.name for path in self.root.glob("step-*"))
        if not found:
            return None
        limit = "" if max_step is None else f" at or before step {max_step}"
        raise CheckpointError(
            f"no usable checkpoint{limit} in {self.root}; found {', '.join(found)}",
            code="no-usable-checkpoint",
            cause="those named .corrupt failed their SHA-256 sums" if limit == "" else "older checkpoints were removed",
            fix=f"restore a checkpoint from a copy, or start over with another --out (keep {self.root} until then)",
        )

    def _remove_leftovers(self) -> None:
        """Delete temporary directories left by a crash or a removal."""
        for leftover in self.root.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def find_damage(directory: Path) -> str | None:
    """Compare a checkpoint with its manifest; returns the first difference as text, or None.

    Raises `CheckpointError` if this user may not read it, which says nothing about its content.
    """
    try:
        manifest = Manifest.model_validate_json(read_file(directory / MANIFEST))
        if directory.name != f"step-{manifest.step:06d}":
            return f"{MANIFEST} is of step {manifest.step}"
        for name, entry in manifest.files.items():
            size = (directory / name).stat().st_size
            if size != entry.size:
                return f"{name} has {size} bytes, {MANIFEST} says {entry.size}"
            if digest_of(directory / name) != entry:
                return f"{name} has another SHA-256 than {MANIFEST} says"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except ValidationError:
        return f"{MANIFEST} is not a manifest"
    except RunError as error:
        return error.what
    except PermissionError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}",
            code="checkpoint-unreadable",
            fix=f"fix its permissions: `chmod -R u+rX {directory}`",
        ) from error
    except OSError as error:
        return f"{error.filename or directory}: {error.strerror}"
    return None


def _fill(directory: Path, step: int, write: Callable[[Path], None]) -> None:
    """Let `write` fill `directory`, add the manifest, and sync all of it to the disk."""
    try:
        write(directory)
    except RuntimeError as error:
        # torch reports a failed write as a RuntimeError with the OSError behind it.
        if isinstance(behind := error.__cause__ or error.__context__, OSError):
            raise storage_error(behind, directory) from error
        raise
    entries: dict[str, FileDigest] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            fsync_directory(path)
            continue
        # Windows syncs only files that are open for writing; other systems also sync a read-only one.
        with path.open("r+b" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())
        entries[path.relative_to(directory).as_posix()] = digest_of(path)
    atomic_write(directory / MANIFEST, Manifest(step=step, files=entries).model_dump_json(indent=1).encode())


def _set_aside(directory: Path) -> Path:
    """Rename a damaged checkpoint: it is kept, and never loaded again."""
    target = directory.with_name(f"{directory.name}.corrupt")
    number = 1
    while target.exists():
        number += 1
        target = directory.with_name(f"{directory.name}.corrupt-{number}")
    with storage_errors(directory):
        os.rename(directory, target)
        fsync_directory(directory.parent)
    return target
