"""A training run in blocks: results, curves, use of tools, the update, and what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, Section, cell, chart, charts, curve, line, text
from midstream.report.evaluation import (
    all_evaluations,
    before_and_after,
    by_set,
    ends,
    headline,
    success,
    where,
)
from midstream.report.numbers import (
    Point,
    buckets,
    change,
    duration,
    mean,
    nothing_learned,
    percent,
)

_BAND_POINTS = 60
_SMOOTH_POINTS = 40
_MOST_BANDS = 6


def training_page(
    metrics: Sequence[StepMetrics], timings: Sequence[StepTiming], evaluations: Sequence[EvaluationResult]
) -> tuple[str, list[Section]]:
    """The lead and the sections of a run; every list may be empty.

    The first evaluated step is "before", the last "after".
    """
    warnings = [text(f"Step {step.step}: {words}", "warn") for step in metrics for words in step.warnings]
    return lead(metrics, evaluations), [
        ("summary", "At a glance", [blocks.tiles(tiles(timings, evaluations))]),
        ("results", "Results", results_of(evaluations)),
        ("evaluations", "All evaluations", all_evaluations(evaluations)),
        ("curves", "Training curves", [progress(metrics, evaluations), parts(metrics)]),
        ("tools", "Use of tools", [tools(metrics), schedules(metrics), *streams(metrics)]),
        ("update", "The policy update", [update(metrics), *warnings]),
        ("waits", "What waits", [waits(metrics, timings)]),
        ("counts", "What was counted and left out", [counts(metrics)]),
    ]


def lead(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> str:
    """What happened, in plain words with the run's numbers: success, and what was lost."""
    steps = len(metrics)
    sentences = [f"{steps:,} training steps were run." if steps else "No training step has finished yet."]
    if nothing := nothing_learned([step.no_contrast for step in metrics], "step"):
        sentences.append(f"There was {nothing}.")
    kind, before, after = headline(evaluations)
    if before:
        how = "taking its most likely choices" if kind == "greedy" else f"sampling at {before[0].sampling}"
        tasks = f"{before[0].tasks:,} held-out tasks ({where(before[0])})"
        first, last = percent(success(before)), percent(success(after))
        if after:
            points = change(success(before), success(after))
            moved = "as" if points == "+0.0" else "up from" if points.startswith("+") else "down from"
            sentences.append(f"The agent now solves {last} of {tasks}, {moved} {first} before, {how}.")
        else:
            sentences.append(f"Before training the agent solves {first} of {tasks}, {how}; it was not evaluated since.")
    else:
        sentences.append("No held-out tasks were evaluated, so whether the agent got better is not known.")
    lost, total = (sum(getattr(m, key) for m in metrics) for key in ("trajectories_error", "trajectories"))
    if lost:
        sentences.append(f"{lost:,} of {total:,} training runs were lost to infrastructure errors and left out.")
    return " ".join(sentences)


def tiles(timings: Sequence[StepTiming], evaluations: Sequence[EvaluationResult]) -> list[dict[str, str]]:
    """Success, tool errors and turns before and after, training time."""
    found: list[dict[str, str]] = []
    for kinds in list(by_set(evaluations).values())[:1]:
        for kind, results in reversed(kinds.items()):
            before, after = ends(results)
            name = "Success, greedy" if kind == "greedy" else f"Success, {before[0].sampling}"
            note = f"{before[0].tasks:,} held-out tasks"
            found.append(blocks.tile(name, percent(success(after)), note, before=percent(success(before))))
        # Sampled results show the policy's habits.
        sides = ends(kinds.get("sampled") or kinds["greedy"])
        if sides[1]:
            errors = [percent(mean([result.tool_use.error_rate for result in side])) for side in sides]
            turns = [f"{fmean(result.turns_mean for result in side):.2f}" for side in sides]
            found.append(blocks.tile("Tool errors", errors[1], "share of turns, sampled", before=errors[0]))
            found.append(blocks.tile("Turns a task", turns[1], before=turns[0]))
    if timings:
        wall, cpu = sum(t.duration_s for t in timings), sum(t.cpu_s for t in timings)
        note = f"wall clock; {duration(cpu)} of CPU" if cpu else "wall clock"
        found.append(blocks.tile("Training time", duration(wall), note))
    return found


def results_of(evaluations: Sequence[EvaluationResult]) -> list[Block | None]:
    """A before-after table a set, the test set first, with the use of tools on it; and how sure all of them are."""
    found, sure = list[Block | None](), list[str]()
    for name, kinds in sorted(by_set(evaluations).items(), key=lambda item: item[0] != "test"):
        found += before_and_after(name, kinds)
        if name == "test":
            found.append(tool_shift(*ends(kinds.get("sampled", []))))
        known = [result.interval for results in kinds.values() for side in ends(results) for result in side]
        if widths := [(high - low) / 2 for low, high in filter(None, known)]:
            sure.append(f"±{max(widths) * 100:.1f} points on {name}")
    found.append(with_and_without(evaluations))
    words = f"Each mean is known to about {', '.join(sure)} (95%). That covers the choice of tasks, not how another "
    found.append(text(f"{words}training seed would turn out." if sure else "", "soft"))
    return found if evaluations else [text("Nothing was evaluated on held-out tasks.", "soft")]


def with_and_without(evaluations: Sequence[EvaluationResult]) -> Block | None:
    """Of a run that learned weights and lessons: success at first, at last, and at last with the lessons taken away."""
    rows: list[list[Cell]] = []
    # Those without lessons have no step.
    for without in (result for result in evaluations if result.step is None):
        same = [each for each in evaluations if (each.set_name, each.sampling) == (without.set_name, without.sampling)]
        before, after = ends([result for result in same if result.step is not None])
        shares = [percent(success(side)) for side in (before, after or before, [without])]
        rows.append([without.set_name, without.sampling, *shares])
    heads = ("set", "sampling", "before", "weights and lessons", "lessons taken away")
    return blocks.table("Weights and lessons", heads, rows) if rows else None


def tool_shift(before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]) -> Block | None:
    """How turns were spent before and after, sampled at T=1: share of each tool, then tool errors and turns a run."""
    sides = [[result for result in side if result.sampling == "T=1"] for side in (before, after)]
    if not all(sides):
        return None
    names = dict.fromkeys(name for side in reversed(sides) for result in side for name in result.tool_use.share)
    shares = {name: [mean([each.tool_use.share.get(name, 0.0) for each in side]) for side in sides] for name in names}
    rows: list[list[Cell]] = [
        [name, percent(first), percent(last), change(first, last)]
        for name, (first, last) in sorted(shares.items(), key=lambda item: -(item[1][1] or 0.0))
    ]
    rates = [mean([result.tool_use.error_rate for result in side]) for side in sides]
    rows.append(["tool errors", *map(percent, rates), blocks.shift(change(*rates), good="-")])
    first, last = (fmean(result.turns_mean for result in side) for side in sides)
    rows.append(["turns a run", f"{first:.2f}", f"{last:.2f}", f"{last - first:+.2f}"])
    return blocks.table("Use of tools, share of turns", ("tool", "before", "after", "change"), rows, totals=2)


# --- curves -----------------------------------------------------------------------------------------------------------


def progress(metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]) -> Block | None:
    """Training reward and held-out success by step, side by side."""
    counted = [step for step in metrics if step.trajectories_error < max(1, step.trajectories)]
    points = [(step.step, step.reward_mean) for step in counted]
    lines, note = [line("reward", buckets(points, blocks.LINE_POINTS))], "mean of the sampled runs"
    if len(points) > _SMOOTH_POINTS:
        smooth = buckets(points, _SMOOTH_POINTS)
        lines = [{**lines[0], "faint": True}, line("reward", smooth)]
        note = f"bold: mean of {round(len(points) / len(smooth))} steps"
    return charts(
        chart("Training reward", note, lines),
        chart("Held-out success", "tasks kept out of training", held_out(evaluations)),
    )


def held_out(evaluations: Sequence[EvaluationResult]) -> list[Block]:
    """A line a set and sampling; sets evaluated only before and after are left to the table if any has more steps."""
    found: list[tuple[str, str, list[Point]]] = []
    for kinds in by_set(evaluations).values():
        for kind, results in kinds.items():
            steps = dict.fromkeys(result.step or 0 for result in results)
            points: list[Point] = [
                (step, success([each for each in results if each.step == step]) or 0.0) for step in steps
            ]
            found.append((kind, results[0].set_name, points))
    least = min(3, max((len(points) for _, _, points in found), default=0))
    found = [each for each in found if len(each[2]) >= least]
    several = len({set_name for _, set_name, _ in found}) > 1
    return [
        line(f"{set_name} {kind}" if several else kind, points, place % blocks.COLORS + 1)
        for place, (kind, set_name, points) in enumerate(found)
    ]


def tools(metrics: Sequence[StepMetrics]) -> Block | None:
    """Tool shares stacked over steps, tool error rate and turns a run, all from the training runs."""
    used = [step for step in metrics if step.tool_use.turns > 0]
    weights: Counter[str] = Counter()
    for step in used:
        weights.update(step.tool_use.share)
    malformed = weights.pop("malformed", None) is not None
    ranked = sorted(weights, key=lambda name: -weights[name])
    bands = [(name, {name}, place) for place, name in enumerate(ranked[:_MOST_BANDS], 1)]
    bands += [("other tools", set(ranked[_MOST_BANDS:]), blocks.COLORS)] if ranked[_MOST_BANDS:] else []
    bands += [("malformed", {"malformed"}, blocks.BAD)] if malformed else []
    lines = []
    for name, members, color in bands:
        shares = [(step.step, sum(step.tool_use.share.get(member, 0.0) for member in members)) for step in used]
        lines.append(line(name, buckets(shares, _BAND_POINTS), color))
    errors = [(step.step, step.tool_use.error_rate) for step in used]
    wrong = "malformed, invalid or failed, share of turns"
    return charts(
        chart("Tools chosen", "share of turns in training runs", lines, stacked=True),
        curve("Tool errors", wrong, errors, blocks.BAD, as_percent=True),
        curve("Turns a run", "mean of finished runs", [(step.step, step.turns_mean) for step in used], 3),
    )


def schedules(metrics: Sequence[StepMetrics]) -> Block | None:
    """The stage of the tasks, and the probabilities of simulated and degraded tools, over steps."""
    found: dict[str, list[Point]] = {}
    for step in metrics:
        for name, value in step.schedules.items():
            found.setdefault(name, []).append((step.step, value))
    shown = []
    for name, points in found.items():
        of_tool = name != "training.stages"
        shown.append(curve(name, "probability" if of_tool else "the stage", points, 4, as_percent=of_tool))
    return charts(*shown)


def waits(metrics: Sequence[StepMetrics], timings: Sequence[StepTiming]) -> Block | None:
    """Seconds a step, what of them is spent on rollouts and on the slowest ones, and how far rollouts run ahead."""
    by_step = [(timing.step, timing) for timing in timings]
    staleness = [(step.step, float(step.step - 1 - step.policy_version)) for step in metrics]
    return charts(
        _curve("Seconds a step", "wall clock", by_step, "duration_s", 8),
        _curve("Wait for rollouts", "seconds before the update", by_step, "rollout_s", 1),
        _curve("Slowest quarter", "seconds after three quarters had ended", by_step, "tail_s", 5),
        _curve("Rollouts under way", "mean share of a step's", by_step, "busy", 2, as_percent=True),
        curve("Staleness", "versions", staleness, 7) if any(value for _, value in staleness) else None,
    )


def update(metrics: Sequence[StepMetrics]) -> Block | None:
    """KL, clip fraction, gradient norm and shared tokens, small; and how far rollouts were from the learner."""
    by_step = [(step.step, step) for step in metrics]
    return charts(
        _curve("KL to the reference", "k3, per token", by_step, "kl", 4),
        _curve("Entropy", "nats per token", by_step, "entropy", 7),
        _curve("Sampler gap", "learner and sampler apart, nats per token", by_step, "logprob_gap", 1),
        _curve("Clipped tokens", "share of tokens", by_step, "clip_fraction", 2, as_percent=True),
        _curve("Gradient norm", "before clipping", by_step, "grad_norm", 5),
        _curve("Tokens for each unique one", "how much the rows of an update share", by_step, "sharing", 3),
        _curve("Effective sample", "share of the stale rows", by_step, "sample_share", 4, as_percent=True),
        _curve("Gradient's cosine", "to the on-policy one", by_step, "gradient_cosine", 3),
        _curve("KL to the sampler", "nats per token", by_step, "sampler_kl", 6),
    )


def streams(metrics: Sequence[StepMetrics]) -> list[Block | None]:
    """Use of tools by interleaved policies, as ARTIST analyzes it (arXiv 2505.01441); [] without any such policy."""
    measured = [(step.step, step.streams) for step in metrics if step.streams]
    if not measured:
        return []
    answered = [(step, found.answered / max(1, found.trajectories)) for step, found in measured]
    reasoning = f"{measured[-1][1].unit} around the call"
    return [
        text("Calls of the policy:", "soft"),
        charts(
            _curve("Reasoning a call", reasoning, measured, "reasoning_per_call", 1),
            _curve("Calls to the answer", "of runs that answer", measured, "steps_to_answer", 4),
            curve("Runs that answer", "share", answered, 5, as_percent=True),
        ),
    ]


def _curve(
    title: str, note: str, records: Sequence[tuple[int, object]], name: str, color: int, *, as_percent: bool = False
) -> Block | None:
    """The field `name` of records by step, where it was measured; None if it never was."""
    points = [(step, value) for step, record in records if (value := getattr(record, name)) is not None]
    return curve(title, note, points, color, as_percent=as_percent) if points else None


def parts(metrics: Sequence[StepMetrics]) -> Block | None:
    """The mean of each part of the reward by step, in the reward's own units; None if the reward has one part."""
    names = dict.fromkeys(name for step in metrics for name in step.reward_parts)
    if len(names) < 2:
        return None
    found = []
    for place, name in enumerate(names):
        points = [(step.step, step.reward_parts.get(name, 0.0)) for step in metrics if step.reward_parts]
        found.append(curve(name.replace("_", " "), "mean of the runs", points, place % blocks.COLORS + 1))
    return blocks.fold("Parts of the reward", charts(*found))


def counts(metrics: Sequence[StepMetrics]) -> Block | None:
    """What went into training and what did not, each with its meaning."""

    def total(name: str) -> int:
        return sum(getattr(step, name) for step in metrics)

    def sums(name: str) -> Iterable[tuple[str, int]]:
        return sum((Counter(getattr(step, name)) for step in metrics), Counter()).items()

    lost = "an endpoint, tool or sandbox failed; never a reward of 0"
    rows = [
        ("Training trajectories", total("trajectories"), "runs of the agent on training tasks"),
        ("Trajectories lost to errors", total("trajectories_error"), lost),
        ("Trajectories run again", total("trajectories_retried"), "broke down at least once before they ended"),
        *(("Trajectories ended by a limit", count, reason.replace("_", " ")) for reason, count in sums("limits")),
        ("Request failures", total("request_failures"), "attempts of single requests, tried again"),
        ("Replies repaired", total("replies_repaired"), "not JSON until they were repaired"),
        ("Groups", total("groups"), "all runs of one task at one step"),
        ("Groups, uniform", total("groups_uniform"), "equal rewards: no advantage, the KL term stays"),
        ("Groups, broken", total("groups_broken"), "fewer than two finished runs: left out"),
        ("Training rows", total("rows"), "what the policy sampled, as it was trained on"),
        *(("Branching", count, reason) for reason, count in sums("branches")),
        *(("Rows split from a conversation", count, reason) for reason, count in sums("rows_split")),
        *(("Samples left out", count, reason) for reason, count in sums("samples_left_out")),
    ]
    cells = [(name, f"{count:,}", cell(note, "soft")) for name, count, note in rows if count]
    caption = "Sums over all steps. What is not listed did not happen."
    return blocks.table(caption, ("What", "Count", "Meaning"), cells, last=1)
