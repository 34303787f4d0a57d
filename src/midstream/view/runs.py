"""The runs that a viewer shows: their names, what a list says of each, and the state of their files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.report.blocks import Block, safe
from midstream.report.evaluation import headline
from midstream.report.numbers import buckets
from midstream.runs import RunDirectory
from midstream.runs.feedback import NAME
from midstream.runs.journal import skip_damage
from midstream.runs.lock import is_locked

if TYPE_CHECKING:
    from midstream.lessons.commit import UpdateRecord

_WATCHED = (
    "run.json", "recipe.toml", "status.json", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "updates.jsonl",
    "results.jsonl", "ledger/rollouts.jsonl", "ledger/spent.jsonl", "lessons/versions.jsonl",
    "approvals.jsonl", NAME, "trajectories",
)  # fmt: skip
_SIGNS = ("run.json", "metrics.jsonl", "updates.jsonl", "results.jsonl", "trajectories")  # of a run, or half of one
_DEEPEST = 4  # directories between the place that was named and a run
_SPARK = 60


class Runs:
    """The runs in some places, by name: a run's directory, or a directory that runs lie below."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [Path(os.path.abspath(place)) for place in places]
        # A name stays while the viewer runs, because addresses hold it.
        self._names: dict[Path, str] = {}
        self._looking, self._looked, self._states = threading.Lock(), 0.0, dict[str, Hashable]()

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
        # A run that was found before is not searched for again: below a large directory that takes long.
        root = next((root for root, known in self._names.items() if known == name), None)
        if root is None or not looks_like_run(root):
            root = self.find().get(name)
        if root is None:
            fix = "the list of runs has those there are"
            raise UsageError(f"there is no run {name!r}", code="unknown-name", fix=fix)
        return RunDirectory(root)

    def states(self, age: float = 0.0) -> dict[str, Hashable]:
        """The state of each run (`state_of`), at most `age` seconds old."""
        with self._looking:
            if time.monotonic() >= self._looked + age:
                self._states = {name: state_of(root) for name, root in self.find().items()}
                self._looked = time.monotonic()
            return self._states


def looks_like_run(root: Path) -> bool:
    """Whether a directory is a run, or what is left of one."""
    return any(os.path.exists(root / sign) for sign in _SIGNS)


def state_of(root: Path) -> Hashable:
    """A value that changes when a file of the run does, or when its process ends."""
    found: list[object] = []
    for name in _WATCHED:
        with suppress(OSError):
            file = os.stat(root / name)
            found.append((name, file.st_size, file.st_mtime_ns, file.st_ino))
    # A process that was killed leaves no other sign than its lock.
    lock = root / "run.lock"
    found.append(os.access(lock, os.R_OK) and lock.is_file() and is_locked(lock))
    return tuple(found)


@lru_cache(1000)
def summary(root: Path, state: Hashable) -> Block:
    """What a list of runs says of one in this state; what cannot be read is named under "damage"."""
    run = RunDirectory(root)
    damage: list[str] = []
    changes = (os.stat(root / name).st_mtime for name in _WATCHED if os.path.exists(root / name))
    updated = datetime.fromtimestamp(max(changes, default=0.0), UTC).isoformat(timespec="seconds")
    found: Block = {
        "path": str(root), "kind": "training", "recipe": "", "seed": 0, "state": "interrupted", "message": "",
        "started": "", "updated": updated, "step": 0, "steps": None, "success": None, "interval": None,
        "before": None, "set": "", "spark": [], "cost_usd": 0.0, "errors": 0, "damage": damage,
    }  # fmt: skip
    for read in (_about, _numbers):
        try:
            found |= read(run, damage)
        except OSError as error:
            damage.append(f"{Path(error.filename or root).name} cannot be read: {error.strerror}")
        except RunError as error:
            damage.append(error.what.replace(f"{root}{os.sep}", ""))
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
    _, before, after = headline(evaluations)
    before = before or sorted(evaluations, key=lambda result: (result.sampling != "greedy", -result.tasks))[:1]
    if not before:
        return {}
    last = (after or before)[0]
    return {
        "set": f"{last.set_name} {last.sampling}",
        "success": last.success,
        "interval": last.interval and list(last.interval),
        "before": before[0].success if after else None,
    }


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
