"""An interleaved stream as text: marks around thoughts, tool calls, tool output and the answer.

    <think>2 apples and 3</think><python>print(2 + 3)</python><output>5</output><answer>5</answer>
    sampled ------------------------------------------------- environment ----- sampled ------------

A template (`core/stream_template.py`) defines the marks; the agent and rewards use the same template. Any text can
be parsed: blocks record what is unclosed or nested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, cast

from pydantic import ConfigDict

from midstream.core.answers import extract
from midstream.core.stream_template import Template
from midstream.core.text import last_box, neutral
from midstream.core.trajectory import Trajectory

POLICY = "policy"  # role of the calls that sampled the stream
BlockKind = Literal["think", "call", "output", "answer", "text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of the stream: `sampled` by the policy, or appended by the environment."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    text: str
    sampled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A part of the stream between its marks, or text outside all marks."""

    kind: BlockKind
    body: str
    closed: bool = True  # it has its closing mark
    nested: bool = False  # another opening mark is inside it, or ends it if it is not closed
    sampled: bool = True  # the policy wrote its opening mark
    tool: str = ""  # the tool that a call's marks name; "" if the body names it


def stream_of(trajectory: Trajectory) -> list[Piece]:
    """The stream of an interleaved trajectory after its prompt: sampled and appended pieces, in order."""
    found: list[Piece] = []
    parts = [(turn.calls, turn.appended) for turn in trajectory.turns]
    for calls, appended in [*parts, (trajectory.closing_calls, "")]:
        found += [Piece(text=call.completion, sampled=True) for call in calls if call.role == POLICY]
        found.append(Piece(text=appended, sampled=False))
    return [piece for piece in found if piece.text]


def blocks(pieces: Sequence[Piece], template: Template) -> list[Block]:
    """Parse a stream, which starts with the template's `opening`, into blocks; any text can be parsed without loss.

    A block extends to its closing mark, unless its own opening mark is repeated before. Without a closing mark it
    extends to the next opening mark or the end of the sampled stretch. Appended text is output between its marks, or
    text.
    """
    return [block for _, found in stretches(pieces, template) for block in found]


def stretches(pieces: Sequence[Piece], template: Template) -> Iterator[tuple[bool, list[Block]]]:
    """Yield each maximal stretch of a stream: whether it was sampled (or else appended), and its blocks."""
    opening = [Piece(text=template.opening, sampled=True)] if template.opening else []
    put_in_before = len(template.opening)
    for sampled, stretch in groupby([*opening, *pieces], lambda piece: piece.sampled):
        text = "".join(piece.text for piece in stretch)
        yield sampled, list(_sampled(text, template, put_in_before) if sampled else _appended(text, template))
        put_in_before = 0


def answer_of(pieces: Sequence[Piece], template: Template) -> str | None:
    """The policy's last answer, found where the template says; None without one."""
    if template.answer is None:
        text = said(pieces, template)
    else:
        answers = [block for block in blocks(pieces, template) if block.kind == "answer" and block.closed]
        text = answers[-1].body if answers else ""
    return extract(last_box(text) if template.boxed else text) or None


def latest(pieces: Sequence[Piece], template: Template) -> list[Block]:
    """The blocks sampled since the environment last appended text."""
    runs = list(stretches(pieces, template)) if pieces else []
    return runs[-1][1] if runs and runs[-1][0] else []


def said(pieces: Sequence[Piece], template: Template) -> str:
    """The text sampled since the environment last appended text, without thoughts and calls."""
    text = "".join(block.body for block in latest(pieces, template) if block.kind == "text")
    return text.rpartition(template.think.close)[2].strip() if template.think else text.strip()


def _sampled(text: str, template: Template, put_in_before: int) -> Iterator[Block]:
    """Blocks of a sampled stretch, whose first `put_in_before` characters are the template's opening."""
    known, place = template.grammar, 0
    while opened := known.opening.search(text, place):
        if opened.start() > place:
            yield Block(kind="text", body=text[place : opened.start()], sampled=place >= put_in_before)
        close, tool = known.closing(opened)
        inner, again = known.opening.search(text, opened.end()), text.find(opened[0], opened.end())
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
    if place < len(text):
        yield Block(kind="text", body=text[place:], sampled=place >= put_in_before)


def _appended(text: str, template: Template) -> Iterator[Block]:
    """Blocks of appended text, in which only marks of output count."""
    while True:
        before, _, rest = text.partition(template.output.open)
        body, closed, after = rest.partition(template.output.close)
        if not closed:
            break
        if before:
            yield Block(kind="text", body=before, sampled=False)
        yield Block(kind="output", body=body, sampled=False)
        text = after
    if text:
        yield Block(kind="text", body=text, sampled=False)


# -- escaping marks in text -------------------------------------------------------------------------------------------
#
# A tool's text could complete a mark together with the text around it, so this is escaped too.


def put_in(text: str, template: Template) -> str:
    """Format a tool's output for the stream by the template's layout; it cannot forge a mark or a chat turn."""
    layout = template.layout.replace("{open}", template.output.open).replace("{close}", template.output.close)
    before, after = layout.split("{text}")
    return before + escape_marks(neutral(text), template, before, after) + after


def escape_marks(text: str, template: Template, before: str = "", after: str = "") -> str:
    """Escape the template's marks in `text`, also those formed with `before` and `after`: no output can forge one."""
    start, end, whole = len(before), len(before) + len(text), before + text + after
    broken: set[int] = set()
    for found in template.grammar.overlapping.finditer(whole):
        mark = range(found.start(), found.start() + len(found[1]))
        inside = [place for place in mark if start <= place < end and not whole[place].isspace()]
        broken.update(inside[:1])
    return "".join(f"\\u{ord(char):04x}" if start + i in broken else char for i, char in enumerate(text))
