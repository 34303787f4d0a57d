"""The policy update on one GPU, against the peers of update.py: seconds, tokens per second, utilization, memory.

    python benchmarks/update_gpu.py                       # Qwen2.5-7B's shape with LoRA, then 1.5B's in full
    python benchmarks/update_gpu.py --offload             # whole steps of all weights: memory and seconds by setting
    python benchmarks/update_gpu.py --device cpu --tiny   # no numbers worth reading: does the code run?

It has not run on a GPU yet: only the last line has, with and without --offload. Models are randomly initialized, in
bfloat16, and recompute activations; the batch has four questions of eight rollouts of three turns. Padding-free rows
use flash attention of variable length; TRL is left out where it is not installed. Times are medians of wall-clock
seconds after one round of warming up.

"tokens / s" counts the tokens of all rows, however often a peer computes them. "MFU", model FLOP utilization, is the
FLOPs of what the peer must compute (unique tokens for midstream, all for the others; recomputed activations are not
counted) over its seconds, as a share of the card's dense bfloat16 peak in its data sheet, or of a matrix product's rate
in this run where the card is not in `PEAKS`. "GB" is all that PyTorch held at the peak. "of ceiling" is padding-free's
seconds over midstream's, divided by the ratio of their FLOPs; wanted is 60 %.

With --offload: a step is an update, KL term included, and AdamW's, of bfloat16 weights with float32 masters. The card's
peak by formula is that of `--dry-run`, without the process itself; the second of two steps is timed. 7B runs with
everything in host memory alone, because no card has room for the other settings. PyTorch rounds page-locked tensors up
to a power of two unless PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1 is set.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from transformers import PreTrainedModel
from update_measure import TRL_MISSING, Taken, add_options, measure
from update_peers import Midstream, PaddingFree, Peer, recorded
from update_shapes import SHAPES, Shape, Work, flops, make_model, make_rows, rows_work, trie_work
from update_trl import Trl

from midstream.recipe.memory import GIB, shape_of
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_extra import memory

PEAKS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12}
PEAKS |= {"A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}  # the first that is part of the card's name
TOY = Shape(static=60, question=12, memory=20, completion=20, group=2)


@dataclass(frozen=True)
class Setup:
    """A model and how it is trained."""

    name: str
    size: str
    lora: LoraConfig | None


SETUPS = (Setup("7B, LoRA", "7b", LoraConfig()), Setup("1.5B, full", "1.5b", None))


def run(setup: Setup, arguments: argparse.Namespace) -> tuple[dict[str, dict[str, Taken]], list[str]]:
    """All peers on one model: by shape, and their lines of the table."""
    size = "tiny" if arguments.tiny else setup.size
    model = make_model(size, device=arguments.device, dtype=torch.bfloat16)
    learner = LocalLearner(model, LearnerConfig(lora=setup.lora, recompute_activations=True))
    found, table = {}, []
    for shape in ["toy"] if arguments.tiny else arguments.shapes:
        lengths = TOY if arguments.tiny else replace(SHAPES[shape], questions=4)
        rows = recorded(learner, make_rows(lengths, model.config.vocab_size))
        print(f"{setup.name}, {shape}", flush=True)
        peers = made(learner, rows)
        turns = {name: peer.gradient for name, peer in peers.items()}
        found[shape] = measure(turns, learner.model, arguments.rounds, compared=len(turns), warm=True)
        whole = rows_work(rows)
        work = dict.fromkeys(peers, whole) | {"midstream": trie_work(rows)}
        needed = {name: flops(one, model, trained=setup.lora is None) for name, one in work.items()}
        table += lines(f"{setup.name}, {shape}", found[shape], needed, whole, peak(arguments.device))
    return found, table


def made(learner: LocalLearner, rows: Sequence[Row]) -> dict[str, Peer]:
    """All peers; TRL where it is installed."""
    peers: dict[str, Peer] = {"padding-free": PaddingFree(learner.model, rows), "midstream": Midstream(learner, rows)}
    return peers | ({"TRL": Trl(learner.model, rows)} if importlib.util.find_spec("trl") else {})


def lines(name: str, taken: dict[str, Taken], needed: dict[str, float], whole: Work, peak_flops: float) -> list[str]:
    """A line a peer."""
    ceiling = needed["padding-free"] / needed["midstream"]
    faster = taken["padding-free"].wall_s / taken["midstream"].wall_s
    found = []
    for peer, one in taken.items():
        cells = [name, peer, f"{one.wall_s:.2f}", f"{whole.tokens / one.wall_s:.0f}"]
        cells += [f"{needed[peer] / one.wall_s / peak_flops:.1%}", f"{one.process_mb / 1000:.1f}"]
        cells += [f"{faster / ceiling:.0%} (wanted 60%)" if peer == "midstream" else "", f"{one.difference:.0e}"]
        found.append("| " + " | ".join(cells) + " |")
    return found


OFFLOADS = {"1.5b": (False, True), "7b": (True,)}


def offload_table(arguments: argparse.Namespace) -> list[str]:
    """A line for each size and setting of `learner.offload`."""
    names = ["model", "offload", "s", "GB on the card by formula", "measured", "GB in host memory by formula"]
    table = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    sizes = {"tiny": OFFLOADS["1.5b"]} if arguments.tiny else OFFLOADS
    return table + [offload_line(size, setting, arguments) for size, settings in sizes.items() for setting in settings]


def offload_line(size: str, setting: bool, arguments: argparse.Namespace) -> str:
    """Two steps of one setting: the second one's seconds, and the card's peak in both."""
    cuda = arguments.device == "cuda"
    if cuda:
        gc.collect()  # of the setting before
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = make_model(size, device=arguments.device, dtype=torch.bfloat16)
    config = LearnerConfig.model_validate({"offload": setting, "recompute_activations": True})
    learner = LocalLearner(model, config)
    shape = TOY if arguments.tiny else replace(SHAPES["base"], questions=4)
    rows = recorded(learner, make_rows(shape, model.config.vocab_size))
    begun = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.001))
        learner.optimizer_step(1e-6)
        if cuda:
            torch.cuda.synchronize()
    took = time.perf_counter() - begun
    parts = memory_parts(model, config)
    measured = f"{torch.cuda.max_memory_allocated() / GIB:.1f}" if cuda else "-"
    expected, host = memory.peak(parts) / GIB, memory.offloaded(parts) / GIB
    return f"| {size} | {setting} | {took:.2f} | {expected:.1f} | {measured} | {host:.1f} |"


def memory_parts(model: PreTrainedModel, config: LearnerConfig) -> list[memory.Part]:
    """What `--dry-run` would print for the model."""
    with tempfile.TemporaryDirectory() as directory:
        model.config.save_pretrained(directory)
        shape = shape_of(directory)
    assert shape is not None
    return [memory.weights(shape, "bfloat16"), *(memory.update(shape, "bfloat16", config) or [])]


def peak(device: str) -> float:
    """The card's FLOP/s: the data sheet's, or what a matrix product reaches."""
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    known = [value for card, value in PEAKS.items() if card in name]
    if known:
        return known[0]
    side = 8192 if device == "cuda" else 512
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(10):
        begun = time.perf_counter()
        product = a @ a
        product[0, 0].item()  # waits for the card
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["base", "static-2000"])
    parser.add_argument("--tiny", action="store_true", help="toy models and a toy batch")
    parser.add_argument("--offload", action="store_true", help="measure the settings of learner.offload instead")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "update_gpu.py measures a GPU, and PyTorch sees none here.\n"
            "See whether nvidia-smi shows one and the installed torch is a CUDA build; "
            "--device cpu --tiny runs the code without one."
        )
    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{card}, torch {torch.__version__}")
    if arguments.offload:
        print("\n".join(offload_table(arguments)))
        return
    if not importlib.util.find_spec("trl"):
        print(f"{TRL_MISSING}: its lines are left out")
    names = ["model, shape", "peer", "s", "tokens / s", "MFU", "GB", "of ceiling", "gradients differ"]
    table = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    found = {}
    for setup in SETUPS:
        taken, own = run(setup, arguments)
        found |= {f"{setup.name}, {shape}": {n: asdict(t) for n, t in one.items()} for shape, one in taken.items()}
        table += own
    print("\n" + "\n".join(table))
    if arguments.json:
        arguments.json.write_text(json.dumps({"card": card, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
