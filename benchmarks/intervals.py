"""How often the intervals of `midstream eval` and `midstream compare` hold the truth, on simulated agents.

    python benchmarks/intervals.py                       # 1,000 repetitions of each line, about half an hour
    python benchmarks/intervals.py --repetitions 200

An agent solves each task with a chance of its own: "correlation" 0 is the same chance for all tasks, near 1 nearly all
tasks are always or never solved (the correlation of two trials of one task). Each repetition draws its own tasks.
With 1,000 repetitions a share of 95 % is known to +-1.4 points.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.evaluation.estimates import mean_interval
from support.simulated import coverage, detections

SHARES = (0.05, 0.2, 0.5, 0.8)
COVERAGE = (  # tasks, trials, correlation
    (5, 1, 0.0), (10, 1, 0.0), (20, 1, 0.0), (50, 1, 0.0), (99, 1, 0.0), (100, 1, 0.0), (300, 1, 0.0),
    (10, 4, 0.1), (10, 4, 0.8), (30, 4, 0.1), (30, 4, 0.8), (30, 16, 0.4), (99, 4, 0.4), (300, 4, 0.8),
)  # fmt: skip
EQUAL = (
    (5, 1, 0.0), (20, 1, 0.0), (20, 1, 0.8), (20, 4, 0.1), (20, 4, 0.8), (50, 1, 0.5), (100, 1, 0.0), (100, 1, 0.8),
    (100, 4, 0.1), (100, 4, 0.8), (300, 1, 0.0), (300, 1, 0.8), (300, 4, 0.8),
)  # fmt: skip
BETTER = ((100, 1, 0.5, 0.1), (300, 1, 0.5, 0.05), (300, 1, 0.5, 0.1), (300, 4, 0.5, 0.05), (300, 4, 0.5, 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    repetitions = parser.parse_args().repetitions
    heads = "tasks trials correlation" + "".join(f"{share:>8}" for share in SHARES)
    print(f"95% interval of a mean holds the truth, by true success\n{heads}")
    for tasks, trials, correlation in COVERAGE:
        found = [
            coverage(share, tasks, trials=trials, correlation=correlation, repetitions=repetitions) for share in SHARES
        ]
        line(tasks, trials, correlation, found)
    print(f"\ntwo equal agents: a difference is reported, by true success\n{heads}")
    for tasks, trials, correlation in EQUAL:
        found = [
            detections(share, tasks, trials=trials, correlation=correlation, repetitions=repetitions)
            for share in SHARES
        ]
        line(tasks, trials, correlation, found)
    print(
        "\nthe second agent is better: a difference is reported, first agent at 0.5\ntasks trials correlation better by"
    )
    for tasks, trials, correlation, by in BETTER:
        share = detections(
            0.5, tasks, better_by=by, trials=trials, correlation=correlation, repetitions=min(300, repetitions)
        )
        print(f"{tasks:>5} {trials:>6} {correlation:>11} {by:>9} {share * 100:>7.1f}%", flush=True)
    values = [random.Random(0).random() for _ in range(5000)]
    started = time.process_time()
    mean_interval(values)
    print(f"\nthe interval of 5,000 tasks takes {time.process_time() - started:.2f} CPU-seconds")


def line(tasks: int, trials: int, correlation: float, found: list[float]) -> None:
    print(f"{tasks:>5} {trials:>6} {correlation:>11}" + "".join(f"{one * 100:>7.1f}%" for one in found), flush=True)


if __name__ == "__main__":
    main()
