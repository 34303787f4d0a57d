"""Tables of a study: the mean of each number over seeds, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import t_interval

CAPTION = "mean over seeds ± half-width of the 95% Student t interval"
SHORT = 16  # characters of a name that leaves room for four numbers on a terminal of 80; else three


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


def study_tables(rows: Sequence[StudyRow], head: str, title: str) -> list[Table]:
    """Arms side by side, each metric's mean over seeds with its interval: shares first, a few columns a table."""
    tables: list[Table] = []
    for as_percent in (True, False):
        picked = [row for row in rows if row.as_percent == as_percent]
        metrics = list(dict.fromkeys(row.metric for row in picked))
        columns = 4 if max((len(row.name) for row in picked), default=0) <= SHORT else 3
        for start in range(0, len(metrics), columns):
            shown = metrics[start : start + columns]
            tables.append(_table([row for row in picked if row.metric in shown], shown, head))
    if tables:
        tables[0].title = Text(title)
    return tables


def _table(rows: Sequence[StudyRow], metrics: Sequence[str], head: str) -> Table:
    table = plain_table(left=[head])
    unit = "points" if any(row.signed for row in rows) else "percent"
    table.caption = f"{unit}, {CAPTION}" if rows[0].as_percent else CAPTION
    if any(row.interval for row in rows):
        table.caption += "; of one seed, its value and its 95% interval over tasks"
    if any(_same(row) for row in rows):
        table.caption += "; (all): every seed has this value, so that there is no interval"
    table.add_column("seeds", justify="right", no_wrap=True)
    for metric in metrics:
        table.add_column(Text(metric), justify="right")
    for name in dict.fromkeys(row.name for row in rows):
        found = {row.metric: row for row in rows if row.name == name}
        seeds = sorted({len(row.values) for row in found.values()})
        several = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        table.add_row(Text(name), several, *(_interval(found.get(metric)) for metric in metrics))
    return table


def _same(row: StudyRow) -> bool:
    """Whether several seeds have one value: a t interval of no width would say that it is known exactly."""
    return len(row.values) > 1 and len(set(row.values)) == 1


def _interval(row: StudyRow | None) -> str:
    if row is None or not row.values:
        return "-"
    scale, digits = (100, 1) if row.as_percent else (1, 2)
    middle, half = t_interval(row.values)
    # Adding 0.0 turns the "-0.0" of a tiny loss into "+0.0".
    shown = f"{round(middle * scale, digits) + 0.0:{'+' if row.signed else ''}.{digits}f}"
    if _same(row):
        return f"{shown} (all)"
    if half is not None:
        return f"{shown} ± {max(half * scale, 0.1**digits):.{digits}f}"
    if row.interval is None:
        return f"{shown} (one seed)"
    return f"{shown} ({'–'.join(f'{end * scale:.{digits}f}' for end in row.interval)})"
