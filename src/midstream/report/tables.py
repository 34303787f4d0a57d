"""Rich renderables for the terminal. Functions return, callers print; model and tool text is never read as markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult, StepMetrics
from midstream.core.stream_template import Template
from midstream.core.trajectory import Score, Trajectory
from midstream.evaluation.pairs import GroupDifference, Paired
from midstream.report import turn_rows
from midstream.report.evaluation_tables import Comparison, evaluation_table, label, loss, plain_table, where
from midstream.report.numbers import (
    change,
    counted,
    dollars,
    gain,
    gains,
    limits_met,
    mean,
    nothing_learned,
    number,
    percent,
    sharing,
    shorten,
    summed,
    troubles,
)
from midstream.report.turn_rows import fields, plain

_PARTS_IN_A_LINE = 3
_TEXT_LIMIT = 300
_ANSWERS_SHOWN = 4
VERDICT_COLORS = {"better": "green", "worse": "red", "the same": "", "no evidence of a difference": "bold"}


def before_after_table(before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]) -> Table:
    """Success by family and on average, sampled and greedy, before and after, and the change in percentage points."""
    both = [*before, *after]
    names = dict.fromkeys(where(result) for result in both)
    on = f" on {', '.join(names)}" if names else ""
    table = plain_table(Text(f"Success{on}: {label(before, 'before')} -> {label(after, 'after')}"))
    table.add_column("family")
    table.add_column("tasks", justify="right", style="dim")
    comparison = Comparison(before, after)
    for kind, _, _ in comparison.by_kind():
        for head in (f"{kind}\nbefore", "\nafter", "\nchange"):
            table.add_column(head, justify="right")
    for family, tasks, shares in comparison.by_family():
        cells: list[RenderableType] = []
        for first, last in shares:
            cells += [percent(first), Text(percent(last), "bold"), _colored(change(first, last))]
        if family is None:
            table.add_section()
        table.add_row(Text("mean", "bold") if family is None else Text(family), str(tasks), *cells)
    notes = []
    for result in both:
        name = f"{result.policy} {result.sampling}"
        if result.errors:
            notes.append(f"{name}: {loss(result)}")
        if trouble := troubles(result.request_failures, result.replies_repaired):
            notes.append(f"{name}: {trouble}")
    table.caption = Text("\n".join(notes), "yellow") if notes else None
    return table


def _colored(text: str, good: str = "+") -> Text:
    """Green in the good direction, red in the other, plain for no change."""
    return Text(text, "" if text in ("-", "+0.0") else "green" if text.startswith(good) else "red")


def tool_shift_table(before: list[EvaluationResult], after: list[EvaluationResult]) -> Table:
    """How turns were spent before and after: share of each tool, then tool errors and turns a run."""
    table = plain_table(Text("Use of tools, share of turns"), left=["tool"], right=["before", "after", "change"])
    names = dict.fromkeys(name for result in (*after, *before) for name in result.tool_use.share)
    shares = {
        name: [mean([result.tool_use.share.get(name, 0.0) for result in side]) for side in (before, after)]
        for name in names
    }
    for name, (first, last) in sorted(shares.items(), key=lambda item: -(item[1][1] or 0.0)):
        table.add_row(Text(name), percent(first), percent(last), change(first, last))
    table.add_section()
    rates = [mean([result.tool_use.error_rate for result in side]) for side in (before, after)]
    table.add_row("tool errors", *map(percent, rates), _colored(change(*rates), good="-"))
    turns = [mean([result.turns_mean for result in side]) for side in (before, after)]
    shift = "-" if turns[0] is None or turns[1] is None else f"{turns[1] - turns[0]:+.2f}"
    table.add_row("turns a run", *("-" if value is None else f"{value:.2f}" for value in turns), shift)
    return table


def trajectory_view(trajectory: Trajectory, template: Template | None = None) -> Group:
    """One task turn by turn, of a stream its parts by `template`; then answer, gold answer and reward."""
    stream = turn_rows.is_stream(trajectory)
    parts: list[RenderableType] = [Text(trajectory.question or trajectory.task_id, "bold")]
    parts += [Text(turn_rows.LEGEND, "dim"), Text()] if stream else [Text()]

    def add(rows: Sequence[turn_rows.Row], *, labels: bool) -> None:
        grid = fields(turn_rows.shown(rows), least=turn_rows.STREAM_LABELS if labels else 0)
        parts.append(Padding(grid, (0, 0, 1, 2)))

    if opening := turn_rows.opening_rows(trajectory):
        add(opening, labels=False)
    for turn in trajectory.turns:
        parts.append(Text(f"turn {turn.index}", "bold cyan"))
        add(turn_rows.turn_rows(turn, template, stream=stream), labels=stream)
    last = turn_rows.closing_rows(trajectory, template)
    if last:
        parts.append(Text("last reply", "bold cyan"))
    if closing := last + [row for call in trajectory.closing_calls for row in turn_rows.trouble_rows(call)]:
        add(closing, labels=bool(last))
    if trajectory.error is not None:
        more = "\n(--json prints the whole traceback)" * trajectory.error.foreign
        parts.append(plain(f"lost to {trajectory.error.text}{more}", "bold red"))
    end: list[tuple[str, RenderableType]] = [
        ("answer", Text("(none)", "dim") if trajectory.answer is None else plain(trajectory.answer))
    ]
    end += [] if trajectory.gold is None else [("gold", plain(trajectory.gold))]
    outcome = turn_rows.outcome_words(trajectory.outcome)
    end += [("" if place else "outcome", plain(line)) for place, line in enumerate(outcome)]
    end.append(("reward", reward_text(trajectory.reward)))
    return Group(*parts, fields([*end, *turn_rows.shown(turn_rows.end_rows(trajectory, template))]))


def reward_text(reward: Score | None) -> RenderableType:
    """The value, with its parts on the same line, or below it if there are many."""
    if reward is None:
        return Text("(none)", "dim")
    color = " green" if reward.value >= 1 else " red" if reward.value <= 0 else ""
    text = Text(number(reward.value), f"bold{color}")
    if len(reward.parts) <= _PARTS_IN_A_LINE:
        words = ", ".join(f"{name} {number(part)}" for name, part in reward.parts.items())
        return text.append(f"  ({words})", "not bold dim") if words else text
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, part in reward.parts.items():
        table.add_row(Text(name.replace("_", " ")), number(part))
    return Group(text, table)


def run_summary(
    name: str, recipe: str, steps: int, metrics: Sequence[StepMetrics], evaluations: Sequence[EvaluationResult]
) -> Group:
    """One run at a glance: how many of its `steps` are done, its last numbers, its evaluations, what was left out."""
    done = f"{metrics[-1].step if metrics else 0} of {steps}"
    rows = [("run", Text(name, "bold")), ("recipe", plain(recipe)), ("steps", done)]
    grid = fields([*rows, *(metrics_rows(metrics) if metrics else ())])
    return Group(grid, Text(), evaluation_table(evaluations)) if evaluations else Group(grid)


def metrics_rows(metrics: Sequence[StepMetrics]) -> list[tuple[str, RenderableType]]:
    """The numbers of the last step, then what was lost and left out over all steps."""
    last = metrics[-1]

    def total(name: str) -> int:
        return sum(getattr(step, name) for step in metrics)

    recent = mean([step.reward_mean for step in metrics[-10:]])
    tools = f"{percent(last.tool_use.error_rate)} of turns in error, {last.turns_mean:.2f} turns a run"
    update = f"loss {number(last.loss)}, KL {number(last.kl)}, clipped {percent(last.clip_fraction)}"
    update += f", gradient norm {number(last.grad_norm)}, sampler gap {number(last.logprob_gap)}"
    groups = f"{total('groups'):,}, of them {total('groups_uniform'):,} uniform and {total('groups_broken'):,} broken"
    lost, retried = total("trajectories_error"), total("trajectories_retried")
    errors = f"{lost:,} of {total('trajectories'):,} trajectories lost"
    errors += f", {retried:,} run again" if retried else ""
    trouble = troubles(total("request_failures"), total("replies_repaired"))
    left_out = summed(step.samples_left_out for step in metrics)
    split = summed(step.rows_split for step in metrics)
    reasons, whys = (", ".join(f"{why} {count:,}" for why, count in each.items()) for each in (left_out, split))
    rows: list[tuple[str, RenderableType]] = [
        ("reward", f"{number(last.reward_mean)} at the last step, {number(recent)} over the last 10"),
        ("its parts", plain(turn_rows.part_words(last.reward_parts) if len(last.reward_parts) > 1 else "")),
        ("stage", f"{last.schedules['tasks.stages']:.0f}" if "tasks.stages" in last.schedules else ""),
        ("tools", tools),
        ("calls", turn_rows.stream_words(last.streams) if last.streams else ""),
        ("update", update),
        *(("shared", f"{words} at the last step") for words in sharing(last.sharing)),
        ("errors", Text(errors, "yellow" if lost or retried else "")),
        ("limits", Text(limits_met(summed(step.limits for step in metrics), total("trajectories")), "yellow")),
        ("requests", Text(trouble, "yellow")),
        ("groups", groups),
        ("learned", Text(nothing_learned([step.no_contrast for step in metrics], "step"), "yellow")),
        ("rows split", Text(whys, "yellow")),
        ("left out", Text(reasons, "yellow")),
    ]
    return [(name, text) for name, text in rows if text]


# --- evaluations compared task by task --------------------------------------------------------------------------------


def compared_screen(letters: Mapping[str, str], found: Sequence[Paired], *, tasks: bool) -> Group:
    """Each set and sampling, the later evaluations against the first; `letters` names them, `tasks` lists tasks."""
    parts: list[RenderableType] = []
    for key in dict.fromkeys((pair.set_name, pair.sampling) for pair in found):
        several = [pair for pair in found if (pair.set_name, pair.sampling) == key]
        parts.append(success_table(letters, several))
        for pair in several:
            # How many of what are left out, and why.
            left_out = [
                (pair.left_out, "task", "left out: no result on one side (infrastructure errors)"),
                (pair.runs_left_out, "run", "of the others left out: no result (infrastructure errors)"),
            ]
            for count, side in ((pair.only_first, pair.first), (pair.only_other, pair.other)):
                they = "it" if count == 1 else "them"
                left_out.append((count, "task", f"left out: only {letters[side]} has {they}"))
            text = Text(sentence(letters, pair), VERDICT_COLORS[pair.verdict])
            for count, noun, why in left_out:
                text.append(f"\n  {counted(count, noun)} {why}" if count else "", "yellow")
            parts.append(text)
        parts.append(Text())
        if tasks:
            parts += [Padding(differing_tasks(letters, pair), (0, 0, 1, 0)) for pair in several if pair.differing]
    return Group(*parts[:-1] if parts and isinstance(parts[-1], Text) else parts)


def effort_table(results: Mapping[str, EvaluationResult], title: str) -> Table:
    """What each side took for a task on one set and sampling, by letter: agents of any kind have these numbers."""
    heads = ("turns", "tool\ncalls", "tool\nerrors", "tokens\nin", "tokens\nout", "cost")
    table = plain_table(Text(title), left=[""], right=heads)
    for letter, result in results.items():
        runs = max(1, result.tasks * result.trials)
        table.add_row(
            letter,
            f"{result.turns_mean:.2f}",
            f"{sum(result.tool_use.calls.values()) / runs:.2f}",
            percent(result.tool_use.error_rate),
            number(result.prompt_tokens / runs),
            number(result.completion_tokens / runs),
            dollars(result.cost_usd / runs) if result.cost_usd else "-",
        )
    return table


def tool_share_table(letters: Mapping[str, str], several: Sequence[Paired], title: str) -> Table:
    """The share of turns that went to each tool, the first evaluation's and the others', with their differences."""
    head = several[0]
    table = plain_table(Text(title), left=["tool"], right=[letters[head.first]])
    for pair in several:
        for name in (letters[pair.other], f"against {letters[pair.first]}", "95% interval"):
            table.add_column(name, justify="right", no_wrap=True)
    most: dict[str, float] = {}
    for pair in several:
        most |= {name: max(shift.other, most.get(name, 0.0)) for name, shift in pair.tools.items()}
    for name in sorted(most, key=lambda name: (-most[name], name)):
        cells = [percent(head.tools[name].first if name in head.tools else 0.0)]
        for pair in several:
            if shift := pair.tools.get(name):
                cells += [percent(shift.other), gain(shift.other - shift.first), gains(shift.interval)]
            else:
                cells += [percent(0.0), gain(0.0), "-"]
        table.add_row(Text(name), *cells)
    return table


def sentence(letters: Mapping[str, str], pair: Paired | GroupDifference) -> str:
    """The verdict in words: "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"."""
    first, other = letters[pair.first], letters[pair.other]
    if pair.interval is None:
        return f"{other} has {gain(pair.difference)} points against {first}"
    if pair.verdict == "the same":
        return f"{other} and {first} are the same: every turn of every task is equal"
    level = f"{pair.level * 100:.4g}%"
    if pair.verdict == "no evidence of a difference":
        between = f"{level} interval {gains(pair.interval)}"
        return f"{other} and {first}: no evidence of a difference ({gain(pair.difference)} points, {between})"
    # "Better by" and "worse by" both take positive numbers, smallest first.
    low, high = sorted(abs(end) * 100 for end in pair.interval)
    points = f"{abs(pair.difference) * 100:.1f} points ({level} interval {low:.1f} to {high:.1f})"
    return f"{other} is {pair.verdict} than {first} by {points}"


def success_table(letters: Mapping[str, str], several: Sequence[Paired]) -> Table:
    """Success of the first evaluation and of each other on the tasks that both have a result of."""
    head = several[0]
    against, level = f"against {letters[head.first]}", f"{head.level * 100:.4g}% interval"
    table = plain_table(
        Text(f"{head.set_name}, {head.sampling}: {head.metric}"),
        left=[""],
        right=["tasks", "success", against, level, "won", "lost", "tied"],
    )
    shown = None
    for pair in several:
        if (pair.tasks, pair.first_success) != shown:  # again where other tasks have a result on both sides
            shown = pair.tasks, pair.first_success
            table.add_row(letters[pair.first], str(pair.tasks), percent(pair.first_success))
        table.add_row(
            letters[pair.other],
            str(pair.tasks),
            percent(pair.other_success),
            Text(gain(pair.difference), VERDICT_COLORS[pair.verdict]),
            "-" if pair.verdict == "the same" else gains(pair.interval),
            *map(str, (pair.wins, pair.losses, pair.ties)),
        )
    return table


def group_table(several: Sequence[GroupDifference]) -> Table:
    """Mean success of the first group and of each other over their runs, and each run's own."""
    head = several[0]
    level = f"{head.level * 100:.4g}% interval"
    table = plain_table(
        Text(f"{head.set_name}, {head.sampling}: {head.metric}"),
        left=["group"],
        right=["runs", "success", f"against {head.first}", level],
    )
    table.add_column("of each, by seed")

    def add(name: str, values: Sequence[float], *against: str) -> None:
        each = "  ".join(percent(value).removesuffix("%") for value in values)
        table.add_row(Text(name), str(len(values)), percent(fmean(values)), *(against or ("", "")), each)

    add(head.first, head.first_values)
    for pair in several:
        interval = gains(pair.interval) if pair.interval else "-"
        add(pair.other, pair.other_values, gain(pair.difference), interval)
    return table


def differing_tasks(letters: Mapping[str, str], compared: Paired) -> Group:
    """The tasks that only one side solves, or solves more often, with the answers of both."""
    title = f"Tasks that {letters[compared.first]} and {letters[compared.other]} differ on"
    parts: list[RenderableType] = [Text(title, "bold")]
    for pair in sorted(compared.differing, key=lambda pair: -pair.difference):
        won = letters[compared.other if pair.difference > 0 else compared.first]
        parts.append(plain(f"{won} is better on {pair.task_id}: {shorten(pair.question, _TEXT_LIMIT)}"))
        rows = fields()
        rows.add_row("gold", plain(shorten(pair.gold or "-", _TEXT_LIMIT)))
        for name, side in ((compared.first, pair.first), (compared.other, pair.other)):
            answers = ["(none)" if a is None else shorten(a, _TEXT_LIMIT) for a in dict.fromkeys(side.answers)]
            more = f" | {len(answers) - _ANSWERS_SHOWN} more" if len(answers) > _ANSWERS_SHOWN else ""
            rows.add_row(letters[name], plain(f"{number(side.value)}  {' | '.join(answers[:_ANSWERS_SHOWN])}{more}"))
        parts.append(Padding(rows, (0, 0, 0, 2)))
    return Group(*parts)
