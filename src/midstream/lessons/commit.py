"""An update committed to disk, and the versions of the lesson set that updates make.

What a crash left half done is completed when the run resumes:

ledger/update.json   the update, first; once it is there, the update is completed, whatever happens
lessons/             the new version, if the lesson set changed
trajectories/        those that it learned from (`step-N`), the proposers' (`eval-try-N`), the gate's (`eval-gate-N`)
timings.jsonl, updates.jsonl
ledger/              is emptied

Every version of a lesson set is kept in `lessons/` of its run, with the changes that led to it:

versions.jsonl              one Version a line, append-only
lessons.json                the newest one; written again with each version
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from midstream.core.data import Frozen, problems_of
from midstream.core.errors import RunError
from midstream.core.events import UpdateFinished
from midstream.core.metrics import Spent, StepTiming, ToolUse, no_contrast
from midstream.core.trajectory import Trajectory
from midstream.lessons.editing import to_json
from midstream.lessons.gate import ChangeRecord, Test
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, next_number
from midstream.lessons.operations import Operation, OperationOutcome
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write, damaged, read_file, storage_errors
from midstream.runs.journal import Journal, OnDamage, Records, Report, raise_damage, skip_damage


class UpdateRecord(Frozen):
    """One update: from a batch of tasks to a lesson set.

    `uniform` groups had no contrast and taught nothing; `broken` maps ids of tasks to the reason why their groups were
    left out, `failed` the ids of rollouts that ended in an error to its text. `proposed` holds every operation that a
    role asked for with its outcome, and pending ones that are no longer sound; `changes` those that went to the gate,
    among them the pending ones of the update before. `bisect_pairs` of random halves had a result on both sides,
    `bisect_left_out` had not. All rollouts are of `agent`. `unreadable` are replies that stayed unusable, each with its
    role and task. `version` is the lesson set's after the update, `spent` everything that the run had used by its end.
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
    proposed: tuple[OperationOutcome, ...] = ()
    changes: tuple[ChangeRecord, ...] = ()
    tests: tuple[Test, ...] = ()
    agent: str = ""
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
    def no_contrast(self) -> str:
        """The reason why the update had nothing to learn from; "" if it had something, such as malformed replies."""
        idle = self.uniform + len(self.broken)
        if self.broken and idle == self.groups:
            why = next(iter(self.broken.values()))
            return f"{len(self.broken)} of {self.groups} groups were left out, the first because {why}"
        return no_contrast(self.groups, idle, self.mean_reward, self.tool_use) if idle == self.groups else ""

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
                **{fate: found[fate] for fate in ("accepted", "rejected", "pending", "waiting")},
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


def read_updates(run: RunDirectory, on_damage: OnDamage = raise_damage) -> list[UpdateRecord]:
    """All updates of a run in order; an empty list before the first. Damage: as `read_records`."""
    return Records(run.updates_path, UpdateRecord).read(on_damage)


class MadeUpdate(Frozen):
    """An update that was made and is to be committed.

    `before` is the number of the version that it began with, `operations` lead from there to `lessons`. The file leaves
    out the `trajectories` that it learned from: the ledger has them.
    """

    before: int
    lesson_set: LessonSet
    operations: tuple[Operation, ...]
    record: UpdateRecord
    duration_s: float
    trajectories: tuple[Trajectory, ...] = Field(default=(), exclude=True)


class Committer:
    """Commits updates to a run directory; holds its ledger and its history.

    `committed` gets each record that is on disk, and again if a crash came before the ledger was emptied.
    """

    def __init__(
        self, run: RunDirectory, *, report: Report, committed: Callable[[UpdateRecord], None] | None = None
    ) -> None:
        self.run, self.committed = run, committed
        self.path = run.ledger_dir / "update.json"
        # An update that was made needs nothing any more, so not even rollouts that failed are run again.
        self.ledger = Ledger(run.ledger_dir, retry_errors=not self.path.exists(), report=report)
        self.history = History(run.lessons_dir)

    def commit(self, update: MadeUpdate) -> None:
        """Write an update to disk, completely."""
        atomic_write(self.path, update.model_dump_json().encode() + b"\n")
        self._complete(update)

    def recover(self) -> None:
        """Complete an update that a crash left half written, or drop it if a person has changed the lessons since."""
        self.history.write_files()
        if not self.path.exists():
            return
        try:
            update = MadeUpdate.model_validate_json(read_file(self.path))
        except ValidationError as error:
            fix = f"delete it: midstream resume {self.run.root} makes the update again from what is in the ledger"
            raise damaged(self.path, problems_of(error)[0], fix) from error
        if self._in_history(update) or self.history.get().number == update.before:
            self._complete(update)
        else:
            self.path.unlink()

    def _complete(self, update: MadeUpdate) -> None:
        """Write whatever is not on disk yet; `updates.jsonl` says that all before it is."""
        record, run = update.record, self.run
        # Each write is skipped where an earlier attempt has made it; the version's may be lost again, by a bad disk.
        if record.version != update.before and not self._in_history(update):
            self.history.add(update.lesson_set, by="learning", update=record.step, operations=update.operations)
        if all(written.step != record.step for written in read_updates(run)):
            # Where weights are trained, too, steps of that name are theirs.
            part = record.step if run.info().kind == "lessons" else f"update-{record.step}"
            run.trajectories.write(part, self.ledger.gathered(f"step-{record.step}"))
            for purpose in ("try", "gate"):
                if played := self.ledger.gathered(f"{purpose}-{record.step}-"):
                    run.trajectories.write(f"{purpose}-{record.step}", played)
            if all(timing.step != record.step for timing in run.timings.read(skip_damage)):
                run.timings.append(StepTiming(step=record.step, duration_s=update.duration_s))
            with Journal(run.updates_path) as journal:
                journal.append(record)
        if self.committed is not None:
            self.committed(record)
        self.ledger.clear()
        self.path.unlink()

    def _in_history(self, update: MadeUpdate) -> bool:
        step = update.record.step
        return any(version.by == "learning" and version.update == step for version in self.history.all())


VERSIONS = "versions.jsonl"


class Version(Frozen):
    """One version of a lesson set.

    `parent` is the version before it (of a rollback the one that it left), `update` the run's update that made it, 0 if
    none did; `by`: "learning", "approval" (of what `update` found), "edit", "rollback", "merge", "import", "start".
    """

    number: int
    parent: int | None = None
    by: str = "learning"
    update: int = 0
    operations: tuple[Operation, ...] = ()
    note: str = ""
    lesson_set: LessonSet


class History:
    """The versions of one lesson set, in a directory; the newest is the current one. Numbers count from 1.

    Several processes may read. A writer holds the lock of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / VERSIONS

    def all(self) -> Sequence[Version]:
        """Every version, the oldest first; none in a new directory. Raises `RunError` if the journal is damaged."""
        versions = Records(self.path, Version).read()
        for place, version in enumerate(versions, start=1):
            # Updates and rollbacks name versions by number: a line that is gone would rename all after it.
            if version.number != place:
                raise damaged(self.path, f"line {place} holds version {version.number}")
        return versions

    def current(self) -> Version | None:
        """The newest version, None in a new directory; raises as `all`."""
        versions = self.all()
        return versions[-1] if versions else None

    def get(self, number: int | None = None) -> Version:
        """The version of this number, or the newest one; raises `RunError` if it does not exist."""
        versions = self.all()
        if not versions:
            fix = "name the run directory of `midstream train RECIPE` with [lessons], or a lesson set file"
            raise RunError(f"{self.directory} holds no lesson set", code="no-lessons", fix=fix)
        number = len(versions) if number is None else number
        if not 1 <= number <= len(versions):
            what = f"{self.directory} has no version {number} of its lesson set: they are 1 to {len(versions)}"
            raise RunError(what, code="no-lessons", fix=f"midstream lessons versions {self.directory}")
        return versions[number - 1]

    def add(
        self, lesson_set: LessonSet, *, by: str, update: int = 0, operations: tuple[Operation, ...] = (), note: str = ""
    ) -> Version:
        """Add a version, safe on disk on return. Raises `StorageError` if the write failed."""
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        before = len(self.all())
        version = Version(
            number=before + 1,
            parent=before or None,
            by=by,
            update=update,
            operations=operations,
            note=note,
            lesson_set=lesson_set,
        )
        with Journal(self.path) as journal:
            journal.append(version)
        self.write_files()
        return version

    def rollback(self, number: int) -> Version:
        """Make version `number` the current one again, as a new version; raises as `get` and `add`."""
        lesson_set = self.get(number).lesson_set
        # Lessons are numbered on from the newest version, so that no id is given twice.
        latest = max(next_number(version.lesson_set) for version in self.all())
        lesson_set = lesson_set.model_copy(update={"next_number": latest})
        return self.add(lesson_set, by="rollback", note=f"back to version {number}")

    def write_files(self) -> None:
        """Write the newest version's `lessons.json`, which a crash in `add` may have prevented."""
        current = self.current()
        if current is not None:
            atomic_write(self.directory / "lessons.json", to_json(current.lesson_set).encode())
