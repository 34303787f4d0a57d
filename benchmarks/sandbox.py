"""What a call of the Python sandbox costs on each tier: `python benchmarks/sandbox.py [--rounds 5] [--calls 200]`.

CPU milliseconds a call, warm, split into those of this process ("caller") and of every process below it ("below":
zygotes, the children they reaped, bubblewrap), and wall-clock milliseconds; medians over rounds in which the tiers take
turns; and how long a pool takes to its first answer. "unsafe" is the baseline: the same workers, not confined.

CPU below is read from /proc while the workers live. `RUSAGE_CHILDREN` would miss what runs in a PID namespace: nobody
outside it waits for those processes. Its unit is the clock tick, 10 ms over all calls of a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.components.component import Sandbox
from midstream.core.errors import UnsupportedError
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.tiers import choose

BARE, PRIMED = (), ("numpy", "sympy")
# sympy caches results, and a primed worker has integrated x**2: this one is new to it.
INTEGRATE = "import sympy\nx = sympy.symbols('x')\nsympy.integrate(x**3 + 2*x, x)"


@dataclass(frozen=True)
class Work:
    """One piece of code; `workers` of a pool get it `at_once` calls at a time."""

    name: str
    code: str
    libraries: tuple[str, ...]
    at_once: int = 1
    workers: int = 1


WORK = (
    Work("1 + 1", "1 + 1", BARE),
    Work("1 + 1, 64 at once", "1 + 1", BARE, at_once=64, workers=2),
    Work("a loop of 1,000", "total = 0\nfor number in range(1000):\n    total += number % 7\nprint(total)", BARE),
    Work("1 + 1, primed", "1 + 1", PRIMED),
    Work("numpy dot, primed", "import numpy\nfloat(numpy.dot(numpy.arange(9.0), numpy.ones(9)))", PRIMED),
    Work("sympy integrate, primed", INTEGRATE, PRIMED),
)


def cpu_self_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_below_s() -> float:
    """CPU-seconds of this process's living descendants and of all that they have reaped."""
    spent: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        spent[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, level = 0, {os.getpid()}
    while level := {pid for pid, (parent, _) in spent.items() if parent in level}:
        total += sum(spent[pid][1] for pid in level)
    return total / os.sysconf("SC_CLK_TCK")


async def several(pool: PythonPool, work: Work, calls: int) -> None:
    async def one(count: int) -> None:
        for _ in range(count):
            result = await pool.run(work.code)
            assert result.reason == "ok", result

    await asyncio.gather(*(one(calls // work.at_once) for _ in range(work.at_once)))


async def measure(pool: PythonPool, work: Work, calls: int) -> dict[str, float]:
    """Milliseconds a call of one round."""
    calls = max(1, calls // work.at_once) * work.at_once
    await several(pool, work, work.at_once)
    caller, below, wall = cpu_self_s(), cpu_below_s(), time.perf_counter()
    await several(pool, work, calls)
    wall, below, caller = time.perf_counter() - wall, cpu_below_s() - below, cpu_self_s() - caller
    spent = {"caller_ms": caller, "below_ms": below, "cpu_ms": caller + below, "wall_ms": wall}
    return {name: 1000 * value / calls for name, value in spent.items()}


async def first_answer_s(sandbox: Sandbox, libraries: tuple[str, ...]) -> float:
    clock = time.perf_counter()
    pool = PythonPool(CodeLimits(workers=1, libraries=libraries), sandbox)
    await pool.run("1")
    clock = time.perf_counter() - clock
    await pool.close()
    return clock


def tiers() -> list[Sandbox]:
    """The tiers that work here; the others are named."""
    found = []
    for tier in ("strong", "standard"):
        try:
            found.append(choose(SandboxConfig(tier=tier)))
        except UnsupportedError as error:
            print(f"left out: {error}")
    return [*found, choose(unsafe=True)]


async def run(rounds: int, calls: int) -> dict[str, list[dict[str, Any]]]:
    sandboxes = tiers()
    starts = []
    for libraries in (BARE, PRIMED):
        times = {sandbox.tier: [] for sandbox in sandboxes}
        for _ in range(rounds):
            for sandbox in sandboxes:
                times[sandbox.tier].append(await first_answer_s(sandbox, libraries))
        for tier, found in times.items():
            starts.append({"tier": tier, "libraries": libraries, "seconds": statistics.median(found)})
    rows = []
    for work in WORK:
        limits = CodeLimits(workers=work.workers, libraries=work.libraries)
        pools = {sandbox.tier: PythonPool(limits, sandbox) for sandbox in sandboxes}
        found = {tier: [] for tier in pools}
        for _ in range(rounds):
            for tier, pool in pools.items():
                found[tier].append(await measure(pool, work, calls))
        for tier, pool in pools.items():
            await pool.close()
            medians = {name: statistics.median(one[name] for one in found[tier]) for name in found[tier][0]}
            rows.append({"code": work.name, "tier": tier, **medians})
    return {"rows": rows, "starts": starts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="calls a round")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.rounds, arguments.calls))
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'code':26}{'tier':10}{'caller':>8}{'below':>8}{'CPU ms':>8}{'wall ms':>9}")
    for row in found["rows"]:
        numbers = f"{row['caller_ms']:8.2f}{row['below_ms']:8.2f}{row['cpu_ms']:8.2f}{row['wall_ms']:9.2f}"
        print(f"{row['code']:26}{row['tier']:10}{numbers}")
    for start in found["starts"]:
        libraries = ", ".join(start["libraries"]) or "no libraries"
        print(f"first answer, {libraries}: {start['tier']} {start['seconds']:.2f} s")


if __name__ == "__main__":
    main()
