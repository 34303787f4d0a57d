"""Trains in a process of its own, kills it with signal 9, resumes, and compares with a run that nobody killed.

Run as a script it is the `midstream` command with tools of random latency and slow checkpoints: neither may change a
bit of the result, and both make the moments at which a kill is most likely to hurt longer.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.core.trajectory import without_clocks
from midstream.runs import RunDirectory

SCRIPT = Path(__file__)
MOMENTS = ("save", "record", "any")
LONGEST_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One process that was killed: in which moment, and how many steps its run had on disk."""

    moment: str
    steps: int


def differences(expected: Path, found: Path) -> list[str]:
    """What of two run directories is not the same, bit for bit; wall-clock times are not compared."""
    weights = [f"policy/{path.name}" for path in expected.glob("policy/*.safetensors")]
    assert weights
    different = [
        name
        for name in ("metrics.jsonl", "evaluations.jsonl", *weights, "recipe.toml")
        if (expected / name).read_bytes() != (found / name).read_bytes()
    ]
    one, other = RunDirectory.open(expected), RunDirectory.open(found)
    if one.trajectories.steps() != other.trajectories.steps():
        return [*different, f"steps {one.trajectories.steps()} and {other.trajectories.steps()}"]
    for step in one.trajectories.steps():
        calls = [[without_clocks(t).calls for t in run.trajectories.read(step)] for run in (one, other)]
        if calls[0] != calls[1]:
            different.append(f"calls of step {step}")
    return different


def train_with_kills(recipe: Path, root: Path, moments: Iterator[str], rng: random.Random) -> list[Kill]:
    """Start the run in `root` and kill it at each of `moments`, resuming in between; then let it end."""
    kills: list[Kill] = []
    for moment in moments:
        process = _start(recipe, root)
        try:
            _wait_for(moment, process, root, rng)
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            _, errors = process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(f"exit code {process.returncode}: {errors}")
        if process.returncode == 0:
            break  # it was done first
        kills.append(Kill(moment=moment, steps=_steps(root)))
    finish(recipe, root)
    return kills


def finish(recipe: Path, root: Path) -> None:
    """Run to the end, undisturbed."""
    process = _start(recipe, root)
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    if process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}: {errors}")


def _start(recipe: Path, root: Path) -> subprocess.Popen[str]:
    begun = (root / "run.json").exists()
    command = ["resume", str(root)] if begun else ["train", str(recipe), "--out", str(root)]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *command, "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(moment: str, process: subprocess.Popen[str], root: Path, rng: random.Random) -> None:
    """Return at the moment (the first to fourth of its kind, at random), or when the process has ended."""
    began, steps, status = time.monotonic(), _steps(root), _modified(root / "status.json")
    seen = set(_open_checkpoints(root))  # what an earlier kill left behind is no moment of this process
    stale, wanted = len(seen), rng.randint(1, 4)
    delay_s = rng.uniform(0, {"save": 0.03, "record": 0.15, "any": 2.0}[moment])

    def reached() -> bool:
        if moment == "save":
            seen.update(_open_checkpoints(root))
            return len(seen) - stale >= wanted
        if moment == "record":
            return _steps(root) - steps >= wanted
        return _modified(root / "status.json") != status  # it has read its recipe and begins

    while process.poll() is None and not reached():
        if time.monotonic() - began > LONGEST_WAIT_S:
            raise AssertionError(f"no {moment!r} within {LONGEST_WAIT_S:g} s")
        time.sleep(0.001)
    time.sleep(delay_s)


def _open_checkpoints(root: Path) -> list[tuple[str, int]]:
    """Checkpoints that are being written: name and inode of their directory."""
    found = []
    for path in (root / "checkpoints").glob(".tmp-*"):
        try:
            found.append((path.name, path.stat().st_ino))
        except FileNotFoundError:
            continue  # it has just been given its final name
    return found


def _steps(root: Path) -> int:
    path = root / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def main(arguments: list[str]) -> int:
    """`midstream` with unsteady tools and slow checkpoints."""
    from midstream.cli.main import main as midstream
    from midstream.tools.local_search import LocalSearch
    from midstream.training.learner import LocalLearner

    search, save = LocalSearch.call, LocalLearner.save

    async def unsteady(self: LocalSearch, call_arguments: Any) -> Any:
        await asyncio.sleep(random.expovariate(500))
        return await search(self, call_arguments)

    def slow(self: LocalLearner, directory: Path) -> None:
        save(self, directory)
        time.sleep(0.03)

    LocalSearch.call, LocalLearner.save = unsteady, slow  # type: ignore[method-assign]
    return midstream(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
