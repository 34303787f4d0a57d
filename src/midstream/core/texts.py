"""The texts of an agent that can be learned, each by its place.

    planner            the lessons of a module: a line each in its prompt
    planner.prompt     its instructions: its prompt up to the line <!-- user -->, or the template's
    planner.examples   examples of good runs, after its lessons
    tools.search       the description of a tool
    texts.system       a text that an agent of your own marks with `text`

Lessons and examples are several, and are added to what the recipe has. Any other place has one text, which is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal

from midstream.core.errors import UsageError

Lessons = Mapping[str, str]
"""Learned texts as an agent gets them, by place. Places without any are missing."""

NO_LESSONS: Lessons = MappingProxyType({})
PROMPT, EXAMPLES, TOOLS, TEXTS = ".prompt", ".examples", "tools.", "texts."
# What the run under way may read.
SHOWN: ContextVar[Lessons] = ContextVar("SHOWN", default=NO_LESSONS)


def kind_of(place: str) -> Literal["lesson", "example", "text"]:
    """What a place holds: any number of lessons, any number of examples, or one text, which is replaced."""
    if place.endswith(PROMPT) or place.startswith((TOOLS, TEXTS)):
        return "text"
    return "example" if place.endswith(EXAMPLES) else "lesson"


class Text:
    """A text of an agent of your own, which can be learned: see `text`."""

    marked: dict[str, Text] = {}
    """Every text that was marked in this process, by name."""

    def __init__(self, name: str, default: str) -> None:
        self.name, self.default = name, default

    def __str__(self) -> str:
        return SHOWN.get().get(TEXTS + self.name, self.default)


def text(name: str, default: str) -> Text:
    """Mark a text of your agent that can be learned (`lessons.modules = ["texts.system"]`).

        SYSTEM = ms.text("system", "You are a careful accountant.")

        async def solve(question, model):
            return await model(f"{SYSTEM}\\n\\n{question}")

    `str()` of it, or its place in an f-string, is the version of the run under way; outside of a run, the default. Mark
    it where the file is loaded, and read it inside the function.

    Raises `UsageError` if the name is no word, or was marked with another default.
    """
    if not re.fullmatch(r"\w+", name) or not default.strip():
        raise UsageError(f"text({name!r}, {default!r:.60})", code="name-invalid", fix="give a word and a text")
    found = Text.marked.setdefault(name, Text(name, default))
    if found.default != default:
        raise UsageError(f"two texts are called {name!r}", code="name-clash", fix="give each its own name")
    return found
