"""The report of a training run: one HTML file that needs nothing else, readable on a phone, without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.report import html
from midstream.report.charts import Series, area_chart, change_bar, line_chart
from midstream.report.evaluation_tables import (
    Comparison,
    comparisons,
    curves,
    families,
    is_greedy,
    label,
    loss,
    success,
    where,
)
from midstream.report.html import cell, charts, figure, heads, small_curve, text
from midstream.report.numbers import (
    Point,
    buckets,
    change,
    cut,
    duration,
    mean,
    nothing_learned,
    percent,
    running_mean,
    summed,
)

_AREA_POINTS = 60
_MOST_BANDS = 7
_COLORS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData(html.PageData):
    """Everything the report of a training run shows; every list may be empty.

    `evaluations` with a step belong to the run: the first evaluated step is "before", the last "after"; those without
    one are listed as other policies.
    """

    metrics: list[StepMetrics]
    timings: list[StepTiming]
    evaluations: list[EvaluationResult]


def render_report(data: ReportData) -> str:
    """The report as HTML text."""
    metrics, evaluations = data.metrics, data.evaluations
    curves = [progress_curves(metrics, evaluations), family_curves(evaluations), part_charts(metrics)]
    warnings = [f"<p>Warning: {text(warning)}</p>" for step in metrics for warning in step.warnings]
    parts: list[html.Part] = [
        ("results", "Results", results_of(evaluations)),
        ("curves", "Training curves", curves),
        ("tools", "Use of tools", [tool_charts(metrics), schedule_charts(metrics), stream_charts(metrics)]),
        ("update", "The policy update", [update_charts(metrics, data.timings), "".join(warnings)]),
        ("counts", "What was counted and left out", [counts(metrics, evaluations)]),
        ("runs", "Runs, turn by turn", [html.sample_runs(data.samples, data.template)]),
    ]
    return html.page(data, summary(data), cards(data), parts)


def summary(data: ReportData) -> str:
    """What happened, in plain words with the run's numbers: success, tools, and what was lost."""
    steps = len(data.metrics)
    sentences = [f"{steps:,} training steps were run." if steps else "No training step has finished yet."]
    if nothing := nothing_learned([step.no_contrast for step in data.metrics], "step"):
        sentences.append(f"There was {nothing}.")
    if found := comparisons(data.evaluations):
        # Greedy if that was evaluated.
        kind, before, after = found[0].by_kind()[-1]
        how = "taking its most likely choices" if kind == "greedy" else f"sampling at {before[0].sampling}"
        tasks = f"{before[0].tasks:,} held-out tasks ({where(before[0])})"
        first, last = percent(success(before)), percent(success(after))
        if after:
            points = change(success(before), success(after))
            moved = "as" if points == "+0.0" else "up from" if points.startswith("+") else "down from"
            sentences.append(f"The agent now solves {last} of {tasks}, {moved} {first} before, {how}.")
            (errors_before, turns_before), (errors_after, turns_after) = map(_habits, (found[0].before, found[0].after))
            sentences.append(
                f"Sampled, its tool calls fail in {percent(errors_after)} of turns (before: {percent(errors_before)}), "
                f"and it takes {turns_after:.2f} turns a task (before: {turns_before:.2f})."
            )
        else:
            sentences.append(f"Before training the agent solves {first} of {tasks}, {how}; it was not evaluated since.")
    else:
        sentences.append("No held-out tasks were evaluated, so whether the agent got better is not known.")
    lost, total = (sum(getattr(m, key) for m in data.metrics) for key in ("trajectories_error", "trajectories"))
    if lost:
        sentences.append(f"{lost:,} of {total:,} training runs were lost to infrastructure errors and left out.")
    return " ".join(sentences)


def _habits(side: Sequence[EvaluationResult]) -> tuple[float, float]:
    """(tool error rate, turns a task) of the sampled results, which show the policy's habits, or of the greedy."""
    results = [result for result in side if not is_greedy(result)] or side
    return (
        mean([result.tool_use.error_rate for result in results]) or 0.0,
        mean([result.turns_mean for result in results]) or 0.0,
    )


def cards(data: ReportData) -> list[html.Card]:
    """The numbers at the top of the page: success, tool errors and turns before and after, training time."""
    found: list[html.Card] = []
    for comparison in comparisons(data.evaluations)[:1]:
        for kind, before, after in reversed(comparison.by_kind()):
            name = "Success, greedy" if kind == "greedy" else f"Success, {before[0].sampling}"
            value = html.arrow(percent(success(before)), percent(success(after)))
            found.append((name, value, f"{before[0].tasks:,} held-out tasks"))
        if comparison.after:
            first, last = _habits(comparison.before), _habits(comparison.after)
            found.append(("Tool errors", html.arrow(percent(first[0]), percent(last[0])), "share of turns, sampled"))
            found.append(("Turns a task", html.arrow(f"{first[1]:.2f}", f"{last[1]:.2f}"), ""))
    if data.timings:
        wall, cpu = sum(t.duration_s for t in data.timings), sum(t.cpu_s for t in data.timings)
        note = f"wall clock; {duration(cpu)} of CPU" if cpu else "wall clock"
        found.append(("Training time", text(duration(wall)), note))
    return found


# --- results ----------------------------------------------------------------------------------------------------------


def results_of(evaluations: Sequence[EvaluationResult]) -> list[str]:
    """One before-after table a set, then the other policies that were evaluated, then every evaluation."""
    parts = [before_and_after(comparison) for comparison in comparisons(evaluations)]
    if outside := [result for result in evaluations if result.step is None]:
        parts.append(_numbers("Other policies and evaluations outside the run's steps", outside))
    return [*parts, all_evaluations(evaluations)]


def all_evaluations(evaluations: Sequence[EvaluationResult]) -> str:
    """Every evaluation as numbers, folded; a sentence without any."""
    if not evaluations:
        return '<p class="empty">Nothing was evaluated on held-out tasks.</p>'
    everything = _numbers("Every evaluation, in the order they were made", evaluations)
    return html.details(f"All {len(evaluations)} evaluations as numbers", everything)


def _numbers(caption: str, evaluations: Sequence[EvaluationResult]) -> str:
    head = heads("Policy", "Set", "Sampling", "Step", "Success", "Tasks", "No result", "Tool errors", "Turns", left=3)
    rows = []
    for result in evaluations:
        names = [cell(where(result), ""), cell(result.sampling, "")]
        numbers = ["-" if result.step is None else f"{result.step:,}", percent(result.success), f"{result.tasks:,}"]
        numbers += [f"{result.errors:,}", percent(result.tool_use.error_rate), f"{result.turns_mean:.2f}"]
        rows.append(html.row(result.policy, *names, *map(cell, numbers)))
    return html.table(caption, head, rows)


def before_and_after(comparison: Comparison) -> str:
    """Success by family and in all on one set, before and after, with how sure that is and what is missing."""
    both = [*comparison.before, *comparison.after]
    kinds = [kind for kind, _, _ in comparison.by_kind()]
    head = heads("Family")
    for kind in reversed(kinds):
        head += [*heads(f"{kind.capitalize()}: before", "after", "points", left=0), "<td></td>"]
    rows = []
    for family, tasks, shares in comparison.by_family():
        cells = []
        for kind, (first, last) in reversed(list(zip(kinds, shares, strict=True))):
            bar = change_bar(first, last, summary=f"{kind}: {percent(first)} before, {percent(last)} after")
            cells += [cell(percent(first)), cell(percent(last)), html.shift(change(first, last)), f"<td>{bar}</td>"]
        rows.append(html.row(family or "All tasks", *cells, cell(f"{tasks:,}"), total=family is None))
    names = f"{label(comparison.before, 'before')}, against {label(comparison.after, 'nothing yet')}"
    caption = f"Success on {where(both[0])}: {names}. Hollow dot before, filled dot after."
    parts = [html.table(caption, [*head, *heads("Tasks", left=0)], rows)]
    if widths := [(high - low) / 2 for low, high in filter(None, (result.interval for result in both))]:
        parts.append(
            f'<p class="soft">With this many tasks each mean is known to about ±{max(widths) * 100:.1f} points (95%). '
            "That covers the choice of tasks, not how another training seed would turn out.</p>"
        )
    if lost := [f"{result.policy}, {result.sampling}: {loss(result)}" for result in both if result.errors]:
        parts.append(f'<p class="down">{text("; ".join(lost))}</p>')
    return "".join(parts)


# --- curves -----------------------------------------------------------------------------------------------------------


def progress_curves(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """Training reward and held-out success by step, side by side."""
    counted = [step for step in metrics if step.trajectories_error < max(1, step.trajectories)]
    raw = buckets([(step.step, step.reward_mean) for step in counted], html.LINE_POINTS)
    window = max(1, len(raw) // 20)
    smooth = running_mean(raw, window)
    note = "mean of the sampled runs"
    lines = [Series(name="reward", points=smooth, label=html.last_value(smooth))]
    if window > 1:
        lines.insert(0, Series(name="reward", points=raw, thin=True))
        note = f"bold: mean of {round(window * len(counted) / len(raw))} steps"
    reward = line_chart(lines, summary=html.in_words("Mean training reward", smooth), y_range=(0.0, 1.0))
    lines = held_out_lines(evaluations)
    words = "; ".join(html.in_words(line.name, line.points) for line in lines)
    held_out = line_chart(lines, summary=words, y_range=(0.0, 1.0))
    return charts(
        figure("Training reward", note, reward), figure("Held-out success", "tasks kept out of training", held_out)
    )


def held_out_lines(evaluations: Sequence[EvaluationResult]) -> list[Series]:
    """A line a set and sampling; sets evaluated only before and after are left to the table if any has more steps."""
    found = [
        (kind, results[0].set_name, _by_step(results))
        for kind in ("greedy", "sampled")
        for results in curves(evaluations, kind).values()
    ]
    least = min(3, max((len(points) for _, _, points in found), default=0))
    found = [line for line in found if len(line[2]) >= least]
    several = len({set_name for _, set_name, _ in found}) > 1
    lines = []
    for place, (kind, set_name, points) in enumerate(found):
        name = f"{cut(set_name, 14)} {kind}" if several else kind
        shown = f"{name} {percent(points[-1][1])}"
        lines.append(Series(name=name, points=points, color=f"c{place % _COLORS + 1}", label=shown, marks=True))
    return lines


def _by_step(results: Sequence[EvaluationResult], family: str | None = None) -> list[Point]:
    """Success at each step, of one family or of all, averaged over the seeds evaluated there."""
    by_step: dict[int, list[EvaluationResult]] = {}
    for result in results:
        by_step.setdefault(result.step or 0, []).append(result)
    return [(step, value) for step, found in by_step.items() if (value := success(found, family)) is not None]


def family_curves(evaluations: Sequence[EvaluationResult]) -> str:
    """Success of each family by step, of the set evaluated most often; of several, the largest."""
    by_set = curves(evaluations, "greedy") or curves(evaluations, "sampled")
    found = max(by_set.values(), key=lambda results: (len(results), results[0].tasks), default=[])
    if not found or found[0].step == found[-1].step:
        return ""
    figures = []
    for family in families(found):
        points = _by_step(found, family)
        line = Series(name=family, points=points, marks=len(points) < 30)
        chart = line_chart([line], summary=html.in_words(family, points), y_range=(0.0, 1.0), width=190, height=120)
        figures.append(figure(family, f"{percent(points[0][1])} → {percent(points[-1][1])}", chart))
    title = f"By family on {found[0].set_name}, {found[0].sampling}"
    return f"<h3>{text(title)}</h3>" + charts(*figures, size="tiny")


def tool_charts(metrics: Sequence[StepMetrics]) -> str:
    """Tool shares stacked over steps, tool error rate and turns a run, all from the training runs."""
    used = [step for step in metrics if step.tool_use.turns > 0]
    weights: Counter[str] = Counter()
    for step in used:
        weights.update(step.tool_use.share)
    malformed = weights.pop("malformed", None) is not None
    ranked = sorted(weights, key=lambda name: -weights[name])
    groups = [({name}, name, f"c{place}") for place, name in enumerate(ranked[:_MOST_BANDS], 1)]
    if rest := set(ranked[_MOST_BANDS:]):
        groups.append((rest, "other tools", "c8"))
    if malformed:
        groups.append(({"malformed"}, "malformed", "bad"))
    bands = []
    for members, name, color in groups:
        shares = [(step.step, sum(step.tool_use.share.get(member, 0.0) for member in members)) for step in used]
        points = buckets(shares, _AREA_POINTS)
        bands.append(Series(name=name, points=points, color=color, label=f"{name} {points[-1][1]:.0%}"))
    words = "Share of turns at the last step: " + ", ".join(band.label for band in bands)
    errors = [(step.step, step.tool_use.error_rate) for step in used]
    turns = [(step.step, step.turns_mean) for step in used]
    return charts(
        figure("Tools chosen", "share of turns in training runs", area_chart(bands, summary=words)),
        charts(
            small_curve("Tool errors", "malformed, invalid or failed, share of turns", errors, "bad", as_percent=True),
            small_curve("Turns a run", "mean of finished runs", turns, "c3"),
            size="small",
        ),
    )


def schedule_charts(metrics: Sequence[StepMetrics]) -> str:
    """The probabilities of simulated and degraded tools over steps, small; "" without any."""
    names = dict.fromkeys(name for step in metrics for name in step.schedules)
    curves = [
        small_curve(
            name,
            "probability",
            [(m.step, m.schedules[name]) for m in metrics if name in m.schedules],
            "c4",
            as_percent=True,
        )
        for name in names
    ]
    return charts(*curves, size="small") if curves else ""


def update_charts(metrics: Sequence[StepMetrics], timings: Sequence[StepTiming]) -> str:
    """KL, clip fraction, gradient norm, shared tokens and seconds a step, small."""
    gap, shared = "learner and sampler apart, nats per token", "how much the rows of an update share"
    sharing = [(m.step, m.sharing) for m in metrics if m.sharing is not None]
    clipped = [(m.step, m.clip_fraction) for m in metrics]
    return charts(
        small_curve("KL to the reference", "k3, per token", [(m.step, m.kl) for m in metrics], "c4"),
        small_curve("Sampler gap", gap, [(m.step, m.logprob_gap) for m in metrics], "c1"),
        small_curve("Clipped tokens", "share of tokens", clipped, "c2", as_percent=True),
        small_curve("Gradient norm", "before clipping", [(m.step, m.grad_norm) for m in metrics], "c5"),
        small_curve("Tokens for each unique one", shared, sharing, "c3"),
        small_curve("Seconds a step", "wall clock", [(t.step, t.duration_s) for t in timings], "c8"),
        size="small",
    )


def stream_charts(metrics: Sequence[StepMetrics]) -> str:
    """Use of tools by interleaved policies, as ARTIST analyzes it (arXiv 2505.01441); "" without any such policy."""
    measured = [(step.step, step.streams) for step in metrics if step.streams]
    if not measured:
        return ""
    unit = measured[-1][1].unit
    calls = [(step, streams.calls_mean) for step, streams in measured]
    reasoning = [(step, s.reasoning_per_call) for step, s in measured if s.reasoning_per_call is not None]
    steps = [(step, streams.steps_to_answer) for step, streams in measured if streams.steps_to_answer is not None]
    rates = [(step, streams.correct_rate) for step, streams in measured if streams.correct_rate is not None]
    answered = [(step, streams.answered / max(1, streams.trajectories)) for step, streams in measured]
    return "<h3>Calls of the policy</h3>" + charts(
        small_curve("Reasoning a call", f"{unit} around the call", reasoning, "c1"),
        small_curve("Calls a run", "of any kind", calls, "c2"),
        small_curve("Correct calls", "share with a result", rates, "c3", as_percent=True),
        small_curve("Calls to the answer", "of runs that answer", steps, "c4"),
        small_curve("Runs that answer", "share", answered, "c5", as_percent=True),
        size="small",
    )


def part_charts(metrics: Sequence[StepMetrics]) -> str:
    """The mean of each part of the reward by step, in the reward's own units; "" if the reward has one part."""
    names = dict.fromkeys(name for step in metrics for name in step.reward_parts)
    if len(names) < 2:
        return ""
    figures = []
    for place, name in enumerate(names):
        points = [(step.step, step.reward_parts.get(name, 0.0)) for step in metrics if step.reward_parts]
        figures.append(small_curve(name.replace("_", " "), "mean of the runs", points, f"c{place % _COLORS + 1}"))
    return "<h3>Parts of the reward</h3>" + charts(*figures, size="small")


def counts(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """What went into training and what did not, each with its meaning."""

    def total(name: str, of: Sequence[StepMetrics] | Sequence[EvaluationResult] = metrics) -> int:
        return sum(getattr(record, name) for record in of)

    lost = "an endpoint, tool or sandbox failed; never a reward of 0"
    sums = (summed(getattr(step, name) for step in metrics) for name in ("samples_left_out", "limits", "rows_split"))
    left_out, limits, split = sums
    rows = [
        ("Training trajectories", total("trajectories"), "runs of the agent on training tasks"),
        ("Trajectories lost to errors", total("trajectories_error"), lost),
        ("Trajectories run again", total("trajectories_retried"), "broke down at least once before they ended"),
        *(("Trajectories ended by a limit", count, reason.replace("_", " ")) for reason, count in limits.items()),
        ("Request failures", total("request_failures"), "attempts of single requests, tried again"),
        ("Replies repaired", total("replies_repaired"), "not JSON until they were repaired"),
        ("Groups", total("groups"), "all runs of one task at one step"),
        ("Groups, uniform", total("groups_uniform"), "equal rewards: no advantage, the KL term stays"),
        ("Groups, broken", total("groups_broken"), "fewer than two finished runs: left out"),
        ("Training rows", total("rows"), "what the policy sampled, as it was trained on"),
        *(("Rows split from a conversation", count, reason) for reason, count in split.items()),
        *(("Samples left out", count, reason) for reason, count in left_out.items()),
        ("Evaluation tasks without a result", total("errors", evaluations), "counted as wrong"),
        ("Evaluation request failures", total("request_failures", evaluations), "in all evaluations"),
        ("Evaluation replies repaired", total("replies_repaired", evaluations), "in all evaluations"),
    ]
    return html.count_table("Sums over all steps.", rows)
