"""The cost of one policy update, against TRL, padding-free rows, and the FLOPs of its unique tokens.

    python benchmarks/update.py                                    # all shapes but the large one, tiny model
    python benchmarks/update.py --model mid --rounds 3             # 12 layers, 768 wide
    python benchmarks/update.py --model mid --shapes large --rounds 1 --peers midstream      # 64 rollouts: memory
    python benchmarks/update.py --model own --shapes demo text     # the policies of two recipes on their own rows
    python benchmarks/update.py --model DIR --shapes base --rounds 1                         # a real model's weights

The peer TRL comes with `pip install -e ".[train,bench]"`. One thread, one process, float32; all models
but DIR are Qwen2 models that are initialized at random.
update_peers.py describes the peers, update_shapes.py the shapes. Two tables: the gradient pass (forward and
backward; old log-probabilities given, no KL term) and the whole update (old and reference log-probabilities, then the
gradient with its KL term), all by each peer's own code.

"x TRL" and "x padding-free" are their CPU seconds over midstream's, ratios of medians, each with its target.
"FLOPs x" are the operations of whole rows over those of their unique tokens: what a peer takes longer that pads nothing
and is as efficient in what it does. "of limit" is the CPU time that the FLOPs of the unique tokens take at the FLOP/s
of a dense batch of the same model (rows of one length, nothing shared, plain transformers; in the same rounds),
over midstream's; it can pass 100 %, for that batch keeps more in memory. "MB" is what a pass adds at its peak,
"MB x ..." theirs over midstream's.
"gradients differ" is the largest relative L2 distance from padding-free's gradient.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from update_measure import TRL_MISSING, Taken, add_options, measure
from update_peers import Midstream, PaddingFree, Peer, Unshared, recorded
from update_shapes import (
    RECIPES,
    SHAPES,
    SIZES,
    flops,
    longest_id,
    make_model,
    make_rows,
    recipe_rows,
    rows_work,
    trie_work,
)
from update_trl import Trl

from midstream.training.learner import LocalLearner
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig

PEERS = ("padding-free", "midstream", "TRL")


@dataclass(frozen=True)
class Wanted:
    """What the gradient pass must reach: ratios of CPU time, share of the limit, padding-free's memory over ours."""

    trl: float | None = None
    padding_free: float | None = None
    limit: float | None = None
    memory: float | None = None
    process_gb: float | None = None  # peak of the whole process


WANTED = {
    "base": Wanted(trl=4.5, padding_free=3.0, memory=2.0),
    "static-2000": Wanted(trl=8.0, padding_free=6.0, limit=0.9),
    "turns-10": Wanted(trl=7.0, padding_free=4.5, limit=0.9),
    "unshared": Wanted(padding_free=0.95, limit=0.9),
    "large": Wanted(process_gb=8.0),
    "demo": Wanted(padding_free=0.95),
    "text": Wanted(trl=6.0, padding_free=4.0, limit=0.8),
}


@dataclass(frozen=True)
class Result:
    """One shape: its size, the CPU seconds of the limit, whole rows' FLOPs over the trie's, what each peer took."""

    shape: str
    rows: int
    total: int
    unique: int
    limit_s: float
    flops: float
    gradient: dict[str, Taken]
    update: dict[str, Taken] = field(default_factory=dict)


def run(shape: str, model: PreTrainedModel, rows: Sequence[Row], arguments: argparse.Namespace) -> Result:
    """All that is asked for one shape."""
    learner = LocalLearner(model, LearnerConfig())
    _make_optimizer_state(learner)
    rows = recorded(learner, rows)
    work, whole = trie_work(rows), rows_work(rows)
    print(f"{shape}: {len(rows)} rows, {whole.tokens} tokens, {work.tokens} unique", flush=True)
    peers = made(learner, rows, arguments.peers)
    turns = {name: peer.gradient for name, peer in peers.items()}
    dense = Unshared.like(model, rows)
    taken = measure({**turns, "dense": dense.gradient}, model, arguments.rounds, compared=len(turns))
    limit_s = taken["dense"].cpu_s * flops(work, model) / flops(dense.work, model)
    update: dict[str, Taken] = {}
    if not arguments.gradient_only:
        update = measure({n: peer.update for n, peer in peers.items()}, model, arguments.rounds, compared=len(peers))
    saved = flops(whole, model) / flops(work, model)
    return Result(shape, len(rows), whole.tokens, work.tokens, limit_s, saved, taken, update)


def _make_optimizer_state(learner: LocalLearner) -> None:
    """AdamW's moments, which a process in training holds; at a learning rate of 0 nothing moves."""
    for one in learner.parameters:
        one.grad = torch.zeros_like(one)
    learner.optimizer_step(0.0)


def made(learner: LocalLearner, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Peer]:
    """The peers asked for; padding-free first, whose gradient the others' are compared with."""
    makers = {
        "padding-free": lambda: PaddingFree(learner.model, rows),
        "midstream": lambda: Midstream(learner, rows),
        "TRL": lambda: Trl(learner.model, rows),
    }
    return {name: makers[name]() for name in PEERS if name in names}


# --- tables -----------------------------------------------------------------------------------------------------------


COLUMNS = [
    "shape",
    "rows",
    "total",
    "unique",
    "total / unique",
    "FLOPs x",
    "midstream, CPU s",
    "x TRL",
    "x padding-free",
]
COLUMNS += ["of limit", "midstream, MB", "MB x TRL", "MB x padding-free", "gradients differ"]


def table(lines: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [COLUMNS, ["---"] * len(COLUMNS), *lines])


def gradient_line(one: Result) -> list[str]:
    """With what is wanted."""
    limit = one.limit_s / one.gradient["midstream"].cpu_s
    return _line(one, one.gradient, f"{limit:.0%}", WANTED[one.shape])


def update_line(one: Result) -> list[str]:
    """The limit is that of the gradient pass alone."""
    return _line(one, one.update, "", Wanted())


def _line(one: Result, taken: dict[str, Taken], limit: str, wanted: Wanted) -> list[str]:
    def over(peer: str, attribute: str, least: float | None = None) -> str:
        if peer not in taken:
            return "-"
        return _with_target(f"{getattr(taken[peer], attribute) / getattr(taken['midstream'], attribute):.2f}", least)

    return [
        one.shape,
        *map(str, (one.rows, one.total, one.unique)),
        f"{one.total / one.unique:.2f}",
        f"{one.flops:.2f}",
        f"{taken['midstream'].cpu_s:.2f}",
        over("TRL", "cpu_s", wanted.trl),
        over("padding-free", "cpu_s", wanted.padding_free),
        _with_target(limit, wanted.limit, ".0%"),
        f"{taken['midstream'].peak_mb:.0f}",
        over("TRL", "peak_mb"),
        over("padding-free", "peak_mb", wanted.memory),
        f"{max(own.difference for own in taken.values()):.0e}",
    ]


def _with_target(found: str, wanted: float | None, how: str = "g") -> str:
    return found if wanted is None else f"{found} (wanted {wanted:{how}})"


def process_line(one: Result) -> str:
    """All that the process held at midstream's peak: policy, reference, AdamW's state, gradients, the pass itself."""
    held = f"{one.gradient['midstream'].process_mb / 1000:.2f} GB"
    limit = WANTED[one.shape].process_gb
    return f"{one.shape}: the process held {held} at midstream's peak" + (
        f" (wanted: at most {limit:g})" if limit else ""
    )


def prepared(arguments: argparse.Namespace) -> list[tuple[str, PreTrainedModel, list[Row]]]:
    """(shape, model, rows) of each shape asked for."""
    real = {name: recipe_rows(name) for name in arguments.shapes if name in RECIPES}
    if arguments.model == "own":
        if len(real) < len(arguments.shapes):
            raise SystemExit(f"--model own is the policy of a recipe: it takes the shapes {', '.join(RECIPES)}")
        return [(name, *found) for name, found in real.items()]
    if arguments.model in SIZES:
        vocabulary = max((longest_id(rows) + 1 for _, rows in real.values()), default=0)
        model = make_model(arguments.model, vocabulary=vocabulary)
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    size = model.config.vocab_size
    return [
        (name, model, real[name][1] if name in real else make_rows(SHAPES[name], size)) for name in arguments.shapes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*SHAPES, *RECIPES]
    parser.add_argument("--shapes", nargs="+", choices=known, help="default: all but large")
    parser.add_argument("--model", default="tiny", help="tiny, mid, own, or a directory of weights (default: tiny)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--gradient-only", action="store_true", help="leave out the whole update")
    add_options(parser)
    arguments = parser.parse_args()
    real = arguments.model not in ("tiny", "mid", "own")
    if real and not Path(arguments.model).is_dir():
        parser.error(f"--model {arguments.model} is neither tiny, mid or own nor a directory")
    if arguments.shapes is None:
        arguments.shapes = [name for name in (SHAPES if real else known) if name != "large"]
    if real and set(arguments.shapes) & set(RECIPES):
        parser.error(f"the rows of {' and '.join(RECIPES)} have the tokens of another model")
    if "midstream" not in arguments.peers:
        parser.error("midstream is what the others are compared with: name it among --peers")
    if "TRL" in arguments.peers and not importlib.util.find_spec("trl"):
        parser.error(f"{TRL_MISSING}: install it, or leave it out with --peers midstream padding-free")
    torch.set_num_threads(1)
    results = [run(name, model, rows, arguments) for name, model, rows in prepared(arguments)]
    print(f"\nGradient pass, model {arguments.model}, medians of {arguments.rounds}\n")
    print(table([gradient_line(one) for one in results]))
    if not arguments.gradient_only:
        print("\nWhole update\n")
        print(table([update_line(one) for one in results]))
    print("", *map(process_line, results), sep="\n")
    if arguments.json:
        model = SIZES.get(arguments.model, arguments.model)
        found: dict[str, Any] = {"model": model, "results": [asdict(one) for one in results]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
