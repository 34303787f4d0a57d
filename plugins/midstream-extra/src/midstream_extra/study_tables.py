"""The tables of a study: the mean of each number over seeds, with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.evaluation.estimates import t_quantile
from midstream.report import blocks
from midstream.report.blocks import Block, text

CAPTION = "mean over seeds ± half-width of the 95% Student t interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRow:
    """One number of one arm in a study: `values` one a seed, shares in [0, 1] where `as_percent`.

    `interval`, of a single value, is its 95 % interval over tasks; the values of a `signed` row are differences.
    """

    name: str
    metric: str
    values: tuple[float, ...]
    as_percent: bool = True
    interval: tuple[float, float] | None = None
    signed: bool = False


def study_blocks(rows: Sequence[StudyRow], head: str, title: str) -> list[Block | None]:
    """Arms side by side, each metric's mean over seeds with its interval: shares first, then other numbers."""
    found: list[Block | None] = []
    for as_percent in (True, False):
        picked = [row for row in rows if row.as_percent == as_percent]
        metrics = list(dict.fromkeys(row.metric for row in picked))
        cells = []
        for name in dict.fromkeys(row.name for row in picked):
            of_arm = {row.metric: row for row in picked if row.name == name}
            seeds = sorted({len(row.values) for row in of_arm.values()})
            several = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
            cells.append([name, several, *(_interval(of_arm.get(metric)) for metric in metrics)])
        found.append(blocks.table("" if any(found) else title, (head, "seeds", *metrics), cells))
        if picked:
            caption = CAPTION
            if any(row.interval for row in picked):
                caption += "; of one seed, its value and its 95% interval over tasks"
            if any(_same(row) for row in picked):
                caption += "; (all): every seed has this value, so that there is no interval"
            unit = "points, " if any(row.signed for row in picked) else "percent, "
            found.append(text(unit * as_percent + caption, "soft"))
    return found


def t_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of the 95 % Student t interval over seeds; no half-width for a single value."""
    if len(values) < 2:
        return values[0] if values else math.nan, None
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def _same(row: StudyRow) -> bool:
    """Whether several seeds have one value: a t interval of no width would say that it is known exactly."""
    return len(row.values) > 1 and len(set(row.values)) == 1


def _interval(row: StudyRow | None) -> str:
    if row is None or not row.values:
        return "-"
    scale = 100 if row.as_percent else 1
    middle, half = t_interval(row.values)
    digits = 1 if row.as_percent else 2
    # Adding 0.0 turns the "-0.0" of a tiny loss into "+0.0".
    shown = f"{round(middle * scale, digits) + 0.0:{'+' if row.signed else ''}.{digits}f}"
    if _same(row):
        return f"{shown} (all)"
    if half is not None:
        return f"{shown} ± {max(half * scale, 0.1**digits):.{digits}f}"
    if row.interval is None:
        return f"{shown} (one seed)"
    return f"{shown} ({'–'.join(f'{end * scale:.{digits}f}' for end in row.interval)})"
