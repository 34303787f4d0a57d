"""What a docstring says of a function and of each argument: Google style, NumPy style, or `:param name:`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

_WORDS = (
    "args|arguments|parameters|params|keyword args|other parameters|attributes|returns?|yields?|raises|warns|"
    "examples?|notes?|see also|references|todo|warnings?"
)
_GOOGLE = re.compile(rf"(?:{_WORDS}):\s*", re.IGNORECASE)
_NUMPY = re.compile(rf"(?:{_WORDS})\s*", re.IGNORECASE)
_ARGUMENTS = ("args", "arguments", "parameters", "params", "keyword args", "other parameters")
_FIELD = re.compile(r"^:param\s+(?:[^:\n]*\s)?(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
_ENTRY = re.compile(r"([\w, ]*\w)\s*(\([^)]*\))?\s*(?::\s*(.*))?")


def parse(docstring: str) -> tuple[str, Mapping[str, str]]:
    """(what the function does, {argument: its description}), every paragraph on one line.

    The first is everything before the first section, heading or `:field:`. The docstring is as `inspect.getdoc` gives
    it: indented as if it stood at the margin.
    """
    found = {name: _line(text.splitlines()) for name, text in _FIELD.findall(docstring)}
    lines = re.split(r"^:\w+.*:", docstring, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    heads = [at for at in range(len(lines)) if _is_heading(lines, at)]
    for at, end in pairwise([*heads, len(lines)]):
        if lines[at].strip().rstrip(":").lower() in _ARGUMENTS:
            found |= _entries(lines[at + 1 : end])
    paragraphs = "\n".join(lines[: heads[0]] if heads else lines).strip()
    return "\n".join(_line(one.splitlines()) for one in re.split(r"\n\s*\n", paragraphs)), found


def _is_heading(lines: Sequence[str], at: int) -> bool:
    underlined = at + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[at + 1])
    return bool(_GOOGLE.fullmatch(lines[at]) or (underlined and _NUMPY.fullmatch(lines[at])))


def _entries(lines: Sequence[str]) -> dict[str, str]:
    """Each argument of a section's body with its text; what follows a NumPy argument's colon is its type."""
    numpy = bool(lines) and lines[0].startswith("---")
    body = textwrap.dedent("\n".join(lines[1:] if numpy else lines)).splitlines()
    starts = [at for at, line in enumerate(body) if line[:1].strip() and _ENTRY.fullmatch(line.rstrip())]
    found: dict[str, str] = {}
    for at, end in pairwise([*starts, len(body)]):
        entry = _ENTRY.fullmatch(body[at].rstrip())
        assert entry is not None
        text = _line([*([] if numpy else [entry[3] or ""]), *body[at + 1 : end]])
        found |= {name.strip(): text for name in entry[1].split(",") if text}
    return found


def _line(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
