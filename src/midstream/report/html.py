"""The run report: one HTML file that needs nothing else, readable on a phone, in light and dark, without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.stream import Template
from midstream.core.trajectory import Trajectory
from midstream.report import sections
from midstream.report.compare import Comparison, comparisons, is_greedy, pick, success, where
from midstream.report.numbers import change, duration, mean, percent
from midstream.report.page import Card, Part, arrow, how, limits, next_steps, page, save_page
from midstream.report.sections import text
from midstream.report.stream_charts import part_charts, stream_charts
from midstream.report.turns import sample_runs


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """Everything a report shows; every list may be empty.

    `evaluations` with a step belong to the run: the first evaluated step is "before", the last "after"; those without
    one are listed as other policies. `samples` are (label, trajectory) pairs: runs of one task stand side by side.
    `template` tells the parts of an interleaved policy's streams apart. `run_info` is shown as it comes (versions,
    seed, commit ...); `next_steps` are command lines.
    """

    title: str
    recipe_toml: str
    run_info: Mapping[str, object]
    metrics: list[StepMetrics]
    timings: list[StepTiming]
    evaluations: list[EvaluationResult]
    samples: list[tuple[str, Trajectory]]
    template: Template | None = None
    limits: str
    next_steps: list[str]


def write_report(path: Path, data: ReportData) -> None:
    """Write the report of `data` to `path` as one HTML file. Raises `StorageError`."""
    save_page(path, render_report(data))


def render_report(data: ReportData) -> str:
    """The report as HTML text."""
    parts: list[Part] = [
        ("results", "Results", sections.results(data.evaluations)),
        ("curves", "Training curves", _curves(data)),
        ("tools", "Use of tools", [sections.tool_charts(data.metrics), stream_charts(data.metrics)]),
        ("update", "The policy update", _update(data)),
        ("counts", "What was counted and left out", [sections.counts(data.metrics, data.evaluations)]),
        ("runs", "Runs, turn by turn", [sample_runs(data.samples, data.template)]),
        ("how", "How it was run", how(data.run_info, data.recipe_toml)),
        ("limits", "Limits", [limits(data.limits)]),
        ("next", "What to try next", [next_steps(data.next_steps)]),
    ]
    return page(data.title, summary(data), _cards(data), parts)


def summary(data: ReportData) -> str:
    """What happened, in plain words with the run's numbers: success, tools, and what was lost."""
    steps = len(data.metrics)
    found = comparisons(data.evaluations)
    sentences = [f"{steps:,} training steps were run." if steps else "No training step has finished yet."]
    if not found:
        sentences.append("No held-out tasks were evaluated, so whether the agent got better is not known.")
    else:
        sentences += _success_sentences(found[0])
    lost, total = (sum(getattr(m, key) for m in data.metrics) for key in ("trajectories_error", "trajectories"))
    if lost:
        sentences.append(f"{lost:,} of {total:,} training runs were lost to infrastructure errors and left out.")
    return " ".join(sentences)


def _success_sentences(comparison: Comparison) -> list[str]:
    greedy = any(map(is_greedy, comparison.before))
    before, after = (pick(side, greedy=greedy) for side in (comparison.before, comparison.after))
    how = "taking its most likely choices" if greedy else f"sampling at {before[0].sampling}"
    tasks = f"{before[0].tasks:,} held-out tasks ({where(before[0])})"
    first, last = success(before), success(after)
    if last is None:
        return [f"Before training the agent solves {percent(first)} of {tasks}, {how}; it was not evaluated since."]
    points = change(first, last)
    moved = "up from" if points.startswith("+") and points != "+0.0" else "down from" if points[0] == "-" else "as"
    said = [f"The agent now solves {percent(last)} of {tasks}, {moved} {percent(first)} before, {how}."]
    (errors_before, turns_before), (errors_after, turns_after) = _tools(comparison.before), _tools(comparison.after)
    said.append(
        f"Sampled, its tool calls fail in {percent(errors_after)} of turns (before: {percent(errors_before)}), and it "
        f"takes {turns_after:.2f} turns a task (before: {turns_before:.2f})."
    )
    return said


def _tools(side: Sequence[EvaluationResult]) -> tuple[float, float]:
    """(tool error rate, turns a task) of the sampled results, where the policy shows its habits, or of the greedy."""
    results = pick(side, greedy=False) or side
    return (
        mean([result.tool_use.error_rate for result in results]) or 0.0,
        mean([result.turns_mean for result in results]) or 0.0,
    )


def _cards(data: ReportData) -> list[Card]:
    cards: list[Card] = []
    found = comparisons(data.evaluations)
    for greedy in (True, False):
        before, after = (pick(side, greedy=greedy) for side in (found[0].before, found[0].after)) if found else ([], [])
        if before:
            name = "Success, greedy" if greedy else f"Success, {before[0].sampling}"
            cards.append(
                (name, arrow(percent(success(before)), percent(success(after))), f"{before[0].tasks:,} held-out tasks")
            )
    if found and found[0].after:
        sides = [_tools(side) for side in (found[0].before, found[0].after)]
        cards.append(("Tool errors", arrow(percent(sides[0][0]), percent(sides[1][0])), "share of turns, sampled"))
        cards.append(("Turns a task", arrow(f"{sides[0][1]:.2f}", f"{sides[1][1]:.2f}"), ""))
    if data.timings:
        wall, cpu = sum(t.duration_s for t in data.timings), sum(t.cpu_s for t in data.timings)
        cards.append(
            ("Training time", text(duration(wall)), f"wall clock; {duration(cpu)} of CPU" if cpu else "wall clock")
        )
    return cards


def _update(data: ReportData) -> list[str]:
    return [sections.update_charts(data.metrics, data.timings), sections.warned(data.metrics)]


def _curves(data: ReportData) -> list[str]:
    return [
        sections.progress_curves(data.metrics, data.evaluations),
        sections.family_curves(data.evaluations),
        part_charts(data.metrics),
    ]
