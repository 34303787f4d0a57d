"""What each variant's update costs, over Flow-GRPO's, on the same rows of a recipe.

    python benchmarks/variants.py                        # rows of flow-grpo-tiny
    python benchmarks/variants.py --shape text           # of text-tiny
    python benchmarks/variants.py --rounds 9

CPU seconds of `forward_backward` on one thread, medians of rounds in which every variant takes its turn. GSPO makes a
pass without gradient first; an entropy bonus computes the entropy of every distribution that a token was drawn from;
beta = 0 needs no reference policy, which the paper's loss does.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from update_peers import recorded
from update_shapes import RECIPES, recipe_rows

from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.settings import VARIANTS, LearnerConfig, TrainingConfig


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(RECIPES), default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, rows = recipe_rows(arguments.shape)
    learner = LocalLearner(model, LearnerConfig())
    rows = recorded(learner, rows)
    losses = {"Flow-GRPO": PolicyLoss()}
    losses |= {name: TrainingConfig.model_validate({"variant": name}).loss for name in VARIANTS}
    losses["gspo, beta = 0.001"] = losses["gspo"].model_copy(update={"kl_coefficient": 0.001})
    losses["entropy bonus"] = PolicyLoss(entropy_coefficient=0.01)
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(arguments.rounds):
        for name, loss in losses.items():
            started = time.process_time()
            learner.forward_backward(rows, loss)
            seconds[name].append(time.process_time() - started)
            learner.optimizer.zero_grad()
    base = statistics.median(seconds["Flow-GRPO"])
    print(f"{arguments.shape}: {len(rows)} rows, {sum(row.length for row in rows)} tokens, {arguments.rounds} rounds")
    for name, own in seconds.items():
        print(f"{name:20} {statistics.median(own):8.3f} CPU-s   x {statistics.median(own) / base:.2f}")


if __name__ == "__main__":
    main()
