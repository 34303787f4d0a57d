"""The ledger: each trajectory and each reply of the reflector of the update under way, kept as soon as it exists.

An update is a pure function of the run's seed, the lesson set before it and these, so a run that was killed makes the
update again from its start, takes from the ledger what is there, and reaches the same lessons: no model is asked twice.
A finished update leaves its record and its trajectories in the run directory; then the ledger is emptied.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from midstream.core.data import Frozen
from midstream.core.trajectory import Call, Trajectory
from midstream.rollout import Place
from midstream.runs import results
from midstream.runs.budget import ended_by_budget
from midstream.runs.files import atomic_write, storage_errors
from midstream.runs.journal import Journal, Records, Report, warn

ROLLOUTS, REPLIES = "rollouts.jsonl", "replies.jsonl"  # in the ledger's directory


class Reply(Frozen):
    """One record of `replies.jsonl`."""

    key: str
    calls: tuple[Call, ...]


class Ledger:
    """A ledger in a run directory's `ledger/`, or in memory. A `scope` names a piece of work within the run.

    What is kept in a directory is on disk when the call returns. The ledger begins with what an earlier process kept,
    except trajectories that ended in an infrastructure error: with `retry_errors` these are dropped, and run again.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        retry_errors: bool = True,
        report: Report = warn,
    ) -> None:
        self.directory = directory
        self._report = report
        self._trajectories: dict[str, dict[Place, Trajectory]] = {}
        self._replies: dict[str, tuple[Call, ...]] = {}
        self._journals: dict[str, Journal] = {}
        if directory is None:
            return
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        # Before reading: the file must not keep what memory has dropped.
        if retry_errors:
            results.keep(directory / ROLLOUTS, lambda scope, failed: not failed, report)
        for result in results.read(directory / ROLLOUTS):
            self._trajectories.setdefault(result.set, {})[result.place] = result.trajectory
        replies = Records(directory / REPLIES, Reply).read(lambda error: report(f"{error.what}; it is asked again"))
        self._replies = {reply.key: reply.calls for reply in replies}

    def kept(self, scope: str) -> dict[Place, Trajectory]:
        """The trajectories of a piece of work so far, by task and index."""
        return dict(self._trajectories.get(scope, {}))

    def keep(self, scope: str, trajectories: Sequence[Trajectory]) -> None:
        """Keep trajectories that have ended; not those that a spent budget ended, which are run again."""
        kept = [trajectory for trajectory in trajectories if not ended_by_budget(trajectory)]
        places = {(trajectory.task_id, trajectory.rollout_index): trajectory for trajectory in kept}
        self._trajectories.setdefault(scope, {}).update(places)
        if self.directory is not None:
            results.append(self._journal(self.directory / ROLLOUTS), scope, kept)

    def gathered(self, prefix: str) -> list[Trajectory]:
        """All trajectories of scopes that begin with `prefix`, in a fixed order."""
        scopes = sorted(scope for scope in self._trajectories if scope.startswith(prefix))
        return [self._trajectories[scope][place] for scope in scopes for place in sorted(self._trajectories[scope])]

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """The reflector's calls under `key`; None if it was not asked yet."""
        return self._replies.get(key)

    def keep_reply(self, key: str, calls: tuple[Call, ...]) -> None:
        """Keep an answer of the reflector: every call that led to it, the answer last."""
        self._replies[key] = calls
        if self.directory is not None:
            self._journal(self.directory / REPLIES).append(Reply(key=key, calls=calls))

    @property
    def empty(self) -> bool:
        """Whether no update is under way."""
        return not (self._trajectories or self._replies)

    def clear(self) -> None:
        """Drop everything: all work is done and recorded."""
        self.close()
        if self.directory is not None:
            for name in (ROLLOUTS, REPLIES):
                atomic_write(self.directory / name, b"")
        self._trajectories.clear()
        self._replies.clear()

    def close(self) -> None:
        """Close the files; they open again when something is kept."""
        while self._journals:
            self._journals.popitem()[1].close()

    def _journal(self, path: Path) -> Journal:
        if path.name not in self._journals:
            self._journals[path.name] = Journal(path, report=self._report)
        return self._journals[path.name]
