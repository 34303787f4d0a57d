"""Compare what a run learns in weights, in lessons, and in both by turns, at equal rollouts.

    python benchmarks/fast_slow.py text-both --seeds 1 2 3 --out runs/fast-slow
    python benchmarks/fast_slow.py RECIPE --seeds 1 --set learner.threads=1 --set training.steps=12

The recipe has [training] and [lessons]. For each seed it learns both; then weights alone, with as many steps as take
the rollouts that both took to learn, those of the gate included; then lessons alone, with as many updates as take them
at what an update of both took, at most four times as many. Shuffled: both once more, with all rewards permuted at
random. A run that is there is not repeated. Evaluations are not counted, and are the same for all.

The last table has the four rows on held-out tasks: weights alone, lessons alone, both, and both with the lessons taken
away. The interval is of the mean change over seeds from before, paired by seed, with Student's t.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory

# Of Student's t, two-sided, by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
LEARNED_FROM = ("step-*", "update-*", "eval-update-*", "eval-try-*", "eval-gate-*")
MOST_UPDATES = 4


class Row(NamedTuple):
    """One arm on one seed: rollouts that it learned from, and success before and after, by sampling."""

    rollouts: int
    before: dict[str, float]
    after: dict[str, float]


def train(recipe: str, out: Path, seed: int, settings: Sequence[str]) -> RunDirectory:
    """Train, or continue, one run."""
    if (out / "run.json").exists():
        words = ["resume", str(out)]
    else:
        words = ["train", recipe, "--out", str(out), "--seed", str(seed)]
        words += [word for setting in settings for word in ("--set", setting)]
    subprocess.run([sys.executable, "-m", "midstream", *words, "--quiet"], check=True, stdout=sys.stderr)
    return RunDirectory.open(out)


def rollouts(run: RunDirectory) -> int:
    """The rollouts that a run learned from: not those of its evaluations."""
    parts = run.trajectories.parts().items()
    return sum(len(list(part)) for name, part in parts if any(fnmatch(name, each) for each in LEARNED_FROM))


def row(run: RunDirectory, set_name: str, *, taken_away: bool = False) -> Row:
    """The numbers of one run on one set."""
    found = [result for result in run.evaluations.read() if result.set_name == set_name]
    last = max(result.step or 0 for result in found)
    before = {result.sampling: result.success for result in found if result.step == 0}
    step = None if taken_away else last
    after = {result.sampling: result.success for result in found if result.step == step}
    # Where no lesson was learned there is nothing to take away.
    return Row(
        rollouts(run), before, after or {result.sampling: result.success for result in found if result.step == last}
    )


def compared(recipe: str, out: Path, seed: int, settings: Sequence[str]) -> dict[str, RunDirectory]:
    """The runs of one seed, by arm."""
    parsed = load_recipe(recipe, settings)
    assert parsed.training is not None
    assert parsed.lessons is not None
    both = train(recipe, out / f"both-{seed}", seed, settings)
    spent = rollouts(both)
    a_step = parsed.training.tasks_per_step * parsed.training.group_size
    steps = round(spent / a_step)
    # What its updates took, those of the gate included.
    for_lessons = spent - parsed.training.steps * a_step
    weights = [*settings, 'learn=["weights"]', f"training.steps={steps}"]
    updates = min(MOST_UPDATES, max(1, round(spent / for_lessons))) * parsed.lessons.epochs
    lessons = [*settings, 'learn=["lessons"]', f"lessons.epochs={updates}"]
    shuffled = [*settings, "training.shuffle_rewards=true", "lessons.shuffle_rewards=true"]
    return {
        "both": both,
        "weights alone": train(recipe, out / f"weights-{seed}", seed, weights),
        "lessons alone": train(recipe, out / f"lessons-{seed}", seed, lessons),
        "both, shuffled rewards": train(recipe, out / f"shuffled-{seed}", seed, shuffled),
    }


def interval(differences: Sequence[float]) -> str:
    """The mean and its 95 % interval, in points."""
    mean = fmean(differences) * 100
    if len(differences) < 2:
        return f"{mean:+.1f}"
    half = T95.get(len(differences) - 1, 1.96) * stdev(differences) * 100 / math.sqrt(len(differences))
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def main() -> None:
    """Run every arm, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/fast-slow"))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--on", default="test", help="the evaluation set (default: %(default)s)")
    options = parser.parse_args()
    found: dict[str, list[Row]] = {}
    for seed in options.seeds:
        runs = compared(options.recipe, options.out, seed, options.settings)
        for arm, run in runs.items():
            found.setdefault(arm, []).append(row(run, options.on))
        found.setdefault("both, lessons taken away", []).append(row(runs["both"], options.on, taken_away=True))
    order = ("weights alone", "lessons alone", "both", "both, lessons taken away", "both, shuffled rewards")
    samplings = list(found["both"][0].before)
    print("| learned | rollouts | " + " | ".join(f"{name}, before -> after | change" for name in samplings) + " |")
    print("|---" * (2 + 2 * len(samplings)) + "|")
    for arm in order:
        rows = found[arm]
        cells = [arm, ", ".join(f"{each.rollouts:,}" for each in rows)]
        for name in samplings:
            cells.append("; ".join(f"{each.before[name]:.1%} -> {each.after[name]:.1%}" for each in rows))
            cells.append(interval([each.after[name] - each.before[name] for each in rows]))
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
