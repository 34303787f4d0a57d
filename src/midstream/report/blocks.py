"""What is shown of a run, as plain JSON values: text, facts, tables, charts, lessons, rollouts.

Each kind of run is described once in these blocks. `draw.py` shows them in the terminal, the viewer in the browser. A
page is `{"title", "lead", "sections": [{"key", "title", "blocks"}]}`. Every text in it is plain text. Each function
here returns one kind of block, with all fields that the kind has.

A tone says what a text means: "soft" (less important), "strong", "up" and "down" (a change for the better or worse),
"bad" (an error), "warn", "name" (of a tool) and "put-in" (written by the environment, not by the policy).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from midstream.core.text import visible
from midstream.report.numbers import Point, buckets, gains, number, percent

Block = dict[str, Any]
Cell = str | Block
Interval = tuple[float, float]
Section = tuple[str, str, Sequence[Block | None]]  # key, title, blocks; those that are None are left out

LINE_POINTS = 400
COLORS = 8
BAD = 7  # the color of errors


def page(title: str, lead: str, sections: Iterable[Section]) -> Block:
    """A whole page, as a safe JSON value; sections without a block are left out."""
    kept = [(key, name, [block for block in blocks if block]) for key, name, blocks in sections]
    shown = [{"key": key, "title": name, "blocks": blocks} for key, name, blocks in kept if blocks]
    return safe({"title": title, "lead": lead, "sections": shown})


def safe(value: Any) -> Any:
    """A JSON value with control characters written out in its texts, and null for each number that JSON lacks."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {visible(str(key)): safe(entry) for key, entry in value.items()}
    return [safe(entry) for entry in value] if isinstance(value, list | tuple) else value


def text(words: str, tone: str = "") -> Block | None:
    """A paragraph. None for no words."""
    return {"kind": "text", "text": words, "tone": tone} if words.strip() else None


def heading(words: str) -> Block:
    """A heading inside a section."""
    return {"kind": "heading", "text": words}


def tile(name: str, value: str, note: str = "", *, before: str = "") -> dict[str, str]:
    """A number at the top of a page. With `before`, its value then; a value that is missing ("-") leaves that alone."""
    value, before = (before, "") if value == "-" and before else (value, before)
    return {"name": name, "value": value, "before": before, "note": note}


def tiles(found: Sequence[dict[str, str]]) -> Block | None:
    """Tiles side by side."""
    return {"kind": "tiles", "tiles": list(found)} if found else None


def table(
    caption: str, names: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: int = 1, last: int = 0, totals: int = 0
) -> Block | None:
    """A table: the first `left` and the `last` columns hold text, the others numbers. The `totals` last rows are sums.

    None for no rows.
    """
    aligned = ["left"] * left + ["right"] * (len(names) - left - last) + ["left"] * last
    found = [list(row) for row in rows]
    if not found:
        return None
    columns = [{"name": name, "align": align} for name, align in zip(names, aligned, strict=True)]
    shown = [{"cells": cells, "total": place >= len(found) - totals} for place, cells in enumerate(found)]
    return {"kind": "table", "caption": caption, "columns": columns, "rows": shown}


def cell(words: str, tone: str = "", **opens: object) -> Cell:
    """A cell with a tone; in the browser it `opens` the list of a `part` of the run, under these `filters`."""
    return {"text": words, "tone": tone, **opens} if tone or opens else words


def shift(signed: str, good: str = "+") -> Cell:
    """A signed change as a cell; its tone says whether it goes in the `good` direction."""
    return cell(signed, "" if signed in ("-", "+0.0") else "up" if signed.startswith(good) else "down")


def span_of(estimates: Iterable[tuple[float, Interval] | None]) -> float:
    """The half-width of an axis that these estimates and their intervals fit on; at least a point."""
    found = [each for each in estimates if each]
    return max([0.01, *(abs(end) for mid, ends in found for end in (mid, *ends))])


def interval(mid: float, ends: Interval, span: float) -> dict[str, float]:
    """An estimate with its interval, drawn on an axis from -`span` to `span`."""
    return {"low": ends[0], "mid": mid, "high": ends[1], "span": span}


def interval_cell(mid: float, ends: Interval | None, span: float) -> Cell:
    """The interval of a difference of shares as a cell; the browser also draws it."""
    return {"text": gains(ends), "tone": "", "interval": interval(mid, ends, span)} if ends else "-"


def line(name: str, points: Sequence[Point], color: int = 1, *, faint: bool = False) -> Block:
    """A line of a chart, or a band of a stacked one; `color` is 1 to 8."""
    return {"name": name, "color": color, "points": [list(point) for point in points], "faint": faint}


def chart(
    title: str,
    note: str,
    lines: Sequence[Block],
    *,
    x: str = "step",
    as_percent: bool = True,
    stacked: bool = False,
    size: str = "",
) -> Block:
    """Lines over steps, with a summary for people who do not see them; `note` is one clause on how to read them."""
    lines = [each for each in lines if each["points"]]

    def at(point: Sequence[float]) -> str:
        return f"{in_short(point[1], as_percent)} at {x} {point[0]:,.0f}"

    drawn = (each for each in lines if not each["faint"])
    words = "; ".join(f"{each['name']}: {at(each['points'][0])}, {at(each['points'][-1])}" for each in drawn)
    shown = {"title": title, "name": title, "note": note, "x": x, "percent": as_percent, "stacked": stacked}
    return {"kind": "chart", **shown, "size": size, "summary": words or f"{title}: no data", "lines": lines}


def charts(*found: Block | None) -> Block | None:
    """Charts side by side."""
    return {"kind": "charts", "blocks": [each for each in found if each]} if any(found) else None


def curve(
    title: str, note: str, points: Sequence[Point], color: int, *, as_percent: bool = False, x: str = "step"
) -> Block:
    """A small chart of one line, its last value in the title."""
    kept = buckets(points, LINE_POINTS)
    drawn = chart(title, note, [line(title, kept, color)], x=x, as_percent=as_percent, size="small")
    return {**drawn, "title": f"{title} {in_short(kept[-1][1], as_percent)}"} if kept else drawn


def in_short(value: float, as_percent: bool) -> str:
    """A value of a chart as text."""
    return percent(value) if as_percent else number(value)


def facts(found: Mapping[str, object] | Iterable[tuple[str, object]]) -> Block | None:
    """Names with their values, which are texts or cells; those without a value are left out."""
    pairs = found.items() if isinstance(found, Mapping) else found
    shown = [
        [name, value if isinstance(value, dict) else str(value)] for name, value in pairs if value not in ("", None)
    ]
    return {"kind": "facts", "facts": shown} if shown else None


def code(words: str) -> Block | None:
    """Text in a fixed-width box: a recipe, command lines."""
    return {"kind": "code", "text": words} if words.strip() else None


def difference(lines: Sequence[str]) -> Block | None:
    """The lines of a unified diff."""
    return {"kind": "difference", "lines": list(lines)} if lines else None


def change(asked: tuple[int, str], title: str, *blocks: Block | None) -> Block:
    """A change that waits for a person's yes or no, by its update and lesson, with the blocks that speak for it."""
    shown = [block for block in blocks if block]
    return {"kind": "change", "update": asked[0], "lesson": asked[1], "title": title, "blocks": shown}


def fold(title: str, *blocks: Block | None) -> Block | None:
    """Blocks that are folded until they are opened."""
    kept = [block for block in blocks if block]
    return {"kind": "fold", "title": title, "blocks": kept} if kept else None


def card(
    name: str,
    words: str,
    said: Sequence[str] = (),
    *,
    struck: bool = False,
    interval: Mapping[str, float] | None = None,
    blocks: Sequence[Block | None] = (),
    vote: bool = False,
) -> Block:
    """A lesson or change: its text, what is known about it, and what can be opened. `vote`: people can vote on it."""
    shown = [fact for fact in said if fact]
    kept = [block for block in blocks if block]
    return {
        "id": name, "text": words, "struck": struck, "facts": shown, "interval": interval, "blocks": kept, "vote": vote,
    }  # fmt: skip


def cards(found: Sequence[Block]) -> Block | None:
    """Lessons or changes below each other."""
    return {"kind": "cards", "cards": list(found)} if found else None
