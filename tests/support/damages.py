"""Damage to one file of a run: what a disk, a copy or a person may do to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

# Nothing is read from them: a page and a text for people, made from the other files, and the locks.
UNPROTECTED = {"report.html", "run.lock"}
Damage = Callable[[random.Random, bytes], bytes | None]


def flip(chance: random.Random, content: bytes) -> bytes:
    """Flip one bit."""
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance: random.Random, content: bytes) -> bytes:
    """Cut the file anywhere."""
    return content[: chance.randrange(len(content))]


def cut_records(chance: random.Random, content: bytes) -> bytes:
    """Cut the file after a line."""
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: chance.randrange(len(lines))])


def delete(chance: random.Random, content: bytes) -> None:
    """Delete the file."""


def delete_line(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def swap_lines(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    return b"".join([*lines[:place], *reversed(lines[place : place + 2]), *lines[place + 2 :]])


def double_line(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    return b"".join([*lines[: place + 1], *lines[place:]])


DAMAGES: tuple[Damage, ...] = (flip, flip, cut, cut_records, delete, delete_line, swap_lines, double_line)


def damage(root: Path, chance: random.Random) -> tuple[str, str]:
    """Damage a file below `root`, in place of which another is written; returns the kind of damage and its name."""
    while True:
        path = chance.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        change, content = chance.choice(DAMAGES), path.read_bytes()
        after = change(chance, content) if content else content
        if after == content or path.name in UNPROTECTED:
            continue
        path.unlink()
        if after is not None:
            path.write_bytes(after)
        return change.__name__, path.relative_to(root).as_posix()
