"""Results of evaluations as tables that fit 80 columns: before and after, by family, by task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult
from midstream.core.trajectory import Trajectory
from midstream.report.numbers import counted, dollars, mean, number, percent, shorten, troubles, visible
from midstream.report.turn_rows import broken, fields, outcome_words, plain, stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One set before and after training; each side holds every sampling that was evaluated there."""

    set_name: str
    split: str
    before: tuple[EvaluationResult, ...]
    after: tuple[EvaluationResult, ...]


def where(result: EvaluationResult | Comparison) -> str:
    """The set by name, with its split where that says more."""
    return result.set_name if result.set_name == result.split else f"{result.set_name}/{result.split}"


def is_greedy(result: EvaluationResult) -> bool:
    """Whether the evaluation took the most likely token; any temperature counts as sampled."""
    return result.sampling == "greedy"


def pick(results: Iterable[EvaluationResult], *, greedy: bool) -> list[EvaluationResult]:
    """The greedy results, or the sampled ones."""
    return [result for result in results if is_greedy(result) == greedy]


def families(results: Iterable[EvaluationResult]) -> list[str]:
    """Every family named, in order of first appearance."""
    return list(dict.fromkeys(name for result in results for name in result.by_family))


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


def curves(evaluations: Sequence[EvaluationResult], *, greedy: bool) -> dict[str, list[EvaluationResult]]:
    """One curve a set, by "set/split", in order of step: results with a step, all over the same number of tasks.

    A set evaluated at several sizes (a quick check while training, all tasks at the end) gives the curve of the size
    that covers the most steps, the larger one if two cover as many.
    """
    sizes: dict[tuple[str, int], list[EvaluationResult]] = {}
    for result in pick(evaluations, greedy=greedy):
        if result.step is not None:
            sizes.setdefault((f"{result.set_name}/{result.split}", result.tasks), []).append(result)
    best: dict[str, list[EvaluationResult]] = {}
    for name, tasks in sorted(sizes, key=lambda key: key[1]):
        found = sorted(sizes[name, tasks], key=lambda result: result.step or 0)
        if len(_steps(found)) >= len(_steps(best.get(name, []))):
            best[name] = found
    return best


def _steps(results: Sequence[EvaluationResult]) -> set[int | None]:
    return {result.step for result in results}


def comparisons(evaluations: Sequence[EvaluationResult]) -> list[Comparison]:
    """Before (first evaluated step) and after (last) of every set, the set with the most tasks first.

    A set evaluated at one step only has no `after`. Results without a step belong to no point of the run (other
    policies, random choice): see `others`.
    """
    by_sampling = [curves(evaluations, greedy=greedy) for greedy in (True, False)]
    found = []
    for name in dict.fromkeys(name for by_set in by_sampling for name in by_set):
        before: list[EvaluationResult] = []
        after: list[EvaluationResult] = []
        for results in (by_set[name] for by_set in by_sampling if name in by_set):
            first, last = results[0].step, results[-1].step
            before += [result for result in results if result.step == first]
            after += [result for result in results if result.step == last != first]
        set_name, split = before[0].set_name, before[0].split
        found.append(Comparison(set_name=set_name, split=split, before=tuple(before), after=tuple(after)))
    return sorted(found, key=lambda comparison: -comparison.before[0].tasks)


def others(evaluations: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """Results that belong to no step of the run: other policies on the same tasks."""
    return [result for result in evaluations if result.step is None]


_NAME_WIDTH = 20
_MOST_TOOLS = 16


def evaluation_view(results: Sequence[EvaluationResult]) -> Group:
    """Everything about some evaluations: success, several trials, families, effort, tools, and what to know of them."""
    parts: list[RenderableType] = [_success_table(results)]
    if any(one.trials > 1 for one in results):
        parts.append(_trials_table(results))
    if any(len(one.by_family) > 1 for one in results):
        parts.append(_family_table(results))
    parts += [_effort_table(results), _tool_table(results)]
    if any(one.streams for one in results):
        parts.append(_stream_table(results))
    if any(_in_parts(one) for one in results):
        parts.append(_parts_table(results))
    notes = _notes(results)
    if notes:
        parts.append(Text("\n".join(notes)))
    return Group(*parts)


def summary_line(result: EvaluationResult) -> str:
    """One evaluation in a line, for logs."""
    between = f" (95% interval {_between(result, ' to ')})" if result.interval else ""
    judged = f", {result.metric}" if result.judged else ""
    errors = f", {_lost(result)}" if result.errors else ""
    size = counted(result.tasks, "task") + (f" x {counted(result.trials, 'trial')}" if result.trials > 1 else "")
    return f"{result.set_name} {result.sampling}: success {percent(result.success)}{between}{judged} of {size}{errors}"


def plain_table(title: Text | None = None) -> Table:
    """A table in the style that all of them have."""
    return Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)


def _success_table(results: Sequence[EvaluationResult]) -> Table:
    """Success with its interval; by a rule and by a judge in two columns, of which a judged set may fill both."""
    ruled = any(not one.judged or one.rule_success is not None for one in results)
    judged, lost = any(one.judged for one in results), any(one.errors for one in results)
    table = _set_table("Success (95% interval over tasks)")
    table.add_column("tasks", justify="right", no_wrap=True)
    # Beside each other the two would not leave room for the rest.
    joint = "\n" if ruled and judged else "  "
    for head, there in (("by rule", ruled), ("by judge", judged)):
        if there:
            table.add_column(head, justify="right", no_wrap=True)
    if any(one.disagreements is not None for one in results):
        table.add_column("differ", justify="right", no_wrap=True)
    table.add_column("errors", justify="right", no_wrap=True)
    if lost:
        table.add_column("without\nerrors", justify="right", no_wrap=True)
    for one in results:
        between = joint + _between(one, "–") if one.interval else ""
        headline = Text(percent(one.success), "bold").append(between, "not bold")
        trials = f"{joint.rstrip(' ') or ' '}x {one.trials}" if one.trials > 1 else ""
        cells: list[RenderableType] = [f"{one.tasks:,}{trials}"]
        if ruled:
            cells.append(Text(percent(one.rule_success)) if one.judged else headline)
        if judged:
            cells.append(headline if one.judged else "-")
        if any(each.disagreements is not None for each in results):
            cells.append("-" if one.disagreements is None else f"{one.disagreements:,}")
        cells.append(Text(f"{one.errors:,}", "yellow" if one.errors else ""))
        if lost:
            cells.append(percent(one.success_without_errors) if one.errors else "-")
        table.add_row(_named(one, results), *cells)
    return table


def _trials_table(results: Sequence[EvaluationResult]) -> Table:
    """Several trials a task: their mean, the most frequent answer, the best of k."""
    table = _set_table("Over the k trials of each task")
    for head in ("k", "avg@k", "sd", "majority@k"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("pass@k:\nthe best", "pass^k:\nall of k"):
        table.add_column(head, no_wrap=True)
    for one in results:
        if one.trials > 1:
            best, every = (
                "\n".join(f"{mark}{k} {percent(share)}" for k, share in shares.items() if k > 1)
                for mark, shares in (("@", one.pass_at), ("^", one.pass_all))
            )
            means = (percent(one.success), percent(one.deviation), percent(one.majority))
            table.add_row(_named(one, results), str(one.trials), *means, best, every or "-")
    return table


def _family_table(results: Sequence[EvaluationResult]) -> Table:
    """Success by family, where there are several."""
    table = _set_table("By family")
    table.add_column("family", overflow="fold")
    for head in ("tasks", "success", "turns"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in results:
        if len(one.by_family) < 2:
            continue
        table.add_section()
        for place, (name, family) in enumerate(one.by_family.items()):
            numbers = (f"{family.tasks:,}", percent(family.success), f"{family.turns_mean:.2f}")
            table.add_row(_named(one, results) if place == 0 else "", Text(visible(name)), *numbers)
    return table


def _effort_table(results: Sequence[EvaluationResult]) -> Table:
    """What the runs took: turns, tool errors, tokens, cost; and how many may have searched for the question."""
    table = _set_table("What it took")
    for head in ("turns\na run", "tool\nerrors", "tokens\nin", "tokens\nout", "cost", "leaks"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in results:
        table.add_row(
            _named(one, results),
            f"{one.turns_mean:.2f}",
            percent(one.tool_use.error_rate),
            number(one.prompt_tokens),
            number(one.completion_tokens),
            dollars(one.cost_usd) if one.cost_usd else "-",
            Text(f"{one.leaks:,}", "yellow" if one.leaks else ""),
        )
    return table


def _tool_table(results: Sequence[EvaluationResult]) -> Table:
    """How often each tool was called, and the share of turns that went to it."""
    table = _set_table("Calls by tool")
    table.add_column("calls (share of turns)", overflow="fold")
    for one in results:
        use = one.tool_use
        names = sorted({*use.calls, *use.share}, key=lambda name: (-use.calls.get(name, 0), -use.share.get(name, 0.0)))
        said = [f"{name} {use.calls.get(name, 0):,} ({use.share.get(name, 0.0):.0%})" for name in names[:_MOST_TOOLS]]
        if rest := names[_MOST_TOOLS:]:
            calls, share = (sum(of.get(name, 0) for name in rest) for of in (use.calls, use.share))
            said.append(f"{counted(len(rest), 'other')} {calls:,} ({share:.0%})")
        table.add_row(_named(one, results), Text(visible(", ".join(said)) or "-"))
    return table


def _stream_table(results: Sequence[EvaluationResult]) -> Table:
    """How interleaved policies came to their calls and answers."""
    units = {one.streams.unit for one in results if one.streams}
    table = _set_table(f"Calls of the policy (reasoning in {' or '.join(sorted(units))})")
    for head in ("calls\na run", "with a\nresult", "reasoning\na call", "calls to\nan answer", "runs that\nanswer"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in results:
        if one.streams:
            answering = one.streams.answered / max(1, one.streams.trajectories)
            table.add_row(
                _named(one, results),
                f"{one.streams.calls_mean:.2f}",
                percent(one.streams.correct_rate),
                number(one.streams.reasoning_per_call),
                number(one.streams.steps_to_answer),
                percent(answering),
            )
    return table


def _parts_table(results: Sequence[EvaluationResult]) -> Table:
    """The mean of each part of the reward, in its own units."""
    table = _set_table("Parts of the score")
    table.add_column("part", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    for one in results:
        if not _in_parts(one):
            continue
        table.add_section()
        for place, (name, value) in enumerate(one.reward_parts.items()):
            table.add_row(_named(one, results) if place == 0 else "", Text(visible(name)), number(value))
    return table


def _in_parts(result: EvaluationResult) -> bool:
    """Whether the score has parts of its own; what a rule says beside a judge has its column already."""
    return len(result.reward_parts) > 1 and not result.judged


def _set_table(title: str) -> Table:
    """A table that begins with the set's name."""
    table = plain_table(Text(title))
    table.add_column("set", overflow="fold", max_width=_NAME_WIDTH)
    return table


def _named(result: EvaluationResult, results: Sequence[EvaluationResult]) -> Text:
    """The set, with the sampling where there is more than one."""
    return Text(visible(result.set_name + (f" {result.sampling}" if _samplings(results) > 1 else "")))


def _samplings(results: Sequence[EvaluationResult]) -> int:
    return len({one.sampling for one in results})


def _notes(results: Sequence[EvaluationResult]) -> list[str]:
    """Who gave the scores, under which sampling, and what went wrong."""
    metrics: dict[str, list[str]] = {}
    for one in results:
        metrics.setdefault(visible(one.metric), []).append(visible(one.set_name))
    scored = [name if len(metrics) == 1 else f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in metrics.items()]
    notes = [f"scored by  {'; '.join(scored)}"] if scored else []
    methods = dict.fromkeys(visible(one.interval_method) for one in results if one.interval_method)
    notes += [f"interval   {', '.join(methods)}"] if methods else []
    if _samplings(results) == 1:
        notes.append(f"sampling   {visible(results[0].sampling)}")
    lost = [one for one in results if one.errors]
    for one in lost:
        notes.append(f"errors     {visible(f'{one.set_name} {one.sampling}')}: {_lost(one)}")
        notes += [f"           {count:,} x {shorten(visible(why), 160)}" for why, count in one.error_reasons.items()]
    if any(one.leaks for one in results):
        notes.append("leaks      runs in which a search repeated the question almost word for word")
    failures, repaired = (sum(getattr(one, key) for one in results) for key in ("request_failures", "replies_repaired"))
    trouble = troubles(failures, repaired)
    return [*notes, f"requests   {trouble}"] if trouble else notes


def _lost(result: EvaluationResult) -> str:
    runs = counted(result.tasks * result.trials, "run" if result.trials > 1 else "task")
    return (
        f"{result.errors:,} of {runs} without a result, counted as wrong "
        f"({percent(result.success_without_errors)} without them)"
    )


def _between(result: EvaluationResult, joint: str) -> str:
    """The interval in percent, its ends joined."""
    return joint.join(f"{end * 100:.1f}" for end in result.interval or ())


def evaluation_table(evaluations: Sequence[EvaluationResult]) -> Table:
    """One line an evaluation: a training run's, step by step."""
    sets = {where(result) for result in evaluations}
    one_set = len(sets) == 1
    table = plain_table(Text(visible(f"Evaluations on {min(sets)}" if one_set else "Evaluations")))
    table.add_column("step", justify="right")
    for head in ("policy", "sampling") if one_set else ("policy", "sampling", "set"):
        table.add_column(head)
    kinds = [judged for judged in (False, True) if any(one.judged == judged for one in evaluations)]
    for judged in kinds:
        table.add_column("judged" if judged else "success", justify="right")
    for head in ("tasks", "errors", "tool errors", "turns"):
        table.add_column(head, justify="right")
    for result in evaluations:
        names = (result.policy, result.sampling) + (() if one_set else (where(result),))
        headline = Text(percent(result.success), "bold" if is_greedy(result) else "")
        table.add_row(
            "-" if result.step is None else str(result.step),
            *(Text(visible(name)) for name in names),
            *(headline if judged == result.judged else "-" for judged in kinds),
            str(result.tasks),
            Text(str(result.errors), "yellow" if result.errors else ""),
            percent(result.tool_use.error_rate),
            f"{result.turns_mean:.2f}",
        )
    failures, repaired = (
        sum(getattr(one, key) for one in evaluations) for key in ("request_failures", "replies_repaired")
    )
    trouble = troubles(failures, repaired)
    table.caption = Text(f"{trouble}, in all" if len(evaluations) > 1 else trouble, "yellow") if trouble else None
    return table


_ANSWER_LIMIT = 300


def not_right(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Those with a score below 1, or without one."""
    return [one for one in trajectories if one.reward is None or one.reward.value < 1]


def task_list(title: str, trajectories: Sequence[Trajectory]) -> Group:
    """One evaluation's runs in order; each id can be given to `midstream show`."""
    parts: list[RenderableType] = [Text(visible(f"{title}: {counted(len(trajectories), 'run')}"), "bold")]
    for one in trajectories:
        score = "-" if one.reward is None else number(one.reward.value)
        style = "green" if one.reward and one.reward.value >= 1 else "yellow" if one.error else "red"
        parts.append(Text(f"{score}  {visible(one.id)}", style))
        rows = fields()
        rows.add_row("question", plain(shorten(one.question, _ANSWER_LIMIT)))
        if one.error:
            rows.add_row("error", plain(broken(one.error), "yellow"))
        if one.outcome:
            rows.add_row("outcome", plain("; ".join(outcome_words(one.outcome))))
        else:
            rows.add_row("answer", plain(shorten("(none)" if one.answer is None else one.answer, _ANSWER_LIMIT)))
            rows.add_row("gold", plain(shorten("-" if one.gold is None else one.gold, _ANSWER_LIMIT)))
        if one.answer is None and not one.error:
            rows.add_row("stopped", stopped(one))
        parts.append(Padding(rows, (0, 0, 0, 3)))
    return Group(*parts)


def task_records(evaluation: Mapping[str, Any], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """The same for programs, each with what `evaluation` says of all of them."""
    return [
        {
            **evaluation,
            "id": one.id,
            "task_id": one.task_id,
            "trial": one.rollout_index,
            "question": one.question,
            "answer": one.answer,
            "gold": one.gold,
            "score": None if one.reward is None else one.reward.value,
            "error": one.error and one.error.message,
        }
        for one in trajectories
    ]
