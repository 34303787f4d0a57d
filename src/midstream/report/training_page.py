"""The report of a training run: one HTML file that needs nothing else, readable on a phone, without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.stream import Template
from midstream.core.trajectory import Trajectory
from midstream.report.charts import Series, area_chart, change_bar, line_chart
from midstream.report.evaluation_tables import (
    Comparison,
    comparisons,
    curves,
    families,
    is_greedy,
    label,
    others,
    pick,
    success,
    where,
)
from midstream.report.numbers import (
    Point,
    buckets,
    change,
    cut,
    duration,
    mean,
    percent,
    running_mean,
)
from midstream.report.page import (
    LINE_POINTS,
    Card,
    Part,
    arrow,
    cell,
    charts,
    figure,
    heads,
    how,
    in_words,
    last_value,
    limits,
    next_steps,
    page,
    save_page,
    shift,
    small_line,
    table,
    text,
)
from midstream.report.tables import total_left_out
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
        ("results", "Results", results(data.evaluations)),
        ("curves", "Training curves", _curves(data)),
        ("tools", "Use of tools", [tool_charts(data.metrics), stream_charts(data.metrics)]),
        ("update", "The policy update", _update(data)),
        ("counts", "What was counted and left out", [counts(data.metrics, data.evaluations)]),
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
    return [update_charts(data.metrics, data.timings), warned(data.metrics)]


def _curves(data: ReportData) -> list[str]:
    return [
        progress_curves(data.metrics, data.evaluations),
        family_curves(data.evaluations),
        part_charts(data.metrics),
    ]


_AREA_POINTS = 60
_MOST_BANDS = 7


def results(evaluations: Sequence[EvaluationResult]) -> list[str]:
    """One before-after table a set, then the other policies that were evaluated, then every evaluation."""
    parts = [_comparison(comparison) for comparison in comparisons(evaluations)]
    outside = others(evaluations)
    if outside:
        parts.append(_evaluations("Other policies and evaluations outside the run's steps", outside))
    return [*parts, all_evaluations(evaluations)]


def all_evaluations(evaluations: Sequence[EvaluationResult]) -> str:
    """Every evaluation as numbers, folded; a sentence where there is none."""
    if not evaluations:
        return '<p class="empty">Nothing was evaluated on held-out tasks.</p>'
    everything = _evaluations("Every evaluation, in the order they were made", evaluations)
    return f"<details><summary>All {len(evaluations)} evaluations as numbers</summary>{everything}</details>"


def _comparison(comparison: Comparison) -> str:
    both = [*comparison.before, *comparison.after]
    sides = [
        (greedy, pick(comparison.before, greedy=greedy), pick(comparison.after, greedy=greedy))
        for greedy in (True, False)
    ]
    sides = [side for side in sides if side[1]]
    head = heads("Family")
    for greedy, _, _ in sides:
        kind = "Greedy" if greedy else "Sampled"
        head += [*heads(f"{kind}: before", "after", "points", left=0), "<td></td>"]
    head += heads("Tasks", left=0)
    rows = [_comparison_row(name, both, sides) for name in families(both)] + [_comparison_row(None, both, sides)]
    names = f"{label(comparison.before, 'before')}, against {label(comparison.after, 'nothing yet')}"
    caption = f"Success on {where(comparison)}: {names}. Hollow dot before, filled dot after."
    return table(caption, head, rows) + _interval_note(sides) + _error_note(both)


def _comparison_row(
    family: str | None,
    both: Sequence[EvaluationResult],
    sides: Sequence[tuple[bool, list[EvaluationResult], list[EvaluationResult]]],
) -> str:
    tasks = [
        result.tasks if family is None else result.by_family[family].tasks
        for result in both
        if family is None or family in result.by_family
    ]
    cells = [f'<th scope="row">{text("All tasks" if family is None else family)}</th>']
    for greedy, before, after in sides:
        first, last = success(before, family), success(after, family)
        words = f"{'greedy' if greedy else 'sampled'}: {percent(first)} before, {percent(last)} after"
        bar = change_bar(first, last, summary=words)
        cells += [cell(percent(first)), cell(percent(last)), shift(change(first, last)), f"<td>{bar}</td>"]
    cells.append(cell(f"{max(tasks, default=0):,}"))
    return f"<tr{' class=total' if family is None else ''}>{''.join(cells)}</tr>"


def _interval_note(sides: Sequence[tuple[bool, list[EvaluationResult], list[EvaluationResult]]]) -> str:
    intervals = [one.interval for _, *pair in sides for side in pair for one in side if one.interval]
    width = max(((high - low) / 2 for low, high in intervals), default=None)
    if width is None:
        return ""
    return (
        f'<p class="soft">With this many tasks each mean is known to about ±{width * 100:.1f} points (95%). '
        "That covers the choice of tasks, not how another training seed would turn out.</p>"
    )


def _error_note(results: Sequence[EvaluationResult]) -> str:
    lost = [result for result in results if result.errors]
    if not lost:
        return ""
    parts = [
        f"{result.policy}, {result.sampling}: {result.errors:,} of {result.tasks:,} "
        f"({percent(result.success_without_errors)} without them)"
        for result in lost
    ]
    return f'<p class="down">Tasks without a result, counted as wrong. {text("; ".join(parts))}</p>'


def _evaluations(caption: str, evaluations: Sequence[EvaluationResult]) -> str:
    head = heads("Policy", "Set", "Sampling", "Step", "Success", "Tasks", "No result", "Tool errors", "Turns", left=3)
    rows = []
    for result in evaluations:
        cells = [f'<th scope="row">{text(result.policy)}</th>']
        cells += [cell(where(result), ""), cell(result.sampling, "")]
        numbers = ["-" if result.step is None else f"{result.step:,}", percent(result.success), f"{result.tasks:,}"]
        numbers += [f"{result.errors:,}", percent(result.tool_use.error_rate), f"{result.turns_mean:.2f}"]
        rows.append(f"<tr>{''.join(cells)}{''.join(map(cell, numbers))}</tr>")
    return table(caption, head, rows)


def progress_curves(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """Training reward and held-out success by step, side by side."""
    counted = [step for step in metrics if step.trajectories_error < max(1, step.trajectories)]
    raw = buckets([(step.step, step.reward_mean) for step in counted], LINE_POINTS)
    window = max(1, len(raw) // 20)
    smooth = running_mean(raw, window)
    lines = [Series(name="reward", points=tuple(raw), colour="c1", thin=True)] if window > 1 else []
    lines.append(Series(name="reward", points=tuple(smooth), colour="c1", label=last_value(smooth)))
    reward = line_chart(lines, summary=in_words("Mean training reward", smooth), y_range=(0.0, 1.0))
    note = (
        f"bold: mean of {round(window * len(counted) / len(raw))} steps" if window > 1 else "mean of the sampled runs"
    )
    held_out = _held_out_lines(evaluations)
    words = "; ".join(in_words(line.name, line.points) for line in held_out)
    success_chart = line_chart(held_out, summary=words, y_range=(0.0, 1.0))
    return charts(
        figure("Training reward", note, reward),
        figure("Held-out success", "tasks kept out of training", success_chart),
    )


def _held_out_lines(evaluations: Sequence[EvaluationResult]) -> list[Series]:
    """A line a set and sampling; sets evaluated only before and after are left to the table if any has more steps."""
    found = [(greedy, one) for greedy in (True, False) for one in curves(evaluations, greedy=greedy).values()]
    points = [_by_step(results) for _, results in found]
    least = min(3, max((len(line) for line in points), default=0))
    several = (
        len({results[0].set_name for (_, results), line in zip(found, points, strict=True) if len(line) >= least}) > 1
    )
    lines = []
    for (greedy, results), line in zip(found, points, strict=True):
        if len(line) < least:
            continue
        kind = "greedy" if greedy else "sampled"
        name = f"{cut(results[0].set_name, 14)} {kind}" if several else kind
        colour = f"c{len(lines) % 8 + 1}"
        shown = f"{name} {percent(line[-1][1])}"
        lines.append(Series(name=name, points=tuple(line), colour=colour, label=shown, marks=True))
    return lines


def _by_step(results: Sequence[EvaluationResult], family: str | None = None) -> list[Point]:
    """Success at each step, of one family or of all, averaged over the seeds evaluated there."""
    by_step: dict[int, list[EvaluationResult]] = {}
    for result in results:
        by_step.setdefault(result.step or 0, []).append(result)
    return [(step, value) for step, found in by_step.items() if (value := success(found, family)) is not None]


def family_curves(evaluations: Sequence[EvaluationResult]) -> str:
    """Greedy (or else sampled) success of each family by step as small multiples, of the set evaluated most often."""
    by_set = curves(evaluations, greedy=True) or curves(evaluations, greedy=False)
    if not by_set:
        return ""
    found = max(by_set.values(), key=len)
    if found[0].step == found[-1].step:
        return ""
    figures = []
    for family in families(found):
        points = _by_step(found, family)
        line = Series(name=family, points=tuple(points), colour="c1", marks=len(points) < 30)
        chart = line_chart([line], summary=in_words(family, points), y_range=(0.0, 1.0), width=190, height=120)
        figures.append(figure(family, f"{percent(points[0][1])} → {percent(points[-1][1])}", chart))
    title = f"By family on {found[0].set_name}, {found[0].sampling}"
    return f"<h3>{text(title)}</h3>" + charts(*figures, size="tiny")


def tool_charts(metrics: Sequence[StepMetrics]) -> str:
    """Tool shares stacked over steps, tool error rate and turns a run, all from the training runs."""
    used = [step for step in metrics if step.tool_use.turns > 0]
    bands = _share_bands(used)
    words = "Share of turns at the last step: " + ", ".join(f"{band.label}" for band in bands)
    errors = [(step.step, step.tool_use.error_rate) for step in used]
    turns = [(step.step, step.turns_mean) for step in used]
    return charts(
        figure("Tools chosen", "share of turns in training runs", area_chart(bands, summary=words)),
        charts(
            small_line("Tool errors", "malformed, invalid or failed, share of turns", errors, "bad"),
            small_line("Turns a run", "mean of finished runs", turns, "c3", as_percent=False),
            size="small",
        ),
    )


def _share_bands(metrics: Sequence[StepMetrics]) -> list[Series]:
    names = dict.fromkeys(name for step in metrics for name in step.tool_use.share if name != "malformed")
    weight = {name: sum(step.tool_use.share.get(name, 0.0) for step in metrics) for name in names}
    ranked = sorted(names, key=lambda name: -weight[name])
    kept, rest = ranked[:_MOST_BANDS], set(ranked[_MOST_BANDS:])
    groups = [({name}, name, f"c{index + 1}") for index, name in enumerate(kept)]
    groups += [(rest, "other tools", "c8")] if rest else []
    groups += (
        [({"malformed"}, "malformed", "bad")] if any("malformed" in step.tool_use.share for step in metrics) else []
    )
    bands = []
    for members, name, colour in groups:
        shares = [(step.step, sum(step.tool_use.share.get(member, 0.0) for member in members)) for step in metrics]
        points = tuple(buckets(shares, _AREA_POINTS))
        bands.append(Series(name=name, points=points, colour=colour, label=f"{name} {points[-1][1]:.0%}"))
    return bands


def update_charts(metrics: Sequence[StepMetrics], timings: Sequence[StepTiming]) -> str:
    """KL, clip fraction, gradient norm, shared tokens and seconds a step, small."""
    return charts(
        small_line("KL to the reference", "k3, per token", [(m.step, m.kl) for m in metrics], "c4", as_percent=False),
        small_line(
            "Sampler gap",
            "learner and sampler apart, nats per token",
            [(m.step, m.logprob_gap) for m in metrics],
            "c1",
            as_percent=False,
        ),
        small_line("Clipped tokens", "share of tokens", [(m.step, m.clip_fraction) for m in metrics], "c2"),
        small_line(
            "Gradient norm", "before clipping", [(m.step, m.grad_norm) for m in metrics], "c5", as_percent=False
        ),
        small_line(
            "Tokens for each unique one",
            "how much the rows of an update share",
            [(m.step, m.sharing) for m in metrics if m.sharing is not None],
            "c3",
            as_percent=False,
        ),
        small_line("Seconds a step", "wall clock", [(t.step, t.duration_s) for t in timings], "c8", as_percent=False),
        size="small",
    )


def warned(metrics: Sequence[StepMetrics]) -> str:
    """What the run warned of, a paragraph each."""
    return "".join(f"<p>Warning: {text(words)}</p>" for step in metrics for words in step.warnings)


def counts(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """What went into training and what did not, each with what became of it."""
    total = {
        name: sum(getattr(step, name) for step in metrics)
        for name in (
            *("trajectories", "trajectories_error", "trajectories_retried", "request_failures", "replies_repaired"),
            *("groups", "groups_uniform", "groups_broken", "rows"),
        )
    }
    rows = [
        ("Training trajectories", total["trajectories"], "runs of the agent on training tasks"),
        (
            "Trajectories lost to errors",
            total["trajectories_error"],
            "an endpoint, tool or sandbox failed; never a reward of 0",
        ),
        ("Trajectories run again", total["trajectories_retried"], "broke down at least once before they ended"),
        ("Request failures", total["request_failures"], "attempts of single requests, tried again"),
        ("Replies repaired", total["replies_repaired"], "no JSON until they were mended"),
        ("Groups", total["groups"], "all runs of one task at one step"),
        ("Groups, uniform", total["groups_uniform"], "equal rewards: no advantage, the KL term stays"),
        ("Groups, broken", total["groups_broken"], "fewer than two finished runs: left out"),
        ("Training rows", total["rows"], "what the policy sampled, as it was trained on"),
    ]
    rows += [("Samples left out", count, reason) for reason, count in total_left_out(metrics).items()]
    in_evaluations = "in all evaluations"
    rows += [
        ("Evaluation tasks without a result", sum(one.errors for one in evaluations), "counted as wrong"),
        ("Evaluation request failures", sum(one.request_failures for one in evaluations), in_evaluations),
        ("Evaluation replies repaired", sum(one.replies_repaired for one in evaluations), in_evaluations),
    ]
    body = [
        f'<tr><th scope="row">{text(name)}</th>{cell(f"{count:,}")}{cell(note, "wrap soft")}</tr>'
        for name, count, note in rows
    ]
    return table("Sums over all steps.", [*heads("What", "Count"), *heads("Meaning")], body)


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
