"""What all report pages share: the page with its cards, and pieces of HTML: sections, tables, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from midstream.core.errors import StorageError
from midstream.core.version import __version__
from midstream.report.charts import Series, line_chart
from midstream.report.numbers import Point, buckets, number, percent, visible

Card = tuple[str, str, str]  # name, value as HTML, a note or ""
Part = tuple[str, str, Sequence[str]]  # key, heading, pieces of HTML

LINE_POINTS = 400


def page(title: str, summary: str, cards: Sequence[Card], parts: Sequence[Part]) -> str:
    """A whole page as HTML text; a part without any piece is left out."""
    template = Template(files("midstream.report").joinpath("page.html").read_text(encoding="utf-8"))
    shown = [part for part in parts if any(part[2])]
    return template.substitute(
        title=text(title),
        summary=text(summary),
        tiles=_tiles(cards),
        nav=" ".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown),
        sections="\n".join(section(key, heading, *body) for key, heading, body in shown),
        version=text(__version__),
    )


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
            cause="the directory is read-only, or the disk is full",
            fix="free space or name another path, then write the report again",
        ) from error


def _tiles(cards: Sequence[Card]) -> str:
    cells = [
        f"<div><dt>{text(name)}</dt><dd>{value}</dd>"
        + (f'<dd class="note">{text(note)}</dd>' if note else "")
        + "</div>"
        for name, value, note in cards
    ]
    return f'<dl class="tiles">{"".join(cells)}</dl>' if cells else ""


def arrow(before: str, after: str) -> str:
    """A card's value before and after; the first alone where there is no second ("-")."""
    return text(before) if after == "-" else f"<small>{text(before)} →</small> {text(after)}"


def how(run_info: Mapping[str, object], recipe_toml: str) -> list[str]:
    """How it was run: facts, and the recipe."""
    facts = "".join(f"<dt>{text(str(key))}</dt><dd>{text(str(value))}</dd>" for key, value in run_info.items())
    recipe = f"<details><summary>The recipe, as resolved</summary><pre>{text(recipe_toml)}</pre></details>"
    return [f'<dl class="facts">{facts}</dl>' if facts else "", recipe if recipe_toml else ""]


def limits(said: str) -> str:
    """What the page does not show, as a paragraph."""
    return f'<p class="limits">{text(said)}</p>' if said.strip() else ""


def next_steps(commands: Sequence[str]) -> str:
    """Command lines."""
    return f"<pre>{text(chr(10).join(commands))}</pre>" if commands else ""


def text(value: str) -> str:
    """Any text as HTML text: escaped, with control characters written out."""
    return escape(visible(value), quote=True)


def section(key: str, title: str, *parts: str) -> str:
    """A section with its heading; empty parts are dropped."""
    body = "\n".join(part for part in parts if part)
    return f'<section aria-labelledby="{key}">\n<h2 id="{key}">{text(title)}</h2>\n{body}\n</section>'


def table(caption: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """A captioned table; `head` and `rows` are HTML, `<th>` and `<tr>` elements."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption><span>{text(caption)}</span></caption><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def heads(*names: str, left: int = 1) -> list[str]:
    """Column heads, the first `left` of them over text, the others over numbers."""
    return [
        f'<th scope="col" class="{"" if index < left else "n"}">{text(name)}</th>' for index, name in enumerate(names)
    ]


def cell(value: str, kind: str = "n") -> str:
    """A cell of text that is escaped here."""
    return f'<td class="{kind}">{text(value)}</td>'


def shift(signed: str, good: str = "+") -> str:
    """A signed change as a cell, coloured by whether it goes the good way; the sign says it without colour."""
    kind = "" if signed in ("-", "+0.0") else " up" if signed.startswith(good) else " down"
    shown = signed if signed == "-" else signed.replace("-", "−")
    return f'<td class="n{kind}">{shown}</td>'


def figure(title: str, note: str, chart: str) -> str:
    """A chart under its title; `note` is one clause on how to read it."""
    caption = f"<b>{text(title)}</b>" + (f" <span>{text(note)}</span>" if note else "")
    return f"<figure><figcaption>{caption}</figcaption>{chart}</figure>"


def charts(*figures: str, size: str = "") -> str:
    """Figures side by side where the page is wide enough."""
    return f'<div class="charts {size}">{"".join(figures)}</div>'


def small_line(title: str, note: str, points: Sequence[Point], colour: str, *, as_percent: bool = True) -> str:
    """One small line chart from zero, its last value in the caption."""
    kept = buckets(points, LINE_POINTS)
    line = Series(name=title, points=tuple(kept), colour=colour)
    chart = line_chart([line], summary=in_words(title, kept, as_percent), as_percent=as_percent, width=240, height=140)
    last = last_value(kept, as_percent)
    return figure(f"{title} {last}" if last else title, note, chart)


def last_value(points: Sequence[Point], as_percent: bool = True) -> str:
    """The last value of a line, written out; "" without any."""
    if not points:
        return ""
    return percent(points[-1][1]) if as_percent else number(points[-1][1])


def in_words(name: str, points: Sequence[Point], as_percent: bool = True) -> str:
    """A line in words, for readers who do not see it."""
    if not points:
        return f"{name}: no data"
    first, last = (percent(value) if as_percent else number(value) for value in (points[0][1], points[-1][1]))
    return f"{name}: {first} at step {points[0][0]:,.0f}, {last} at step {points[-1][0]:,.0f}"
