"""Commit an update to disk: what a crash left half done is completed when the run resumes.

ledger/update.json   the update, first; once it is there, the update is completed, whatever happens
trajectories/        those that it learned from (`step-N`), and the gate's (`eval-gate-N`)
library/             the new version, if the library changed
timings.jsonl, updates.jsonl
ledger/              is emptied
"""

from __future__ import annotations

from collections import Counter

from pydantic import ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import RunError
from midstream.core.events import UpdateFinished
from midstream.core.metrics import Spent, StepTiming, ToolUse
from midstream.practice.gate import ChangeRecord, Test
from midstream.practice.history import History, Version
from midstream.practice.ledger import Cache, RunLedger
from midstream.practice.library import Library
from midstream.practice.operations import Operation, Outcome
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write, damaged
from midstream.runs.journal import Journal, Report, read_models


class UpdateRecord(Frozen):
    """One update: from a batch of tasks to a library.

    `uniform` groups had no contrast and taught nothing; `broken` maps ids of tasks to the reason why their groups were
    left out, `failed` the ids of rollouts that ended in an error to its text. `proposed` holds every operation that a
    role asked for with its outcome, and pending ones that are no longer sound; `changes` those that went to the gate,
    among them the pending ones of the update before. `bisect_pairs` of random halves had a result on both sides,
    `bisect_left_out` had not. `unreadable` are replies that stayed unusable, each with its role and task. `version` is
    the library's after the update, `spent` everything that the run had used by its end.
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

    @property
    def pending(self) -> tuple[Operation, ...]:
        """The changes that the next batch takes up again."""
        return tuple(change.operation for change in self.changes if change.fate == "pending")

    @property
    def event(self) -> UpdateFinished:
        """The event of this update, with its numbers for people."""
        found = Counter(change.fate for change in self.changes)
        return UpdateFinished(
            update=self.step,
            reward_mean=self.mean_reward,
            # Keeping a lesson is not a change.
            proposed=sum(outcome.operation.kind != "keep" for outcome in self.proposed),
            fates={
                **{fate: found[fate] for fate in ("accepted", "rejected", "pending")},
                "refused": sum(bool(outcome.refused) for outcome in self.proposed),
            },
            left_out={
                "uniform groups": self.uniform,
                "failed rollouts": len(self.failed),
                "broken groups": len(self.broken),
                "lost replies": len(self.unreadable),
                "lost pairs": sum(test.left_out for test in self.tests),
            },
            lessons=self.lessons,
            spent=self.spent,
        )


def read_updates(run: RunDirectory) -> list[UpdateRecord]:
    """All updates of a run in order; an empty list before the first. Raises `RunError` if damaged."""
    return read_models(run.updates_path, UpdateRecord)


class MadeUpdate(Frozen):
    """An update that was made and is to be committed; `before` is the number of the version that it began with."""

    before: int
    library: Library
    operations: tuple[Operation, ...]
    record: UpdateRecord
    duration_s: float


class Committer:
    """Commits updates to a run directory; holds its ledger and its history."""

    def __init__(self, run: RunDirectory, *, cache: Cache | None, report: Report) -> None:
        self.run = run
        self.path = run.ledger_dir / "update.json"
        # An update that was made needs nothing any more, so not even rollouts that failed are run again.
        self.ledger = RunLedger(run.ledger_dir, retry_errors=not self.path.exists(), cache=cache, report=report)
        self.history = History(run.library_dir)

    def newest(self) -> Version:
        """The current library with its number."""
        version = self.history.current()
        if version is None:
            raise RunError(
                f"{self.run.root} has no library",
                code="no-library",
                cause="library/versions.jsonl was removed, or the run was stopped while it began",
                fix=f"midstream resume {self.run.root}",
            )
        return version

    def commit(self, update: MadeUpdate) -> None:
        """Write an update to disk, completely."""
        atomic_write(self.path, update.model_dump_json().encode() + b"\n")
        self._complete(update)

    def recover(self) -> None:
        """Complete an update that a crash left half written.

        Where a person has changed the library since, the update is dropped, and made again on the new library.
        """
        self.history.write_files()
        if not self.path.exists():
            return
        try:
            update = MadeUpdate.model_validate_json(self.path.read_bytes())
        except ValidationError as error:
            fix = f"delete it: midstream resume {self.run.root} makes the update again from what is in the ledger"
            raise damaged(self.path, error.errors()[0]["msg"], fix) from error
        if self._in_history(update) or self.newest().number == update.before:
            self._complete(update)
        else:
            self.path.unlink()

    def _complete(self, update: MadeUpdate) -> None:
        """Write whatever is not on disk yet; `updates.jsonl` is last, and says that all of it is."""
        record, run = update.record, self.run
        # Each write is skipped where an earlier attempt has made it.
        if all(written.step != record.step for written in read_updates(run)):
            run.trajectories.write(record.step, self.ledger.gathered(f"step-{record.step}"))
            if played := self.ledger.gathered(f"gate-{record.step}-"):
                run.trajectories.write(f"gate-{record.step}", played)
            if record.version != update.before and not self._in_history(update):
                self.history.add(update.library, by="learning", update=record.step, operations=update.operations)
            if all(timing.step != record.step for timing in run.timings.read()):
                run.timings.append(StepTiming(step=record.step, duration_s=update.duration_s))
            with Journal(run.updates_path) as journal:
                journal.append(record)
        self.ledger.clear()
        self.path.unlink()

    def _in_history(self, update: MadeUpdate) -> bool:
        versions = self.history.all()
        return any(version.by == "learning" and version.update == update.record.step for version in versions)
