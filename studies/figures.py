"""Figures of a study as SVG: a dot a seed with the 95 % interval of the mean, or lines with a band.

python -m studies.figures runs/study-controls/study.json docs/figures/controls.svg sampled greedy
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.core.errors import UsageError
from midstream.report.numbers import percent, t_interval
from midstream.report.study_tables import StudyRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#d97706", "#2563eb", "#059669", "#db2777")


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A chart: the metrics it draws, by their names in the legend. A row's `name` is its place on the x axis."""

    title: str
    x_label: str
    lines: dict[str, str]


def dots(path: Path, rows: Sequence[StudyRow], metrics: Sequence[str], title: str) -> None:
    """Draw shares: one line a name, its `metrics` below each other."""
    rows = [row for row in rows if row.metric in metrics and row.values]
    names = list(dict.fromkeys(row.name for row in rows))
    figure = _figure(8, 0.9 + 0.45 * len(names))
    axes = figure.subplots()
    height = 0.8 / len(metrics)
    for row in rows:
        place = metrics.index(row.metric)
        y = names.index(row.name) + (place - (len(metrics) - 1) / 2) * height
        middle, half = t_interval(row.values)
        if half is not None:
            low, high = max(0.0, middle - half), min(1.0, middle + half)
            axes.barh(y, high - low, left=low, height=height * 0.7, color=COLORS[place], alpha=0.2)
        axes.plot(row.values, [y] * len(row.values), "o", color=COLORS[place], markersize=4, clip_on=False)
        axes.annotate(percent(middle), (1.02, y), va="center", fontsize=8, annotation_clip=False)
    for metric, color in zip(metrics, COLORS, strict=False):
        axes.plot([], [], "o", color=color, label=metric)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
    axes.set_yticklabels([_plain(name) for name in names])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="x", linestyle=":")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(metrics), frameon=False, fontsize=8)
    figure.suptitle(_plain(f"{title}: a dot a seed, a bar the 95 % interval of the mean"), fontsize=10)
    _save(figure, path)


def panels(path: Path, charts: Sequence[Panel], rows: Sequence[StudyRow]) -> None:
    """Draw charts of lines, two in a row; a chart without numbers is left out."""
    drawn = [chart for chart in charts if any(row.metric in chart.lines and row.values for row in rows)]
    figure = _figure(8, 3 * -(-len(drawn) // 2))
    for place, chart in enumerate(drawn, 1):
        axes = figure.add_subplot(-(-len(drawn) // 2), 2, place)
        _lines(axes, chart, rows)
    _save(figure, path)


def _lines(axes: Axes, chart: Panel, rows: Sequence[StudyRow]) -> None:
    """Each metric's mean as a line with a dot at each place, within the band of its 95 % interval."""
    drawn = [metric for metric in chart.lines if any(row.metric == metric and row.values for row in rows)]
    for metric, color in zip(drawn, COLORS, strict=False):
        found = sorted((row for row in rows if row.metric == metric and row.values), key=lambda row: float(row.name))
        xs = [float(row.name) for row in found]
        means, halves = zip(*(t_interval(row.values) for row in found), strict=True)
        low = [mean - (half or 0.0) for mean, half in zip(means, halves, strict=True)]
        high = [mean + (half or 0.0) for mean, half in zip(means, halves, strict=True)]
        axes.plot(xs, means, "o-", color=color, markersize=3, label=_plain(chart.lines[metric]))
        axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    axes.set_ylim(bottom=0)
    if any(row.as_percent for row in rows if row.metric in drawn):
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title(_plain(chart.title), fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=9)
    axes.grid(axis="y", linestyle=":")
    axes.legend(frameon=False, fontsize=8)


def _figure(width: float, height: float) -> Figure:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "figures need matplotlib", code="missing-extra", fix="pip install 'midstream[studies]'"
        ) from error
    # Text stays text, and equal numbers give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "midstream", "font.size": 9})
    return Figure(figsize=(width, height), layout="constrained")


def _plain(text: str) -> str:
    """Text without the dollar signs that matplotlib reads as formulas."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Draw the shares of a study's JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("numbers", type=Path)
    options.add_argument("figure", type=Path)
    options.add_argument("metrics", nargs="+")
    options.add_argument("--title", default="Held-out success")
    given = options.parse_args()
    rows = [
        StudyRow(name=row["name"], metric=row["metric"], values=tuple(row["values"]))
        for row in json.loads(given.numbers.read_text(encoding="utf-8"))
    ]
    dots(given.figure, rows, given.metrics, given.title)


if __name__ == "__main__":
    main()
