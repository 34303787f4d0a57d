"""Rich renderables for the terminal. Functions return, callers print; model and tool text is never read as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult, StepMetrics
from midstream.core.stream import Template
from midstream.core.trajectory import Trajectory
from midstream.report.evaluation_tables import evaluation_table, families, label, pick, plain_table, success, where
from midstream.report.numbers import change, mean, number, percent, sharing, troubles, visible
from midstream.report.turn_rows import (
    LEGEND,
    STREAM_LABELS,
    Row,
    broken,
    closing_parts,
    fields,
    format_words,
    is_stream,
    outcome_words,
    part_rows,
    part_words,
    plain,
    stopped,
    stream_rows,
    stream_words,
    trouble_rows,
    turn_rows,
)

_PARTS_IN_A_LINE = 3


def before_after_table(before: list[EvaluationResult], after: list[EvaluationResult]) -> Table:
    """Success by family and on average, sampled and greedy, before and after; several seeds are averaged.

    A sampling that neither side has gets no columns. The change is in percentage points.
    """
    table = plain_table(_title(before, after))
    table.add_column("family")
    table.add_column("tasks", justify="right", style="dim")
    sides = [(greedy, pick(before, greedy=greedy), pick(after, greedy=greedy)) for greedy in (False, True)]
    sides = [side for side in sides if side[1] or side[2]]
    for greedy, _, _ in sides:
        kind = "greedy" if greedy else "sampled"
        for head in (f"{kind}\nbefore", "\nafter", "\nchange"):
            table.add_column(head, justify="right")
    both = [*before, *after]
    for family in families(both):
        tasks = max(result.by_family[family].tasks for result in both if family in result.by_family)
        table.add_row(Text(visible(family)), str(tasks), *_sides(sides, family))
    table.add_section()
    total = max((result.tasks for result in both), default=0)
    table.add_row(Text("mean", "bold"), str(total), *_sides(sides, None))
    table.caption = _error_caption(both)
    return table


def _title(before: list[EvaluationResult], after: list[EvaluationResult]) -> Text:
    names = dict.fromkeys(where(result) for result in [*before, *after])
    on = f" on {', '.join(names)}" if names else ""
    return Text(visible(f"Success{on}: {label(before, 'before')} -> {label(after, 'after')}"))


def _sides(
    sides: list[tuple[bool, list[EvaluationResult], list[EvaluationResult]]], family: str | None
) -> list[RenderableType]:
    cells: list[RenderableType] = []
    for _, before, after in sides:
        first, last = success(before, family), success(after, family)
        cells += [percent(first), Text(percent(last), "bold"), _coloured(change(first, last))]
    return cells


def _coloured(text: str, good: str = "+") -> Text:
    """Green in the good direction, red in the other, plain for none."""
    if text in ("-", "+0.0"):
        return Text(text)
    return Text(text, "green" if text.startswith(good) else "red")


def _error_caption(results: list[EvaluationResult]) -> Text | None:
    parts = []
    for result in results:
        who = f"{result.policy} {result.sampling}"
        if result.errors:
            parts.append(
                f"{who}: {result.errors} of {result.tasks} tasks without a result, counted as wrong "
                f"({percent(result.success_without_errors)} without them)"
            )
        trouble = troubles(result.request_failures, result.replies_repaired)
        if trouble:
            parts.append(f"{who}: {trouble}")
    return Text(visible("\n".join(parts)), "yellow") if parts else None


def tool_shift_table(before: list[EvaluationResult], after: list[EvaluationResult]) -> Table:
    """How turns were spent before and after: share of each tool, then tool errors and turns a run."""
    table = plain_table(Text("Use of tools, share of turns"))
    table.add_column("tool")
    for head in ("before", "after", "change"):
        table.add_column(head, justify="right")
    shares = [_mean_shares(side) for side in (before, after)]
    names = dict.fromkeys(name for share in reversed(shares) for name in share)
    for name in sorted(names, key=lambda name: -shares[1].get(name, 0.0)):
        first, last = (share.get(name, 0.0) if share else None for share in shares)
        table.add_row(Text(visible(name)), percent(first), percent(last), change(first, last))
    table.add_section()
    rates = [mean([result.tool_use.error_rate for result in side]) for side in (before, after)]
    table.add_row("tool errors", *map(percent, rates), _coloured(change(*rates), good="-"))
    turns = [mean([result.turns_mean for result in side]) for side in (before, after)]
    shift = "-" if turns[0] is None or turns[1] is None else f"{turns[1] - turns[0]:+.2f}"
    table.add_row("turns a run", *("-" if value is None else f"{value:.2f}" for value in turns), shift)
    return table


def _mean_shares(results: list[EvaluationResult]) -> dict[str, float]:
    names = dict.fromkeys(name for result in results for name in result.tool_use.share)
    return {name: sum(result.tool_use.share.get(name, 0.0) for result in results) / len(results) for name in names}


def trajectory_view(trajectory: Trajectory, gold: str | None = None, template: Template | None = None) -> Group:
    """One task turn by turn: sub-goal, tool, command, observation, verdict; then answer, gold answer and reward.

    Of an interleaved policy's stream its parts, told apart by `template`.
    """
    stream = is_stream(trajectory)
    parts: list[RenderableType] = [Text(visible(trajectory.question) or trajectory.task_id, "bold")]
    parts += [Text(LEGEND, "dim"), Text()] if stream else [Text()]
    for turn in trajectory.turns:
        rows = stream_rows(turn, template) if stream else turn_rows(turn)
        parts += [Text(f"turn {turn.index}", "bold cyan"), Padding(_grid(rows, stream=stream), (0, 0, 1, 2))]
    parts += _closing(trajectory, template)
    if trajectory.error is not None:
        parts.append(plain(f"lost to {trajectory.error.type}: {trajectory.error.message}", "bold red"))
    return Group(*parts, _end(trajectory, trajectory.gold if gold is None else gold, template))


def _closing(trajectory: Trajectory, template: Template | None) -> list[RenderableType]:
    last = [row for part in closing_parts(trajectory, template) for row in part_rows(part)]
    closing = last + [row for call in trajectory.closing_calls for row in trouble_rows(call)]
    head: list[RenderableType] = [Text("last reply", "bold cyan")] if last else []
    return [*head, Padding(_grid(closing, stream=bool(last)), (0, 0, 1, 2))] if closing else []


def _end(trajectory: Trajectory, gold: str | None, template: Template | None) -> Table:
    """What a run came to."""
    end = fields()
    end.add_row("answer", Text("(none)", "dim") if trajectory.answer is None else plain(trajectory.answer))
    if gold is not None:
        end.add_row("gold", plain(gold))
    for place, line in enumerate(outcome_words(trajectory.outcome)):
        end.add_row("" if place else "outcome", plain(line))
    end.add_row("reward", _reward(trajectory))
    if is_stream(trajectory) and template is not None:
        end.add_row("format", plain(format_words(trajectory, template)))
    end.add_row("stopped", stopped(trajectory))
    if trajectory.sandbox:
        end.add_row("sandbox", trajectory.sandbox)
    for attempt, error in enumerate(trajectory.earlier_errors, 1):
        end.add_row(f"run {attempt}", plain(f"failed: {broken(error)}", "yellow"))
    trouble = troubles(trajectory.request_failures, trajectory.replies_repaired)
    if trouble:
        end.add_row("requests", Text(trouble, "yellow"))
    return end


def _grid(rows: Sequence[Row], *, stream: bool) -> Table:
    table = fields(STREAM_LABELS if stream else 0)
    for name, content in rows:
        table.add_row(name, content)
    return table


def _reward(trajectory: Trajectory) -> RenderableType:
    """The value, its parts behind it or, where they are many, below."""
    if trajectory.reward is None:
        return Text("(none)", "dim")
    value, parts = trajectory.reward.value, trajectory.reward.parts
    style = "bold green" if value >= 1 else "bold red" if value <= 0 else "bold"
    text = Text(number(value), style)
    if len(parts) <= _PARTS_IN_A_LINE:
        words = ", ".join(f"{name} {number(part)}" for name, part in parts.items())
        return text.append(f"  ({visible(words)})", "not bold dim") if words else text
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, part in parts.items():
        table.add_row(Text(visible(name.replace("_", " "))), number(part))
    return Group(text, table)


def run_summary(
    name: str,
    recipe: str,
    steps: int,
    metrics: Sequence[StepMetrics],
    evaluations: Sequence[EvaluationResult],
) -> Group:
    """One run at a glance: how far of `steps` it came, its last numbers, its evaluations, what was left out."""
    rows = fields()
    rows.add_row("run", Text(visible(name), "bold"))
    rows.add_row("recipe", plain(recipe))
    rows.add_row("steps", f"{metrics[-1].step if metrics else 0} of {steps}")
    if metrics:
        _add_metrics(rows, metrics)
    parts: list[RenderableType] = [rows]
    if evaluations:
        parts += [Text(), evaluation_table(evaluations)]
    return Group(*parts)


def _add_metrics(rows: Table, metrics: Sequence[StepMetrics]) -> None:
    last = metrics[-1]
    recent = mean([step.reward_mean for step in metrics[-10:]])
    rows.add_row("reward", f"{number(last.reward_mean)} at the last step, {number(recent)} over the last 10")
    if len(last.reward_parts) > 1:
        rows.add_row("its parts", plain(part_words(last.reward_parts)))
    rows.add_row("tools", f"{percent(last.tool_use.error_rate)} of turns in error, {last.turns_mean:.2f} turns a run")
    if last.streams:
        rows.add_row("calls", stream_words(last.streams))
    update = f"loss {number(last.loss)}, KL {number(last.kl)}, clipped {percent(last.clip_fraction)}"
    rows.add_row("update", f"{update}, gradient norm {number(last.grad_norm)}, sampler gap {number(last.logprob_gap)}")
    for words in sharing(last.sharing):
        rows.add_row("shared", f"{words} at the last step")
    lost, total = sum(step.trajectories_error for step in metrics), sum(step.trajectories for step in metrics)
    retried = sum(step.trajectories_retried for step in metrics)
    again = f", {retried:,} run again" if retried else ""
    rows.add_row("errors", Text(f"{lost:,} of {total:,} trajectories lost{again}", "yellow" if lost or retried else ""))
    trouble = troubles(
        *(sum(getattr(step, key) for step in metrics) for key in ("request_failures", "replies_repaired"))
    )
    if trouble:
        rows.add_row("requests", Text(trouble, "yellow"))
    groups = [sum(getattr(step, key) for step in metrics) for key in ("groups", "groups_uniform", "groups_broken")]
    rows.add_row("groups", f"{groups[0]:,}, of them {groups[1]:,} uniform and {groups[2]:,} broken")
    left_out = total_left_out(metrics)
    if left_out:
        reasons = ", ".join(f"{visible(reason)} {count:,}" for reason, count in left_out.items())
        rows.add_row("left out", Text(reasons, "yellow"))


def total_left_out(metrics: Sequence[StepMetrics]) -> dict[str, int]:
    """Samples left out over all steps, by reason."""
    total: dict[str, int] = {}
    for step in metrics:
        for reason, count in step.samples_left_out.items():
            total[reason] = total.get(reason, 0) + count
    return total
