"""What a learner computes on several ranks, or in one process, for `training/test_ranks.py` to compare.

`ranked.py OUT ONE COUNTS CASE...` writes OUT/COUNT for each of COUNTS such as "1,2". ONE is the output of one process,
whose checkpoints every rank loads before the gradients. With MIDSTREAM_RANKED_RECIPE in the environment, ranks join
as torchrun would start them for that recipe: OUT/NAME.json for each of JOINED, and OUT/exits.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from midstream.core.errors import MidstreamError
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.torchrun import end_with_parent, joined, report_after_rank_0
from midstream.training.learner import LocalLearner
from midstream.training.ranks import RankedLearner
from midstream.training.settings import LearnerConfig, LoraConfig
from support.exact import LOSS, model_of, ragged_rows

STEPS = 10
FEW = 6  # rows
SEQUENCES = LOSS.model_copy(update={"surrogate": "gspo", "entropy_coefficient": 0.1})
CASES = {
    f"{'lora' if lora else 'full'}-{attention}": (lora, attention)
    for lora, attention in product((False, True), ("dense", "rows"))
}


def learner_of(case: str) -> Any:
    """The learner of this rank, or of one process; every rank calls its methods itself, so rank 0 announces none."""
    lora, attention = CASES[case]
    adapter = LoraConfig(rank=4, alpha=8) if lora else None
    config = LearnerConfig.model_validate({"lora": adapter, "attention": attention, "chunk_tokens": 60})
    return learner_with(config, torch.float64)


def learner_with(config: LearnerConfig, dtype: torch.dtype) -> Any:
    model = model_of("llama", dtype=dtype, double_norm=False)
    if not dist.is_initialized():
        return LocalLearner(model, config)
    learner = RankedLearner(model, config, sampled=True)
    learner.inside = True
    return learner


def run(learner: Any, own: Path, one: Path) -> dict[str, Any]:
    """Ten steps and a checkpoint; then, from one process's checkpoint, everything that a learner computes."""
    rows = ragged_rows(99)
    steps = []
    for seed in range(STEPS):
        stats = learner.forward_backward(ragged_rows(seed), SEQUENCES if seed % 2 else LOSS)
        steps.append((stats.loss, learner.optimizer_step(1e-3)))
    learner.save(own)
    learner.load(one)
    result: dict[str, Any] = {"steps": steps, "stats": learner.forward_backward(rows, LOSS)}
    result["gradients"] = {
        name: (each.grad.full_tensor() if hasattr(each.grad, "full_tensor") else each.grad).clone()
        for name, each in learner.model.named_parameters()
        if each.requires_grad
    }
    result["norm"] = learner.optimizer_step(1e-3)
    result["logprobs"] = learner.logprobs(rows)
    result["reference"] = learner.logprobs(rows, reference=True)
    result["few"] = learner.forward_backward(rows[:1], LOSS)  # most ranks have no row
    result["none"] = learner.forward_backward([], LOSS)
    result["supervised"] = [learner.supervised_step(rows, 1e-3, 0.1), learner.supervised_step(rows, 1e-3, shared=True)]
    learner.rebase()
    result["rebased"] = learner.logprobs(rows, reference=True)
    learner.export_weights(own / "exported")
    learner.load(own)  # what these ranks have saved
    result["restored"] = learner.forward_backward(rows, LOSS)
    return result


def masters(own: Path, one: Path, count: int) -> dict[str, Any]:
    """`count` steps of a bfloat16 model with float32 masters, saved in `own`; then a pass from the checkpoint `one`."""
    config = LearnerConfig(attention="dense", chunk_tokens=60)
    learner = learner_with(config, torch.bfloat16)
    steps = [(learner.forward_backward(ragged_rows(i), LOSS).loss, learner.optimizer_step(1e-3)) for i in range(count)]
    learner.export_weights(own / "exported")
    learner.save(own)
    result: dict[str, Any] = {"steps": steps, "saved": trained(learner)}
    learner.load(one)
    result |= {"loaded": trained(learner), "next": learner.forward_backward(ragged_rows(4), LOSS).loss}
    return result | {"moments": {name for state in learner.optimizer.state.values() for name in state}}


def trained(learner: Any) -> list[torch.Tensor]:
    """The whole weights that AdamW updates, in float32."""
    kept = [learner.optimizer.state[weights].get("master", weights) for weights in learner.parameters]
    return [(each.full_tensor() if hasattr(each, "full_tensor") else each).detach().clone() for each in kept]


# By name: how many ranks join, and the one that ends where the first update's step is made.
JOINED: dict[str, tuple[int, int | None]] = {"whole": (2, None), "lost": (3, 2)}
LOST = 9


def losses(learner: Any) -> Iterator[float]:
    """Of two updates, the second from the sum of two gradients."""
    for batches in ((1,), (2, 3)):
        learner.before_step(batches[0])
        for batch in batches:
            yield learner.forward_backward(ragged_rows(batch)[:FEW], LOSS).loss
        learner.optimizer_step(1e-2)


def join(rank: int, name: str, out: Path, recipe: str, port: int) -> None:
    """One process of a training run, as torchrun starts it. Rank 0 writes losses, and then the code of its error."""
    ranks, lost = JOINED[name]
    group = {"TORCHELASTIC_RUN_ID": name, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {**group, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    end_with_parent()
    results: list[float | str] = []
    build = Build(load_recipe(recipe, ["learner.threads=1"]))
    if rank == lost:
        RankedLearner.optimizer_step = lambda *_: os._exit(LOST)  # type: ignore[method-assign]
    try:
        with joined(build):
            results.extend(losses(build.policy.learner))
            build.policy.learner.logprobs([replace(ragged_rows(1)[0], prompt_ids=())])
    except MidstreamError as error:
        report_after_rank_0()
        results.append(error.code)
    (out / f"{name}.json").write_text(json.dumps(results))


def join_all(out: Path, recipe: str) -> None:
    context = multiprocessing.get_context("fork")
    exits = {}
    for name, (ranks, _) in JOINED.items():
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun's agent has it too
        group = [context.Process(target=join, args=(rank, name, out, recipe, store.port)) for rank in range(ranks)]
        for process in group:
            process.start()
        for process in group:
            process.join(300)
            process.kill()
            process.join()
        exits[name] = [process.exitcode for process in group]
    (out / "exits.json").write_text(json.dumps(exits))


def compute(rank: int, ranks: int, out: Path, one: Path, cases: list[str]) -> None:
    """The work of one rank; alone, without a process group."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{out}/ranks", rank=rank, world_size=ranks)
    for case in cases:
        (out / case).mkdir(parents=True, exist_ok=True)
        result = run(learner_of(case), out / case, one / case)
        if rank == 0:
            torch.save(result, out / case / "result.pt")
    (out / "masters").mkdir(exist_ok=True)
    result = masters(out / "masters", one / "masters", 4 if len(cases) == len(CASES) else 1)
    if rank == 0:
        torch.save(result, out / "masters" / "result.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def main(out: Path, one: Path, counts: list[int], cases: list[str]) -> None:
    # Forked, so that PyTorch is imported once. This process computes nothing: autograd's threads don't survive a fork.
    context = multiprocessing.get_context("fork")
    for ranks in counts:
        own = out / str(ranks)
        own.mkdir(parents=True)
        group = [context.Process(target=compute, args=(rank, ranks, own, one, cases)) for rank in range(ranks)]
        for process in group:
            process.start()
        for process in group:
            process.join()
        if any(process.exitcode for process in group):
            sys.exit(f"{ranks} ranks: {[process.exitcode for process in group]}")
    if recipe := os.environ.get("MIDSTREAM_RANKED_RECIPE"):
        join_all(out, recipe)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(count) for count in sys.argv[3].split(",")], sys.argv[4:])
