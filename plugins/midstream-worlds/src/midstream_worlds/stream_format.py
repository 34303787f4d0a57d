"""The two formats of a stream that ARTIST's rewards score: relaxed, each tag is there; strict, all are in order."""

from __future__ import annotations

import re
from collections.abc import Sequence

from midstream.core.stream import Block, Piece, stretches
from midstream.core.stream_template import Template


def tags_present(pieces: Sequence[Piece], template: Template) -> dict[str, bool]:
    """Check the relaxed format: for each tag of the template, whether the stream has it.

    A tag is present if its opening mark is, with its closing mark after it; output counts only if it was appended.
    """
    written = template.opening + "".join(piece.text for piece in pieces if piece.sampled)
    given = "".join(piece.text for piece in pieces if not piece.sampled)
    return {kind: _holds(template, kind, given if kind == "output" else written) for kind in template.tags}


def _holds(template: Template, kind: str, text: str) -> bool:
    """Return whether a text has an opening mark of a kind with its closing mark somewhere after it."""
    grammar = template.grammar
    first: dict[str, re.Match[str]] = {}  # first place of each mark: closing marks of later ones are behind it too
    for opened in grammar.opening.finditer(text):
        if opened.lastgroup == kind:
            first.setdefault(opened[0], opened)
    return any(text.find(grammar.closing(opened)[0], opened.end()) >= 0 for opened in first.values())


def is_strict(pieces: Sequence[Piece], template: Template) -> bool:
    """Check the strict format: every tag of the template is present, closed, not nested, and in order.

    The order is: a thought before each call and before the answer, output after every call, one answer at the end. A
    reply with several calls needs one thought, before the first. Text may be outside of marks, but no stray mark, and
    nothing after the answer.
    """
    seen: set[str] = set()
    calls, answered = 0, False
    for sampled, found in stretches(pieces, template):
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
    """Return whether a sampled stretch by itself has the strict format."""
    stray = template.grammar.marks
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
