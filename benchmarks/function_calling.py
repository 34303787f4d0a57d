"""Replays of ground truth: `python benchmarks/function_calling.py [--tau-bench CLONE] [--only-tau] [--json]`.

Every call of BFCL's 800 multi-turn tasks and of tau-bench's tests is made on a dialogue's tools, as an agent would, and
judged by the adapter. All must pass; with each task's last call left out, none of BFCL's may. "did nothing" is the
share of tau-bench that an agent succeeds at which calls no function. Needs no network: BFCL's data is in the package
bfcl-eval, tau-bench's in a clone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midstream.core.task import Task
from midstream_benchmarks import bfcl_tasks as bfcl
from midstream_benchmarks import tau_bench
from midstream_benchmarks.tau_bench import STOP
from midstream_worlds.scripted_engine import ScriptedEngine


async def replay_bfcl(source: bfcl.Bfcl, task: Task, *, drop_last: bool) -> bool:
    dialogue = source.open(task, seed=0)
    turns = [list(turn) for turn in source.expected(task)]
    if drop_last:
        next(turn for turn in reversed(turns) if turn).pop()
    await dialogue.begin()
    for turn in turns:
        for call in turn:
            await dialogue.functions[call.name].call(call.arguments)
        await dialogue.reply("done")
    return dialogue.outcome()["success"] is True


async def replay_tau(source: tau_bench.TauBench, task: Task) -> bool:
    dialogue, scripted = source.open(task, seed=0), source.scripted(task)
    await dialogue.begin()
    for call in scripted.actions:
        await dialogue.functions[call.name].call(call.arguments)
    await dialogue.reply(" ".join(scripted.outputs))
    return dialogue.outcome()["success"] is True


def report(what: str, passed: Sequence[bool], begun: float, **more: Any) -> dict[str, Any]:
    row = {"what": what, "passed": sum(passed), "of": len(passed), "seconds": round(time.perf_counter() - begun, 1)}
    shares = "".join(f", {name.replace('_', ' ')} {value:.1%}" for name, value in more.items())
    print(f"{what:34}{row['passed']} of {row['of']} in {row['seconds']} s{shares}")
    return {**row, **more}


async def bfcl_rows() -> list[dict[str, Any]]:
    source = bfcl.Bfcl(bfcl.BfclConfig(train=0))
    tasks = source.fixed("test", seed=0)
    rows = []
    for drop_last, what in ((False, "BFCL"), (True, "BFCL without the last call")):
        begun = time.perf_counter()
        rows.append(report(what, [await replay_bfcl(source, task, drop_last=drop_last) for task in tasks], begun))
    return rows


async def tau_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for domain in ("airline", "retail"):
        begun = time.perf_counter()
        config = tau_bench.TauBenchConfig.model_validate({"path": path, "families": [domain]})
        # A user who asks, gets one reply, and stops.
        customer = ScriptedEngine(lambda request: STOP if len(request.messages) > 2 else "Please help me.")
        source = tau_bench.TauBench(config, customer)
        tasks = source.fixed("test", seed=0)
        passed = [await replay_tau(source, task) for task in tasks]
        did_nothing = sum(map(source.solved_by_nothing, tasks)) / len(tasks)
        rows.append(report(f"tau-bench {domain}", passed, begun, did_nothing=did_nothing))
    return rows


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tau-bench", type=Path, metavar="CLONE", help="a clone of tau-bench")
    parser.add_argument("--only-tau", action="store_true", help="leave BFCL out")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    rows = [] if arguments.only_tau else await bfcl_rows()
    if arguments.tau_bench:
        rows += await tau_rows(arguments.tau_bench)
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    asyncio.run(main())
