"""Sandboxes of this machine for tests, and the processes behind a pool."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from midstream.components.component import Sandbox, Tier
from midstream.sandbox import launch
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.tiers import attempt

ON_THIS_MACHINE: tuple[Tier, ...] = ("strong", "standard", "unsafe")


def sandbox(tier: Tier) -> Sandbox:
    """A sandbox of a tier; the test is skipped where the machine does not give it."""
    if tier in ("strong", "standard"):
        outcome = attempt(tier, "")
        if not isinstance(outcome, str):
            pytest.skip(f"no sandbox tier {tier} on this machine: {outcome.what}")
        return Sandbox(tier=tier, mechanisms=outcome)
    return Sandbox(tier=tier)


def make_pool(tier: Tier, **limits: object) -> PythonPool:
    """A pool on a tier; without libraries, which most tests do not need."""
    return PythonPool(CodeLimits.model_validate({"libraries": (), **limits}), sandbox(tier))


def change_the_zygote(monkeypatch: pytest.MonkeyPatch, place: Path, module: str, line: str, other: str) -> None:
    """Start workers from a copy of `sandbox/inside/` in which a line, or a part of it, is another."""
    inside = place / "inside"
    shutil.copytree(launch.INSIDE, inside)
    source = (inside / module).read_text(encoding="utf-8")
    assert source.count(line) == 1
    (inside / module).write_text(source.replace(line, other), encoding="utf-8")
    monkeypatch.setattr(launch, "INSIDE", inside)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, parents first (Linux)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # it ended meanwhile
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def processes(pool: PythonPool) -> list[int]:
    """Every process of a pool's workers; of each worker the zygote last (if nothing runs)."""
    workers = [worker._process.pid for worker in (*pool._idle, *pool._busy)]
    return [process for worker in workers for process in (worker, *descendants(worker))]
