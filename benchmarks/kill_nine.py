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
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import TEN_STEPS
from support.killed_training import MOMENTS, Kill, differences, finish, train_with_kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return kill_runs(Path(directory), arguments.kills, random.Random(arguments.seed))


def kill_runs(directory: Path, wanted: int, rng: random.Random) -> int:
    """Train, kill and compare until `wanted` kills are made; 0 if every run is equal to the undisturbed one."""
    recipe, whole = directory / "ten-steps.toml", directory / "whole"
    recipe.write_text(TEN_STEPS, encoding="utf-8")
    began = time.monotonic()
    finish(recipe, whole)
    print(f"undisturbed run: {time.monotonic() - began:.1f} s", flush=True)
    kills: list[Kill] = []
    broken = runs = 0
    while len(kills) < wanted:
        root = directory / f"killed-{runs}"
        moments = (rng.choice(MOMENTS) for _ in itertools.repeat(None, wanted - len(kills)))
        kills += train_with_kills(recipe, root, moments, rng)
        different = differences(whole, root)
        runs, broken = runs + 1, broken + bool(different)
        print(f"run {runs}: {len(kills)} kills so far, {', '.join(different) or 'equal bit for bit'}", flush=True)
    print(f"{len(kills)} kills in {runs} runs, {time.monotonic() - began:.0f} s; {broken} runs differ")
    print("moments:", ", ".join(f"{count} {name}" for name, count in sorted(Counter(k.moment for k in kills).items())))
    print("steps on disk when killed:", " ".join(str(kill.steps) for kill in kills))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
