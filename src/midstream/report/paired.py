"""What `midstream compare` shows: a table and a sentence a set, and the tasks that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult
from midstream.evaluation.pairs import Paired
from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import counted, dollars, gain, gains, number, percent, shorten, visible
from midstream.report.turn_rows import fields, plain

_TEXT_LIMIT = 300
_ANSWERS_SHOWN = 4
VERDICT_COLORS = {"better": "green", "worse": "red", "the same": "", "no evidence of a difference": "bold"}


def compared_screen(letters: Mapping[str, str], found: Sequence[Paired], *, tasks: bool) -> Group:
    """Each set and sampling: every later evaluation against the first. `letters` names evaluations; `tasks` lists them.

    All of `found` have the same first.
    """
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
    table = plain_table(Text(visible(title)), left=[""], right=heads)
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


def sentence(letters: Mapping[str, str], pair: Paired) -> str:
    """The verdict in words: "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"."""
    first, other = letters[pair.first], letters[pair.other]
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
        Text(visible(f"{head.set_name}, {head.sampling}: {head.metric}")),
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
