"""CPU milliseconds of one call of the Python sandbox: `python benchmarks/python_tool.py [--calls 2000]`.

Each line is a pool of its own, warmed up first. "parent" is this process, "workers" the zygotes and all their children
(they count once they are reaped, so it is read after `close`; their start is measured apart and taken off).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time

from midstream.sandbox.pool import PythonPool

CODE = {
    "expression": "105 + 7",
    "program": "total = 0\nfor number in range(1000):\n    total += number % 7\nprint(total)",
    "imports": "import math, re\nfrom collections import Counter\nprint(math.comb(40, 20), Counter('amberbank')['a'])",
}


def cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


async def measure(code: str, calls: int, concurrency: int, workers: int) -> tuple[float, float, float]:
    """Seconds of `calls` calls after a warm-up: wall clock, CPU of this process, CPU of all reaped children."""
    pool = PythonPool(workers=workers)

    async def several(count: int) -> None:
        for _ in range(count):
            result = await pool.run(code)
            assert result.ok, result

    children_before = cpu_s(resource.RUSAGE_CHILDREN)
    await asyncio.gather(*(several(1) for _ in range(workers if concurrency > 1 else 1)))
    wall, parent = time.perf_counter(), cpu_s(resource.RUSAGE_SELF)
    await asyncio.gather(*(several(calls // concurrency) for _ in range(concurrency)))
    wall, parent = time.perf_counter() - wall, cpu_s(resource.RUSAGE_SELF) - parent
    await pool.close()
    return wall, parent, cpu_s(resource.RUSAGE_CHILDREN) - children_before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    rows = []
    print(f"{'code':12}{'at once':>8}{'workers':>8}{'parent ms':>11}{'workers ms':>11}{'sum ms':>8}{'wall ms':>9}")
    for name, code in CODE.items():
        for concurrency, workers in ((1, 1), (64, 1), (64, 2)):
            starts = asyncio.run(measure(code, 0, concurrency, workers))[2]
            calls = arguments.calls // concurrency * concurrency
            wall, parent, children = asyncio.run(measure(code, calls, concurrency, workers))
            parent, children, wall = (1000 * part / calls for part in (parent, children - starts, wall))
            row = f"{parent:11.3f}{children:11.3f}{parent + children:8.3f}{wall:9.3f}"
            print(f"{name:12}{concurrency:8}{workers:8}{row}")
            found = {"code": name, "at_once": concurrency, "workers": workers, "calls": calls}
            rows.append(found | {"parent_ms": parent, "workers_ms": children, "wall_ms": wall})
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
