"""The report's tables and charts as HTML: results, curves, tools, the update, what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.report.charts import Series, area_chart, change_bar, line_chart
from midstream.report.compare import Comparison, comparisons, curves, families, label, others, pick, success, where
from midstream.report.numbers import (
    Point,
    buckets,
    change,
    cut,
    number,
    percent,
    running_mean,
    visible,
)
from midstream.report.tables import total_left_out

_LINE_POINTS = 400
_AREA_POINTS = 60
_MOST_BANDS = 7


def text(value: str) -> str:
    """Any text as HTML text: escaped, with control characters written out."""
    return escape(visible(value), quote=True)


def section(key: str, title: str, *parts: str) -> str:
    """A section with its heading; empty parts are dropped."""
    body = "\n".join(part for part in parts if part)
    return f'<section aria-labelledby="{key}">\n<h2 id="{key}">{text(title)}</h2>\n{body}\n</section>'


def table(caption: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """A captioned table; `head` and `rows` are HTML, `<th>` and `<tr>` elements."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption><span>{text(caption)}</span></caption><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def heads(*names: str, left: int = 1) -> list[str]:
    """Column heads, the first `left` of them over text, the others over numbers."""
    return [
        f'<th scope="col" class="{"" if index < left else "n"}">{text(name)}</th>' for index, name in enumerate(names)
    ]


def cell(value: str, kind: str = "n") -> str:
    """A cell of text that is escaped here."""
    return f'<td class="{kind}">{text(value)}</td>'


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


def shift(signed: str, good: str = "+") -> str:
    """A signed change as a cell, coloured by whether it goes the good way; the sign says it without colour."""
    kind = "" if signed in ("-", "+0.0") else " up" if signed.startswith(good) else " down"
    shown = signed if signed == "-" else signed.replace("-", "−")
    return f'<td class="n{kind}">{shown}</td>'


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


def figure(title: str, note: str, chart: str) -> str:
    """A chart under its title; `note` is one clause on how to read it."""
    caption = f"<b>{text(title)}</b>" + (f" <span>{text(note)}</span>" if note else "")
    return f"<figure><figcaption>{caption}</figcaption>{chart}</figure>"


def charts(*figures: str, size: str = "") -> str:
    """Figures side by side where the page is wide enough."""
    return f'<div class="charts {size}">{"".join(figures)}</div>'


def progress_curves(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """Training reward and held-out success by step, side by side."""
    counted = [step for step in metrics if step.trajectories_error < max(1, step.trajectories)]
    raw = buckets([(step.step, step.reward_mean) for step in counted], _LINE_POINTS)
    window = max(1, len(raw) // 20)
    smooth = running_mean(raw, window)
    lines = [Series(name="reward", points=tuple(raw), colour="c1", thin=True)] if window > 1 else []
    lines.append(Series(name="reward", points=tuple(smooth), colour="c1", label=_last(smooth)))
    reward = line_chart(lines, summary=_said("Mean training reward", smooth), y_range=(0.0, 1.0))
    note = (
        f"bold: mean of {round(window * len(counted) / len(raw))} steps" if window > 1 else "mean of the sampled runs"
    )
    held_out = _held_out_lines(evaluations)
    words = "; ".join(_said(line.name, line.points) for line in held_out)
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
        chart = line_chart([line], summary=_said(family, points), y_range=(0.0, 1.0), width=190, height=120)
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


def small_line(title: str, note: str, points: Sequence[Point], colour: str, *, as_percent: bool = True) -> str:
    """One small line chart from zero, its last value in the caption."""
    kept = buckets(points, _LINE_POINTS)
    line = Series(name=title, points=tuple(kept), colour=colour)
    chart = line_chart([line], summary=_said(title, kept, as_percent), as_percent=as_percent, width=240, height=140)
    last = _last(kept, as_percent)
    return figure(f"{title} {last}" if last else title, note, chart)


def _last(points: Sequence[Point], as_percent: bool = True) -> str:
    if not points:
        return ""
    return percent(points[-1][1]) if as_percent else number(points[-1][1])


def _said(name: str, points: Sequence[Point], as_percent: bool = True) -> str:
    """A line in words, for readers who do not see it."""
    if not points:
        return f"{name}: no data"
    first, last = (percent(value) if as_percent else number(value) for value in (points[0][1], points[-1][1]))
    return f"{name}: {first} at step {points[0][0]:,.0f}, {last} at step {points[-1][0]:,.0f}"


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
