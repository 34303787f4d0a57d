"""Charts as inline SVG: lines, stacked areas, and one before-after bar. No script; colors come from the page's CSS.

Every chart is drawn in its own pixels and scaled by the page, so that its text stays readable on a phone; each carries
an `aria-label` that says in words what the lines show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from midstream.core.text import visible
from midstream.report.numbers import Point, number

_LETTER = 6.9
_LINE_HEIGHT = 13.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line or area: `color` names a CSS class (c1 to c8, bad, dim), `label` is written next to its last point."""

    name: str
    points: Sequence[Point]
    color: str = "c1"
    label: str = ""
    marks: bool = False
    thin: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A chart's size and scales: data ranges in data units, the rest in pixels."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    right: float
    left: float = 40.0
    top: float = 8.0
    bottom: float = 22.0
    as_percent: bool = True

    def x(self, value: float) -> float:
        """Pixels from the left."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Pixels from the top; values outside the range are drawn at its edge."""
        low, high = self.y_range
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def format(self, value: float) -> str:
        """A tick of the y axis."""
        return f"{value * 100:.3g}%" if self.as_percent else number(value)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers within [low, high]."""
    raw = (high - low) / max(1, count)
    if raw < 1e-300:  # too fine for any step between the two
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    summary: str,
    y_range: tuple[float, float] | None = None,
    as_percent: bool = True,
    width: float = 400.0,
    height: float = 230.0,
    x_label: str = "step",
) -> str:
    """Lines over training steps, each labelled at its end; without any point, a sentence saying so."""
    series = [line for line in series if line.points]
    if not series:
        return '<p class="empty">No data yet.</p>'
    frame = _frame(series, y_range, as_percent, width, height)
    parts = [axes(frame, x_label)]
    for line in series:
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
        kind = "thin" if line.thin else "line"
        parts.append(f'<polyline class="{kind} {line.color}" points="{path}"/>')
        for x, y in line.points if line.marks or len(line.points) == 1 else ():
            title = escape(visible(f"{line.name}, step {x:,.0f}: {frame.format(y)}"))
            place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            parts.append(f'<circle class="dot {line.color}" {place} r="3"><title>{title}</title></circle>')
    ends = [(frame.y(line.points[-1][1]), line.label, line.color) for line in series if line.label]
    parts.append(end_labels(frame, ends))
    return svg(width, height, summary, "".join(parts))


def area_chart(series: Sequence[Series], *, summary: str) -> str:
    """Shares stacked to 100 % over training steps, each labeled next to the right edge of its band."""
    series = [band for band in series if band.points]
    if not series:
        return '<p class="empty">No data yet.</p>'
    frame = _frame(series, (0.0, 1.0), True, 400.0, 230.0)
    floor = [0.0] * len(series[0].points)
    bands, ends = [], []
    for band in series:
        top = [below + share for below, (_, share) in zip(floor, band.points, strict=True)]
        xs = [frame.x(x) for x, _ in band.points]
        if len(xs) == 1:
            xs, top, floor = [frame.left, frame.width - frame.right], top * 2, floor * 2
        edge = [f"{x:.1f},{frame.y(y):.1f}" for x, y in zip(xs, top, strict=True)]
        edge += [f"{x:.1f},{frame.y(y):.1f}" for x, y in reversed(list(zip(xs, floor, strict=True)))]
        title = f"<title>{escape(visible(band.name))}</title>"
        bands.append(f'<polygon class="area {band.color}" points="{" ".join(edge)}">{title}</polygon>')
        ends.append((frame.y((top[-1] + floor[-1]) / 2), band.label, band.color))
        floor = top[:1] if len(band.points) == 1 else top
    parts = [*bands, axes(frame, "step"), end_labels(frame, ends)]
    return svg(frame.width, frame.height, summary, "".join(parts))


def change_bar(before: float | None, after: float | None, *, summary: str) -> str:
    """A track from 0 to 100 % with a hollow dot before, a filled one after and the way between them."""
    width, height, pad = 110.0, 18.0, 7.0
    first, last = (None if value is None else pad + value * (width - 2 * pad) for value in (before, after))
    color = "c1" if first is None or last is None or last >= first else "bad"
    parts = [f'<line class="track" x1="{pad}" x2="{width - pad}" y1="9" y2="9"/>']
    if first is not None and last is not None:
        parts.append(f'<line class="way {color}" x1="{first:.1f}" x2="{last:.1f}" y1="9" y2="9"/>')
    if first is not None:
        parts.append(f'<circle class="hollow" cx="{first:.1f}" cy="9" r="4.5"/>')
    if last is not None:
        parts.append(f'<circle class="dot {color}" cx="{last:.1f}" cy="9" r="5.5"/>')
    return svg(width, height, summary, "".join(parts))


def _frame(
    series: Sequence[Series], y_range: tuple[float, float] | None, as_percent: bool, width: float, height: float
) -> Frame:
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    low, high = y_range or (min(0.0, *ys), max(ys) * 1.05)
    if high <= low:
        high = low + (1.0 if low == 0 else abs(low))
    x_low, x_high = min(xs), max(xs)
    x_low = 0.0 if x_low <= max(1.0, x_high / 20) else x_low
    if x_high <= x_low:
        x_low, x_high = x_low - 1, x_high + 1
    right = min(12.0 + max(len(line.label) for line in series) * _LETTER, width * 0.4)
    x_range, y_range = (x_low, x_high), (low, high)
    return Frame(width=width, height=height, x_range=x_range, y_range=y_range, right=right, as_percent=as_percent)


def axes(frame: Frame, x_label: str) -> str:
    """Grid lines and ticks of both axes; `x_label` stands before the first number below."""
    left, right = frame.left, frame.width - frame.right
    parts = []
    for value in ticks(*frame.y_range, max(2, int(frame.height / 42))):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{frame.format(value)}</text>'
        )
    bottom = frame.height - 6
    steps = [value for value in ticks(*frame.x_range, max(2, int(frame.width / 75))) if value == int(value)]
    for index, value in enumerate(steps):
        text = f"{x_label} {value:,.0f}" if index == 0 else f"{value:,.0f}"
        anchor = "start" if index == 0 and frame.x(value) < left + 20 else "middle"
        parts.append(f'<text class="tick" x="{frame.x(value):.1f}" y="{bottom}" text-anchor="{anchor}">{text}</text>')
    return "".join(parts)


def end_labels(frame: Frame, ends: Sequence[tuple[float, str, str]]) -> str:
    """Labels right of the plot, pushed apart where they would overlap, kept inside the chart."""
    x = frame.width - frame.right + 7
    ordered = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for y, _, _ in ordered:
        places.append(max(y + 4, places[-1] + _LINE_HEIGHT if places else frame.top + 4))
    lowest = frame.height - frame.bottom + 4
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], lowest)
        lowest = places[index] - _LINE_HEIGHT
    return "".join(
        f'<text class="end {color}" x="{x:.1f}" y="{y:.1f}">{escape(visible(label))}</text>'
        for y, (_, label, color) in zip(places, ordered, strict=True)
    )


def svg(width: float, height: float, summary: str, body: str) -> str:
    """A picture of `width` x `height` pixels with `summary` as its description in words."""
    label = escape(visible(summary), quote=True)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{body}</svg>'
