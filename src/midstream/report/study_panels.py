"""Figures of a study as lines: numbers over steps, turns or sizes, a band the 95 % interval over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from midstream.report.charts import Frame, ticks
from midstream.report.numbers import t_interval, visible
from midstream.report.study import COLORS, STYLE
from midstream.report.study_tables import StudyRow

PANEL, HEIGHT, TOP, GAP = 390, 280, 64, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One chart: which metrics of the rows it draws, by the names in its legend; a row's `name` is its place on x."""

    title: str
    x_label: str
    lines: dict[str, str]


def panels_svg(panels: Sequence[Panel], rows: Sequence[StudyRow], summary: str) -> str:
    """A standalone SVG of charts, two in a line; a chart without numbers is left out."""
    drawn = [text for panel in panels if (text := _panel(panel, rows))]
    width, lines = PANEL * 2 + GAP, -(-len(drawn) // 2)
    placed = [
        f'<g transform="translate({(PANEL + GAP) * (place % 2)},{HEIGHT * (place // 2)})">{text}</g>'
        for place, text in enumerate(drawn)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT * lines}" role="img" '
        f'aria-label="{escape(summary)}"><style>{STYLE}</style>{"".join(placed)}</svg>\n'
    )


def _panel(panel: Panel, rows: Sequence[StudyRow]) -> str:
    picked = {metric: [row for row in rows if row.metric == metric and row.values] for metric in panel.lines}
    picked = {metric: found for metric, found in picked.items() if found}
    if not picked:
        return ""
    every = [row for found in picked.values() for row in found]
    xs = [float(row.name) for row in every]
    as_percent = every[0].as_percent
    top = 1.0 if as_percent else max(sum(_spread(row)) for row in every) * 1.1 or 1.0
    frame = Frame(
        width=PANEL,
        height=HEIGHT,
        x_range=(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1),
        y_range=(0.0, top),
        left=46,
        right=16,
        top=TOP,
        bottom=42,
        as_percent=as_percent,
    )
    parts = [f'<text x="10" y="20">{escape(visible(panel.title))}</text>', _axes(frame, sorted(set(xs)), panel.x_label)]
    x = 10
    for (metric, found), color in zip(picked.items(), COLORS, strict=False):
        label = panel.lines[metric]
        parts.append(_line(frame, found, color))
        parts.append(
            f'<circle cx="{x + 4}" cy="42" r="4" fill="{color}"/>'
            f'<text class="dim" x="{x + 13}" y="46">{escape(visible(label))}</text>'
        )
        x += 28 + 7 * len(label)
    return "".join(parts)


def _spread(row: StudyRow) -> tuple[float, float]:
    middle, half = t_interval(row.values)
    return middle, half or 0.0


def _axes(frame: Frame, xs: Sequence[float], x_label: str) -> str:
    parts = []
    for value in ticks(*frame.y_range, 4):
        y = frame.y(value)
        parts.append(f'<line x1="{frame.left}" y1="{y:.1f}" x2="{frame.width - frame.right}" y2="{y:.1f}" '
                     f'stroke-dasharray="2 4"/><text class="dim" x="{frame.left - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{frame.format(value)}</text>')  # fmt: skip
    shown = xs if len(xs) <= 6 else ticks(*frame.x_range, 5)
    for value in shown:
        parts.append(f'<text class="dim" x="{frame.x(value):.1f}" y="{HEIGHT - 24}" '
                     f'text-anchor="middle">{value:g}</text>')  # fmt: skip
    middle = (frame.left + frame.width - frame.right) / 2
    parts.append(f'<text class="dim" x="{middle:.1f}" y="{HEIGHT - 7}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _line(frame: Frame, rows: Sequence[StudyRow], color: str) -> str:
    """The mean as a line with a dot at each place, within a band."""
    points = [(frame.x(float(row.name)), *_spread(row)) for row in sorted(rows, key=lambda row: float(row.name))]
    above = [f"{x:.1f},{frame.y(middle + half):.1f}" for x, middle, half in points]
    below = [f"{x:.1f},{frame.y(middle - half):.1f}" for x, middle, half in points]
    line = " ".join(f"{x:.1f},{frame.y(middle):.1f}" for x, middle, _ in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{frame.y(middle):.1f}" r="3" fill="{color}"/>' for x, middle, _ in points)
    return (
        f'<polygon points="{" ".join([*above, *below[::-1]])}" fill="{color}" opacity="0.18"/>'
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>{dots}'
    )
