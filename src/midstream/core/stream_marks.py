"""The marks of a template as patterns, and tool output in which none of them is left.

Marks may overlap, hold a tool's name, or begin and end with line breaks (a code fence), so that a tool's text could
make one together with what stands around it: that is broken too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from midstream.core.prompt_text import neutral
from midstream.core.stream_template import ANY_TOOL, Template

_NAME = r"[A-Za-z_][\w.-]*"  # of a tool, in marks that hold it


@dataclass(frozen=True, kw_only=True, slots=True)
class Grammar:
    """A template's marks as patterns: those that open a part, each by kind; all; all, where they overlap too."""

    tags: dict[str, tuple[str, str]]
    opening: re.Pattern[str]
    marks: re.Pattern[str]
    overlapping: re.Pattern[str]

    def opened(self, text: str, place: int) -> re.Match[str] | None:
        """The next opening mark; `lastgroup` is its kind."""
        return self.opening.search(text, place)

    def closing(self, opened: re.Match[str]) -> tuple[str, str]:
        """The mark that closes what was opened, and the tool that both name."""
        mark, close = self.tags[opened.lastgroup or ""]
        before, here, after = mark.partition(ANY_TOOL)
        tool = opened[0][len(before) : len(opened[0]) - len(after)] if here else ""
        return close.replace(ANY_TOOL, tool), tool

    def holds(self, kind: str, text: str) -> bool:
        """Whether an opening mark of that kind stands in a text, and its closing mark behind it."""
        first: dict[str, re.Match[str]] = {}  # of each mark: what closes a later one stands behind it too
        for opened in self.opening.finditer(text):
            if opened.lastgroup == kind:
                first.setdefault(opened[0], opened)
        return any(text.find(self.closing(opened)[0], opened.end()) >= 0 for opened in first.values())


def grammar(template: Template) -> Grammar:
    """The patterns of a template, made once."""
    return _compiled(tuple((kind, marks.open, marks.close) for kind, marks in template.tags.items()))


@lru_cache(maxsize=64)
def _compiled(tags: tuple[tuple[str, str, str], ...]) -> Grammar:
    # A mark that holds any tool's name matches other marks too, so it comes last.
    tags = tuple(sorted(tags, key=lambda tag: ANY_TOOL in tag[1]))
    every = "|".join(_pattern(mark) for _, *both in tags for mark in both)
    return Grammar(
        tags={kind: (mark, close) for kind, mark, close in tags},
        opening=re.compile("|".join(f"(?P<{kind}>{_pattern(mark)})" for kind, mark, _ in tags)),
        marks=re.compile(every),
        overlapping=re.compile(f"(?=({every}))"),
    )


def _pattern(mark: str) -> str:
    return _NAME.join(re.escape(part) for part in mark.split(ANY_TOOL))


def escape_marks(text: str, template: Template) -> str:
    """`text` with every mark of the template in it broken by an escape, so that tool output cannot forge one."""
    return _escaped(text, template)


def put_in(text: str, template: Template) -> str:
    """A tool's output as it goes into the stream: by the template's layout, unable to forge a mark or a chat turn."""
    layout = template.layout.replace("{open}", template.output.open).replace("{close}", template.output.close)
    before, after = layout.split("{text}")
    return before + _escaped(neutral(text), template, before, after) + after


def _escaped(text: str, template: Template, before: str = "", after: str = "") -> str:
    """`text` without marks, and without one that it would make with the ends of what stands around it."""
    start, end, whole = len(before), len(before) + len(text), before + text + after
    broken: set[int] = set()
    for found in grammar(template).overlapping.finditer(whole):
        mark = range(found.start(), found.start() + len(found[1]))
        inside = [place for place in mark if start <= place < end and not whole[place].isspace()]
        broken.update(inside[:1])
    return "".join(f"\\u{ord(one):04x}" if start + i in broken else one for i, one in enumerate(text))
