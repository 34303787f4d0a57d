"""Text files that a user names, such as recipes: regular files of bounded size, and TOML of bounded depth."""

from __future__ import annotations

import re
import stat
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from midstream.core.errors import MidstreamError, RecipeError

MAX_CHARACTERS = 1 << 24
_MAX_TOML = 1 << 20
_MAX_DEPTH = 32
# `tomllib` takes time quadratic in the parts of a key.
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MAX_DEPTH}}}""")


def read_text(
    path: Path, *, fix: str = "", limit: int = MAX_CHARACTERS, error: type[MidstreamError] = RecipeError
) -> str:
    """The text of a file of at most `limit` characters, in UTF-8 with or without a byte order mark.

    Raises `error`: `file-not-found`, or `file-unreadable` for anything else that prevents it.
    """
    try:
        check_regular(path)
        # Some editors on Windows write a byte order mark.
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(limit + 1)
        if len(text) > limit:
            raise OSError(f"it has more than {limit:,} characters")
    except FileNotFoundError as failure:
        raise error(f"there is no file {path}", code="file-not-found", fix=fix or f"ls -l {path.parent}") from failure
    except (OSError, ValueError) as failure:
        # A ValueError means that it is not UTF-8, or that the path has a null character.
        reason = getattr(failure, "strerror", None) or failure
        raise error(
            f"{str(path)!r} cannot be read: {reason}", code="file-unreadable", fix=fix or "name a text file in UTF-8"
        ) from failure
    return text


def shipped_prompt(package: str, name: str) -> str:
    """The text of a prompt file that ships with a package."""
    return (resources.files(package) / "prompts" / f"{name}.md").read_text(encoding="utf-8")


def check_regular(path: Path) -> None:
    """Raise `OSError` for a directory, device or named pipe, which may have no end to read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is a directory" if path.is_dir() else "it is a device or pipe, not a file")


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises `RecipeError`: as `read_text`, or `file-invalid`."""
    try:
        return parse_toml(read_text(path, limit=_MAX_TOML))
    except ValueError as failure:
        raise RecipeError(
            f"{path} is not valid TOML: {failure}", code="file-invalid", fix="correct the file at that line"
        ) from failure


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises `ValueError`, also for what other code could not handle: great depth, long integers, NUL."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_MAX_DEPTH} parts")
    try:
        table = tomllib.loads(text)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure
    _check_values(table, ())
    return table


def _check_values(value: object, keys: tuple[str, ...]) -> None:
    problem = ""
    if len(keys) > _MAX_DEPTH:
        problem = f"more than {_MAX_DEPTH} levels"
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_values(key, keys)
            _check_values(inner, (*keys, str(key)))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        problem = "an integer of more than 64 bits"
    elif isinstance(value, str) and "\0" in value:
        problem = "a null character"
    if problem:
        raise ValueError(f"{'.'.join(keys)[:200]}: {problem}")
