"""Numbers and text as people read them, and the few statistics that tables and curves need."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from midstream.core.text import counted as counted
from midstream.core.text import shorten as shorten

if TYPE_CHECKING:  # `midstream list` starts without what only reports need
    from midstream.core.metrics import Spent

Point = tuple[float, float]

_BLOCKS = "▁▂▃▄▅▆▇█"


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a name, with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def percent(value: float | None) -> str:
    """A share in [0, 1] as "41.2%"; "-" for None."""
    return "-" if value is None or not math.isfinite(value) else f"{value * 100:.1f}%"


def change(before: float | None, after: float | None) -> str:
    """The change of a share in percentage points, signed: "+12.5"; "-" where one side is missing."""
    if before is None or after is None or not math.isfinite(after - before):
        return "-"
    # Adding 0.0 turns the "-0.0" of a tiny loss into "+0.0".
    return f"{round((after - before) * 100, 1) + 0.0:+.1f}"


def gain(difference: float) -> str:
    """A difference of shares in percentage points, signed: "+12.5"."""
    return change(0.0, difference)


def gains(interval: tuple[float, float]) -> str:
    """An interval of a difference of shares, in percentage points: "-1.9 to +8.1"."""
    return f"{gain(interval[0])} to {gain(interval[1])}"


def number(value: float | None) -> str:
    """A plain number with three significant digits, thousands separated; "-" for None."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Wall-clock time as "0.04s", "3.2s", "45s", "12m 03s" or "2h 05m"."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.{1 if seconds >= 0.1 else 2}f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def dollars(value: float) -> str:
    """US dollars: "$12.34", below a dollar "$0.0123"."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def troubles(request_failures: int, replies_repaired: int) -> str:
    """What went wrong around requests and was repaired: "3 request failures, 1 reply repaired"; "" for nothing."""
    parts = [counted(request_failures, "request failure")] if request_failures else []
    parts += [f"{counted(replies_repaired, 'reply', 'replies')} repaired"] if replies_repaired else []
    return ", ".join(parts)


def nothing_learned(reasons: Sequence[str], each: str) -> str:
    """Why a run learned nothing, by the reasons of its steps or updates ("" of one that taught); "" if it learned."""
    if not reasons or not all(reasons):
        return ""
    return f"nothing to learn from in any of {counted(len(reasons), each)}: {reasons[-1]}"


def mean(values: Sequence[float]) -> float | None:
    """The mean of the finite values, None without any."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def sparkline(values: Sequence[float]) -> str:
    """One block character a value, scaled from smallest to largest, or over 0.2 if they are closer."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    span = max(max(finite) - min(finite), 0.2)
    low = max(0.0, (max(finite) + min(finite) - span) / 2)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(top, max(0, round((value - low) / span * top)))] for value in finite)


def buckets(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` points, each the mean of neighbors; points that are not finite are left out."""
    finite = [point for point in points if all(map(math.isfinite, point))]
    size = max(1, math.ceil(len(finite) / limit))
    chunks = [finite[start : start + size] for start in range(0, len(finite), size)]
    return [(statistics.fmean(x for x, _ in chunk), statistics.fmean(y for _, y in chunk)) for chunk in chunks]


# --- lessons and budgets ---------------------------------------------------------------------------------------------


def total_fates(updates: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The `fates` of all updates, summed. A pending change comes up again, so only the last update's count."""
    total = {name: sum(found[name] for found in updates) for name in ("accepted", "waiting", "rejected", "refused")}
    return {**total, "pending": updates[-1]["pending"] if updates else 0}


def spent_text(spent: Spent, limits: Mapping[str, float] | None = None) -> str:
    """What was used, each with its limit where there is one: "1,500 of 2,000 rollouts, 2.1M tokens, $0.84".

    `limits` are those of a budget that are set (`BudgetConfig.limits`), by field of `Spent`.
    """
    limits = limits or {}
    writers: dict[str, Callable[[float], str]] = {"rollouts": "{:,}".format, "tokens": short, "cost_usd": dollars}
    used = {name: write(getattr(spent, name)) for name, write in writers.items()}
    used |= {name: f"{used[name]} of {write(limits[name])}" for name, write in writers.items() if name in limits}
    parts = [f"{used['rollouts']} rollout{'' if used['rollouts'] == '1' else 's'}", f"{used['tokens']} tokens"]
    if spent.cost_usd or "cost_usd" in limits:
        parts.append(used["cost_usd"])
    return ", ".join(parts)


def short(count: float) -> str:
    """A large count in three digits: "2.05M", "41.3k"."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= max(10_000, size * 0.9995):  # three digits of 999,700 are 1M
            return f"{number(count / size)}{letter}"
    return f"{count:,}"


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts above 0: "uniform groups 6, lost pairs 2"; "" for none."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
