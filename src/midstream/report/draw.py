"""Blocks drawn in the terminal with Rich. Text of models and tools is never markup.

A table cuts no number: one that is too wide for its place becomes several, each with the first columns. Lines of a
chart are sparklines. What the browser folds is left out, unless `folds` asks for it; tiles and rollouts are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from textwrap import fill

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.terminal import Terminal
from midstream.core.text import visible
from midstream.report.blocks import Block, Cell, Section, in_short
from midstream.report.numbers import buckets, shorten, sparkline

STYLES = {
    "soft": "dim", "strong": "bold", "up": "green", "down": "red", "bad": "red", "warn": "yellow", "name": "cyan",
    "put-in": "magenta", "gone": "dim strike",
}  # fmt: skip
_TEXT_LIMIT = 1500  # characters of a text
_CELL_LIMIT = 300
_WIDEST_LABEL = 16
_NARROW_HEAD, _WIDE_HEAD = 7, 24  # of a column of numbers, of text
_FOLDED = 16  # cells of a column of text in a table that has no room
_SPARK = 24  # characters of a sparkline
_INDENT = (0, 0, 0, 2)


def show(blocks: Iterable[Block | None], *, folds: bool = False) -> None:
    """Print blocks on standard output; lines of code are not broken, so that they can be pasted."""
    Terminal().print(draw(blocks, folds=folds), crop=False)


def chosen(sections: Iterable[Section], *keys: str) -> list[Block | None]:
    """The blocks of the sections with these keys, in the order of the keys."""
    by_key = {key: blocks for key, _, blocks in sections}
    return [block for key in keys for block in by_key.get(key, ())]


def draw(blocks: Iterable[Block | None], *, folds: bool = False) -> Group:
    """Blocks below each other, charts in one table; paragraphs that follow each other have no empty line between."""
    kept = [block for block in blocks if block]
    # The values of all facts stand below each other.
    names = [name for block in kept if block["kind"] == "facts" for name, _ in block["facts"]]
    least = min(_WIDEST_LABEL, max(map(cell_len, names), default=0))
    parts: list[RenderableType] = []
    before = ""
    flat = [inner for block in kept for inner in (block["blocks"] if block["kind"] == "charts" else [block])]
    for kind, group in groupby(flat, key=lambda block: block["kind"]):
        for drawn in [_lines(list(group))] if kind == "chart" else [_drawn(block, folds, least) for block in group]:
            if drawn is None:
                continue
            if before not in ("", "heading") and not (before == kind and kind in ("text", "code")):
                parts.append(Text())
            parts.append(drawn)
            before = kind
    return Group(*parts)


def _drawn(block: Block, folds: bool, least: int) -> RenderableType | None:
    """One block that is no chart; None for one that the terminal leaves out."""
    match block["kind"]:
        case "text":
            return plain(block["text"], STYLES.get(block["tone"], ""))
        case "heading":
            return plain(block["text"], "bold cyan")
        case "code":
            return Text(block["text"], no_wrap=True, overflow="ignore")
        case "facts":
            return fields(((plain(name), _text(value, _TEXT_LIMIT)) for name, value in block["facts"]), least=least)
        case "table":
            return _Table(block)
        case "cards":
            rows = []
            for card in block["cards"]:
                words = plain(shorten(card["text"], _CELL_LIMIT), STYLES["gone"] if card["struck"] else "")
                facts = (Text(visible(fact), "dim") for fact in card["facts"])
                rows.append((Text(visible(card["id"])), Group(words, *facts)))
            return fields(rows, style="bold")
        case "difference":
            tones = {"+": STYLES["up"], "-": STYLES["down"], "@": STYLES["soft"]}
            return Group(*(Text(visible(line), tones.get(line[:1], "")) for line in block["lines"]))
        case "change" | "fold" as kind if folds or kind == "change":
            return Group(plain(block["title"], "bold"), Padding(draw(block["blocks"], folds=folds), _INDENT))
    return None


def plain(text: str, style: str = "") -> Text:
    """Text for the terminal, long text cut."""
    # Cleaned here, although `Terminal` does: the timeline wraps its rows itself.
    return Text(visible(shorten(text, _TEXT_LIMIT)), style)


def fields(rows: Iterable[tuple[RenderableType, RenderableType]] = (), *, least: int = 0, style: str = "dim") -> Table:
    """A grid of labels, at least `least` characters wide, and text that is folded rather than cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, no_wrap=True, min_width=least)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _text(cell: Cell, limit: int = _CELL_LIMIT) -> Text:
    words, tone = (cell, "") if isinstance(cell, str) else (cell["text"], cell.get("tone", ""))
    return Text(visible(shorten(words, limit)), STYLES.get(tone, ""))


def _lines(charts: Sequence[Block]) -> RenderableType | None:
    """A line of each chart as a sparkline with its first and its last value."""
    rows: list[tuple[Text, str, str]] = []
    for chart in charts:
        for line in chart["lines"]:
            if not line["faint"]:
                name = chart["name"] if len(chart["lines"]) == 1 or line["name"] == chart["name"] else line["name"]
                points = [(x, y) for x, y in line["points"]]
                ends = dict.fromkeys(in_short(y, chart["percent"]) for _, y in (points[0], points[-1]))
                rows.append((plain(name), sparkline([y for _, y in buckets(points, _SPARK)]), " → ".join(ends)))
    xs = [x for chart in charts for line in chart["lines"] for x, _ in line["points"]]
    if not xs:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", overflow="fold")
    table.add_column(style="cyan", overflow="crop")
    table.add_column(no_wrap=True, min_width=max(len(values) for _, _, values in rows))
    for row in rows:
        table.add_row(*row)
    return Group(Text(f"By {charts[0]['x']}, {min(xs):,.0f} to {max(xs):,.0f}", "bold"), table)


class _Table:
    """A table block, which fits the width that it is drawn in."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._rows = [[_text(cell) for cell in row["cells"]] for row in block["rows"]]
        self._heads: list[str] = []
        self._widths: list[int] = []  # the cells that a column needs at least
        for place, column in enumerate(block["columns"]):
            right, name = column["align"] == "right", visible(column["name"])
            lines = [line for row in self._rows for line in row[place].plain.split("\n")]
            below = max(map(cell_len, lines), default=0)
            # A name is broken into lines that are hardly wider than what is below it.
            width = max(_NARROW_HEAD if right else _WIDE_HEAD, below, *map(len, name.split()))
            head = fill(name, width, break_long_words=False, break_on_hyphens=False)
            widest = max(below, *map(cell_len, head.split("\n")))
            self._heads.append(head)
            # A number is never cut; a text is folded.
            self._widths.append(widest if right else min(widest, _FOLDED))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or several with some of its columns each."""
        # Columns move together before the table is divided.
        parts, gap = self._parts(options.max_width, 3), 3
        if len(parts) > 1:
            parts, gap = self._parts(options.max_width, 2), 2
        if self._block["caption"]:
            yield Text(visible(self._block["caption"]), "bold")
        for number, places in enumerate(parts):
            yield from [Text()] * (number > 0)
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1, 0, gap - 2))
            for place in places:
                right = self._block["columns"][place]["align"] == "right"
                justify: JustifyMethod = "right" if right else "left"
                table.add_column(Text(self._heads[place]), justify=justify, no_wrap=right, overflow="fold")
            total = False
            for row, cells in zip(self._block["rows"], self._rows, strict=True):
                if row["total"] and not total and table.row_count:
                    table.add_section()
                total = row["total"]
                table.add_row(*(cells[place] for place in places), style="bold" if total else "")
            yield table

    def _parts(self, width: int, gap: int) -> list[list[int]]:
        """The columns of each table, all with the first ones that hold text; `gap` is the space between columns."""
        columns = self._block["columns"]
        frame = [0, *takewhile(lambda place: columns[place]["align"] == "left", range(1, len(columns)))]
        parts = [frame]
        for place in range(len(frame), len(columns)):
            needed = sum(self._widths[other] + gap for other in [*parts[-1], place]) - 1
            if parts[-1] != frame and needed > width:
                parts.append(frame)
            parts[-1] = [*parts[-1], place]
        return parts
