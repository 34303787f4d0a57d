"""Rollouts and the reflector's replies, kept on disk for other runs of the very same settings.

A key is a digest of all that decides what comes of a rollout: the agent with its prompts, tools, models and reward, the
task, what it is run for (learning, the gate, an evaluation: so nothing is shared between splits), the lessons in the
prompts, seed and place. Another setting is another key. What ended in an error is never kept.


What the update under way has done: each trajectory and each reply of the reflector, kept as it comes.

An update is a pure function of the run's seed, the library before it and these, so a run that was killed does the
update again from its start, takes all that is here as it is, and ends where it would have ended: no model is asked
twice. An update that is done leaves its record and its trajectories in the run directory; then the ledger is empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import BudgetError
from midstream.core.keyed_file import KeyedFile
from midstream.core.lessons import Lessons
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.rollout import Place
from midstream.runs import results
from midstream.runs.files import atomic_write
from midstream.runs.journal import Journal, Report, read_models, warn

FILE = "practice.sqlite"
APPLICATION = 0x6D737072  # "mspr"
FORMAT = 1
_CALLS = TypeAdapter(tuple[Call, ...])


class Cache:
    """The file in `directory`; raises as `core.keyed_file.KeyedFile`.

    `settings` is all of the recipe that decides what is said.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self._settings = json.dumps(settings, sort_keys=True, default=str)
        self._file = KeyedFile(
            directory / FILE,
            application=APPLICATION,
            version=FORMAT,
            table="kept",
            what="cache",
            setting="practice.cache",
        )

    def trajectory(self, purpose: str, task: Task, lessons: Lessons, seed: int, index: int) -> Trajectory | None:
        """What came of this very rollout before."""
        found = self._file.find(self._key(purpose, task.model_dump_json(), dict(lessons), seed, index))
        try:
            return None if found is None else Trajectory.model_validate_json(found)
        except ValidationError as error:
            raise self._file.unusable(error) from error

    def keep(self, purpose: str, task: Task, lessons: Lessons, seed: int, trajectory: Trajectory) -> None:
        """Keep a rollout that ended without an error."""
        if trajectory.status == "ok":
            key = self._key(purpose, task.model_dump_json(), dict(lessons), seed, trajectory.rollout_index)
            self._file.keep(key, trajectory.model_dump_json(exclude_defaults=True))

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """What the reflector was asked and said under a ledger's `key`, which holds a digest of the request."""
        found = self._file.find(self._key("reflector", key))
        try:
            return None if found is None else _CALLS.validate_json(found)
        except ValidationError as error:
            raise self._file.unusable(error) from error

    def keep_reply(self, key: str, calls: Sequence[Call]) -> None:
        """Keep what the reflector said."""
        self._file.keep(self._key("reflector", key), _CALLS.dump_json(tuple(calls)).decode())

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self._file.close()

    def _key(self, *parts: object) -> str:
        text = json.dumps([self._settings, *parts], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Ledger:
    """A ledger in memory; `RunLedger` keeps what it holds on disk, too. A `scope` is a piece of work within the run."""

    def __init__(self) -> None:
        self._trajectories: dict[str, dict[Place, Trajectory]] = {}
        self._replies: dict[str, tuple[Call, ...]] = {}

    def kept(self, scope: str) -> dict[Place, Trajectory]:
        """The trajectories of a piece of work that are there already, by task and index."""
        return dict(self._trajectories.get(scope, {}))

    def keep(self, scope: str, trajectories: Sequence[Trajectory]) -> None:
        """Keep trajectories that have ended; not those that a spent budget ended."""
        self._hold(scope, within_budget(trajectories))

    def gathered(self, wanted: str) -> list[Trajectory]:
        """All trajectories of scopes that begin with `wanted`, in a fixed order."""
        scopes = sorted(one for one in self._trajectories if one.startswith(wanted))
        return [self._trajectories[scope][place] for scope in scopes for place in sorted(self._trajectories[scope])]

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """The reflector's requests under `key`, or None if it was not asked yet."""
        return self._replies.get(key)

    def keep_reply(self, key: str, calls: tuple[Call, ...]) -> None:
        """Keep an answer of the reflector: every request that led to it, the last one's reply being it."""
        self._replies[key] = calls

    def forget(self, scope: str) -> None:
        """A piece of work is done and recorded."""
        self._trajectories.pop(scope, None)

    def clear(self) -> None:
        """All work is done and recorded."""
        self._trajectories.clear()
        self._replies.clear()

    def _hold(self, scope: str, trajectories: Sequence[Trajectory]) -> None:
        self._trajectories.setdefault(scope, {}).update({(one.task_id, one.rollout_index): one for one in trajectories})


class Reply(Frozen):
    """One record of `replies.jsonl`."""

    key: str
    calls: tuple[Call, ...]


class RunLedger(Ledger):
    """The ledger in a run directory's `ledger/`.

    What an earlier process kept is there again, but for trajectories that ended in an infrastructure error: with
    `retry_errors` these are forgotten, and run again. `cache` answers for the reflector where another run asked it.
    """

    def __init__(
        self, directory: Path, *, retry_errors: bool = True, cache: Cache | None = None, report: Report = warn
    ) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self.rollouts_path, self.replies_path = directory / "rollouts.jsonl", directory / "replies.jsonl"
        self._cache, self._report = cache, report
        self._journals: dict[Path, Journal] = {}
        if retry_errors:
            results.keep(self.rollouts_path, lambda scope, failed: not failed)
        for result in results.read(self.rollouts_path):
            self._hold(result.set, [result.trajectory])
        self._replies = {one.key: one.calls for one in read_models(self.replies_path, Reply)}

    def keep(self, scope: str, trajectories: Sequence[Trajectory]) -> None:
        """Keep trajectories that have ended, on disk on return."""
        super().keep(scope, trajectories)
        results.append(self._journal(self.rollouts_path), scope, within_budget(trajectories))

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """The reflector's requests under `key`, of this run or, with a cache, of another."""
        found = super().reply(key)
        if found is None and self._cache is not None:
            found = self._cache.reply(key)
            if found is not None:
                self.keep_reply(key, found)
        return found

    def keep_reply(self, key: str, calls: tuple[Call, ...]) -> None:
        """Keep an answer of the reflector, on disk on return."""
        super().keep_reply(key, calls)
        self._journal(self.replies_path).append(Reply(key=key, calls=calls))
        if self._cache is not None:
            self._cache.keep_reply(key, calls)

    def forget(self, scope: str) -> None:
        """A piece of work is done and recorded: nothing is kept of it here."""
        super().forget(scope)
        self.close()
        results.keep(self.rollouts_path, lambda name, failed: name != scope)

    def clear(self) -> None:
        """All work is done and recorded: nothing is kept of it here."""
        self.close()
        for path in (self.rollouts_path, self.replies_path):
            atomic_write(path, b"")
        super().clear()

    def close(self) -> None:
        """Close the files; they open again when something is kept."""
        while self._journals:
            self._journals.popitem()[1].close()

    def _journal(self, path: Path) -> Journal:
        if path not in self._journals:
            self._journals[path] = Journal(path, report=self._report)
        return self._journals[path]


def within_budget(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that a spent budget did not end: with more to spend they will be run."""
    return [one for one in trajectories if one.error is None or one.error.type != BudgetError.__name__]
