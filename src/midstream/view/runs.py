"""The runs that a viewer shows: their names, what a list says of each, and the state of their files.

A cursor is text that says in which state each run was. It is computed from the files alone, so that a server that was
started again knows what changed since.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.report.blocks import Block
from midstream.report.evaluation import comparisons
from midstream.report.numbers import buckets
from midstream.report.trajectory import safe
from midstream.runs import RunDirectory
from midstream.runs.feedback import NAME
from midstream.runs.journal import skip_damage
from midstream.runs.lock import is_locked
from midstream.view.parts import Kept

if TYPE_CHECKING:
    from midstream.lessons.commit import UpdateRecord

_WATCHED = (
    "run.json", "recipe.toml", "status.json", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "updates.jsonl",
    "results.jsonl", "ledger/rollouts.jsonl", "ledger/spent.jsonl", "lessons/versions.jsonl", NAME, "trajectories",
)  # fmt: skip
_SIGNS = ("run.json", "metrics.jsonl", "updates.jsonl", "results.jsonl", "trajectories")  # of a run, or half of one
_DEEPEST = 4  # directories between the place that was named and a run
_SPARK = 60
_STATE = struct.Struct("<IQ")  # of a cursor: a run's name and state, hashed


class Runs:
    """The runs in some places, by name: a run's directory, or a directory that runs lie below."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [Path(os.path.abspath(place)) for place in places]
        self._names: dict[Path, str] = {}  # a name stays while the viewer runs
        self._summaries = Kept(1000)
        self._looking, self._looked, self._states = threading.Lock(), 0.0, dict[str, int]()

    def find(self) -> dict[str, Path]:
        """The directories of all runs there are now, by name."""
        found = [root for place in self._places for root in _below(place, _DEEPEST)]
        if len(self._places) == 1 and not found and looks_like_run(self._places[0]):
            found = self._places
        # A link may lead to a directory that was seen already, or to one above itself.
        shortest: dict[str, Path] = {}
        for root in sorted(found, key=lambda root: len(root.parts)):
            shortest.setdefault(os.path.realpath(root), root)
        kept = set(shortest.values())
        found = [root for root in dict.fromkeys(found) if root in kept]
        for root in found:
            if root not in self._names:
                # A name that is not UTF-8 can be in no document.
                name = os.fsencode(root.name).decode("utf-8", "replace") or "run"
                taken, number = set(self._names.values()), 2
                while name in taken:
                    name, number = f"{name.rpartition('~')[0] or name}~{number}", number + 1
                self._names[root] = name
        return {self._names[root]: root for root in found}

    def directory(self, name: str) -> RunDirectory:
        """The run of that name. Raises `UsageError` without one."""
        for root, known in self._names.items():
            if known == name and looks_like_run(root):
                return RunDirectory(root)
        if name in (found := self.find()):
            return RunDirectory(found[name])
        raise UsageError(f"there is no run {name!r}", code="unknown-name", fix="the list of runs has those there are")

    def states(self, age: float = 0.0) -> dict[str, int]:
        """The state of each run, as a number that changes when a file of it does; at most `age` seconds old."""
        with self._looking:
            if time.monotonic() >= self._looked + age:
                self._states = {name: state_of(root) for name, root in self.find().items()}
                self._looked = time.monotonic()
            return self._states

    def fresh(self, name: str, seconds: float = 5.0) -> bool:
        """Whether a run changed within the last seconds."""
        return _last_change(self.directory(name).root) > time.time() - seconds

    def summary(self, name: str) -> Block:
        """What a list of runs says of one."""
        root = self.directory(name).root
        return self._summaries.get((name, state_of(root)), lambda: {"run": name, **summary(RunDirectory(root))})


def cursor_of(states: dict[str, int]) -> str:
    """The cursor that says that runs are in these states."""
    packed = b"".join(_STATE.pack(_hash(name.encode()) & 0xFFFFFFFF, state) for name, state in sorted(states.items()))
    return urlsafe_b64encode(packed).decode().rstrip("=")


def changed_since(cursor: str, states: dict[str, int]) -> list[str]:
    """The runs whose state is another than the cursor says, or of which it says nothing; all, if it is no cursor."""
    try:
        packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        known = dict(_STATE.iter_unpack(packed))
    except (ValueError, struct.error):
        known = {}
    return [name for name, state in states.items() if known.get(_hash(name.encode()) & 0xFFFFFFFF) != state]


def looks_like_run(root: Path) -> bool:
    """Whether a directory is a run, or what is left of one."""
    return any(os.path.exists(root / sign) for sign in _SIGNS)


def state_of(root: Path) -> int:
    """A number that changes when a file of the run does, or when its process ends."""
    parts: list[object] = []
    for name in _WATCHED:
        try:
            found = os.stat(root / name)
        except OSError:
            continue
        parts.append((name, found.st_size, found.st_mtime_ns, found.st_ino))
    lock = root / "run.lock"
    at_work = os.access(lock, os.R_OK) and lock.is_file() and is_locked(lock)
    return _hash(repr((parts, at_work)).encode())


def not_files(root: Path) -> list[str]:
    """What stands in the place of a run's files and is not read: links, pipes and devices."""
    found = []
    for name in _WATCHED:
        try:
            mode = os.lstat(root / name).st_mode
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            found.append(name)
    return found


def summary(run: RunDirectory) -> Block:
    """What a list of runs says of one; what cannot be read is named under "damage"."""
    damage = [f"{name} is a link, a pipe or a device, not a file" for name in not_files(run.root)]
    updated = datetime.fromtimestamp(_last_change(run.root), UTC).isoformat(timespec="seconds")
    found: Block = {
        "path": str(run.root), "kind": "training", "recipe": "", "seed": 0, "state": "interrupted", "message": "",
        "started": "", "updated": updated, "step": 0, "steps": None, "success": None, "interval": None,
        "before": None, "set": "", "spark": [], "cost_usd": 0.0, "errors": 0, "damage": damage,
    }  # fmt: skip
    for read in () if damage else (_about, _numbers):
        try:
            found |= read(run, damage)
        except OSError as error:
            damage.append(f"{Path(error.filename or run.root).name} cannot be read: {error.strerror}")
        except RunError as error:
            damage.append(error.what.replace(f"{run.root}{os.sep}", ""))
    return safe(found)


def _about(run: RunDirectory, damage: list[str]) -> Block:
    """What `run.json` says."""
    info = run.info()
    if not run.status_path.is_file():
        damage.append(f"{run.status_path.name} is missing")
    training = info.resolved.get("training") if info.kind == "training" else None
    return {
        "kind": info.kind,
        "recipe": info.recipe_name,
        "seed": info.seed,
        "started": info.created_at,
        "steps": training.get("steps") if isinstance(training, Mapping) else None,
    }


def updates_of(run: RunDirectory) -> Sequence[UpdateRecord]:
    """The updates of a lesson run; of another run, none."""
    if not run.updates_path.exists():
        return ()
    from midstream.lessons.commit import read_updates

    return read_updates(run, skip_damage)


def _numbers(run: RunDirectory, damage: list[str]) -> Block:
    """What the records of a run say."""
    status, evaluations = run.status(), run.evaluations.read(lambda error: damage.append(error.what))
    metrics, updates = run.metrics.read(skip_damage), updates_of(run)
    rewards = [step.reward_mean for step in metrics] + [update.mean_reward for update in updates]
    lost = [step.trajectories_error for step in metrics] + [len(update.failed) for update in updates]
    learning = updates[-1].spent.cost_usd if updates else 0.0
    return {
        "state": status.state,
        "message": status.message,
        "step": max(len(rewards), status.step or 0),
        "spark": [value for _, value in buckets(list(enumerate(rewards)), _SPARK)],
        "errors": sum(lost) + sum(result.errors for result in evaluations),
        "cost_usd": learning or sum(result.cost_usd for result in evaluations),
        **_success(evaluations),
    }


def _success(evaluations: Sequence[EvaluationResult]) -> Block:
    """Success on the largest set, greedy if that was evaluated: last, with its interval, and first."""
    if found := comparisons([result for result in evaluations if result.step is not None]):
        _, before, after = found[0].by_kind()[-1]
    else:
        outside = sorted(evaluations, key=lambda result: (result.sampling != "greedy", -result.tasks))
        before, after = outside[:1], []
    if not before:
        return {}
    last = (after or before)[0]
    return {
        "set": f"{last.set_name} {last.sampling}",
        "success": last.success,
        "interval": last.interval and list(last.interval),
        "before": before[0].success if after else None,
    }


def _last_change(root: Path) -> float:
    return max((os.stat(found).st_mtime for name in _WATCHED if os.path.exists(found := root / name)), default=0.0)


def _below(place: Path, levels: int) -> Iterable[Path]:
    """The runs at or below a place, in the order of their paths; what cannot be read is left out."""
    if os.path.exists(place / "run.json") or (os.path.exists(place / "recipe.toml") and looks_like_run(place)):
        yield place
        return
    try:
        inner = sorted(entry.path for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for path in inner if levels else ():
        yield from _below(Path(path), levels - 1)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
