"""What several ranks compute, for comparison with one process: `torchrun --nproc-per-node N ranked.py OUT [ranks die]`.

Run it in one process, without torchrun, for what it is compared with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from midstream.core.protocols import Row
from midstream.training.learner import LocalLearner
from midstream.training.settings import LearnerConfig, LoraConfig
from support.exact import LOSS, model_of, ragged_rows

STEPS = 10
CASES = list(product(("fsdp2", "ddp"), (False, True), ("dense", "rows")))


def name_of(parallel: str, lora: bool, attention: str) -> str:
    return f"{parallel}-{'lora' if lora else 'full'}-{attention}"


def config_of(parallel: str, lora: bool, attention: str) -> LearnerConfig:
    return LearnerConfig(
        parallel=parallel, lora=LoraConfig(rank=4, alpha=8) if lora else None, attention=attention, chunk_tokens=60
    )  # type: ignore[arg-type]


def learner_of(config: LearnerConfig) -> Any:
    """The learner of this rank, or of one process."""
    torch.set_num_threads(1)
    model = model_of("llama", dtype=torch.float32, double_norm=False)
    if not dist.is_initialized():
        return LocalLearner(model, config)
    from midstream.training.ranks import RankedLearner

    return RankedLearner(model, config, sampled=True)


def batches() -> Iterator[list[Row]]:
    yield from (ragged_rows(seed) for seed in range(STEPS))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()  # type: ignore[operator]


def run(learner: Any, out: Path) -> dict[str, Any]:
    """Gradients of the second step, losses and norms of all, log-probabilities, a supervised step, exported weights."""
    rows = ragged_rows(99)
    gradients, losses, norms = {}, [], []
    for step, batch in enumerate(batches()):
        losses.append(learner.forward_backward(batch, LOSS))
        if step == 1:
            gradients = {name: whole(p.grad) for name, p in learner.model.named_parameters() if p.requires_grad}
        norms.append(learner.optimizer_step(1e-3))
    result = {
        "gradients": gradients,
        "stats": losses,
        "norms": norms,
        "logprobs": learner.logprobs(rows),
        "reference": learner.logprobs(rows, reference=True),
        "supervised": [learner.supervised_step(rows, 1e-3, 0.1), learner.supervised_step(rows, 1e-3, shared=True)],
        "few": learner.forward_backward(rows[:1], LOSS),  # a rank without rows
        "unsampled": learner.forward_backward([], LOSS),
    }
    learner.save(out)
    learner.export_weights(out / "exported")
    return result


def main(out: Path) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    leads = int(os.environ.get("RANK", "0")) == 0
    for case in CASES:
        learner, directory = learner_of(config_of(*case)), out / name_of(*case)
        if not leads:
            # Gradients are looked at on every rank: the tensors of rank 0 are gathered from all.
            directory = out / name_of(*case)
        directory.mkdir(parents=True, exist_ok=True)
        learner.inside = True  # every rank calls every method itself here, and rank 0 announces nothing
        result = run(learner, directory)
        if leads:
            torch.save(result, directory / "result.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
