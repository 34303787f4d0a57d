"""The figure of a study: every arm's numbers, a dot a seed and the 95 % interval of the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from midstream.report.numbers import percent, t_interval, visible
from midstream.report.study_tables import StudyRow

WIDTH, LEFT, RIGHT, ROW = 800, 280, 70, 44
COLORS = ("#d97706", "#2563eb", "#059669", "#db2777")
OFFSETS = {1: (0,), 2: (-9, 9), 3: (-13, 0, 13)}
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2937}.dim{fill:#6b7280}line{stroke:#9ca3af;stroke-width:1}
@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.dim{fill:#9ca3af}line{stroke:#6b7280}}"""


def study_svg(
    rows: Sequence[StudyRow],
    metrics: Sequence[str] = ("sampled", "greedy"),
    title: str = "Held-out success",
) -> str:
    """A standalone SVG of shares: one line a name, its `metrics` one below the other."""
    colors = dict(zip(metrics, COLORS, strict=False))
    rows = [row for row in rows if row.metric in colors]
    names = list(dict.fromkeys(row.name for row in rows))
    height = 60 + ROW * len(names) + 30
    parts = [_axis(height), _legend(title, colors)]
    for place, name in enumerate(names):
        y = 60 + ROW * place + ROW / 2
        parts.append(f'<text x="{LEFT - 14}" y="{y + 4:.0f}" text-anchor="end">{escape(visible(name))}</text>')
        for offset, metric in zip(OFFSETS[len(metrics)], metrics, strict=True):
            values = next((row.values for row in rows if row.name == name and row.metric == metric), ())
            if values:
                parts.append(_dots(values, y + offset, colors[metric]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}, by row"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _x(value: float) -> float:
    return LEFT + value * (WIDTH - LEFT - RIGHT)


def _axis(height: int) -> str:
    marks = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _x(value)
        marks.append(f'<line x1="{x:.1f}" y1="52" x2="{x:.1f}" y2="{height - 30}" stroke-dasharray="2 4"/>')
        marks.append(f'<text class="dim" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{percent(value)}</text>')
    return "".join(marks)


def _legend(title: str, colors: Mapping[str, str]) -> str:
    text = f'<text x="16" y="24">{escape(title)}: a dot a seed, a bar the 95 % interval of the mean</text>'
    for place, (name, color) in enumerate(colors.items()):
        x = LEFT + 130 * place
        shown = escape(visible(name))
        text += f'<circle cx="{x}" cy="40" r="4" fill="{color}"/><text class="dim" x="{x + 10}" y="44">{shown}</text>'
    return text


def _dots(values: Sequence[float], y: float, color: str) -> str:
    middle, half = t_interval(values)
    dots = "".join(f'<circle cx="{_x(one):.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for one in values)
    if half is not None:
        low, high = _x(max(0.0, middle - half)), _x(min(1.0, middle + half))
        dots = (
            f'<rect x="{low:.1f}" y="{y - 6:.1f}" width="{max(1.0, high - low):.1f}" height="12" rx="3" '
            f'fill="{color}" opacity="0.2"/>{dots}'
        )
    return f'{dots}<text class="dim" x="{WIDTH - RIGHT + 12}" y="{y + 4:.1f}">{percent(middle)}</text>'
