"""Charts of a practice run as inline SVG: what became of the changes of each update; an effect with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.practice.library import Effect
from midstream.report.charts import Frame, axes, end_labels, svg
from midstream.report.practice_data import points

FATE_COLOURS = {"accepted": "c3", "pending": "c5", "rejected": "bad", "refused": "c8"}
_WIDTH, _HEIGHT, _RIGHT = 400.0, 230.0, 74.0
_LEAST_SPAN = 0.01  # one point: below it a whisker chart would only magnify noise


def fate_bars(updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    """One stacked bar an update: how many changes were accepted, left pending, rejected, refused."""
    most = max((sum(found.values()) for _, found in updates), default=0)
    if not most:
        return '<p class="empty">No change was proposed.</p>'
    first, last = updates[0][0], updates[-1][0]
    frame = Frame(
        width=_WIDTH,
        height=_HEIGHT,
        x_range=(first - 0.6, last + 0.6),
        y_range=(0.0, most * 1.05),
        right=_RIGHT,
        left=28.0,
        as_percent=False,
    )
    slot = (frame.x(last) - frame.x(first)) / max(1, last - first) if last > first else frame.width - frame.right
    width = min(34.0, slot * 0.7)
    bars = [bar for step, found in updates for bar in _bar(frame, step, found, width)]
    return svg(_WIDTH, _HEIGHT, _said(updates), axes(frame, "update") + "".join(bars) + _legend(frame, updates))


def _bar(frame: Frame, step: int, found: Mapping[str, int], width: float) -> list[str]:
    floor, parts = 0, []
    title = f"update {step}: " + ", ".join(f"{found.get(fate, 0)} {fate}" for fate in FATE_COLOURS)
    for fate, colour in FATE_COLOURS.items():
        count = found.get(fate, 0)
        if count:
            top, bottom = frame.y(floor + count), frame.y(floor)
            place = f'x="{frame.x(step) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
            parts.append(f'<rect class="area {colour}" {place}><title>{title}</title></rect>')
            floor += count
    return parts


def _legend(frame: Frame, updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    present = [fate for fate in FATE_COLOURS if any(found.get(fate) for _, found in updates)]
    # The bars' order from the bottom, so that the labels stand as the parts of a bar do.
    height = (frame.height - frame.top - frame.bottom) / 5
    return end_labels(
        frame,
        [(frame.y(0) - (place + 0.5) * height, fate, FATE_COLOURS[fate]) for place, fate in enumerate(present)],
    )


def _said(updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    total = {fate: sum(found.get(fate, 0) for _, found in updates) for fate in FATE_COLOURS}
    return "What became of the changes of all updates: " + ", ".join(f"{n} {fate}" for fate, n in total.items())


def whisker_span(effects: Sequence[Effect]) -> float:
    """The half-width, in reward, of a scale that all of these fit on."""
    return max([_LEAST_SPAN, *(abs(end) for one in effects for end in (*one.interval, one.mean))])


def whisker(effect: Effect, span: float) -> str:
    """An effect as a dot with its 95 % interval as a line, on a scale from -`span` to `span`; the tick is no effect."""
    width, pad = 150.0, 7.0
    low, high, mean = (
        pad + (min(span, max(-span, end)) + span) / (2 * span) * (width - 2 * pad)
        for end in (*effect.interval, effect.mean)
    )
    colour = "c3" if effect.interval[0] > 0 else "bad" if effect.interval[1] < 0 else "c8"
    middle = width / 2
    body = (
        f'<line class="grid" x1="{pad}" x2="{width - pad}" y1="9" y2="9"/>'
        f'<line class="zero" x1="{middle}" x2="{middle}" y1="2" y2="16"/>'
        f'<line class="way {colour}" x1="{low:.1f}" x2="{high:.1f}" y1="9" y2="9"/>'
        f'<circle class="dot {colour}" cx="{mean:.1f}" cy="9" r="5"/>'
    )
    return svg(width, 18.0, f"effect {points(effect)} points", body)
