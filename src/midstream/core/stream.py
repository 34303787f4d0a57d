"""An interleaved stream as text: marks around thoughts, tool calls, tool output and the answer.

    <think>2 apples and 3</think><python>print(2 + 3)</python><output>5</output><answer>5</answer>
    sampled ------------------------------------------------- environment ----- sampled ------------

A template is data (`core/stream_template.py`). The agent follows it, and the format rewards read the stream with it.
Any text is a stream: blocks say what is unclosed, nested, repeated or out of order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal, cast

from midstream.core.stream_template import ANY_TOOL, Template
from midstream.core.text import neutral
from midstream.core.trajectory import Trajectory

POLICY = "policy"  # the role of the calls that are sampled parts of a stream
BlockKind = Literal["think", "call", "output", "answer", "text"]
_BOX = "\\boxed{"
_TOOL_NAME = r"[A-Za-z_][\w.-]*"  # of a tool, in marks that hold it


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of the stream: `sampled` by the policy, or put in by the environment (`turn` is where it stands)."""

    text: str
    sampled: bool
    turn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A part of the stream between its marks, or text outside of all marks.

    `closed`: its closing mark is there. `nested`: an opening mark stands inside it, or, where it is not closed, ends
    it. `tool` is what a call's marks name, "" where its body does. `sampled`: the policy wrote its opening mark.
    """

    kind: BlockKind
    body: str
    closed: bool = True
    nested: bool = False
    sampled: bool = True
    tool: str = ""


def stream_of(trajectory: Trajectory) -> list[Piece]:
    """The stream of an interleaved trajectory after its prompt, in order: every call's text and what was appended."""
    found: list[Piece] = []
    for turn in trajectory.turns:
        found += [
            Piece(text=call.completion, sampled=True, turn=turn.index) for call in turn.calls if call.role == POLICY
        ]
        found.append(Piece(text=turn.appended, sampled=False, turn=turn.index))
    last = len(trajectory.turns) + 1
    found += [
        Piece(text=call.completion, sampled=True, turn=last) for call in trajectory.closing_calls if call.role == POLICY
    ]
    return [piece for piece in found if piece.text]


def blocks(pieces: Sequence[Piece], template: Template) -> list[Block]:
    """The stream's parts in order, behind the template's `opening`. Total: any text gives blocks, and nothing is lost.

    A block reaches to its closing mark, whatever stands between, unless its opening mark comes again before. One
    without reaches to the next opening mark, or to where the environment goes on. What the environment put in is output
    between its marks, or text.
    """
    return [block for _, found in _runs(pieces, template) for block in found]


def tags_present(pieces: Sequence[Piece], template: Template) -> dict[str, bool]:
    """For the relaxed format: "think", "call", "output", "answer" (those the template has) to whether each is there.

    A tag is there if its opening mark and, later, its closing mark are; output counts only from the environment.
    """
    known = grammar(template)
    written = template.opening + "".join(piece.text for piece in pieces if piece.sampled)
    given = "".join(piece.text for piece in pieces if not piece.sampled)
    return {kind: known.holds(kind, given if kind == "output" else written) for kind in template.tags}


def is_strict(pieces: Sequence[Piece], template: Template) -> bool:
    """The strict format: every tag of the template is there, each closed, none nested, in order.

    In order: thoughts before each call and before the answer, every call followed by its output, one answer, at the
    end. In a reply with several calls one thought before the first will do. Text may stand outside of marks, but no
    stray mark, and nothing after the answer.
    """
    seen: set[str] = set()
    calls, answered = 0, False
    for sampled, found in _runs(pieces, template):
        seen |= {block.kind for block in found}
        if sampled:
            if calls or answered or not _in_order(found, template):
                return False
            calls = sum(block.kind == "call" for block in found)
            answered = any(block.kind == "answer" for block in found)
        elif sum(block.kind == "output" for block in found) < calls:
            return False
        else:
            calls = 0
    return not calls and seen >= set(template.tags)


def _in_order(found: Sequence[Block], template: Template) -> bool:
    """Whether a sampled stretch is sound by itself."""
    stray = grammar(template).marks
    thought, before = template.think is None, ""
    for block in found:
        if block.kind == "text":
            if stray.search(block.body) or (before == "answer" and block.body.strip()):
                return False
            continue
        if not block.closed or block.nested or block.kind == "output" or before == "answer":
            return False
        acts = block.kind in ("call", "answer")
        second = before == "call" and (template.appends == "inline" or block.kind == "answer")
        if acts and (not thought or second):
            return False
        thought, before = thought or block.kind == "think", block.kind if acts else before
    return True


def answer_of(pieces: Sequence[Piece], template: Template) -> str | None:
    """What the policy answered, None where it did not: the template says where that stands; the last one counts."""
    if template.answer is None:
        text = said(pieces, template)
    else:
        answers = [block for block in blocks(pieces, template) if block.kind == "answer" and block.closed]
        text = answers[-1].body if answers else ""
    text = text if not template.boxed else _boxed(text)
    return text.strip() or None


def latest(pieces: Sequence[Piece], template: Template) -> list[Block]:
    """The blocks of what was sampled since the environment last put something in."""
    runs = list(_runs(pieces, template)) if pieces else []
    return runs[-1][1] if runs and runs[-1][0] else []


def said(pieces: Sequence[Piece], template: Template) -> str:
    """What was sampled since the environment last put something in, outside of thoughts and calls."""
    text = "".join(block.body for block in latest(pieces, template) if block.kind == "text")
    return text.rpartition(template.think.close)[2].strip() if template.think else text.strip()


def _boxed(text: str) -> str:
    """What the last \\boxed{} holds, "" where there is none or it is never closed."""
    start = text.rfind(_BOX) + len(_BOX)
    depth = 1
    for place in range(start, len(text) if start >= len(_BOX) else 0):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return ""


def _runs(pieces: Sequence[Piece], template: Template) -> Iterator[tuple[bool, list[Block]]]:
    """The blocks of each stretch that was sampled, or put in, without a break."""
    stretches = [(by, "".join(piece.text for piece in of)) for by, of in groupby(pieces, lambda piece: piece.sampled)]
    opening = template.opening
    if opening and (not stretches or not stretches[0][0]):
        yield True, list(_sampled(opening, template, len(opening)))
        opening = ""
    for sampled, text in stretches:
        if sampled:
            yield True, list(_sampled(opening + text, template, len(opening)))
            opening = ""
        else:
            yield False, list(_given(text, template))


def _sampled(text: str, template: Template, put_in_before: int) -> Iterator[Block]:
    """Blocks of what a policy wrote behind so many characters that the environment began with."""
    known, place = grammar(template), 0
    opened = known.opened(text, place)
    while opened is not None:
        if opened.start() > place:
            yield Block(kind="text", body=text[place : opened.start()], sampled=place >= put_in_before)
        close, tool = known.closing(opened)
        inner, again = known.opened(text, opened.end()), text.find(opened[0], opened.end())
        end = text.find(close, opened.end(), len(text) if again < 0 else again + len(close))
        closed = end >= 0
        if not closed:
            end = len(text) if inner is None else inner.start()
        place = end + len(close) if closed else end
        yield Block(
            kind=cast("BlockKind", opened.lastgroup),
            body=text[opened.end() : end],
            closed=closed,
            nested=inner is not None and (inner.start() < end or not closed),
            sampled=opened.start() >= put_in_before,
            tool=tool,
        )
        opened = known.opened(text, place)
    if place < len(text):
        yield Block(kind="text", body=text[place:], sampled=place >= put_in_before)


def _given(text: str, template: Template) -> Iterator[Block]:
    """Blocks of what the environment put in: its own text holds no marks but those of output."""
    marks, place = template.output, 0
    while (start := text.find(marks.open, place)) >= 0:
        end = text.find(marks.close, start + len(marks.open))
        if end < 0:
            break
        if start > place:
            yield Block(kind="text", body=text[place:start], sampled=False)
        yield Block(kind="output", body=text[start + len(marks.open) : end], sampled=False)
        place = end + len(marks.close)
    if place < len(text):
        yield Block(kind="text", body=text[place:], sampled=False)


# -- marks, and text in which none of them is left --------------------------------------------------------------------
#
# Marks may overlap, hold a tool's name, or begin and end with line breaks (a code fence): a tool's text could form one
# together with the text around it, so that is escaped too.


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
    return _TOOL_NAME.join(re.escape(part) for part in mark.split(ANY_TOOL))


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
