"""Figures (SVG) of a number an arm and seed: a dot a seed with the mean's interval, or lines with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from midstream.core.errors import needs_extra
from midstream.report.numbers import number, percent
from midstream_extra.study_tables import StudyRow, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#d97706", "#2563eb", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#525252")


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A chart: the metrics it draws, by their names in the legend. A row's `name` is its place on the x axis."""

    title: str
    x_label: str
    lines: dict[str, str]


def dots(path: Path, rows: Sequence[StudyRow], charts: Sequence[Sequence[str]], title: str) -> None:
    """Draw charts, two in a row, of the metrics named for each: one line a name, its metrics below each other."""
    shown = {metric for chart in charts for metric in chart}
    rows = [row for row in rows if row.metric in shown and row.values]
    names = list(dict.fromkeys(row.name for row in rows))
    columns, lines = min(2, len(charts)), -(-len(charts) // 2)
    figure = _figure(8, 0.5 + lines * (0.5 + 0.45 * len(names)))
    for place, metrics in enumerate(charts):
        axes = figure.add_subplot(lines, columns, place + 1)
        _dots(axes, [row for row in rows if row.metric in metrics], metrics, names)
        labels = [_plain(fill(name, 28)) for name in names] if place % columns == 0 else []
        axes.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(labels)), yticklabels=labels)
    figure.suptitle(_plain(f"{title}: a dot a seed, a bar the 95 % interval of the mean"), fontsize=10)
    _save(figure, path)


def _dots(axes: Axes, rows: Sequence[StudyRow], metrics: Sequence[str], names: Sequence[str]) -> None:
    height, shares = 0.8 / len(metrics), all(row.as_percent for row in rows)
    for row in rows:
        place = metrics.index(row.metric)
        color = COLORS[place % len(COLORS)]
        y = names.index(row.name) + (place - (len(metrics) - 1) / 2) * height
        middle, half = t_interval(row.values)
        if half is not None:
            low, high = middle - half, middle + half
            if shares:  # which end at 0 and 1; a gain at -1 and 1
                low, high = max(-1.0 if min(row.values) < 0 else 0.0, low), min(1.0, high)
            axes.barh(y, high - low, left=low, height=height * 0.7, color=color, alpha=0.2)
        axes.plot(
            row.values, [y] * len(row.values), "o", color=color, markersize=4, clip_on=False, label=_plain(row.metric)
        )
        mean = percent(middle) if shares else number(middle)
        axes.annotate(
            mean, (1.02, y), xycoords=("axes fraction", "data"), va="center", fontsize=8, annotation_clip=False
        )
    values = [value for row in rows for value in row.values]
    low, high = axes.get_xlim()  # with a margin, which is left out at 0
    axes.set_xlim(low if min(values, default=0.0) < 0 else 0.0, 1 if shares else high + 0.05 * abs(high))
    if shares:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="x", linestyle=":")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one a metric
    axes.legend(
        handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8
    )


def panels(path: Path, charts: Sequence[Panel], rows: Sequence[StudyRow]) -> None:
    """Draw charts of lines, two in a row; a chart without numbers is left out."""
    drawn = [chart for chart in charts if any(row.metric in chart.lines and row.values for row in rows)]
    columns, lines = min(2, len(drawn)), -(-len(drawn) // 2)
    figure = _figure(4 + 2 * columns, 3 * lines)
    for place, chart in enumerate(drawn, 1):
        axes = figure.add_subplot(lines, columns, place)
        _lines(axes, chart, rows)
    legends = [axes.get_legend_handles_labels() for axes in figure.axes]
    if all(labels == legends[0][1] for _, labels in legends) and len(legends[0][1]) > 2:
        figure.legend(*legends[0], loc="outside lower center", ncols=3, frameon=False, fontsize=8)  # off the lines
    else:
        for axes in figure.axes:
            axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _lines(axes: Axes, chart: Panel, rows: Sequence[StudyRow]) -> None:
    """Each metric's mean as a line with a dot at each place, within the band of its 95 % interval: the row's, or t."""
    drawn = [metric for metric in chart.lines if any(row.metric == metric and row.values for row in rows)]
    for place, metric in enumerate(drawn):
        color, style = COLORS[place % len(COLORS)], "o-" if place < len(COLORS) else "o:"
        found = sorted((row for row in rows if row.metric == metric and row.values), key=lambda row: float(row.name))
        xs = [float(row.name) for row in found]
        means, halves = zip(*(t_interval(row.values) for row in found), strict=True)
        around = [(mean - (half or 0.0), mean + (half or 0.0)) for mean, half in zip(means, halves, strict=True)]
        low, high = zip(*(row.interval or band for row, band in zip(found, around, strict=True)), strict=True)
        axes.plot(xs, means, style, color=color, markersize=3, label=_plain(chart.lines[metric]))
        axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    axes.set_ylim(bottom=0)
    if any(row.as_percent for row in rows if row.metric in drawn):
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if all(float(row.name).is_integer() for row in rows if row.metric in drawn):  # steps, rounds
        axes.locator_params(axis="x", integer=True)
    axes.set_title(_plain(chart.title), fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=9)
    axes.grid(axis="y", linestyle=":")


def _figure(width: float, height: float) -> Figure:
    with needs_extra("figures need matplotlib", "studies"):
        import matplotlib
        from matplotlib.figure import Figure
    # Text stays text, and equal numbers give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "midstream", "font.size": 9})
    return Figure(figsize=(width, height), layout="constrained")


def _plain(text: str) -> str:
    """Text without the dollar signs that matplotlib reads as formulas."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
