"""Kills a training process with signal 9 at random moments, resumes it, and checks that not a bit was lost.

    python benchmarks/kill_nine.py                 # 20 kills on a ten-step recipe, a few minutes
    python benchmarks/kill_nine.py --kills 100 --seed 1

Moments are drawn from: while a checkpoint is being written, shortly after a step was recorded, anywhere from the first
transcript on. A run that ends before the kills are used up is compared and followed by another. Exit code 1 if any run
differs from one that nobody killed, in its metrics, evaluations, sampled tokens or final weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import TEN_STEPS
from support.killed_training import MOMENTS, Kill, differences, finish, train_with_kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = kill_runs(Path(directory), arguments.kills, random.Random(arguments.seed))
    if arguments.json:
        print(json.dumps({"seed": arguments.seed, **found}))
    return 1 if found["runs_that_differ"] else 0


def kill_runs(directory: Path, wanted: int, rng: random.Random) -> dict[str, Any]:
    """Train, kill and compare until `wanted` kills are made; returns what was counted."""
    recipe, whole = directory / "ten-steps.toml", directory / "whole"
    recipe.write_text(TEN_STEPS, encoding="utf-8")
    began = time.monotonic()
    finish(recipe, whole)
    print(f"undisturbed run: {time.monotonic() - began:.1f} s", flush=True)
    kills: list[Kill] = []
    broken = runs = 0
    while len(kills) < wanted:
        root = directory / f"killed-{runs}"
        drawn = (rng.choice(MOMENTS) for _ in itertools.repeat(None, wanted - len(kills)))
        kills += train_with_kills(recipe, root, drawn, rng)
        different = differences(whole, root)
        runs, broken = runs + 1, broken + bool(different)
        print(f"run {runs}: {len(kills)} kills so far, {', '.join(different) or 'equal bit for bit'}", flush=True)
    print(f"{len(kills)} kills in {runs} runs, {time.monotonic() - began:.0f} s; {broken} runs differ")
    moments = dict(sorted(Counter(kill.moment for kill in kills).items()))
    print("moments:", ", ".join(f"{count} {name}" for name, count in moments.items()))
    print("steps on disk when killed:", " ".join(str(kill.steps) for kill in kills))
    return {"kills": len(kills), "runs": runs, "runs_that_differ": broken, "moments": moments}


if __name__ == "__main__":
    sys.exit(main())
