"""How interleaved policies use their tools, as curves: what the analysis of ARTIST looks at (2505.01441)."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.metrics import StepMetrics
from midstream.report.sections import charts, small_line

_COLOURS = 8


def stream_charts(metrics: Sequence[StepMetrics]) -> str:
    """Reasoning for each call, calls and how many of them were right, calls on the way to an answer; "" without any."""
    measured = [(step.step, step.streams) for step in metrics if step.streams]
    if not measured:
        return ""
    unit = measured[-1][1].unit
    reasoning = [(step, one.reasoning_per_call) for step, one in measured if one.reasoning_per_call is not None]
    steps = [(step, one.steps_to_answer) for step, one in measured if one.steps_to_answer is not None]
    rates = [(step, one.correct_rate) for step, one in measured if one.correct_rate is not None]
    return "<h3>Calls of the policy</h3>" + charts(
        small_line("Reasoning a call", f"{unit} beside the call", reasoning, "c1", as_percent=False),
        small_line("Calls a run", "of any kind", [(s, one.calls_mean) for s, one in measured], "c2", as_percent=False),
        small_line("Correct calls", "share with a result", rates, "c3"),
        small_line("Calls to the answer", "of runs that answer", steps, "c4", as_percent=False),
        small_line(
            "Runs that answer", "share", [(s, one.answered / max(1, one.trajectories)) for s, one in measured], "c5"
        ),
        size="small",
    )


def part_charts(metrics: Sequence[StepMetrics]) -> str:
    """The mean of each part of the reward by step, in the reward's own units; "" where it is of one piece."""
    names = dict.fromkeys(name for step in metrics for name in step.reward_parts)
    if len(names) < 2:
        return ""
    figures = []
    for place, name in enumerate(names):
        points = [(step.step, step.reward_parts.get(name, 0.0)) for step in metrics if step.reward_parts]
        shown = name.replace("_", " ")
        figures.append(small_line(shown, "mean of the runs", points, f"c{place % _COLOURS + 1}", as_percent=False))
    return "<h3>Parts of the reward</h3>" + charts(*figures, size="small")
