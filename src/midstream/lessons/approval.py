"""A person's yes or no: with `lessons.approval = "person"`, changes that passed the gate wait for one, unused.

updates.jsonl      the changes that wait, with what the gate measured
approvals.jsonl    one Approval a line, append-only; several processes may append while the run is at work
lessons/           what was approved, as versions by "approval"; they alone say what is applied

A run applies what was approved before its next update and at its end, a command where nothing is at work in the run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import groupby
from typing import Literal

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.lessons.commit import History, Version, read_updates
from midstream.lessons.gate import Test
from midstream.lessons.ledger import REPLIES, ROLLOUTS
from midstream.lessons.lesson_set import Effect, LessonSet, measured, proven, render_modules
from midstream.lessons.operations import Operation, applied
from midstream.runs import RunDirectory
from midstream.runs.info import utc_now
from midstream.runs.journal import Journal, OnDamage, Records, appending, raise_damage
from midstream.runs.lock import is_locked


class Approval(Frozen):
    """A decision on the change of `lesson` that has waited since `update`; the first one counts. `at` is in UTC."""

    update: int
    lesson: str
    verdict: Literal["yes", "no"]
    by: str = Field(default_factory=lambda: os.environ.get("USER") or os.environ.get("USERNAME") or "a person")
    at: str = Field(default_factory=utc_now)


class Waiting(Frozen):
    """A change that passed the gate in `update`, its effect, and the tests of it.

    `diff` are the lines of a unified diff from the lesson's present text, without its heads. `changed`: that text is
    another one than was tested.
    """

    update: int
    operation: Operation
    place: str
    diff: tuple[str, ...]
    effect: Effect | None
    tests: tuple[Test, ...]
    changed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Approvals:
    """The changes of a run that wait, by update; those that were approved and are not applied yet; those rejected."""

    waiting: Sequence[Waiting] = ()
    approved: Sequence[Waiting] = ()
    rejected: Sequence[Waiting] = ()


NOBODY = Approvals()  # no change waits, and none is decided on


def read_approvals(run: RunDirectory, on_damage: OnDamage = raise_damage) -> Approvals:
    """What waits in a run, and what was decided, in the order of the decisions. Damage: as `Records.read`."""
    versions, changes = History(run.lessons_dir).all(), dict[tuple[int, str], Waiting]()
    current = versions[-1].lesson_set if versions else LessonSet()
    for record in read_updates(run, on_damage):
        for number, change in enumerate(record.changes):
            if change.fate == "waiting":
                operation, before = change.operation, current.find(change.operation.id)
                texts = (before.text if before else "").splitlines(), operation.text.splitlines()
                changes[record.step, operation.id] = Waiting(
                    update=record.step,
                    operation=operation,
                    place=operation.module or (before.module if before else ""),
                    diff=tuple(unified_diff(*texts, lineterm=""))[3:],
                    effect=change.effect,
                    tests=tuple(test for test in record.tests if number in test.changes),
                    changed=_seen(versions[record.version - 1].lesson_set, operation) != _seen(current, operation),
                )
    verdicts: dict[tuple[int, str], str] = {}
    for decision in Records(run.approvals_path, Approval).read(on_damage):
        verdicts.setdefault((decision.update, decision.lesson), decision.verdict)
    done = {(one.update, change.id) for one in versions if one.by == "approval" for change in one.operations}
    decided = [key for key in verdicts if key in changes]
    return Approvals(
        waiting=[change for key, change in changes.items() if key not in verdicts],
        approved=[changes[key] for key in decided if verdicts[key] == "yes" and key not in done],
        rejected=[changes[key] for key in decided if verdicts[key] == "no"],
    )


def decide(
    run: RunDirectory, ids: Sequence[str], verdict: Literal["yes", "no"], *, update: int = 0
) -> tuple[list[Waiting], list[Version] | None]:
    """Decide on the waiting changes of these lessons, of all without `ids`; with `update`, of that one alone.

    Returns them and what a yes has made; None where that is left to the run.
    Raises `UsageError` for an id that no waiting change has, and for a yes to a change of a text that was changed.
    """
    # Held until it is applied: of two processes the second finds the run unlocked.
    with appending(run.approvals_path):
        waiting = [change for change in read_approvals(run).waiting if update in (0, change.update)]
        if unknown := set(ids) - {change.operation.id for change in waiting}:
            what = f"no change of {min(unknown)!r} waits in {run.root}: it is decided, or never was one"
            raise UsageError(what, code="unknown-name", fix=f"midstream lessons waiting {shlex.quote(str(run.root))}")
        chosen = [change for change in waiting if not ids or change.operation.id in ids]
        if changed := [change.operation.id for change in chosen if change.changed and verdict == "yes"]:
            what = f"the text of {', '.join(changed)} is another one than was tested, so the change does not apply"
            fix = (
                f"midstream lessons reject {shlex.quote(str(run.root))} {' '.join(changed)}; or roll back to that text"
            )
            raise UsageError(what, code="lessons-changed", fix=fix)
        said = [Approval(update=change.update, lesson=change.operation.id, verdict=verdict) for change in chosen]
        with Journal(run.approvals_path) as journal:
            journal.append_many(said)
        return chosen, settle(run)


def settle(run: RunDirectory) -> list[Version] | None:
    """Apply what was approved; None if that is left to the run: it is at work, or ended in the middle of an update."""
    if is_locked(run.lock_path):
        return None
    with run.lock():
        kept = (run.ledger_dir / name for name in (ROLLOUTS, REPLIES))
        return None if any(path.exists() and path.stat().st_size for path in kept) else apply(run)


def apply(run: RunDirectory) -> list[Version]:
    """Make a version of what was approved of each update. Repeats nothing; the caller holds the run's lock."""
    history, made = History(run.lessons_dir), list[Version]()
    records = {record.step: record for record in read_updates(run)}
    for step, group in groupby(read_approvals(run).approved, key=lambda change: change.update):
        chosen, versions = [change.operation for change in group], history.all()
        tested, current = versions[records[step].version - 1].lesson_set, versions[-1].lesson_set
        # The lessons that a person or another approval has changed or deleted since stay as they are.
        sound = [change for change in chosen if _seen(tested, change) == _seen(current, change)]
        waited = {each.operation: each.effect for each in records[step].changes if each.fate == "waiting"}
        effects = {change.id: effect for change in sound if (effect := waited[change])}
        after = measured(applied(current, sound), {}, effects)
        # What the gate tested is proven: all changes together, of a lesson set that was proven, or empty.
        agent = records[step].agent if records[step].tests else ""
        known = not tested.rendered or tested.proven_for == agent
        if known and sound and render_modules(after) == render_modules(applied(tested, list(waited))):
            after = proven(after, agent)
        lost = ", ".join(change.id for change in chosen if change not in sound)
        note = f"not applied, changed since: {lost}" if lost else ""
        made.append(history.add(after, by="approval", update=step, operations=tuple(chosen), note=note))
    return made


def _seen(lesson_set: LessonSet, change: Operation) -> tuple[str, ...] | None:
    """What the change would replace."""
    lesson = lesson_set.find(change.id)
    return lesson and (lesson.text, lesson.module, lesson.state)
