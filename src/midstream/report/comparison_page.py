"""The page of a comparison: every later run, or group of runs, against the first, with intervals."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from midstream.evaluation.pairs import GroupDifference, Paired
from midstream.report import blocks
from midstream.report.blocks import Cell
from midstream.report.comparison import Comparison, GroupComparison
from midstream.report.numbers import gain, gains, percent
from midstream.report.tables import sentence


def comparison_page(comparison: Comparison | GroupComparison) -> dict[str, Any]:
    """The differences with their intervals on one axis, then all that `midstream compare --tasks` shows."""
    letters, found = comparison.letters, comparison.found
    ends = [abs(end) for pair in found for end in pair.interval or (pair.difference,)]
    span = max([0.01, *ends])
    rows: list[list[Cell]] = [
        [
            f"{letters[pair.other]} against {letters[pair.first]}",
            f"{pair.set_name}, {pair.sampling}",
            *map(percent, means(pair)),
            blocks.shift(gain(pair.difference)) if pair.verdict in ("better", "worse") else gain(pair.difference),
            {
                "text": gains(pair.interval) if pair.interval else "-",
                "tone": "",
                "interval": blocks.interval(pair.difference, pair.interval, span) if pair.interval else None,
            },
            pair.verdict or "-",
        ]
        for pair in found
    ]
    names = ("Compared", "Set", "First", "Other", "Points", "Interval", "Verdict")
    level = f"{found[0].level * 100:.4g}%"
    caption = f"Differences of success in percentage points, with {level} intervals on one axis."
    return blocks.page(
        " and ".join(letters),
        " ".join(f"{sentence(letters, pair)}, on {pair.set_name} {pair.sampling}." for pair in found),
        [
            ("results", "Results", [blocks.table(caption, names, rows, left=2, last=1)]),
            ("details", "In detail", blocks.of_screen(comparison.screen(tasks=True))),
        ],
    )


def means(pair: Paired | GroupDifference) -> tuple[float, float]:
    """Success of the first and of the other: over tasks, of groups over their runs."""
    if isinstance(pair, Paired):
        return pair.first_success, pair.other_success
    return fmean(pair.first_values), fmean(pair.other_values)
