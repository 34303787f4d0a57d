"""The HTML of report pages: the page with its cards, tables, figures, and runs turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from midstream.core.stream_template import Template as StreamTemplate
from midstream.core.text import visible
from midstream.core.trajectory import Trajectory
from midstream.core.version import __version__
from midstream.report import turn_rows
from midstream.report.charts import Series, line_chart
from midstream.report.numbers import Point, buckets, counted, number, percent
from midstream.runs.files import storage_errors
from midstream.runs.info import RunInfo

Card = tuple[str, str, str]  # name, value as HTML, a note or ""
Part = tuple[str, str, Sequence[str]]  # key, heading, pieces of HTML

LINE_POINTS = 400
# Rows of code, results and calls keep their line breaks; a red or magenta row has a background of its own.
_BLOCKS = ("command", "code", "call", "▸ call", "observation", "sampled")
_KINDS = {"red": "failed", "bold red": "failed", "magenta": "put-in"}


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
    how = [f'<dl class="facts">{facts}</dl>' if facts else ""]
    how.append(details("The recipe, as resolved", f"<pre>{text(data.recipe_toml)}</pre>") if data.recipe_toml else "")
    parts = [
        *parts,
        ("how", "How it was run", how),
        ("limits", "Limits", [f'<p class="limits">{text(data.limits)}</p>' if data.limits.strip() else ""]),
        ("next", "What to try next", [f"<pre>{text(chr(10).join(data.next_steps))}</pre>" if data.next_steps else ""]),
    ]
    nav, sections = [], []
    for key, heading, pieces in parts:
        if body := "\n".join(filter(None, pieces)):
            nav.append(f'<a href="#{key}">{heading}</a>')
            head = f'<section aria-labelledby="{key}">\n<h2 id="{key}">{text(heading)}</h2>'
            sections.append(f"{head}\n{body}\n</section>")
    tiles = []
    for name, value, note in cards:
        tiles.append(f"<div><dt>{text(name)}</dt><dd>{value}</dd>")
        tiles.append(f'<dd class="note">{text(note)}</dd></div>' if note else "</div>")
    template = Template(files("midstream.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=text(data.title),
        summary=text(summary),
        tiles=f'<dl class="tiles">{"".join(tiles)}</dl>' if tiles else "",
        nav=" ".join(nav),
        sections="\n".join(sections),
        version=text(__version__),
    )


def run_info(info: RunInfo) -> dict[str, object]:
    """What every page says of how a run was made."""
    return {
        "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
        "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
    }  # fmt: skip


def save_page(path: Path, page: str) -> None:
    """Write a page to `path`. Raises `StorageError`."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")


def text(value: str) -> str:
    """Any text as HTML text: escaped, with control characters written out."""
    return escape(visible(value), quote=True)


def arrow(before: str, after: str) -> str:
    """A card's value before and after; the first alone if there is no second ("-")."""
    return text(before) if after == "-" else f"<small>{text(before)} →</small> {text(after)}"


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """A part that is folded until it is opened; `summary` is text, `body` HTML."""
    return f"<details{' open' if opened else ''}><summary>{text(summary)}</summary>{body}</details>"


def folded(cards: Sequence[str], shown: int, noun: str) -> list[str]:
    """The first `shown` cards, and the others folded."""
    more = cards[shown:]
    return ["".join(cards[:shown]), details(counted(len(more), noun), "".join(more)) if more else ""]


# --- tables -----------------------------------------------------------------------------------------------------------


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


def row(name: str, *cells: str, total: bool = False) -> str:
    """A row under the head `name`; `cells` are HTML, `<td>` elements."""
    kind = ' class="total"' if total else ""
    return f'<tr{kind}><th scope="row">{text(name)}</th>{"".join(cells)}</tr>'


def cell(value: str, kind: str = "n") -> str:
    """A cell of text that is escaped here."""
    return f'<td class="{kind}">{text(value)}</td>'


def shift(signed: str) -> str:
    """A signed change as a cell, colored by its direction; the sign says it without color."""
    kind = "" if signed in ("-", "+0.0") else " up" if signed.startswith("+") else " down"
    shown = signed if signed == "-" else signed.replace("-", "−")
    return f'<td class="n{kind}">{shown}</td>'


def count_table(caption: str, counts: Sequence[tuple[str, int, str]]) -> str:
    """A table of counts, each with its meaning."""
    rows = [row(name, cell(f"{count:,}"), cell(note, "wrap soft")) for name, count, note in counts]
    return table(caption, [*heads("What", "Count"), *heads("Meaning")], rows)


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
    words = in_words(title, kept, as_percent=as_percent, unit=unit)
    line = Series(name=title, points=kept, color=color)
    chart = line_chart([line], summary=words, as_percent=as_percent, width=240, height=140, x_label=unit)
    return figure(f"{title} {last_value(kept, as_percent=as_percent)}".strip(), note, chart)


def last_value(points: Sequence[Point], *, as_percent: bool = True) -> str:
    """The last value of a line, written out; "" without any."""
    return "" if not points else percent(points[-1][1]) if as_percent else number(points[-1][1])


def in_words(name: str, points: Sequence[Point], *, as_percent: bool = True, unit: str = "step") -> str:
    """A line in words, for readers who do not see it."""
    if not points:
        return f"{name}: no data"
    first, last = (last_value([point], as_percent=as_percent) for point in (points[0], points[-1]))
    return f"{name}: {first} at {unit} {points[0][0]:,.0f}, {last} at {unit} {points[-1][0]:,.0f}"


# --- runs, turn by turn -----------------------------------------------------------------------------------------------


def sample_runs(samples: Sequence[tuple[str, Trajectory]], template: StreamTemplate | None = None) -> str:
    """Each sampled task with its labelled runs ("before", "after") side by side, in the order given."""
    if not samples:
        return '<p class="empty">No runs were kept for display.</p>'
    by_task: dict[str, list[tuple[str, Trajectory]]] = {}
    for label, trajectory in samples:
        by_task.setdefault(trajectory.task_id, []).append((label, trajectory))
    streams = any(turn_rows.is_stream(trajectory) for _, trajectory in samples)
    parts = [f'<p class="soft">{turn_rows.LEGEND}</p>'] if streams else []
    for runs in by_task.values():
        first = runs[0][1]
        gold = next((trajectory.gold for _, trajectory in runs if trajectory.gold is not None), None)
        family = f'<span class="soft"> ({text(first.family)})</span>' if first.family else ""
        parts.append(f"<h3>{text(first.question or first.task_id)}{family}</h3>")
        if gold is not None:
            parts.append(f"<p>Correct answer: <b>{text(gold)}</b></p>")
        articles = [_run(label, trajectory, template) for label, trajectory in runs]
        parts.append(f'<div class="pair">{"".join(articles)}</div>')
    return "\n".join(parts)


def _run(label: str, trajectory: Trajectory, template: StreamTemplate | None) -> str:
    stream = turn_rows.is_stream(trajectory)
    turns = []
    for turn in trajectory.turns:
        head, action = "", turn.action
        if action is not None and (turn_rows.call_part(action, turn.command).failed if stream else action.error):
            head = f' · <span class="down">malformed {"call" if stream else "action"}</span>'
        elif action is not None and not stream:
            head = f" · {text(action.tool)}"
        if turn.error is not None:
            head += f' · <span class="down">{turn_rows.broken_by(turn.error)}</span>'
        rows = _rows(turn_rows.turn_rows(turn, template, stream=stream))
        turns.append(f"<li><p><b>Turn {turn.index}</b>{head}</p><dl>{rows}</dl></li>")
    if last := turn_rows.closing_rows(trajectory, template):
        turns.append(f"<li><p><b>Last reply</b></p><dl>{_rows(last)}</dl></li>")
    body = f"<ol>{''.join(turns)}</ol>" if turns else '<p class="empty">No turn was taken.</p>'
    if opening := turn_rows.opening_rows(trajectory):
        body = f"<dl>{_rows(opening)}</dl>{body}"
    if (error := trajectory.error) is not None:
        body += f'<pre class="failed">{text(error.message if error.foreign else error.text)}</pre>'
    reward = trajectory.reward
    if trajectory.status == "error":
        mark, kind = "lost to an error", "bad"
    elif reward is None:
        mark, kind = "not judged", "soft"
    else:
        solved = ("solved", "up") if reward.value >= 1 else ("not solved", "bad") if reward.value <= 0 else None
        mark, kind = solved or ("partly solved", "c5")
        mark = f"{mark}, reward {number(reward.value)}"
    answer = '<span class="soft">none</span>' if trajectory.answer is None else f"<b>{text(trajectory.answer)}</b>"
    end = f"<dt>Answer</dt><dd>{answer}</dd>"
    if outcome := turn_rows.outcome_words(trajectory.outcome):
        end += f"<dt>Outcome</dt><dd>{'<br>'.join(map(text, outcome))}</dd>"
    if reward is not None and reward.parts:
        end += f"<dt>Reward</dt><dd>{text(turn_rows.part_words(reward.parts))}</dd>"
    end += _rows(turn_rows.end_rows(trajectory, template))
    end += "".join(_rows(turn_rows.trouble_rows(call)) for call in trajectory.closing_calls)
    return (
        f'<article class="{"run stream" if stream else "run"}"><h4>{text(label)} '
        f'<span class="mark {kind}">{mark}</span></h4>{body}<dl class="end">{end}</dl></article>'
    )


def _rows(rows: Sequence[turn_rows.Row]) -> str:
    """Rows of the terminal as HTML."""
    parts = []
    for label, content in rows:
        kind, shown = _KINDS.get(str(content.style), ""), text(content.plain)
        if kind or label in _BLOCKS:
            shown = f'<pre class="{kind}">{shown}</pre>' if kind else f"<pre>{shown}</pre>"
        parts.append(f"<dt>{label.strip().capitalize()}</dt><dd>{shown}</dd>")
    return "".join(parts)
