"""What all report pages share: the page with its cards, and pieces of HTML: sections, tables, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from midstream.core.errors import StorageError
from midstream.core.stream_template import Template as StreamTemplate
from midstream.core.trajectory import Trajectory
from midstream.core.version import __version__
from midstream.report.charts import Series, line_chart
from midstream.report.numbers import Point, buckets, counted, number, percent, visible
from midstream.runs.info import RunInfo

Card = tuple[str, str, str]  # name, value as HTML, a note or ""
Part = tuple[str, str, Sequence[str]]  # key, heading, pieces of HTML

LINE_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class PageData:
    """What every page shows.

    `run_info` is shown as it comes (versions, seed, commit ...). `samples` are (label, trajectory) pairs: runs of one
    task stand side by side; `template` separates the parts of an interleaved policy's streams. `limits` is what the
    page does not show, in words; `next_steps` are command lines.
    """

    title: str
    recipe_toml: str
    run_info: Mapping[str, object]
    samples: Sequence[tuple[str, Trajectory]]
    template: StreamTemplate | None = None
    limits: str
    next_steps: Sequence[str]


def page(data: PageData, summary: str, cards: Sequence[Card], parts: Sequence[Part]) -> str:
    """A whole page as HTML text: its own parts, then how it was run, limits, next steps; empty parts are left out."""
    facts = "".join(f"<dt>{text(str(key))}</dt><dd>{text(str(value))}</dd>" for key, value in data.run_info.items())
    how = [
        f'<dl class="facts">{facts}</dl>' if facts else "",
        f"<details><summary>The recipe, as resolved</summary><pre>{text(data.recipe_toml)}</pre></details>"
        if data.recipe_toml
        else "",
    ]
    parts = [
        *parts,
        ("how", "How it was run", how),
        ("limits", "Limits", [f'<p class="limits">{text(data.limits)}</p>' if data.limits.strip() else ""]),
        ("next", "What to try next", [f"<pre>{text(chr(10).join(data.next_steps))}</pre>" if data.next_steps else ""]),
    ]
    shown = [(key, heading, pieces) for key, heading, pieces in parts if any(pieces)]
    sections = [
        f'<section aria-labelledby="{key}">\n<h2 id="{key}">{text(heading)}</h2>\n'
        + "\n".join(filter(None, pieces))
        + "\n</section>"
        for key, heading, pieces in shown
    ]
    tiles = [
        f"<div><dt>{text(name)}</dt><dd>{value}</dd>"
        + (f'<dd class="note">{text(note)}</dd>' if note else "")
        + "</div>"
        for name, value, note in cards
    ]
    template = Template(files("midstream.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=text(data.title),
        summary=text(summary),
        tiles=f'<dl class="tiles">{"".join(tiles)}</dl>' if tiles else "",
        nav=" ".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown),
        sections="\n".join(sections),
        version=text(__version__),
    )


def run_info(info: RunInfo) -> dict[str, object]:
    """What every page says of how a run was made."""
    return {
        "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
        "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
    }  # fmt: skip


def save_page(path: Path, html: str) -> None:
    """Write a page to `path`.

    Raises:
        StorageError: the file could not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"the report could not be written to {path}: {error}",
            code="write-failed",
            fix="free space or name another path, then write the report again",
        ) from error


def arrow(before: str, after: str) -> str:
    """A card's value before and after; the first alone if there is no second ("-")."""
    return text(before) if after == "-" else f"<small>{text(before)} →</small> {text(after)}"


def text(value: str) -> str:
    """Any text as HTML text: escaped, with control characters written out."""
    return escape(visible(value), quote=True)


def folded(cards: Sequence[str], shown: int, noun: str) -> list[str]:
    """The first `shown` cards, and the others folded."""
    more = cards[shown:]
    rest = f"<details><summary>{counted(len(more), noun)}</summary>{''.join(more)}</details>" if more else ""
    return ["".join(cards[:shown]), rest]


# --- tables -----------------------------------------------------------------------------------------------------------


def table(caption: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """A captioned table; `head` and `rows` are HTML, `<th>` and `<tr>` elements."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption><span>{text(caption)}</span></caption><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def count_table(caption: str, rows: Sequence[tuple[str, int, str]]) -> str:
    """A table of counts, each with its meaning."""
    body = [
        f'<tr><th scope="row">{text(name)}</th>{cell(f"{count:,}")}{cell(note, "wrap soft")}</tr>'
        for name, count, note in rows
    ]
    return table(caption, [*heads("What", "Count"), *heads("Meaning")], body)


def heads(*names: str, left: int = 1) -> list[str]:
    """Column heads, the first `left` of them over text, the others over numbers."""
    return [
        f'<th scope="col" class="{"" if index < left else "n"}">{text(name)}</th>' for index, name in enumerate(names)
    ]


def cell(value: str, kind: str = "n") -> str:
    """A cell of text that is escaped here."""
    return f'<td class="{kind}">{text(value)}</td>'


def shift(signed: str) -> str:
    """A signed change as a cell, colored by its direction; the sign says it without color."""
    kind = "" if signed in ("-", "+0.0") else " up" if signed.startswith("+") else " down"
    shown = signed if signed == "-" else signed.replace("-", "−")
    return f'<td class="n{kind}">{shown}</td>'


# --- figures ----------------------------------------------------------------------------------------------------------


def figure(title: str, note: str, chart: str) -> str:
    """A chart under its title; `note` is one clause on how to read it."""
    caption = f"<b>{text(title)}</b>" + (f" <span>{text(note)}</span>" if note else "")
    return f"<figure><figcaption>{caption}</figcaption>{chart}</figure>"


def charts(*figures: str, size: str = "") -> str:
    """Figures side by side where the page is wide enough."""
    return f'<div class="charts {size}">{"".join(figures)}</div>'


def small_curve(
    title: str, note: str, points: Sequence[Point], color: str, *, as_percent: bool = False, unit: str = "step"
) -> str:
    """One small line chart from zero, its last value in the caption."""
    kept = buckets(points, LINE_POINTS)
    line = Series(name=title, points=tuple(kept), color=color)
    words = in_words(title, kept, as_percent=as_percent, unit=unit)
    chart = line_chart([line], summary=words, as_percent=as_percent, width=240, height=140, x_label=unit)
    last = last_value(kept, as_percent=as_percent)
    return figure(f"{title} {last}" if last else title, note, chart)


def last_value(points: Sequence[Point], *, as_percent: bool = True) -> str:
    """The last value of a line, written out; "" without any."""
    return "" if not points else percent(points[-1][1]) if as_percent else number(points[-1][1])


def in_words(name: str, points: Sequence[Point], *, as_percent: bool = True, unit: str = "step") -> str:
    """A line in words, for readers who do not see it."""
    if not points:
        return f"{name}: no data"
    first, last = (percent(value) if as_percent else number(value) for value in (points[0][1], points[-1][1]))
    return f"{name}: {first} at {unit} {points[0][0]:,.0f}, {last} at {unit} {points[-1][0]:,.0f}"
