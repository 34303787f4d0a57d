"""From an update that was made to one that is on disk: what a crash left half done is finished by the next start.

ledger/update.json   the update, first; from here on it is made, whatever happens
trajectories/        those that it learned from (`step-N`), and the gate's (`eval-gate-N`)
library/             the new version, if the library changed
timings.jsonl, updates.jsonl
ledger/              is empty again
"""

from __future__ import annotations

from collections import Counter

from pydantic import ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import RunError
from midstream.core.metrics import Spent, StepTiming, ToolUse
from midstream.practice.gate import ChangeRecord, Test
from midstream.practice.history import History, Version
from midstream.practice.ledger import Cache, RunLedger
from midstream.practice.library import Library
from midstream.practice.operations import Operation, Outcome
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream.runs.journal import Journal, Report, read_models


class UpdateRecord(Frozen):
    """One update: from a batch of tasks to a library.

    `uniform` groups had no contrast and taught nothing; `broken` maps ids of tasks to the reason why their groups were
    left out, `failed` the ids of rollouts that ended in an error to its text. `proposed` holds every operation that a
    role asked for and what became of it, and pending ones that are sound no longer; `changes` those that went to the
    gate, among them the pending ones of the update before. `bisect_pairs` of random halves had a result on both sides,
    `bisect_left_out` had not. `unreadable` are replies that stayed unusable, each with the role and task that it was
    for. `version` is the library's after it, `spent` all that the run used until its end.
    """

    step: int
    epoch: int
    tasks: tuple[str, ...]
    groups: int
    uniform: int
    broken: dict[str, str] = {}
    failed: dict[str, str] = {}
    mean_reward: float
    turns_mean: float
    tool_use: ToolUse
    proposed: tuple[Outcome, ...] = ()
    changes: tuple[ChangeRecord, ...] = ()
    tests: tuple[Test, ...] = ()
    bisect_pairs: int = 0
    bisect_left_out: int = 0
    unreadable: tuple[str, ...] = ()
    version: int
    lessons: int
    spent: Spent


def fates(record: UpdateRecord) -> dict[str, int]:
    """How many changes of an update were accepted, rejected, left pending, and refused before any test."""
    found = Counter(change.fate for change in record.changes)
    refused = sum(bool(outcome.refused) for outcome in record.proposed)
    return {**{fate: found[fate] for fate in ("accepted", "rejected", "pending")}, "refused": refused}


def proposed(record: UpdateRecord) -> int:
    """How many changes the reflector asked for in an update; keeping a lesson is not a change."""
    return sum(outcome.operation.kind != "keep" for outcome in record.proposed)


def left_out(record: UpdateRecord) -> dict[str, int]:
    """What taught nothing in an update, or could not be used, by reason."""
    return {
        "uniform groups": record.uniform,
        "failed rollouts": len(record.failed),
        "broken groups": len(record.broken),
        "lost replies": len(record.unreadable),
        "lost pairs": sum(test.left_out for test in record.tests),
    }


def read_updates(run: RunDirectory) -> list[UpdateRecord]:
    """All updates of a run in order; empty if there are none yet. Raises `RunError` if damaged."""
    return read_models(run.updates_path, UpdateRecord)


class Done(Frozen):
    """An update that was made: `before` is the number of the version that it began with."""

    before: int
    library: Library
    operations: tuple[Operation, ...]
    record: UpdateRecord
    duration_s: float


class Committer:
    """A run's ledger and its history, and the way from one to the other."""

    def __init__(self, run: RunDirectory, *, cache: Cache | None, report: Report) -> None:
        self.run = run
        self.path = run.ledger_dir / "update.json"
        # An update that is made needs nothing any more: not even what broke is run again.
        self.ledger = RunLedger(run.ledger_dir, retry_errors=not self.path.exists(), cache=cache, report=report)
        self.history = History(run.library_dir)

    def newest(self) -> Version:
        """The current library with its number."""
        version = self.history.current()
        if version is None:
            raise RunError(
                f"{self.run.root} has no library",
                cause="library/versions.jsonl was removed, or the run was stopped while it began",
                fix=f"midstream resume {self.run.root}",
            )
        return version

    def finish(self, done: Done) -> None:
        """Put an update on disk, whole."""
        atomic_write(self.path, done.model_dump_json().encode() + b"\n")
        self._finish(done)

    def recover(self) -> None:
        """Finish what a crash left half done; where a person has changed the library since, it is made again."""
        self.history.write_files()
        if not self.path.exists():
            return
        try:
            done = Done.model_validate_json(self.path.read_bytes())
        except ValidationError as error:
            raise RunError(
                f"{self.path} is damaged: {error.errors()[0]['msg']}",
                cause="the file was edited, or the disk or a copy lost data (a crash leaves it whole)",
                fix=f"delete it: midstream resume {self.run.root} makes the update again from what is in the ledger",
            ) from error
        if self._made(done) is not None or self.newest().number == done.before:
            self._finish(done)
        else:
            self.path.unlink()

    def _finish(self, done: Done) -> None:
        record = done.record
        if all(one.step != record.step for one in read_updates(self.run)):
            self._write_trajectories(record.step)
            if record.version != done.before and self._made(done) is None:
                self.history.add(done.library, by="learning", update=record.step, operations=done.operations)
            if all(one.step != record.step for one in self.run.timings.read()):
                self.run.timings.append(StepTiming(step=record.step, duration_s=done.duration_s))
            with Journal(self.run.updates_path) as journal:
                journal.append(record)
        self.ledger.clear()
        self.path.unlink()

    def _made(self, done: Done) -> Version | None:
        """The version that the update made, if it did."""
        mine = (one for one in self.history.all() if one.by == "learning" and one.update == done.record.step)
        return next(mine, None)

    def _write_trajectories(self, step: int) -> None:
        """What was learned from, and what the gate played."""
        self.run.trajectories.write(step, self.ledger.gathered(f"step-{step}"))
        if played := self.ledger.gathered(f"gate-{step}-"):
            self.run.trajectories.write_evaluation(f"gate-{step}", played)
