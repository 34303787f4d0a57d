"""Checkpoints that are whole or not there.

A checkpoint is a directory `step-000123` with a `MANIFEST.json` of sizes and SHA-256 sums. It is filled under another
name, synced to the disk and renamed, so no crash leaves half of one under its final name. Damage that comes later (a
bad disk, a lost file) is found by the sums on loading, told loudly, set aside as `step-000123.corrupt`, and the
checkpoint before is used.

This file knows nothing of tensors: the callbacks `write(directory)` and `read(directory)` do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import CheckpointError
from midstream.runs.files import atomic_write, fsync_directory, storage_error, storage_errors
from midstream.runs.journal import Report, warn

T = TypeVar("T")

MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-(\d{6,})")


class ManifestEntry(Frozen):
    """What one file of a checkpoint must be: `size` in bytes and hexadecimal SHA-256."""

    size: int
    sha256: str


class Manifest(Frozen):
    """All files of a checkpoint by their path relative to it."""

    step: int
    files: dict[str, ManifestEntry]


def checkpoint_steps(root: Path) -> list[int]:
    """The steps that have a checkpoint under `root`, ascending; those set aside as corrupt do not count."""
    names = [entry.name for entry in root.iterdir()] if root.is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def checkpoint_path(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is or would be."""
    return root / f"step-{step:06d}"


def checkpoint_digest(root: Path, step: int) -> str:
    """What tells the checkpoint of `step` from another of that step: the SHA-256 of its manifest, which holds sums."""
    return hashlib.sha256((checkpoint_path(root, step) / MANIFEST).read_bytes()).hexdigest()


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], keep: int = 2) -> Path:
    """Save a checkpoint, then remove all but the newest `keep`.

    Args:
        root: the directory of all checkpoints, created if missing.
        step: how many steps the state has behind it.
        write: fills the (empty) directory it is given. It should write through files that it opens itself, so that a
            full disk shows as an `OSError` here, also below another exception (`torch.save(state, file)`).
        keep: at least 1.

    Returns:
        The checkpoint's directory. An earlier checkpoint of the same step is replaced.

    Raises:
        StorageError: the disk is full or a write failed; earlier checkpoints are untouched and the half-written one
            is removed.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    final, temporary = checkpoint_path(root, step), root / f".tmp-{step}"
    with storage_errors(final):
        root.mkdir(parents=True, exist_ok=True)
        _clean(root)
        temporary.mkdir()
        try:
            _fill(temporary, step, write)
            if final.exists():
                os.rename(final, root / f".tmp-replaced-{step}")
            os.rename(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        fsync_directory(root)
        remove_checkpoints(root, checkpoint_steps(root)[:-keep])
    return final


def remove_checkpoints(root: Path, steps: list[int]) -> None:
    """Remove the checkpoints of `steps`, each at once: it is renamed before its files go."""
    _clean(root)
    with storage_errors(root):
        for step in steps:
            os.rename(checkpoint_path(root, step), root / f".tmp-removed-{step}")
        if steps:
            fsync_directory(root)
    _clean(root)


def load_latest(
    root: Path, read: Callable[[Path], T], *, max_step: int | None = None, report: Report = warn
) -> tuple[int, T] | None:
    """Load the newest good checkpoint, at or before `max_step` if given.

    Args:
        root: the directory of all checkpoints.
        read: builds the state from a checkpoint's verified directory; what it raises goes through.
        max_step: pass over later checkpoints, without touching them.
        report: called with one line of text for each damaged checkpoint that was set aside.

    Returns:
        The step and what `read` gave, or None if there never was a checkpoint.

    Raises:
        CheckpointError: there are checkpoints, but none can be used.
    """
    for step in reversed(checkpoint_steps(root)):
        if max_step is not None and step > max_step:
            continue
        directory = checkpoint_path(root, step)
        damage = find_damage(directory)
        if damage is None:
            return step, read(directory)
        if not directory.exists():
            continue  # a running trainer has pruned it meanwhile
        report(f"checkpoint {directory} is damaged: {damage}; set aside as {_set_aside(directory).name}")
    _refuse_if_any(root, max_step)
    return None


def find_damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint (the file and how), or None if every file is as it was written.

    Raises:
        CheckpointError: this user may not read it, which says nothing about its content.
    """
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
        if directory.name != checkpoint_path(directory.parent, manifest.step).name:
            return f"{MANIFEST} is of step {manifest.step}"
        for name, entry in manifest.files.items():
            if problem := _file_damage(directory / name, entry):
                return f"{name} {problem}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except ValidationError:
        return f"{MANIFEST} is not a manifest"
    except PermissionError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}",
            cause="the checkpoint belongs to another user",
            fix=f"fix its permissions: `chmod -R u+rX {directory}`",
        ) from error
    except OSError as error:
        return f"{error.filename or directory}: {error.strerror}"
    return None


def _fill(directory: Path, step: int, write: Callable[[Path], None]) -> None:
    """Let `write` fill `directory`, add the manifest and sync it all to the disk."""
    try:
        write(directory)
    except RuntimeError as error:
        # torch reports a failed write as a RuntimeError with the OSError behind it.
        if isinstance(behind := error.__cause__ or error.__context__, OSError):
            raise storage_error(behind, directory) from error
        raise
    entries: dict[str, ManifestEntry] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            fsync_directory(path)
        else:
            entries[path.relative_to(directory).as_posix()] = _sync_and_sum(path)
    atomic_write(directory / MANIFEST, Manifest(step=step, files=entries).model_dump_json(indent=1).encode())


def _sync_and_sum(path: Path) -> ManifestEntry:
    # Windows syncs only what is open for writing; elsewhere a read-only file can be synced too.
    with path.open("r+b" if os.name == "nt" else "rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ManifestEntry(size=path.stat().st_size, sha256=digest)


def _file_damage(path: Path, entry: ManifestEntry) -> str | None:
    size = path.stat().st_size
    if size != entry.size:
        return f"has {size} bytes, {MANIFEST} says {entry.size}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == entry.sha256 else f"has SHA-256 {digest}, {MANIFEST} says {entry.sha256}"


def _clean(root: Path) -> None:
    """Delete what a crash or a removal left under temporary names."""
    for leftover in root.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _set_aside(directory: Path) -> Path:
    """Rename a damaged checkpoint so that it is kept but never taken for one again."""
    target = directory.with_name(f"{directory.name}.corrupt")
    number = 1
    while target.exists():
        number += 1
        target = directory.with_name(f"{directory.name}.corrupt-{number}")
    with storage_errors(directory):
        os.rename(directory, target)
        fsync_directory(directory.parent)
    return target


def _refuse_if_any(root: Path, max_step: int | None) -> None:
    """Starting over unasked would throw a run away: raise if there is, or was, any checkpoint."""
    found = sorted(path.name for path in root.glob("step-*"))
    if not found:
        return
    limit = "" if max_step is None else f" at or before step {max_step}"
    raise CheckpointError(
        f"no usable checkpoint{limit} in {root}; found {', '.join(found)}",
        cause="those named .corrupt failed their SHA-256 sums" if limit == "" else "older checkpoints were removed",
        fix=f"restore a checkpoint from a copy, or start over with another --out (keep {root} until then)",
    )
