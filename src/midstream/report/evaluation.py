"""Evaluations in blocks: one or several of them, before and after training, all of a run, and task by task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from midstream.core.metrics import EvaluationResult, StreamMetrics
from midstream.core.trajectory import OUTER_LIMITS, Trajectory
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, Section, cell, shift, text
from midstream.report.numbers import change, counted, dollars, mean, number, percent, shorten, troubles
from midstream.report.trajectory import outcome_words, stopped
from midstream.runs import RunDirectory
from midstream.runs.segments import Segment, evaluation_name, result_name

_MOST_TOOLS = 16
_TEXT_LIMIT = 300


def where(result: EvaluationResult) -> str:
    """The set by name, with its split where that says more."""
    return result.set_name if result.set_name == result.split else f"{result.set_name}/{result.split}"


def success(results: Sequence[EvaluationResult], family: str | None = None) -> float | None:
    """Mean success over `results` (seeds of one sampling), of one family or of all; None if nothing was evaluated."""
    if family is None:
        return mean([result.success for result in results])
    return mean([result.by_family[family].success for result in results if family in result.by_family])


def label(results: Sequence[EvaluationResult], otherwise: str) -> str:
    """What was evaluated, for a column head: "trained, step 300"."""
    if not results:
        return otherwise
    step = results[0].step
    return results[0].policy + (f", step {step}" if step is not None else "")


def by_set(evaluations: Iterable[EvaluationResult]) -> dict[str, dict[str, list[EvaluationResult]]]:
    """The results with a step in order of step, by set and by "sampled" or "greedy", the largest set first.

    Any temperature counts as sampled.
    """
    found: dict[str, dict[str, list[EvaluationResult]]] = {}
    for result in sorted(evaluations, key=lambda result: result.step or 0):
        if result.step is not None:
            kinds = found.setdefault(where(result), {"sampled": [], "greedy": []})
            kinds["greedy" if result.sampling == "greedy" else "sampled"].append(result)
    sets = {name: {kind: results for kind, results in kinds.items() if results} for name, kinds in found.items()}
    return dict(sorted(sets.items(), key=lambda item: -next(iter(item[1].values()))[0].tasks))


def ends(results: Sequence[EvaluationResult]) -> tuple[list[EvaluationResult], list[EvaluationResult]]:
    """The results of one set and kind before (the first evaluated step) and after (the last, if it is another)."""
    steps = [result.step for result in results]
    before = [result for result in results if result.step == steps[0]]
    return before, [result for result in results if result.step == steps[-1] != steps[0]]


def headline(evaluations: Iterable[EvaluationResult]) -> tuple[str, list[EvaluationResult], list[EvaluationResult]]:
    """The kind of sampling of the largest set, greedy if that was evaluated, and its results before and after."""
    kind, results = next(([*kinds.items()][-1] for kinds in by_set(evaluations).values()), ("", []))
    return kind, *ends(results)


# --- one or several evaluations ---------------------------------------------------------------------------------------


def evaluated_trajectories(run: RunDirectory, result: EvaluationResult) -> Segment:
    """The trajectories of one evaluation, read when they are used."""
    # A training run evaluates a set at several steps, so there the step is part of the name.
    step = result.step if run.info().evaluation is None else None
    return run.trajectories.open(result_name(result.set_name, result.sampling, step))


def evaluation_page(results: Sequence[EvaluationResult]) -> tuple[str, list[Section]]:
    """The lead and the sections of an evaluation of one or several sets; `results` may be empty."""
    tiles = [
        blocks.tile(
            f"Success, {_named(result, results)}",
            percent(result.success),
            f"95%: {' to '.join(map(percent, result.interval))}" if result.interval else counted(result.tasks, "task"),
        )
        for result in results
    ]
    errors = sum(result.errors for result in results)
    tiles.append(blocks.tile("Without a result", f"{errors:,}", "counted as wrong"))
    lead = ". ".join(summary_line(result) for result in results) or "No set has been evaluated yet"
    found = [
        success_table(results),
        trials_table(results),
        family_table(results),
        effort_table({_named(result, results): result for result in results}, "What a run took"),
        tool_table(results),
        parts_table(results),
    ]
    return f"{lead}.", [
        ("summary", "At a glance", [blocks.tiles(tiles if results else [])]),
        ("results", "Results", found if results else [text("Nothing was evaluated.", "soft")]),
        ("notes", "How it was scored, and what went wrong", [blocks.facts(_notes(results) if results else [])]),
    ]


def summary_line(result: EvaluationResult) -> str:
    """One evaluation in a line, for logs."""
    between = f" (95% interval {_between(result, ' to ')})" if result.interval else ""
    judged = f", {result.metric}" if result.judged else ""
    errors = f", {loss(result)}" if result.errors else ""
    size = counted(result.tasks, "task") + (f" x {counted(result.trials, 'trial')}" if result.trials > 1 else "")
    return f"{result.set_name} {result.sampling}: success {percent(result.success)}{between}{judged} of {size}{errors}"


def success_table(results: Sequence[EvaluationResult]) -> Block | None:
    """Success with its interval; by a rule and by a judge in two columns, of which a judged set may fill both."""
    left = ["set", "policy"] if any(result.step is not None for result in results) else ["set"]
    by_rule = "by rule" if any(result.judged for result in results) else "success"
    rows: list[dict[str, Cell]] = []
    for result in results:
        headline = cell(f"{percent(result.success)}  {_between(result, '–')}".strip(), "strong")
        rows.append(
            {
                "set": _named(result, results),
                "policy": result.policy if "policy" in left else "",
                "step": "" if result.step is None else str(result.step),
                "tasks": f"{result.tasks:,}" + (f" x {result.trials}" if result.trials > 1 else ""),
                by_rule: percent(result.rule_success) if result.judged else headline,
                "by judge": headline if result.judged else "-",
                "differ": "-" if result.disagreements is None else f"{result.disagreements:,}",
                "errors": cell(f"{result.errors:,}", "warn" if result.errors else ""),
                "without errors": percent(result.success_without_errors) if result.errors else "-",
            }
        )
    return _filled("Success (95% interval over tasks)", rows, left)


def _filled(caption: str, rows: Sequence[Mapping[str, Cell]], left: Collection[str]) -> Block | None:
    """A table of rows by column, without the columns that hold nothing; those of `left` hold text."""
    every = rows[0] if rows else {}
    heads = [head for head in every if head in left or any(row[head] not in ("", "-") for row in rows)]
    return blocks.table(caption, heads, ([row[head] for head in heads] for row in rows), left=len(left))


def trials_table(results: Sequence[EvaluationResult]) -> Block | None:
    """Several trials a task: their mean, the most frequent answer, the best of k."""
    rows = [
        {
            "set": _named(result, results),
            "k": str(result.trials),
            "avg@k": percent(result.success),
            "sd": percent(result.deviation),
            "majority@k": percent(result.majority),
            "pass@k: the best": "\n".join(f"@{k} {percent(share)}" for k, share in result.pass_at.items() if k > 1),
            "pass^k: all of k": "\n".join(f"^{k} {percent(share)}" for k, share in result.pass_all.items() if k > 1),
        }
        for result in results
        if result.trials > 1
    ]
    return _filled("Over the k trials of each task", rows, ["set"])


def family_table(results: Sequence[EvaluationResult]) -> Block | None:
    """Success by family, of the sets that have several; a family opens what failed of it."""
    rows = []
    for result in results:
        if len(result.by_family) > 1:
            part = evaluation_name(result_name(result.set_name, result.sampling))
            for place, (name, family) in enumerate(result.by_family.items()):
                numbers = (f"{family.tasks:,}", percent(family.success), f"{family.turns_mean:.2f}")
                failed = cell(name, part=part, filters={"reward": "wrong", "family": name})
                rows.append(["" if place else _named(result, results), failed, *numbers])
    return blocks.table("By family", ("set", "family", "tasks", "success", "turns"), rows, left=2)


def effort_table(results: Mapping[str, EvaluationResult], title: str) -> Block | None:
    """What a run of a task took, by a name for each result; of interleaved policies also what a call took."""
    rows = []
    for name, result in results.items():
        runs, streams = max(1, result.tasks * result.trials), result.streams or StreamMetrics()
        reasoning = streams.reasoning_per_call
        rows.append(
            {
                "": name,
                "turns": f"{result.turns_mean:.2f}",
                "tool calls": f"{sum(result.tool_use.calls.values()) / runs:.2f}",
                "tool errors": percent(result.tool_use.error_rate),
                "tokens in": number(result.prompt_tokens / runs),
                "tokens out": number(result.completion_tokens / runs),
                "cost": dollars(result.cost_usd / runs) if result.cost_usd else "-",
                "reasoning a call": "-" if reasoning is None else f"{number(reasoning)} {streams.unit}",
                "calls to an answer": number(streams.steps_to_answer),
                "answered": percent(streams.answered / streams.trajectories) if streams.trajectories else "-",
            }
        )
    return _filled(title, rows, [""])


def tool_table(results: Sequence[EvaluationResult]) -> Block | None:
    """How often each tool was called, and the share of turns that went to it."""
    rows = []
    for result in results:
        use = result.tool_use
        weight = {name: (-use.calls.get(name, 0), -use.share.get(name, 0.0), name) for name in {*use.calls, *use.share}}
        names = sorted(weight, key=lambda name: weight[name])
        shown = [f"{name} {use.calls.get(name, 0):,} ({use.share.get(name, 0.0):.0%})" for name in names[:_MOST_TOOLS]]
        more = [f"and {counted(len(names) - _MOST_TOOLS, 'other')}"] if len(names) > _MOST_TOOLS else []
        rows.append([_named(result, results), ", ".join([*shown, *more]) or "-"])
    return blocks.table("Calls by tool", ("set", "calls (share of turns)"), rows, left=2)


def parts_table(results: Sequence[EvaluationResult]) -> Block | None:
    """The parts of rewards that have several; a rule next to a judge has its column already."""
    rows = [
        [_named(result, results), ", ".join(f"{name} {number(value)}" for name, value in result.reward_parts.items())]
        for result in results
        if len(result.reward_parts) > 1 and not result.judged
    ]
    return blocks.table("Parts of the score", ("set", "means"), rows, left=2)


def _named(result: EvaluationResult, results: Sequence[EvaluationResult]) -> str:
    """The set, with the sampling where `results` have several."""
    several = len({other.sampling for other in results}) > 1
    return result.set_name + (f" {result.sampling}" if several else "")


def _notes(results: Sequence[EvaluationResult]) -> list[tuple[str, str]]:
    """The source of the scores, the interval's method, the sampling, and what went wrong."""
    metrics: dict[str, list[str]] = {}
    for result in results:
        metrics.setdefault(result.metric, []).append(result.set_name)
    scored = [name if len(metrics) == 1 else f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in metrics.items()]
    methods = dict.fromkeys(result.interval_method for result in results if result.interval_method)
    tokens = sum(result.prompt_tokens + result.completion_tokens for result in results)
    cost = sum(result.cost_usd for result in results)
    notes = [("scored by", "; ".join(scored)), ("interval", ", ".join(methods))]
    notes.append(("spent", f"{tokens:,} tokens" + (f", {dollars(cost)}" if cost else "")))
    if len({result.sampling for result in results}) == 1:
        notes.append(("sampling", results[0].sampling))
    for result in results:
        name = f"{result.set_name} {result.sampling}"
        if result.learned:
            notes.append(("learned", f"{result.set_name}: tasks that the agent learned from ({result.learned})"))
        if result.errors:
            notes.append(("errors", f"{name}: {loss(result)}"))
            notes += [("", f"{count:,} x {shorten(reason, 160)}") for reason, count in result.error_reasons.items()]
        if met := {reason: result.stop_reasons[reason] for reason in OUTER_LIMITS if reason in result.stop_reasons}:
            parts = ", ".join(f"{reason.removesuffix('_limit')} {count:,}" for reason, count in met.items())
            runs = counted(result.tasks * result.trials, "run")
            notes.append(("limits", f"{name}: {sum(met.values()):,} of {runs} ended by a limit ({parts})"))
        if result.replies_cached:
            words = f"{counted(result.replies_cached, 'reply', 'replies')} of an earlier evaluation"
            notes.append(("cached", f"{name}: {words}, which are no new evidence where nothing else changed"))
        if result.leaks:
            words = f"{counted(result.leaks, 'run')} with a search that repeats the question almost word for word"
            notes.append(("leaks", f"{name}: {words}"))
    return [*notes, ("requests", _troubles(results))]


def _troubles(results: Sequence[EvaluationResult]) -> str:
    return troubles(sum(r.request_failures for r in results), sum(r.replies_repaired for r in results))


def loss(result: EvaluationResult) -> str:
    """How many tasks have no result, and what success is without them."""
    runs = counted(result.tasks * result.trials, "run" if result.trials > 1 else "task")
    return (
        f"{result.errors:,} of {runs} without a result, counted as wrong "
        f"({percent(result.success_without_errors)} without them)"
    )


def _between(result: EvaluationResult, joint: str) -> str:
    """The interval in percent, its ends joined."""
    return joint.join(f"{end * 100:.1f}" for end in result.interval or ())


# --- the evaluations of a run that learns -----------------------------------------------------------------------------


def before_and_after(name: str, kinds: Mapping[str, Sequence[EvaluationResult]]) -> list[Block | None]:
    """Success by family and in all on one set, before and after, and what is missing."""
    sides = {kind: ends(results) for kind, results in kinds.items()}
    first, last = ([result for side in sides.values() for result in side[place]] for place in (0, 1))
    both = [*first, *last]
    names = ["family", "tasks", *(f"{kind} {head}" for kind in sides for head in ("before", "after", "change"))]
    rows: list[list[Cell]] = []
    for family in (*dict.fromkeys(name for result in both for name in result.by_family), None):  # None: all tasks
        sets = both if family is None else [each.by_family[family] for each in both if family in each.by_family]
        cells: list[Cell] = ["mean" if family is None else family, f"{max(each.tasks for each in sets):,}"]
        for before, after in sides.values():
            old, new = success(before, family), success(after, family)
            cells += [percent(old), cell(percent(new), "strong"), shift(change(old, new))]
        rows.append(cells)
    caption = f"Success on {name}: {label(first, 'before')} -> {label(last, 'nothing yet')}"
    lost = [f"{result.policy}, {result.sampling}: {loss(result)}" for result in both if result.errors]
    return [blocks.table(caption, names, rows, totals=1), text("; ".join(lost), "warn")]


def all_evaluations(evaluations: Sequence[EvaluationResult]) -> list[Block | None]:
    """Every evaluation of a run in the order they were made, and what went wrong in all."""
    return [success_table(evaluations), text(_troubles(evaluations), "warn")]


# --- the tasks of an evaluation ---------------------------------------------------------------------------------------


def task_list(trajectories: Iterable[Trajectory]) -> Iterator[Block | None]:
    """Runs of an evaluation in order, each with score, question and answer; `midstream show` takes each id."""
    for trajectory in trajectories:
        reward = trajectory.reward
        tone = "up" if reward and reward.value >= 1 else "warn" if trajectory.error else "bad"
        yield text(f"{'-' if reward is None else number(reward.value)}  {trajectory.id}", tone)
        rows: list[tuple[str, Cell]] = [("question", shorten(trajectory.question, _TEXT_LIMIT))]
        if trajectory.error:
            rows.append(("error", cell(trajectory.error.line, "warn")))
        if "success" in trajectory.outcome:
            rows.append(("outcome", "; ".join(outcome_words(trajectory.outcome))))
        else:
            answer = "(none)" if trajectory.answer is None else trajectory.answer
            rows.append(("answer", shorten(answer, _TEXT_LIMIT)))
            rows.append(("gold", shorten("-" if trajectory.gold is None else trajectory.gold, _TEXT_LIMIT)))
        if trajectory.answer is None and not trajectory.error:
            rows.append(("stopped", stopped(trajectory)))
        yield blocks.facts(rows)


def task_records(evaluation: Mapping[str, Any], trajectories: Iterable[Trajectory]) -> Iterator[Block]:
    """The same for programs, each with the fields of `evaluation`."""
    for trajectory in trajectories:
        yield {
            **evaluation,
            **trajectory.model_dump(include={"id", "task_id", "question", "answer", "gold"}),
            "trial": trajectory.rollout_index,
            "score": None if trajectory.reward is None else trajectory.reward.value,
            "error": trajectory.error and trajectory.error.message,
        }
