"""Small lesson runs in the simulated workshop, in this process: begun, resumed, and killed at any write."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from midstream.core.events import Listener
from midstream.core.trajectory import Trajectory, without_clocks
from midstream.lessons.session import LessonsSession
from midstream.process import open_budget
from midstream.recipe.build import Build
from midstream.recipe.files import to_toml
from midstream.recipe.lesson_sessions import lessons_parts_of
from midstream.recipe.schema import load_recipe
from midstream.runs import Journal, RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.info import collect_info
from midstream_worlds.simulated import SimulatedEngine

# Two updates: one whose changes are accepted, and one with a change that is rejected and one that is put off.
SMALL: Mapping[str, Any] = {
    "seed": 2,
    "tasks.help": 0.4,
    "tasks.reach": 1.0,
    "tasks.base": 0.2,
    "tasks.share_true": 0.8,
    "tasks.rules": 4,
    "tasks.clutter": 0.0,
    "lessons.tasks": 6,
    "lessons.batch_size": 3,
    "lessons.epochs": 1,
    "lessons.group_size": 3,
    "lessons.gate.tasks": 4,
    "lessons.gate.block": 4,
    "lessons.gate.test_pairs": 8,
    "lessons.gate.bisect_pairs": 4,
    "lessons.gate.error_rate": 0.9,
    "rollout.concurrency": 1,
}
TINY = {  # two updates: a change is accepted, then two are put off
    **SMALL,
    "seed": 0,
    "lessons.tasks": 4,
    "lessons.batch_size": 2,
    "lessons.group_size": 2,
    "tasks.train": 10,
    "tasks.validation": 10,
    "tasks.test": 10,
}
COMPARED = ("updates.jsonl", "evaluations.jsonl", "lessons/lessons.json")


class Killed(BaseException):
    """The process is dead: nothing more is written."""


@dataclass
class Asked:
    """The requests that were made to models, and the shuffle of their answers."""

    calls: int = 0
    shuffled: bool = False
    roles: list[str] = field(default_factory=list)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch, *, shuffled: bool = False) -> Iterator[Asked]:
    """Count every request to a simulated engine; `shuffled` lets answers come in a random order."""
    inner, asked = SimulatedEngine.sample, Asked(shuffled=shuffled)
    chance = random.SystemRandom()

    async def sample(self: SimulatedEngine, request: Any) -> Any:
        asked.calls += 1
        asked.roles.append(request.role)
        if shuffled:
            await asyncio.sleep(chance.random() * 0.002)
        return await inner(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedEngine, "sample", sample)
        yield asked


def learn(
    root: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    small: Mapping[str, Any] = SMALL,
    listener: Listener = lambda event: None,
) -> str:
    """Begin a run in `root`, or resume the one there, to its end; returns why it ended early."""
    settings = {**small, **(changes or {})}
    sets = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
    recipe = load_recipe("lessons-simulated", [*sets, 'evaluation.sets=[{name="test",split="test",count=3}]'])
    assert recipe.lessons is not None
    with Build(recipe, budget=Budget(recipe.budget or BudgetConfig())) as build:
        parts = lessons_parts_of(build)
        run = RunDirectory(root)
        if not run.info_path.exists():
            run = RunDirectory.create(
                root, collect_info(recipe.name, recipe.seed, build.resolved), to_toml(build.resolved)
            )
        with run.lock(), open_budget(run, build.budget):
            return asyncio.run(LessonsSession(parts, run, listener).run())


@contextmanager
def killed_after(
    monkeypatch: pytest.MonkeyPatch, root: Path, count: int, *, every_write: bool = False
) -> Iterator[list[str]]:
    """Dies right after write number `count` under `root`; the list names the files written.

    A write is a record that was appended or a file that was replaced; of the budget's only with `every_write`.
    """
    written: list[str] = []

    def wrote(path: str) -> None:
        if not path.startswith(str(root)) or (path.endswith("spent.jsonl") and not every_write):
            return
        written.append(str(Path(path).relative_to(root)))
        if len(written) >= count:
            raise Killed

    def alive() -> None:
        if len(written) >= count:
            raise Killed

    append, replace = Journal.append_many, os.replace

    def append_many(journal: Journal, records: Sequence[Any]) -> None:
        alive()
        append(journal, records)
        if records:
            wrote(str(journal.path))

    def replace_file(source: Any, target: Any) -> None:
        alive()
        replace(source, target)
        wrote(str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append_many", append_many)
        patch.setattr(os, "replace", replace_file)
        yield written


def killed_at(root: Path, count: int, run: Callable[[], object]) -> bool:
    """Whether `run` was killed right after write number `count` under `root`."""
    with pytest.MonkeyPatch.context() as patch, killed_after(patch, root, count):
        try:
            run()
        except BaseException as failure:
            while isinstance(failure, BaseExceptionGroup):
                [failure, *_] = failure.exceptions
            if not isinstance(failure, Killed):
                raise
            return True
    return False


def die(root: Path, changes: Mapping[str, Any] | None = None, *, small: Mapping[str, Any] = SMALL) -> bool:
    """Practise until killed; whether it was."""
    try:
        learn(root, changes, small=small)
    except BaseException as failure:
        if not _is_killed(failure):
            raise
        return True
    return False


def _is_killed(failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return any(_is_killed(one) for one in failure.exceptions)
    return isinstance(failure, Killed)


def trajectories(root: Path) -> dict[str, list[Trajectory]]:
    """All segments of a run, without clocks."""
    run, found = RunDirectory(root), {}
    for path in sorted(run.trajectories.root.glob("*.jsonl.gz")):
        name = path.name.removesuffix(".jsonl.gz")
        if name.startswith("eval-"):
            found[name] = list(map(without_clocks, run.trajectories.read(name.removeprefix("eval-"))))
        else:
            found[name] = list(map(without_clocks, run.trajectories.read(int(name.removeprefix("step-")))))
    return found


def differences(expected: Path, found: Path) -> list[str]:
    """What of two runs is not the same; clocks are not compared."""
    different = [name for name in COMPARED if (expected / name).read_bytes() != (found / name).read_bytes()]
    return different + (["trajectories"] if trajectories(expected) != trajectories(found) else [])
