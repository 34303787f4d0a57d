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
SHOWN: ContextVar[Lessons | None] = ContextVar("SHOWN", default=None)


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
        # Whether a run has read it.
        self.read = False

    def __str__(self) -> str:
        shown = SHOWN.get()
        self.read |= shown is not None
        return (shown or NO_LESSONS).get(TEXTS + self.name, self.default)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"<Text {self.name!r}: {str(self)!r:.60}>"


def text(name: str, default: str) -> Text:
    """Mark a text of your agent that can be learned (`lessons.modules = ["texts.system"]`).

        SYSTEM = ms.text("system", "You are a careful accountant.")

        async def solve(question, model):
            return await model(f"{SYSTEM}\\n\\n{question}")

    `str()` of it, or its place in an f-string, is the version of the run under way; outside of a run, the default. Mark
    it where the file is loaded, and read it inside the function.

    Raises `UsageError` if the name is no word, or the text is empty.
    """
    if not re.fullmatch(r"\w+", name) or not default.strip():
        raise UsageError(f"ms.text({name!r}, {default!r:.60})", code="name-invalid", fix="give it a word and a text")
    # A notebook may mark it again.
    Text.marked[name] = Text(name, default)
    return Text.marked[name]
