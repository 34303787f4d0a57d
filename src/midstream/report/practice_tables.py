"""A practice run on the terminal: its updates, its lessons and what its test sets say, as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.evaluation.pairs import Paired
from midstream.practice.commit import UpdateRecord
from midstream.practice.library import Library
from midstream.report.evaluation_tables import evaluation_table, plain_table
from midstream.report.numbers import counted, cut, dollars, gain, gains, percent, shorten, visible
from midstream.report.paired import VERDICT_COLORS
from midstream.report.practice_data import (
    PracticeData,
    about,
    by_effect,
    changes_of,
    evidence,
    left_out_text,
    points,
    proven,
    short,
    spent_text,
    total_fates,
    verdict,
)
from midstream.report.turn_rows import fields, plain

_LESSONS_SHOWN = 30
_ROWS_SHOWN = 24
_TEXT_LIMIT = 240


def practice_view(data: PracticeData) -> Group:
    """Everything about a practice run that fits a screen: its updates, the tests, the library, the test sets."""
    rows = fields()
    rows.add_row("run", Text(visible(data.run), "bold"))
    rows.add_row("recipe", plain(data.title))
    rows.add_row("status", plain(data.status))
    rows.add_row("updates", f"{data.updates[-1].step if data.updates else 0} of {data.updates_planned} at most")
    for row in library_rows(data):
        rows.add_row(*row)
    parts: list[RenderableType] = [rows]
    if data.updates:
        parts.append(update_table(data.updates))
        if any(update.tests for update in data.updates):
            parts.append(test_table(data.updates))
    return Group(*parts, lesson_table(data.library), *result_parts(data))


def result_view(data: PracticeData) -> Group:
    """Results of a run in short: the test sets, the library, the fates of the changes, and the cost."""
    rows = fields()
    for row in library_rows(data):
        rows.add_row(*row)
    return Group(*result_parts(data), Text(), rows)


def result_parts(data: PracticeData) -> list[RenderableType]:
    """The test sets without and with lessons, or the evaluations as they are if there is nothing to pair."""
    if data.compared:
        return [paired_table(data.compared), *map(plain, [*map(verdict, data.compared), *data.notes])]
    return [evaluation_table(data.evaluations), *map(plain, data.notes)] if data.evaluations else []


def library_rows(data: PracticeData) -> list[tuple[str, Text]]:
    """The library, the fates of the proposed changes, what was used and what was left out, each in a line."""
    library = data.library
    rows = [("library", Text(f"{counted(len(library.rendered), 'lesson')}, {visible(proven(library))}"))]
    if data.updates:
        total = total_fates([record.event.fates for record in data.updates])
        words = ", ".join(f"{count:,} {name}" for name, count in total.items())
        rows.append(("changes", Text(words + ("" if data.gated else " (no gate: accepted without a test)"))))
        rows.append(("spent", Text(spent_text(data.spent, data.budget.limits))))
    lost = left_out_text(data.updates)
    return [*rows, ("left out", Text(lost, "yellow"))] if lost else rows


def update_table(updates: Sequence[UpdateRecord]) -> Table:
    """One line an update, the newest of them; "so far" columns count from the start of the run."""
    heads = ["", "epoch", "reward", "groups", "asked", "in", "out", "wait", "lessons", "tokens\nso far"]
    priced = any(update.spent.cost_usd for update in updates)
    table = _narrow("Updates of the library", *heads, *(["cost\nso far"] if priced else []))
    for update in updates[-_ROWS_SHOWN:]:
        found = update.event.fates
        table.add_row(
            str(update.step),
            str(update.epoch),
            f"{update.mean_reward:.3f}",
            Text(f"{update.groups}/{update.uniform}/{len(update.broken)}", "yellow" if update.broken else ""),
            str(update.event.proposed),
            Text(str(found["accepted"]), "bold green" if found["accepted"] else ""),
            str(found["rejected"] + found["refused"]),
            str(found["pending"]),
            str(update.lessons),
            short(update.spent.tokens),
            *([dollars(update.spent.cost_usd)] if priced else []),
        )
    words = "groups: all/without contrast/broken; asked: changes proposed; in: accepted; out: rejected, refused"
    table.caption = Text(words + _earlier(len(updates)), "dim")
    return table


def test_table(updates: Sequence[UpdateRecord]) -> Table:
    """The newest tests of the gate: which changes, on how many pairs, the evidence, and the verdict."""
    heads = ("update", "changes", "pairs", "left\nout", "points", "95% interval", "evidence")
    table = _narrow("Tests of the gate, on pairs of fresh validation rollouts", *heads)
    table.add_column("verdict", no_wrap=True)
    rows = [(record, test) for record in updates for test in record.tests]
    for record, test in rows[-_ROWS_SHOWN:]:
        table.add_row(
            str(record.step),
            changes_of(test, len(record.changes)),
            str(test.pairs),
            Text(str(test.left_out), "yellow" if test.left_out else ""),
            gain(test.mean),
            gains(test.interval),
            evidence(test),
            Text(test.verdict, "green" if test.verdict == "better" else ""),
        )
    table.caption = Text(f"evidence: natural log, of what was needed{_earlier(len(rows))}", "dim")
    return table


def _narrow(title: str, *heads: str) -> Table:
    """A table of many columns of numbers, close to each other."""
    table = plain_table(Text(title), right=heads)
    table.collapse_padding, table.pad_edge, table.caption_justify = True, False, "left"
    return table


def _earlier(count: int) -> str:
    return f"; {count - _ROWS_SHOWN:,} earlier lines: see the report" if count > _ROWS_SHOWN else ""


def lesson_table(library: Library) -> RenderableType:
    """The lessons that prompts hold, those with the largest measured effect first."""
    if not library.lessons:
        return Text("The library is empty.", "dim")
    table = plain_table(Text("Lessons"))
    table.add_column("id", no_wrap=True)
    table.add_column("lesson", overflow="fold")
    measured = any(lesson.effect for lesson in library.lessons)
    if measured:
        table.add_column("effect in points\n(95% interval)", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    for lesson in by_effect(library.lessons)[:_LESSONS_SHOWN]:
        words = Text(visible(shorten(lesson.text, _TEXT_LIMIT)), "strike dim" if lesson.state == "vetoed" else "")
        words.append(f"  {visible(about(lesson))}", "not bold dim")
        effect = "not measured"
        if lesson.effect is not None:
            effect = points(lesson.effect) + ("" if lesson.effect.alone else " *")  # measured together with others
        table.add_row(Text(visible(cut(lesson.id, 8))), words, *([effect] if measured else []), f"{lesson.used:,}")
    more = len(library.lessons) - _LESSONS_SHOWN
    table.caption = Text(f"and {more:,} more: midstream library show, or the report", "dim") if more > 0 else None
    return table


def paired_table(compared: Sequence[Paired]) -> Table:
    """Each test set without and with lessons, task by task."""
    table = plain_table(Text("Held-out tasks, without and with lessons"))
    table.add_column("set", overflow="fold", max_width=20)
    for head in ("tasks", "before", "after", "points", "95% interval", "won/lost/tied"):
        table.add_column(head, justify="right", no_wrap=True)
    for pair in compared:
        table.add_row(
            Text(visible(f"{pair.set_name} {pair.sampling}")),
            str(pair.tasks),
            percent(pair.first_success),
            Text(percent(pair.other_success), "bold"),
            Text(gain(pair.difference), VERDICT_COLORS[pair.verdict]),
            gains(pair.interval),
            f"{pair.wins}/{pair.losses}/{pair.ties}",
        )
    lost = [f"{pair.set_name}: {counted(pair.left_out, 'task')} left out" for pair in compared if pair.left_out]
    table.caption = Text(visible("; ".join(lost) + ", without a result on one side"), "yellow") if lost else None
    return table
