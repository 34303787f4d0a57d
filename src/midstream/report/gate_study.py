"""Tables of the gate's study: what libraries are worth and cost, and how often nothing was taken for something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import percent, t_interval


def gate_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line a harm and an arm: the mean gain with its interval, the worst seed, shares and costs."""
    table = plain_table(Text("Exact gain on the test orders"))
    table.caption = "gain: mean over seeds ± half-width of the 95% Student t interval; rollouts: times those without"
    for head in ("harm", "arm", "gain", "worst", "< 0", "of best", "lessons", "rollouts"):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for row in rows:
        gains = row["gains"]
        middle, half = t_interval(gains)
        spread = "" if half is None else f" ± {100 * half:.1f}"
        table.add_row(
            f"{row['harm']:g}",
            row["arm"],
            Text(f"{100 * middle:+.1f}{spread}", no_wrap=True),
            f"{100 * min(gains):+.1f}",
            f"{sum(gain < 0 for gain in gains)}/{len(gains)}",
            percent(fmean(gains) / row["possible"]) if row["possible"] else "-",
            f"{row['lessons']:.1f}",
            f"{row['rollouts']:.1f}x",
        )
    return table


def control_table(rows: Sequence[Mapping[str, Any]], error_rate: float) -> Table:
    """A line a control: in how many runs a change was accepted."""
    table = plain_table(Text("Where nothing can be learned"))
    table.caption = f"the gate's error rate: {percent(error_rate)} of runs"
    for head in ("control", "runs", "with an accepted change", "share"):
        table.add_column(head, justify="left" if head == "control" else "right")
    for row in rows:
        share = row["accepted"] / row["runs"]
        table.add_row(row["control"], str(row["runs"]), str(row["accepted"]), percent(share))
    return table
