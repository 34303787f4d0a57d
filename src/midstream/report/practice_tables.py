"""A practice run on the terminal: its updates, its lessons and what its test sets say, as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.evaluation.pairs import Paired
from midstream.practice.commit import UpdateRecord, fates, proposed
from midstream.practice.library import Lesson, Library
from midstream.report.evaluation_tables import evaluation_table, plain_table
from midstream.report.numbers import change, counted, cut, dollars, percent, shorten, visible
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
_COLOURS = {"better": "green", "worse": "red", "the same": "", "no evidence of a difference": "bold"}


def practice_view(data: PracticeData) -> Group:
    """Everything about a practice run that fits a screen: its updates, the tests, the library, the test sets."""
    parts: list[RenderableType] = [_summary(data)]
    if data.updates:
        parts.append(update_table(data.updates))
        if any(one.tests for one in data.updates):
            parts.append(test_table(data.updates))
    parts += [lesson_table(data.library), *result_parts(data)]
    return Group(*parts)


def result_view(data: PracticeData) -> Group:
    """What came of a run, in short: the test sets, the library, what became of the changes, and the cost."""
    rows = fields()
    for name, text in library_rows(data):
        rows.add_row(name, text)
    return Group(*result_parts(data), Text(), rows)


def result_parts(data: PracticeData) -> list[RenderableType]:
    """The test sets without and with lessons, or the evaluations as they are where there is nothing to pair."""
    if data.compared:
        said = [*map(verdict, data.compared), *data.notes]
        return [paired_table(data.compared), *map(plain, said)]
    return [evaluation_table(data.evaluations), *map(plain, data.notes)] if data.evaluations else []


def _summary(data: PracticeData) -> Table:
    rows = fields()
    rows.add_row("run", Text(visible(data.run), "bold"))
    rows.add_row("recipe", plain(data.title))
    rows.add_row("status", plain(data.status))
    rows.add_row("updates", f"{data.updates[-1].step if data.updates else 0} of {data.updates_planned} at most")
    for name, text in library_rows(data):
        rows.add_row(name, text)
    return rows


def library_rows(data: PracticeData) -> list[tuple[str, Text]]:
    """The library, what became of the proposed changes, what was used up and what was left out, each in a line."""
    library = data.library
    rows = [("library", Text(f"{counted(len(library.rendered), 'lesson')}, {visible(proven(library))}"))]
    if data.updates:
        total = total_fates([fates(record) for record in data.updates])
        said = ", ".join(f"{count:,} {name}" for name, count in total.items())
        rows.append(("changes", Text(said + ("" if data.gated else " (no gate: accepted without a test)"))))
        rows.append(("spent", Text(spent_text(data.spent, data.budget.limits))))
    lost = left_out_text(data.updates)
    return [*rows, ("left out", Text(lost, "yellow"))] if lost else rows


def update_table(updates: Sequence[UpdateRecord]) -> Table:
    """One line an update, the newest of them; "so far" columns count from the run's beginning."""
    table = _narrow("Updates of the library")
    for head in ("", "epoch", "reward", "groups", "asked", "in", "out", "wait", "lessons", "tokens\nso far"):
        table.add_column(head, justify="right", no_wrap=True)
    priced = any(one.spent.cost_usd for one in updates)
    if priced:
        table.add_column("cost\nso far", justify="right", no_wrap=True)
    for one in updates[-_ROWS_SHOWN:]:
        found = fates(one)
        table.add_row(
            str(one.step),
            str(one.epoch),
            f"{one.mean_reward:.3f}",
            Text(f"{one.groups}/{one.uniform}/{len(one.broken)}", "yellow" if one.broken else ""),
            str(proposed(one)),
            Text(str(found["accepted"]), "bold green" if found["accepted"] else ""),
            str(found["rejected"] + found["refused"]),
            str(found["pending"]),
            str(one.lessons),
            short(one.spent.tokens),
            *([dollars(one.spent.cost_usd)] if priced else []),
        )
    said = "groups: all/without contrast/broken; asked: changes proposed; in: accepted; out: rejected, refused"
    table.caption = Text(said + _earlier(len(updates)), "dim")
    return table


def test_table(updates: Sequence[UpdateRecord]) -> Table:
    """The newest tests of the gate: which changes, on how many pairs, how far the evidence came, and the verdict."""
    table = _narrow("Tests of the gate, on pairs of fresh validation rollouts")
    for head in ("update", "changes", "pairs", "left\nout", "points", "95% interval", "evidence"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    rows = [(record, test) for record in updates for test in record.tests]
    for record, test in rows[-_ROWS_SHOWN:]:
        low, high = test.interval
        table.add_row(
            str(record.step),
            changes_of(test, len(record.changes)),
            str(test.pairs),
            Text(str(test.left_out), "yellow" if test.left_out else ""),
            change(0.0, test.mean),
            f"{change(0.0, low)} to {change(0.0, high)}",
            evidence(test),
            Text(test.verdict, "green" if test.verdict == "better" else ""),
        )
    table.caption = Text(f"evidence: natural log, of what was needed{_earlier(len(rows))}", "dim")
    return table


def _narrow(title: str) -> Table:
    """A table of many columns, which stand close."""
    table = plain_table(Text(title))
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
    measured = any(one.effect for one in library.lessons)
    if measured:
        table.add_column("effect in points\n(95% interval)", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    chosen = by_effect(library.lessons)
    for one in chosen[:_LESSONS_SHOWN]:
        said = Text(visible(shorten(one.text, _TEXT_LIMIT)), "strike dim" if one.state == "vetoed" else "")
        said.append(f"  {visible(about(one))}", "not bold dim")
        table.add_row(Text(visible(cut(one.id, 8))), said, *([effect_text(one)] if measured else []), f"{one.used:,}")
    more = len(chosen) - _LESSONS_SHOWN
    table.caption = Text(f"and {more:,} more: midstream library show, or the report", "dim") if more > 0 else None
    return table


def effect_text(one: Lesson) -> str:
    """Its measured effect; with a star where it was measured only together with others."""
    if one.effect is None:
        return "not measured"
    return points(one.effect) + ("" if one.effect.alone else " *")


def paired_table(compared: Sequence[Paired]) -> Table:
    """Each test set without and with lessons, task by task."""
    table = plain_table(Text("Held-out tasks, without and with lessons"))
    table.add_column("set", overflow="fold", max_width=20)
    for head in ("tasks", "before", "after", "points", "95% interval", "won/lost/tied"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in compared:
        low, high = one.interval
        table.add_row(
            Text(visible(f"{one.set_name} {one.sampling}")),
            str(one.tasks),
            percent(one.first_success),
            Text(percent(one.other_success), "bold"),
            Text(change(0.0, one.difference), _COLOURS[one.verdict]),
            f"{change(0.0, low)} to {change(0.0, high)}",
            f"{one.wins}/{one.losses}/{one.ties}",
        )
    lost = [f"{one.set_name}: {counted(one.left_out, 'task')} left out" for one in compared if one.left_out]
    table.caption = Text(visible("; ".join(lost) + ", without a result on one side"), "yellow") if lost else None
    return table
