"""Results of evaluations as tables that fit 80 columns: before and after, by family, by task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult
from midstream.core.trajectory import Trajectory
from midstream.report.numbers import counted, dollars, limits_met, mean, number, percent, shorten, troubles
from midstream.report.turn_rows import fields, outcome_words, plain, stopped
from midstream.report.whole_table import WholeTable

_NAME_WIDTH = 20
_MOST_TOOLS = 16
_TEXT_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """One set before and after training; each side holds every sampling that was evaluated there."""

    before: Sequence[EvaluationResult]
    after: Sequence[EvaluationResult]

    def by_kind(self) -> list[tuple[str, list[EvaluationResult], list[EvaluationResult]]]:
        """("sampled" or "greedy", its results before, its results after), in this order, of the kinds there are."""
        found = [(kind, _pick(self.before, kind), _pick(self.after, kind)) for kind in ("sampled", "greedy")]
        return [side for side in found if side[1] or side[2]]

    def by_family(self) -> Iterator[tuple[str | None, int, list[tuple[float | None, float | None]]]]:
        """(family, its tasks, success before and after of every `by_kind`); the last family is None: all tasks."""
        both = [*self.before, *self.after]
        for family in (*families(both), None):
            sets = both if family is None else [each.by_family[family] for each in both if family in each.by_family]
            shares = [(success(first, family), success(last, family)) for _, first, last in self.by_kind()]
            yield family, max((each.tasks for each in sets), default=0), shares


def where(result: EvaluationResult) -> str:
    """The set by name, with its split where that says more."""
    return result.set_name if result.set_name == result.split else f"{result.set_name}/{result.split}"


def is_greedy(result: EvaluationResult) -> bool:
    """Whether the evaluation took the most likely token; any temperature counts as sampled."""
    return result.sampling == "greedy"


def _pick(results: Iterable[EvaluationResult], kind: str) -> list[EvaluationResult]:
    """The "greedy" results, or the "sampled" ones."""
    return [result for result in results if is_greedy(result) == (kind == "greedy")]


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


def curves(evaluations: Sequence[EvaluationResult], kind: str) -> dict[str, list[EvaluationResult]]:
    """One curve a set, by "set/split", small sets first: results of a `kind` with a step, in order of step."""
    found: dict[str, list[EvaluationResult]] = {}
    for result in sorted(_pick(evaluations, kind), key=lambda result: (result.tasks, result.step or 0)):
        if result.step is not None:
            found.setdefault(f"{result.set_name}/{result.split}", []).append(result)
    return found


def comparisons(evaluations: Sequence[EvaluationResult]) -> list[Comparison]:
    """Before (first evaluated step) and after (last, if it is another) of every set, the largest set first."""
    by_sampling = [curves(evaluations, kind) for kind in ("greedy", "sampled")]
    found = []
    for name in dict.fromkeys(name for by_set in by_sampling for name in by_set):
        before: list[EvaluationResult] = []
        after: list[EvaluationResult] = []
        for results in (by_set[name] for by_set in by_sampling if name in by_set):
            first, last = results[0].step, results[-1].step
            before += [result for result in results if result.step == first]
            after += [result for result in results if result.step == last != first]
        found.append(Comparison(before, after))
    return sorted(found, key=lambda comparison: -comparison.before[0].tasks)


# --- one or several evaluations ---------------------------------------------------------------------------------------


def evaluation_view(results: Sequence[EvaluationResult]) -> Group:
    """Everything about some evaluations: success, several trials, families, effort, tools, and notes on all of it."""
    notes = notes_on(results)
    return Group(*evaluation_tables(results), *([Text("\n".join(notes))] if notes else []))


def evaluation_tables(results: Sequence[EvaluationResult]) -> Iterator[Table]:
    """The tables of some evaluations, those that have something to show."""
    yield success_table(results)
    if any(result.trials > 1 for result in results):
        yield trials_table(results)
    if any(len(result.by_family) > 1 for result in results):
        yield family_table(results)
    yield effort_table(results)
    yield tool_table(results)
    if any(result.streams for result in results):
        yield stream_table(results)
    # A rule next to a judge has its column already.
    in_parts = [result for result in results if len(result.reward_parts) > 1 and not result.judged]
    if in_parts:
        table = set_table("Parts of the score", "mean", second="part")
        for result in in_parts:
            table.add_section()
            for place, (name, value) in enumerate(result.reward_parts.items()):
                named = "" if place else _named(result, results)
                table.add_row(named, Text(name), number(value))
        yield table


def summary_line(result: EvaluationResult) -> str:
    """One evaluation in a line, for logs."""
    between = f" (95% interval {_between(result, ' to ')})" if result.interval else ""
    judged = f", {result.metric}" if result.judged else ""
    errors = f", {loss(result)}" if result.errors else ""
    size = counted(result.tasks, "task") + (f" x {counted(result.trials, 'trial')}" if result.trials > 1 else "")
    return f"{result.set_name} {result.sampling}: success {percent(result.success)}{between}{judged} of {size}{errors}"


def plain_table(title: Text | None = None, *, left: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """A table in the style that all of them have; `left` are heads of text, `right` those of numbers."""
    table = WholeTable(title=title, title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def success_table(results: Sequence[EvaluationResult]) -> Table:
    """Success with its interval; by a rule and by a judge in two columns, of which a judged set may fill both."""
    ruled = any(not result.judged or result.rule_success is not None for result in results)
    judged = any(result.judged for result in results)
    differ = any(result.disagreements is not None for result in results)
    lost = any(result.errors for result in results)
    heads = {"tasks": True, "by rule": ruled, "by judge": judged, "differ": differ, "errors": True}
    heads["without\nerrors"] = lost
    table = set_table("Success (95% interval over tasks)", *(head for head, shown in heads.items() if shown))
    # Next to each other the two would not leave room for the rest.
    joint = "\n" if ruled and judged else "  "
    for result in results:
        between = joint + _between(result, "–") if result.interval else ""
        headline = Text(percent(result.success), "bold").append(between, "not bold")
        trials = f"{joint.rstrip(' ') or ' '}x {result.trials}" if result.trials > 1 else ""
        cells: list[RenderableType] = [f"{result.tasks:,}{trials}"]
        if ruled:
            cells.append(Text(percent(result.rule_success)) if result.judged else headline)
        if judged:
            cells.append(headline if result.judged else "-")
        if differ:
            cells.append("-" if result.disagreements is None else f"{result.disagreements:,}")
        cells.append(Text(f"{result.errors:,}", "yellow" if result.errors else ""))
        if lost:
            cells.append(percent(result.success_without_errors) if result.errors else "-")
        table.add_row(_named(result, results), *cells)
    return table


def trials_table(results: Sequence[EvaluationResult]) -> Table:
    """Several trials a task: their mean, the most frequent answer, the best of k."""
    table = set_table("Over the k trials of each task", "k", "avg@k", "sd", "majority@k")
    for head in ("pass@k:\nthe best", "pass^k:\nall of k"):
        table.add_column(head, no_wrap=True)
    for result in results:
        if result.trials > 1:
            best, every = (
                "\n".join(f"{mark}{k} {percent(share)}" for k, share in shares.items() if k > 1)
                for mark, shares in (("@", result.pass_at), ("^", result.pass_all))
            )
            means = (percent(result.success), percent(result.deviation), percent(result.majority))
            table.add_row(_named(result, results), str(result.trials), *means, best, every or "-")
    return table


def family_table(results: Sequence[EvaluationResult]) -> Table:
    """Success by family, of the sets that have several."""
    table = set_table("By family", "tasks", "success", "turns", second="family")
    for result in results:
        if len(result.by_family) > 1:
            table.add_section()
            for place, (name, family) in enumerate(result.by_family.items()):
                numbers = (f"{family.tasks:,}", percent(family.success), f"{family.turns_mean:.2f}")
                table.add_row("" if place else _named(result, results), Text(name), *numbers)
    return table


def effort_table(results: Sequence[EvaluationResult]) -> Table:
    """What the runs took: turns, tool errors, tokens, cost; and how many may have searched for the question."""
    heads = ("turns\na run", "tool\nerrors", "tokens\nin", "tokens\nout", "cost", "leaks")
    table = set_table("What it took", *heads)
    for result in results:
        table.add_row(
            _named(result, results),
            f"{result.turns_mean:.2f}",
            percent(result.tool_use.error_rate),
            number(result.prompt_tokens),
            number(result.completion_tokens),
            dollars(result.cost_usd) if result.cost_usd else "-",
            Text(f"{result.leaks:,}", "yellow" if result.leaks else ""),
        )
    return table


def tool_table(results: Sequence[EvaluationResult]) -> Table:
    """How often each tool was called, and the share of turns that went to it."""
    table = set_table("Calls by tool", second="calls (share of turns)")
    for result in results:
        use = result.tool_use
        weight = {name: (-use.calls.get(name, 0), -use.share.get(name, 0.0), name) for name in {*use.calls, *use.share}}
        names = sorted(weight, key=lambda name: weight[name])
        shown = [f"{name} {use.calls.get(name, 0):,} ({use.share.get(name, 0.0):.0%})" for name in names[:_MOST_TOOLS]]
        if rest := names[_MOST_TOOLS:]:
            calls, share = (sum(of.get(name, 0) for name in rest) for of in (use.calls, use.share))
            shown.append(f"{counted(len(rest), 'other')} {calls:,} ({share:.0%})")
        table.add_row(_named(result, results), Text(", ".join(shown) or "-"))
    return table


def stream_table(results: Sequence[EvaluationResult]) -> Table:
    """How interleaved policies use their tools on the way to an answer."""
    units = sorted({result.streams.unit for result in results if result.streams})
    heads = ("calls\na run", "with a\nresult", "reasoning\na call", "calls to\nan answer", "runs that\nanswer")
    table = set_table(f"Calls of the policy (reasoning in {' or '.join(units)})", *heads)
    for result in results:
        if streams := result.streams:
            table.add_row(
                _named(result, results),
                f"{streams.calls_mean:.2f}",
                percent(streams.correct_rate),
                number(streams.reasoning_per_call),
                number(streams.steps_to_answer),
                percent(streams.answered / max(1, streams.trajectories)),
            )
    return table


def set_table(title: str, *heads: str, second: str = "") -> Table:
    """A table that begins with the set's name, then perhaps a `second` column of text, then numbers."""
    table = plain_table(Text(title))
    table.add_column("set", overflow="fold", max_width=_NAME_WIDTH)
    if second:
        table.add_column(second, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _named(result: EvaluationResult, results: Sequence[EvaluationResult]) -> Text:
    """The set, with the sampling where `results` have several."""
    several = len({other.sampling for other in results}) > 1
    return Text(result.set_name + (f" {result.sampling}" if several else ""))


def notes_on(results: Sequence[EvaluationResult]) -> list[str]:
    """The source of the scores, the interval's method, the sampling, and what went wrong."""
    metrics: dict[str, list[str]] = {}
    for result in results:
        metrics.setdefault(result.metric, []).append(result.set_name)
    scored = [name if len(metrics) == 1 else f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in metrics.items()]
    notes = [f"scored by  {'; '.join(scored)}"] if scored else []
    methods = dict.fromkeys(result.interval_method for result in results if result.interval_method)
    notes += [f"interval   {', '.join(methods)}"] if methods else []
    if len({result.sampling for result in results}) == 1:
        notes.append(f"sampling   {results[0].sampling}")
    for result in results:
        if result.learned:
            notes.append(f"learned    {result.set_name}: tasks that the agent learned from ({result.learned})")
        if result.errors:
            notes.append(f"errors     {result.set_name} {result.sampling}: {loss(result)}")
            reasons = result.error_reasons.items()
            notes += [f"           {count:,} x {shorten(reason, 160)}" for reason, count in reasons]
        if met := limits_met(result.stop_reasons, result.tasks * result.trials):
            notes.append(f"limits     {result.set_name} {result.sampling}: {met}")
    if any(result.leaks for result in results):
        notes.append("leaks      runs in which a search repeated the question almost word for word")
    trouble = _troubles(results)
    return [*notes, f"requests   {trouble}"] if trouble else notes


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


def evaluation_table(evaluations: Sequence[EvaluationResult]) -> Table:
    """One line an evaluation: a training run's, step by step."""
    sets = {where(result) for result in evaluations}
    one_set = len(sets) == 1
    table = plain_table(Text(f"Evaluations on {min(sets)}" if one_set else "Evaluations"), right=["step"])
    for head in ("policy", "sampling") if one_set else ("policy", "sampling", "set"):
        table.add_column(head)
    kinds = [judged for judged in (False, True) if any(result.judged == judged for result in evaluations)]
    for head in (*("judged" if judged else "success" for judged in kinds), "tasks", "errors", "tool errors", "turns"):
        table.add_column(head, justify="right")
    for result in evaluations:
        names = (result.policy, result.sampling) + (() if one_set else (where(result),))
        headline = Text(percent(result.success), "bold" if is_greedy(result) else "")
        table.add_row(
            "-" if result.step is None else str(result.step),
            *(Text(name) for name in names),
            *(headline if judged == result.judged else "-" for judged in kinds),
            str(result.tasks),
            Text(str(result.errors), "yellow" if result.errors else ""),
            percent(result.tool_use.error_rate),
            f"{result.turns_mean:.2f}",
        )
    trouble = _troubles(evaluations)
    table.caption = Text(f"{trouble}, in all" if len(evaluations) > 1 else trouble, "yellow") if trouble else None
    return table


# --- the tasks of an evaluation ---------------------------------------------------------------------------------------


def task_list(trajectories: Iterable[Trajectory]) -> Iterator[RenderableType]:
    """Runs of an evaluation in order, each with score, question and answer; `midstream show` takes each id."""
    for trajectory in trajectories:
        reward = trajectory.reward
        style = "green" if reward and reward.value >= 1 else "yellow" if trajectory.error else "red"
        yield Text(f"{'-' if reward is None else number(reward.value)}  {trajectory.id}", style)
        rows = [("question", plain(shorten(trajectory.question, _TEXT_LIMIT)))]
        if trajectory.error:
            rows.append(("error", plain(trajectory.error.line, "yellow")))
        if trajectory.outcome:
            rows.append(("outcome", plain("; ".join(outcome_words(trajectory.outcome)))))
        else:
            answer = "(none)" if trajectory.answer is None else trajectory.answer
            rows.append(("answer", plain(shorten(answer, _TEXT_LIMIT))))
            rows.append(("gold", plain(shorten("-" if trajectory.gold is None else trajectory.gold, _TEXT_LIMIT))))
        if trajectory.answer is None and not trajectory.error:
            rows.append(("stopped", Text(stopped(trajectory))))
        yield Padding(fields(rows), (0, 0, 0, 3))


def task_records(evaluation: Mapping[str, Any], trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    """The same for programs, each with the fields of `evaluation`."""
    return (
        {
            **evaluation,
            "id": trajectory.id,
            "task_id": trajectory.task_id,
            "trial": trajectory.rollout_index,
            "question": trajectory.question,
            "answer": trajectory.answer,
            "gold": trajectory.gold,
            "score": None if trajectory.reward is None else trajectory.reward.value,
            "error": trajectory.error and trajectory.error.message,
        }
        for trajectory in trajectories
    )
