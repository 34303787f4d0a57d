"""Evaluates in a process of its own and kills it with signal 9 once so many runs have ended.

Run as a script it is the `midstream` command with tools of random latency, so that there is time to kill it in.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from midstream.core.trajectory import Trajectory
from midstream.runs import RunDirectory, results

SCRIPT = Path(__file__)
LONGEST_WAIT_S = 60.0


def ended(root: Path) -> list[Trajectory]:
    """Every trajectory on disk, of sets under way and of those that are done; in both for an instant."""
    if not (root / "run.json").exists():
        return []
    run = RunDirectory.open(root)
    found = {(one.set, one.trajectory.id): one.trajectory for one in results.read(run.results_path)}
    for path in sorted(run.trajectories.root.glob("eval-*.jsonl.gz")):
        name = path.name.removeprefix("eval-").removesuffix(".jsonl.gz")
        found |= {(name, one.id): one for one in run.trajectories.read(name)}
    return list(found.values())


def start(*arguments: object) -> subprocess.Popen[str]:
    """The `midstream` command in a process of its own."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen[str], root: Path, count: int, delay_s: float) -> bool:
    """Kill it once `count` records are in its journal or a set is done, after `delay_s`; false if it ended first."""
    began, journal = time.monotonic(), root / "results.jsonl"
    before = _size(journal), _segments(root)

    def reached() -> bool:
        return _size(journal) >= count or _segments(root) > before[1]

    try:
        while process.poll() is None and not reached():
            if time.monotonic() - began > LONGEST_WAIT_S:
                raise AssertionError(f"no {count} results within {LONGEST_WAIT_S:g} s")
            time.sleep(0.001)
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        _, errors = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit code {process.returncode}: {errors}")
    return process.returncode != 0


def finish(*arguments: object) -> None:
    """The command, undisturbed to its end."""
    process = start(*arguments)
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    if process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}: {errors}")


def _size(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _segments(root: Path) -> int:
    return len(list((root / "trajectories").glob("eval-*")))


def main(arguments: list[str]) -> int:
    """`midstream` with slow, unsteady tools."""
    from midstream.cli.main import main as midstream
    from midstream.tools.local_search import LocalSearch

    search = LocalSearch.call

    async def unsteady(self: LocalSearch, call_arguments: Any) -> Any:
        await asyncio.sleep(0.01 + random.expovariate(100))
        return await search(self, call_arguments)

    LocalSearch.call = unsteady  # type: ignore[method-assign]
    return midstream(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
