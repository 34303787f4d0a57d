"""Practice runs and their libraries on the terminal, as tables of 80 columns: updates, lessons, versions, test sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.evaluation.pairs import Paired
from midstream.report import practice_data
from midstream.report.evaluation_tables import evaluation_table, plain_table, set_table
from midstream.report.numbers import counted, cut, dollars, gain, gains, nothing_learned, percent, shorten
from midstream.report.practice_data import PracticeData, points, proven
from midstream.report.tables import VERDICT_COLORS
from midstream.report.turn_rows import fields, plain
from midstream.training_free.commit import UpdateRecord, Version
from midstream.training_free.feedback import Vote
from midstream.training_free.library import Effect, Lesson, LessonOrigin, Library, size
from midstream.training_free.operations import Diff
from midstream.training_free.validation import Validation

_LESSONS_SHOWN = 30
_ROWS_SHOWN = 24
_TEXT_LIMIT = 240
_REASONS_SHOWN = 6  # why changes were refused, the most frequent
_NAMED = 4  # ids that are named; the others are counted
_STYLES = {"active": "", "pinned": "bold", "vetoed": "dim strike"}


def practice_view(data: PracticeData) -> Group:
    """Everything about a practice run that fits a screen: its updates, the tests, the library, the test sets."""
    rows = [
        ("run", Text(data.run, "bold")),
        ("recipe", plain(data.title)),
        ("status", plain(data.status)),
        ("updates", f"{data.updates[-1].step if data.updates else 0} of {data.updates_planned} at most"),
    ]
    parts: list[RenderableType] = [fields([*rows, *library_rows(data)])]
    if data.updates:
        parts.append(update_table(data.updates))
        if any(update.tests for update in data.updates):
            parts.append(test_table(data.updates))
    return Group(*parts, lesson_table(data.library), *result_parts(data))


def result_view(data: PracticeData) -> Group:
    """Results of a run in short: the test sets, the library, the fates of the changes, and the cost."""
    return Group(*result_parts(data), Text(), fields(library_rows(data)))


def result_parts(data: PracticeData) -> list[RenderableType]:
    """The test sets without and with lessons, or the evaluations as they are if there is nothing to pair."""
    notes = list(map(plain, data.notes))
    if data.compared:
        return [paired_table(data.compared), *(plain(practice_data.verdict(pair)) for pair in data.compared), *notes]
    return [evaluation_table(data.evaluations), *notes] if data.evaluations else []


def library_rows(data: PracticeData) -> list[tuple[str, Text]]:
    """The library, the fates of the proposed changes, what was used and what was left out, each in a line."""
    library = data.library
    rows = [("library", Text(f"{counted(len(library.rendered), 'lesson')}, {proven(library)}"))]
    if data.updates:
        nothing = nothing_learned([record.no_contrast for record in data.updates], "update")
        rows.append(("learned from", Text(nothing, "yellow") if nothing else Text(data.learned_from)))
        total = practice_data.total_fates([record.event.fates for record in data.updates])
        words = ", ".join(f"{count:,} {name}" for name, count in total.items())
        rows.append(("changes", Text(words + ("" if data.gated else " (no gate: accepted without a test)"))))
        reasons = Counter(
            # Without numbers of lessons and tokens, which make each reason another.
            re.sub(r"\b[A-Z]\d+\b", "a lesson", outcome.refused.partition(":")[0])
            for record in data.updates
            for outcome in record.proposed
            if outcome.refused
        )
        rows += [
            ("" if place else "refused", plain(f"{count:,} x {reason}"))
            for place, (reason, count) in enumerate(reasons.most_common(_REASONS_SHOWN))
        ]
        rows.append(("spent", Text(practice_data.spent_text(data.spent, data.budget.limits))))
    if lost := practice_data.left_out_text(data.updates):
        rows.append(("left out", Text(lost, "yellow")))
    return rows


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
            practice_data.short(update.spent.tokens),
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
            practice_data.changes_of(test, len(record.changes)),
            str(test.pairs),
            Text(str(test.left_out), "yellow" if test.left_out else ""),
            gain(test.mean),
            gains(test.interval),
            practice_data.evidence(test),
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
    measured = any(lesson.effect for lesson in library.lessons)
    table = plain_table(Text("Lessons"))
    table.add_column("id", no_wrap=True)
    table.add_column("lesson", overflow="fold")
    if measured:
        table.add_column("effect in points\n(95% interval)", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    for lesson in practice_data.by_effect(library.lessons)[:_LESSONS_SHOWN]:
        words = Text(shorten(lesson.text, _TEXT_LIMIT), "strike dim" if lesson.state == "vetoed" else "")
        words.append(f"  {practice_data.about(lesson)}", "not bold dim")
        effect = "not measured"
        if lesson.effect is not None:
            effect = points(lesson.effect) + ("" if lesson.effect.alone else " *")  # measured together with others
        table.add_row(Text(cut(lesson.id, 8)), words, *([effect] if measured else []), f"{lesson.used:,}")
    more = len(library.lessons) - _LESSONS_SHOWN
    table.caption = Text(f"and {more:,} more: midstream library show, or the report", "dim") if more > 0 else None
    return table


def paired_table(compared: Sequence[Paired]) -> Table:
    """Each test set without and with lessons, task by task."""
    heads = ("tasks", "before", "after", "points", "95% interval", "won/lost/tied")
    table = set_table("Held-out tasks, without and with lessons", *heads)
    for pair in compared:
        table.add_row(
            Text(f"{pair.set_name} {pair.sampling}"),
            str(pair.tasks),
            percent(pair.first_success),
            Text(percent(pair.other_success), "bold"),
            Text(gain(pair.difference), VERDICT_COLORS[pair.verdict]),
            gains(pair.interval),
            f"{pair.wins}/{pair.losses}/{pair.ties}",
        )
    lost = [f"{pair.set_name}: {counted(pair.left_out, 'task')} left out" for pair in compared if pair.left_out]
    table.caption = Text("; ".join(lost) + ", without a result on one side", "yellow") if lost else None
    return table


# --- libraries --------------------------------------------------------------------------------------------------------


def library_screen(title: str, library: Library) -> Group:
    """Every lesson of a library, by module, with its origin, counters and measured effect."""
    parts: list[RenderableType] = [
        Text(title, "bold"),
        Text(proven(library), "green" if library.proven_for else "yellow"),
        *(Text(line) for line in practice_data.bundles(library)),
    ]
    modules: dict[str, list[tuple[str, Group]]] = {}
    for lesson in library.lessons:
        lines = filter(None, (_measured(lesson), came_from(lesson.origin), lesson.origin.why))
        words = Text(lesson.text, _STYLES[lesson.state])
        facts = Group(words, *(Text(line, "dim") for line in lines))
        modules.setdefault(lesson.module, []).append((lesson.id, facts))
    for module, rows in modules.items():
        parts += [Text(), Text(module, "bold cyan"), fields(rows, style="bold")]
    return Group(*parts) if modules else Group(*parts, Text(), Text("no lessons"))


def size_of(library: Library) -> str:
    """How many lessons prompts hold, and how long they are: "5 lessons, about 120 tokens"."""
    words = f"{counted(len(library.rendered), 'lesson')}, about {counted(size(library), 'token')}"
    vetoed = len(library.lessons) - len(library.rendered)
    return f"{words}; {vetoed} vetoed" if vetoed else words


def _measured(lesson: Lesson) -> str:
    """What a lesson did, and how a person marked it."""
    parts = [lesson.state] if lesson.state != "active" else []
    if lesson.effect is not None:
        together = "" if lesson.effect.alone else " together with others"
        parts.append(f"effect {points(lesson.effect)} points{together}, {counted(lesson.effect.pairs, 'pair')}")
        parts += ["accepted only as a part of its bundle"] * lesson.effect.only_in_bundle
    if lesson.used:
        parts.append(f"used in {counted(lesson.used, 'rollout')}")
    if lesson.helped or lesson.harmed:
        parts.append(f"helped {lesson.helped:,}, harmed {lesson.harmed:,}")
    return "; ".join(parts)


def came_from(origin: LessonOrigin) -> str:
    """Who wrote a lesson, and from what."""
    who = {"learned": origin.model or "learned", "person": "a person", "imported": "imported"}[origin.source]
    parts = [f"{who}, update {origin.update}" if origin.update else who]
    for ids, noun in ((origin.tasks, "task"), (origin.trajectories, "rollout")):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            parts.append(f"{noun}{'s' if len(ids) > 1 else ''} {' '.join(ids[:_NAMED])}{more}")
    return "; ".join(parts)


def diff_screen(found: Diff, none: str) -> RenderableType:
    """What leads from one library to another; `none` is said where nothing does."""
    if found.empty:
        return Text(none, "dim")

    def line(lesson: Lesson, style: str) -> Text:
        return Text(f"{lesson.module}: {lesson.text}", style)

    rows: list[tuple[Text, RenderableType]] = [
        *((Text(f"+ {lesson.id}", "green"), line(lesson, "green")) for lesson in found.added),
        *((Text(f"- {lesson.id}", "red"), line(lesson, "red")) for lesson in found.deleted),
    ]
    for old, new in found.modified:
        rows.append((Text(f"~ {new.id}", "yellow"), Group(line(old, "red"), line(new, "green"))))
    rows += [(Text(f"  {new.id}", "yellow"), Text(f"{old.state} -> {new.state}")) for old, new in found.marked]
    return fields(rows, style="bold")


def versions_screen(versions: Sequence[Version]) -> Table:
    """Every version of a library: who made it, what it holds, what it changed."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("version", "by", "lessons", "proven"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("version", "lessons") else "left")
    table.add_column("changes")
    for version in versions:
        by = f"{version.by} {version.update}" if version.update else version.by
        yes = "yes" if version.library.proven_for else "no"
        ids: dict[str, list[str]] = {}
        for operation in version.operations:
            if operation.kind != "keep":
                ids.setdefault(operation.kind, []).append(operation.id)
        changes = [f"{kind} {' '.join(some)}" for kind, some in ids.items()]
        changes += [version.note] if version.note else []
        lessons = str(len(version.library.rendered))
        table.add_row(str(version.number), by, lessons, yes, Text("; ".join(changes)))
    return table


def votes_screen(votes: Sequence[Vote]) -> Table:
    """One line a vote: its value, the voter, the lesson with its run, and the text."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("vote", "by", "lesson"):
        table.add_column(name, no_wrap=True)
    table.add_column("text")
    for vote in votes:
        lesson = f"{Path(vote.run).name} {vote.lesson}".strip()
        table.add_row(vote.value, vote.by, plain(lesson), plain(vote.text))
    return table


def validation_screen(library: Library, found: Validation, agent: str) -> Group:
    """Whether a library helps an agent, how sure that is, and what each lesson does."""
    test, lost = found.test, found.test.left_out + found.halves_left_out
    helps = {"better": "helps", "not better": "does not help", "undecided": "is not shown to help"}[test.verdict]
    mean = points(Effect(mean=test.mean, interval=test.interval, pairs=test.pairs))
    said = f"The library {helps}: {mean} points over {counted(test.pairs, 'pair')} of rollouts"
    left_out = f"; {counted(lost, 'pair')} left out, without a result" if lost else ""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for name in ("lesson", "effect (95% interval)"):
        rows.add_column(name, no_wrap=True)
    for name in ("helped", "harmed"):
        rows.add_column(name, no_wrap=True, justify="right")
    rows.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for lesson in library.rendered:
        if effect := found.effects.get(lesson.id):
            texts = (points(effect), str(effect.helped), str(effect.harmed), Text(lesson.text))
            # Green where the interval is above 0, red where it is below.
            style = "green" if effect.interval[0] > 0 else "red" if effect.interval[1] < 0 else ""
            rows.add_row(lesson.id, *texts, style=style)
    evidence = f"Evidence {test.evidence:.1f} of the {test.needed:.1f} that are needed (natural logarithms)"
    return Group(
        Text(said, "green" if test.verdict == "better" else "yellow"),
        Text(f"Agent: {agent}. {evidence}{left_out}."),
        Text(),
        rows,
    )
