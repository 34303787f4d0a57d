"""The parts of a page as plain JSON values: text, tiles, tables, charts, lessons, runs. The viewer draws them.

A page is `{"title", "lead", "sections": [{"key", "title", "blocks"}]}`. Every text in it is plain text; numbers are
finite. Which fields each kind of block has is what its function here returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.evaluation.estimates import Interval
from midstream.report.numbers import Point, buckets, number, percent

Block = dict[str, Any]
Cell = str | dict[str, Any]
Section = tuple[str, str, Sequence[Block | None]]  # key, title, blocks; those that are None are left out

LINE_POINTS = 400
COLORS = 8
BAD = 7  # the color of errors


def page(title: str, lead: str, sections: Iterable[Section]) -> dict[str, Any]:
    """A whole page; sections without a block are left out, and so are numbers that are not finite."""
    kept = [(key, name, [block for block in blocks if block]) for key, name, blocks in sections]
    shown = [{"key": key, "title": name, "blocks": blocks} for key, name, blocks in kept if blocks]
    return finite({"title": title, "lead": lead, "sections": shown})


def finite(value: Any) -> Any:
    """A JSON value with null for each number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def text(words: str, tone: str = "") -> Block | None:
    """A paragraph; `tone` is "", "soft" or "warning". None for no words."""
    return {"kind": "text", "text": words, "tone": tone} if words.strip() else None


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


def counts(caption: str, rows: Iterable[tuple[str, int, str]]) -> Block | None:
    """A table of counts, each with its meaning."""
    cells = [(name, f"{count:,}", {"text": note, "tone": "soft"}) for name, count, note in rows]
    return table(caption, ("What", "Count", "Meaning"), cells, last=1)


def shift(signed: str) -> Cell:
    """A signed change as a cell, with a tone for its direction."""
    tone = "" if signed in ("-", "+0.0") else "up" if signed.startswith("+") else "down"
    return {"text": signed.replace("-", "−") if signed != "-" else signed, "tone": tone}


def interval(mid: float, ends: Interval, span: float) -> dict[str, float]:
    """An estimate with its interval, drawn on an axis from -`span` to `span`."""
    return {"low": ends[0], "mid": mid, "high": ends[1], "span": span}


def line(name: str, points: Sequence[Point], color: int = 1, *, faint: bool = False) -> dict[str, Any]:
    """A line of a chart, or a band of a stacked one; `color` is 1 to 8."""
    return {"name": name, "color": color, "points": [list(point) for point in points], "faint": faint}


def chart(
    title: str,
    note: str,
    lines: Sequence[dict[str, Any]],
    summary: str = "",
    *,
    x: str = "step",
    as_percent: bool = True,
    stacked: bool = False,
    size: str = "",
) -> Block:
    """Lines over steps; `note` is one clause on how to read them, `summary` says in words what they show."""
    lines = [each for each in lines if each["points"]]
    words = summary or "; ".join(
        in_words(each["name"], each["points"], x=x, as_percent=as_percent) for each in lines if not each["faint"]
    )
    shown = {"title": title, "note": note, "x": x, "percent": as_percent, "stacked": stacked, "size": size}
    return {"kind": "chart", **shown, "summary": words or f"{title}: no data", "lines": lines}


def charts(*found: Block | None) -> Block | None:
    """Charts side by side."""
    return {"kind": "charts", "blocks": [each for each in found if each]} if any(found) else None


def curve(
    title: str, note: str, points: Sequence[Point], color: int, *, as_percent: bool = False, x: str = "step"
) -> Block:
    """A small chart of one line, its last value in the title."""
    kept = buckets(points, LINE_POINTS)
    last = _value(kept[-1][1], as_percent) if kept else ""
    return chart(
        f"{title} {last}".strip(),
        note,
        [line(title, kept, color)],
        "" if kept else f"{title}: no data",
        x=x,
        as_percent=as_percent,
        size="small",
    )


def in_words(name: str, points: Sequence[Sequence[float]], *, x: str = "step", as_percent: bool = True) -> str:
    """A line in words, for readers who do not see it."""
    ends = [f"{_value(y, as_percent)} at {x} {place:,.0f}" for place, y in (points[0], points[-1])]
    return f"{name}: {', '.join(ends)}"


def _value(value: float, as_percent: bool) -> str:
    return percent(value) if as_percent else number(value)


def facts(found: Mapping[str, object] | Iterable[tuple[str, object]]) -> Block | None:
    """Names with their values."""
    pairs = found.items() if isinstance(found, Mapping) else found
    shown = [[name, str(value)] for name, value in pairs]
    return {"kind": "facts", "facts": shown} if shown else None


def code(words: str) -> Block | None:
    """Text in a fixed-width box: a recipe, command lines."""
    return {"kind": "code", "text": words} if words.strip() else None


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
) -> dict[str, Any]:
    """A lesson or change: its text, what is known about it, and what can be opened. `vote`: people can vote on it."""
    shown = [fact for fact in said if fact]
    kept = [block for block in blocks if block]
    return {
        "id": name, "text": words, "struck": struck, "facts": shown, "interval": interval, "blocks": kept, "vote": vote,
    }  # fmt: skip


def cards(found: Sequence[dict[str, Any]]) -> Block | None:
    """Lessons or changes below each other."""
    return {"kind": "cards", "cards": list(found)} if found else None


# --- what the terminal shows ------------------------------------------------------------------------------------------

_TONES = {"green": "up", "red": "bad", "yellow": "bad", "dim": "soft"}


def of_screen(shown: RenderableType) -> list[Block | None]:
    """The tables and texts of a screen as blocks, so that page and terminal cannot differ."""
    if isinstance(shown, Group):
        return [block for part in shown.renderables for block in of_screen(part)]
    if isinstance(shown, Padding):
        return of_screen(shown.renderable)
    if not isinstance(shown, Table):
        words = shown if isinstance(shown, Text) else Text(str(shown))
        return [text(words.plain.strip(), "warning" if str(words.style) == "yellow" else "")]
    columns = [[_cell(cell) for cell in column.cells] for column in shown.columns]
    rows = list(zip(*columns, strict=True))
    if not shown.show_header:
        return [facts((str(name), _plain(value)) for name, value in rows)]
    right = [column.justify == "right" for column in shown.columns]
    heads = [" ".join(_plain(column.header).split()) for column in shown.columns]
    found = table(_plain(shown.title), heads, rows, left=len(heads))
    if found:
        for column, aligned in zip(found["columns"], right, strict=True):
            column["align"] = "right" if aligned else "left"
    return [found, text(_plain(shown.caption), "warning")]


def _cell(shown: RenderableType) -> Cell:
    """A cell with the tone of its color."""
    style = str(shown.style) if isinstance(shown, Text) else ""
    tone = next((tone for color, tone in _TONES.items() if color in style), "")
    return {"text": _plain(shown), "tone": tone} if tone else _plain(shown)


def _plain(shown: object) -> str:
    return shown.plain if isinstance(shown, Text) else "" if shown is None else str(shown)
