"""TRL's GRPOTrainer as a peer of the update benchmarks: its own loss and log-probabilities, version 1.16."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from update_peers import KL, MICRO_BATCH_ROWS, micro_batches, reference, training

from midstream.training.protocols import Row


class Trl:
    """TRL's trainer, from the point on where rollouts are scored; on the CPU, too, its head scores completions alone.

    It does so on its own where there is Triton; without it, it scores every position.
    """

    def __init__(self, model: PreTrainedModel, rows: Sequence[Row]) -> None:
        with tempfile.TemporaryDirectory() as directory:  # it wants one, and writes nothing
            self.trainer, self.rows = _trainer(model, directory), rows
        self.model, self.batch = self.trainer.model, _padded(rows, model.device)

    def gradient(self) -> float:
        return self._backward(0.0, self.batch)

    def update(self) -> float:
        with torch.no_grad():
            old = self._logprobs()
        with reference(self.model):
            anchor = self._logprobs()
        return self._backward(KL, self.batch | {"old_per_token_logps": old, "ref_per_token_logps": anchor})

    def _backward(self, beta: float, batch: dict[str, torch.Tensor]) -> float:
        self.trainer.beta, total = beta, 0.0
        with _compact_head(), training(self.model):
            for taken in micro_batches(self.rows):
                part = {name: tensor[taken] for name, tensor in batch.items()}
                self.trainer.current_gradient_accumulation_steps = len(self.rows) / len(part["advantages"])
                loss = self.trainer._compute_loss(self.model, part)
                loss.backward()
                total += loss.item()
        return total

    def _logprobs(self) -> torch.Tensor:
        """As `_generate_and_score_completions` calls for them."""
        ids, mask = (torch.cat([self.batch[f"prompt_{x}"], self.batch[f"completion_{x}"]], 1) for x in ("ids", "mask"))
        kept = self.batch["completion_ids"].shape[1]
        ask = self.trainer._get_per_token_logps_and_entropies
        with _compact_head():
            return torch.cat([ask(self.model, ids[one], mask[one], kept)[0] for one in micro_batches(self.rows)])


def _trainer(model: PreTrainedModel, directory: str) -> Any:
    """A GRPOTrainer that is never asked to sample: its tokenizer and data set are the least it takes."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<bos>": 1, "<eos>": 2, "word": 3}, unk_token="<pad>"))
    config = GRPOConfig(
        output_dir=directory,
        per_device_train_batch_size=MICRO_BATCH_ROWS,
        num_generations=MICRO_BATCH_ROWS,
        beta=0.0,  # set for each call: with it on, the trainer would load a reference model from the hub
        loss_type="grpo",
        use_cpu=model.device.type == "cpu",
        bf16=False,  # the weights' own dtype, as with the other peers, and no autocast
        gradient_checkpointing=False,  # the learner has switched it on where it is wanted
        report_to=[],
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["word"] * MICRO_BATCH_ROWS}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"),
    )


@contextmanager
def _compact_head() -> Iterator[None]:
    import trl.trainer.utils

    utils: Any = trl.trainer.utils
    before, utils._use_triton = utils._use_triton, lambda device: True
    try:
        yield
    finally:
        utils._use_triton = before


def _padded(rows: Sequence[Row], device: torch.device) -> dict[str, torch.Tensor]:
    """TRL's batch: prompts padded on the left to the longest, completions on the right."""
    before, after = (max(len(getattr(row, name)) for row in rows) for name in ("prompt_ids", "completion_ids"))
    prompts, completions = torch.zeros(2, len(rows), before).long(), torch.zeros(2, len(rows), after).long()
    old = torch.zeros(len(rows), after)
    for i, row in enumerate(rows):
        prompts[0, i, before - len(row.prompt_ids) :] = torch.tensor(row.prompt_ids)
        prompts[1, i, before - len(row.prompt_ids) :] = 1
        completions[0, i, : len(row.completion_ids)] = torch.tensor(row.completion_ids)
        completions[1, i, : len(row.completion_ids)] = 1
        old[i, : len(row.completion_ids)] = torch.tensor(row.old_logprobs)
    batch = {
        "prompt_ids": prompts[0],
        "prompt_mask": prompts[1],
        "completion_ids": completions[0],
        "completion_mask": completions[1],
        "advantages": torch.tensor([row.advantage for row in rows]),
        "old_per_token_logps": old,
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}
