"""Lessons as an agent gets them: one rendered text for each module, the same wherever the agent runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

Lessons = Mapping[str, str]  # module -> text in its prompt; modules without lessons are missing

NO_LESSONS: Lessons = MappingProxyType({})


def lines(texts: Iterable[str]) -> str:
    """Render lessons for a prompt: one line each, with line breaks inside a lesson replaced by spaces."""
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def digest(lessons: Lessons) -> str:
    """A short hash of the texts, equal for equal lessons; "" without lessons."""
    if not lessons:
        return ""
    text = json.dumps(dict(lessons), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
