"""What `midstream compare` shows: a table and a sentence a set, and the tasks that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult
from midstream.evaluation.pairs import Pair, Paired, Side
from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import change, counted, dollars, number, percent, shorten, visible
from midstream.report.turn_rows import fields, plain

_TEXT_LIMIT = 300
_ANSWERS_SHOWN = 4
_COLOURS = {"better": "green", "worse": "red", "the same": "", "no evidence of a difference": "bold"}


def compared_screen(letters: Mapping[str, str], found: Sequence[Paired], *, tasks: bool) -> Group:
    """Each set and sampling: every later evaluation against the first. `letters` names evaluations; `tasks` lists them.

    All of `found` have the same first.
    """
    sets = dict.fromkeys((one.set_name, one.sampling) for one in found)
    parts: list[RenderableType] = []
    for key in sets:
        several = [one for one in found if (one.set_name, one.sampling) == key]
        parts += [_table(letters, several), *(_sentence(letters, one) for one in several), Text()]
        if tasks:
            parts += [Padding(_differing(letters, one), (0, 0, 1, 0)) for one in several if one.differing]
    return Group(*parts[:-1] if parts and isinstance(parts[-1], Text) else parts)


def effort_table(results: Mapping[str, EvaluationResult], title: str) -> Table:
    """What each side took for a task on one set and sampling, by letter: agents of any kind have these numbers."""
    table = plain_table(Text(visible(title)))
    table.add_column("", no_wrap=True)
    for head in ("turns", "tool\ncalls", "tool\nerrors", "tokens\nin", "tokens\nout", "cost"):
        table.add_column(head, justify="right", no_wrap=True)
    for letter, one in results.items():
        runs = max(1, one.tasks * one.trials)
        table.add_row(
            letter,
            f"{one.turns_mean:.2f}",
            f"{sum(one.tool_use.calls.values()) / runs:.2f}",
            percent(one.tool_use.error_rate),
            number(one.prompt_tokens / runs),
            number(one.completion_tokens / runs),
            dollars(one.cost_usd / runs) if one.cost_usd else "-",
        )
    return table


def sentence(letters: Mapping[str, str], one: Paired) -> str:
    """The verdict in words: "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"."""
    first, other = letters[one.first], letters[one.other]
    if one.verdict == "the same":
        return f"{other} and {first} are the same: every turn of every task is equal"
    low, high = one.interval
    if one.verdict == "no evidence of a difference":
        between = f"{level(one)} interval {change(0.0, low)} to {change(0.0, high)}"
        return f"{other} and {first}: no evidence of a difference ({change(0.0, one.difference)} points, {between})"
    # "Better by" and "worse by" are both told as positive numbers, smallest first.
    ends = sorted((abs(low), abs(high)))
    between = f"{level(one)} interval {ends[0] * 100:.1f} to {ends[1] * 100:.1f}"
    return f"{other} is {one.verdict} than {first} by {abs(one.difference) * 100:.1f} points ({between})"


def level(one: Paired) -> str:
    """The confidence of the interval: "95%", or "98.33%" where it is one of several."""
    return f"{one.level * 100:.4g}%"


def _table(letters: Mapping[str, str], several: Sequence[Paired]) -> Table:
    head = several[0]
    table = plain_table(Text(visible(f"{head.set_name}, {head.sampling}: {head.metric}")))
    for name in (
        "", "tasks", "success", f"against {letters[head.first]}", f"{level(head)} interval", "won", "lost", "tied"
    ):  # fmt: skip
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    shown = None
    for one in several:
        if (one.tasks, one.first_success) != shown:  # again where the tasks with a result on both sides are others
            shown = one.tasks, one.first_success
            table.add_row(letters[one.first], str(one.tasks), percent(one.first_success))
        low, high = one.interval
        table.add_row(
            letters[one.other],
            str(one.tasks),
            percent(one.other_success),
            Text(change(0.0, one.difference), _COLOURS[one.verdict]),
            "-" if one.verdict == "the same" else f"{change(0.0, low)} to {change(0.0, high)}",
            *map(str, (one.wins, one.losses, one.ties)),
        )
    return table


def _sentence(letters: Mapping[str, str], one: Paired) -> RenderableType:
    text = Text(sentence(letters, one), _COLOURS[one.verdict])
    notes = []
    if one.left_out:
        notes.append(f"{counted(one.left_out, 'task')} left out: no result on one side (infrastructure errors)")
    if one.runs_left_out:
        notes.append(f"{counted(one.runs_left_out, 'run')} of the others left out: no result (infrastructure errors)")
    for count, who in ((one.only_first, one.first), (one.only_other, one.other)):
        if count:
            notes.append(f"{counted(count, 'task')} left out: only {letters[who]} has {'it' if count == 1 else 'them'}")
    for note in notes:
        text.append(f"\n  {note}", "yellow")
    return text


def _differing(letters: Mapping[str, str], one: Paired) -> Group:
    parts: list[RenderableType] = [Text(f"Tasks that {letters[one.first]} and {letters[one.other]} differ on", "bold")]
    for pair in sorted(one.differing, key=lambda pair: -pair.difference):
        won = letters[one.other if pair.difference > 0 else one.first]
        parts.append(plain(f"{won} is better on {pair.task_id}: {shorten(pair.question, _TEXT_LIMIT)}"))
        rows = fields()
        rows.add_row("gold", plain(shorten(pair.gold or "-", _TEXT_LIMIT)))
        rows.add_row(letters[one.first], _side(pair, pair.first))
        rows.add_row(letters[one.other], _side(pair, pair.other))
        parts.append(Padding(rows, (0, 0, 0, 2)))
    return Group(*parts)


def _side(pair: Pair, side: Side) -> Text:
    answers = ["(none)" if one is None else shorten(one, _TEXT_LIMIT) for one in dict.fromkeys(side.answers)]
    more = f" | {len(answers) - _ANSWERS_SHOWN} more" if len(answers) > _ANSWERS_SHOWN else ""
    return plain(f"{number(side.value)}  {' | '.join(answers[:_ANSWERS_SHOWN])}{more}")
