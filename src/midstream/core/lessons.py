"""Lessons as an agent gets them: one rendered text a module, the same wherever the agent runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

Lessons = Mapping[str, str]  # module -> the text that its prompt holds; a module without lessons is not in it

NO_LESSONS: Lessons = MappingProxyType({})


def lines(texts: Iterable[str]) -> str:
    """Lessons as a prompt holds them: one line each, whatever line breaks a text has."""
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def digest(lessons: Lessons) -> str:
    """A short name of exactly these texts, "" of none: two runs that saw the same lessons have the same."""
    if not lessons:
        return ""
    text = json.dumps(dict(lessons), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
