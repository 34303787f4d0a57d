"""What the gate gains and costs, on direct draws of success: no agent, no model, the statistics alone.

    python benchmarks/gate_power.py                                     # about half an hour on one core
    python benchmarks/gate_power.py --world benchmarks/gate/weak-rules.toml --seeds 20 --harm 0 0.25
    python benchmarks/gate_power.py --gate test_pairs=800 block=16      # other settings of the gate

Three ways to decide on the same proposals, three updates of an empty lesson set: accept everything (ungated), test each
change alone on a fixed number of pairs (one by one), and the gate. "gain" is the exact difference in mean success on
held-out tasks, with its standard deviation over seeds; "worst" is the worst seed's gain; "below 0" counts the seeds
that ended below the empty lesson set; "rollouts" is the multiple of an ungated run's (100 tasks x 5, three times).

Then the null: all lessons are useless or do harm, and every acceptance is an error; the share of runs with one must be
at most the error rate.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.lessons.settings import GateConfig
from support.gate_world import LEARNING, Outcome, Way, World, accepted, gated, one_by_one, run, ungated

NAIVE_PAIRS = 1350  # finds a change of +0.05 with a chance of 80 %


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--harm", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.25])
    parser.add_argument("--world", type=Path, help="a recipe whose [tasks] names other parameters of the workshop")
    parser.add_argument("--gate", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the gate")
    parser.add_argument("--naive-seeds", type=int, default=5, help="runs of the naive gate, which is slow")
    options = parser.parse_args()
    world = World.model_validate(parameters(options.world)) if options.world else World()
    config = GateConfig.model_validate(dict(setting.split("=", 1) for setting in options.gate))
    print("  harm  way            gain             of ungated   worst   below 0   rollouts (most)")
    for harm in options.harm:
        there = world.model_copy(update={"harm": harm})
        free = runs(there, options.seeds, lambda seed: ungated)
        line(harm, "ungated", free, free)
        line(harm, "one by one", runs(there, options.naive_seeds, lambda seed: one_by_one(NAIVE_PAIRS)), free)
        line(harm, "gate", runs(there, options.seeds, lambda seed: gated(config, seed)), free)
    print(f"\n  runs that accept anything, {5 * options.seeds} each; at most {config.error_rate:.0%} may")
    for harm, clutter in ((0.0, 0.0), (0.0, 0.004), (0.05, 0.004)):
        null = world.model_copy(update={"harm": harm, "clutter": clutter, "share_true": 0.0})
        found = runs(null, 5 * options.seeds, lambda seed: gated(config, seed))
        share = fmean(accepted(outcome) for outcome in found)
        print(f"  no lesson helps, harm {harm}, clutter {clutter}: {share:.1%}", flush=True)


def parameters(path: Path) -> dict[str, object]:
    """The workshop's parameters in a recipe that this world has."""
    tasks = tomllib.loads(path.read_text(encoding="utf-8"))["tasks"]
    return {name: value for name, value in tasks.items() if name in World.model_fields}


def runs(world: World, seeds: int, way: Callable[[int], Way]) -> list[Outcome]:
    return [run(world, seed, way(seed)) for seed in range(seeds)]


def line(harm: float, name: str, found: list[Outcome], free: list[Outcome]) -> None:
    gains, costs = [outcome.gain for outcome in found], [outcome.rollouts / (3 * LEARNING) for outcome in found]
    best = fmean(outcome.gain for outcome in free)
    share = f"{fmean(gains) / best:>9.0%}" if best > 0 else "        -"
    print(
        f"{harm:>6}  {name:<12} {fmean(gains):+.3f} ± {pstdev(gains):.3f}   {share}   {min(gains):+.3f}"
        f"   {sum(gain < 0 for gain in gains):>3} of {len(gains):<3} {fmean(costs):>6.1f} ({max(costs):.1f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
