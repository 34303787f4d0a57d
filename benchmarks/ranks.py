"""How evenly `training/ranks.py` divides a batch: the work of the worst rank over the mean, by simulation.

    python benchmarks/ranks.py                      # made batches, for the sizes of a 7B model; half a minute
    python benchmarks/ranks.py --demo               # and a step of flow-grpo-tiny on real tools; a minute more

Work is operations of the forward pass over each rank's own trie: tokens, attention pairs, predicted tokens. "again" is
what all ranks compute together over what one rank would: prefixes that are on several ranks. "dealt" gives trajectories
to ranks in turn, as a data loader does; each rank then shares what its own rows begin with, too.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import numpy as np
from update_shapes import SIZES, Shape, comparable, make_rows, recipe_rows

from midstream.prefix_tree.cost import CALL, Cost
from midstream.prefix_tree.tree import tree_of
from midstream.training.protocols import Row
from midstream.training.ranks import shares

RANKS = (2, 8, 64)
VOCABULARY = 152_064


def cost_of(size: str) -> Cost:
    """`Cost.of` a model of one of `SIZES`, without making it."""
    width, layers, heads, key_heads, inner, words = SIZES[size]
    matrices = layers * width * (2 * width + 2 * width * key_heads // heads + 3 * inner)
    return Cost(
        token=2 * matrices, pair=4 * width * layers, predicted=2 * words * width, call=CALL * layers, vocabulary=words
    )


def work(rows: Sequence[Row], cost: Cost) -> int:
    """Operations of one rank's rows."""
    if not rows:
        return 0
    tree = tree_of([row.prompt_ids + row.completion_ids for row in rows])
    paths = zip(tree.paths, rows, strict=True)
    predicted = len(np.unique(np.concatenate([path[len(row.prompt_ids) - 1 : -1] for path, row in paths])))
    return tree.unique * cost.token + tree.pairs * cost.pair + predicted * cost.predicted


def ragged(questions: int, seed: int = 0) -> list[Row]:
    """Groups of 8 whose rollouts take 1 to 10 turns and whose texts vary fourfold in length."""
    rng, rows = random.Random(seed), list[Row]()

    def text(tokens: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(3, VOCABULARY), k=rng.randint(tokens // 2, 2 * tokens)))

    static = text(800)
    for question in range(questions):
        asked = text(60)
        for rollout in range(8):
            memory: tuple[int, ...] = ()
            for _ in range(rng.randint(1, 10)):
                completion = text(150)
                rows.append(
                    Row(
                        prompt_ids=static + asked + memory,
                        completion_ids=completion,
                        old_logprobs=(0.0,) * len(completion),
                        advantage=0.0,
                        weight=0.0,
                        kl_weight=0.0,
                        trajectory_id=f"{question}-{rollout}",
                    )
                )
                memory += text(150)
    return comparable(rows)


def dealt(rows: Sequence[Row], ranks: int) -> list[list[int]]:
    """Trajectories to ranks in turn."""
    order = {name: place for place, name in enumerate(dict.fromkeys(row.trajectory_id for row in rows))}
    return [[i for i, row in enumerate(rows) if order[row.trajectory_id] % ranks == rank] for rank in range(ranks)]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="a step of flow-grpo-tiny, too")
    batches = {
        "AgentFlow: 32 questions, 8 rollouts, 3 turns": (make_rows(Shape(questions=32), VOCABULARY), cost_of("7b")),
        "ragged: 32 questions, 8 rollouts, 1 to 10 turns": (ragged(32), cost_of("7b")),
    }
    if parser.parse_args().demo:
        model, rows = recipe_rows("demo")
        batches["demo: 8 questions, 8 rollouts"] = (rows, Cost.of(model))
    print("| batch | ranks | worst / mean | again | dealt: worst / mean | dealt: again | dealt / midstream, worst |")
    print("|---|---|---|---|---|---|---|")
    for name, (rows, cost) in batches.items():
        whole = work(rows, cost)
        for ranks in RANKS:
            cells, worst = [], []
            for places in (shares(rows, ranks, cost, shared=True), dealt(rows, ranks)):
                each = [work([rows[i] for i in own], cost) for own in places]
                worst.append(max(each))
                cells += [f"{max(each) * ranks / sum(each):.2f}", f"{sum(each) / whole:.2f}"]
            print(f"| {name} | {ranks} | {' | '.join(cells)} | {worst[1] / worst[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
