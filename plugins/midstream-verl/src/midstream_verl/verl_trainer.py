"""What runs inside verl 0.9: its synchronous trainer with midstream's rows, mini-batches and loss.

verl's own trainer takes one reward for each session, normalizes it itself, has no weights of rows, and cuts a batch
into mini-batches without regard to groups. Here midstream has done all of this before verl sees a row (`session.py`):
each row brings its advantage and its weights, and the loss is `PolicyLoss`, summed. A policy loss that verl lets
register would not do: it receives neither the weights nor the reference policy's log-probabilities.

What is used of verl: `register_trainer`, two hooks and five methods of `PPOTrainerSync`, `set_loss_fn` of its workers,
`agent_loop_manager_class`, `data.custom_cls`, `LLMServerClient.generate`, and the fields of rows in its TransferQueue.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.metric import AggregationType, Metric
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import no_padding_2_padding

from midstream.core.errors import MidstreamError
from midstream.runs.files import atomic_write
from midstream.training.losses import PolicyLoss
from midstream.training.passes import at_least_single
from midstream_verl import RUN
from midstream_verl.rows import Output, layout, rows_per_rank
from midstream_verl.session import ClusterSession

FACTORS = "midstream_factors"  # of a row: its advantage, weight, KL weight and mini-batch


class Places(Dataset):
    """As many empty prompts as verl asks for in one step: midstream draws the tasks of a step itself."""

    def __init__(self, data_files: Any, tokenizer: Any, processor: Any, config: Any, max_samples: int = -1) -> None:
        self.size = config.train_batch_size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": [], "index": index}


class Rollouts:
    """verl's agent-loop manager: a step's rollouts, by midstream, as rows in verl's TransferQueue."""

    def __init__(self, config: Any, llm_client: Any) -> None:
        self.session = ClusterSession(Path(os.environ[RUN]), llm_client, config.actor_rollout_ref.model.path)

    @classmethod
    def create(cls, config: Any, llm_client: Any, **_: Any) -> Rollouts:
        """Make it; verl also offers teachers and reward workers, which are not used."""
        return cls(config, llm_client)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Put the rows of a step into the queue, all under the first prompt, and mark all prompts as finished."""
        step, uids = int(prompts["global_steps"]), list(prompts["uid"])
        with reported():
            outputs = self.session.sample(step)
        keys = [f"{uids[0]}_{output.trajectory}_{output.index}" for output in outputs]
        tq.kv_batch_put(
            keys=keys,
            fields=list_of_dict_to_tensordict([fields_of(output, uids[0]) for output in outputs]),
            tags=[tags_of(output, step) for output in outputs],
            partition_id="train",
        )
        finished = {"is_prompt": True, "status": "finished", "global_steps": step}
        tq.kv_batch_put(keys=uids, partition_id="train", tags=[dict(finished) for _ in uids])


def fields_of(output: Output, uid: str) -> dict[str, Any]:
    """A row as verl stores it."""
    row = output.row
    ids, mask = list(row.completion_ids), output.mask
    made = AgentLoopOutput(
        prompt_ids=list(row.prompt_ids),
        response_ids=ids,
        response_mask=mask,
        response_logprobs=list(row.old_logprobs),
        reward_score=output.reward,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}},
    ).as_dict()
    input_ids = torch.cat([made["prompts"], made["responses"]])
    return made | {
        "uid": uid,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "loss_mask": made["response_mask"],
        "multi_modal_inputs": {},
        FACTORS: torch.tensor([row.advantage, row.weight, row.kl_weight, output.minibatch], dtype=torch.float64),
    }


def tags_of(output: Output, step: int) -> dict[str, Any]:
    """What verl knows of a row without reading it; `minibatch` is midstream's."""
    prompt, response = len(output.row.prompt_ids), len(output.row.completion_ids)
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": step,
        "min_global_steps": step - 1,
        "max_global_steps": step - 1,
        "minibatch": output.minibatch,
    }


def policy_loss(
    model_output: Mapping[str, Any], data: TensorDict, dp_group: Any = None, *, loss: PolicyLoss
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """midstream's loss of a micro-batch: a plain sum over its tokens, since the weights hold every normalizer.

    It is multiplied by the number of ranks, over which verl averages gradients.
    """
    new = at_least_single(no_padding_2_padding(model_output["log_probs"], data))  # [rows, longest completion]
    names = [name for name in ("response_mask", "rollout_log_probs", "ref_log_prob") if name in data]
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    factors = data[FACTORS]
    factors = factors if not factors.is_nested else factors.to_padded_tensor(0.0)
    advantages, weights, kl_weights, minibatches = (
        column[:, None].expand_as(mask)[mask].to(new.dtype) for column in factors.to(new.device).unbind(1)
    )
    reference = padded["ref_log_prob"][mask] if loss.kl_coefficient else None
    picked, old = new[mask], padded["rollout_log_probs"][mask]
    result = loss.per_token(picked, old, reference, advantages, weights, kl_weights)
    first = minibatches == 0  # later ones have other weights than those that sampled
    sums = {
        "kl_sum": result.kl.sum(),
        "gap_sum": (picked.detach() - old).abs()[first].sum(),
        "gap_tokens": first.sum(),
        "clipped": result.clipped.sum(),
        "tokens": mask.sum(),
        "loss": result.loss.detach().sum(),
    }
    ranks = data["dp_size"]  # over which verl averages the metrics too
    metrics = {f"midstream/{name}": Metric(AggregationType.SUM, value.item() * ranks) for name, value in sums.items()}
    return result.loss.sum() * ranks, metrics


@register_trainer("midstream")
class MidstreamTrainer(PPOTrainerSync):
    """verl's synchronous trainer: servers and workers share the GPUs, and each step samples from the newest weights."""

    def __init__(self, config: Any) -> None:
        config.trainer.v1.trainer_mode = "sync"  # by this name verl chooses its queue and checkpoints
        super().__init__(config)

    def on_train_begin(self) -> None:
        """Give the workers midstream's loss; evaluate the weights to begin with, or continue after a checkpoint."""
        session = self.agent_loop_manager.session
        self.actor_rollout_wg.set_loss_fn(partial(policy_loss, loss=session.training.loss))
        with reported():
            session.begin(self.global_steps - 1)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return self._rows

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **settings: Any) -> Any:
        """Fill up each mini-batch with rows without a loss, and order the rows so that each rank has its share."""
        numbers = [tag["minibatch"] for tag in batch.tags]
        self._parts = len(set(numbers))
        ranks = max(self.actor_rollout_wg._query_dispatch_info("actor")) + 1
        self._rows = ranks * self._parts * rows_per_rank(numbers, ranks)
        batch = super()._balance_batch(batch, metrics, **settings)
        real = [place for place, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        padding = [place for place, tag in enumerate(batch.tags) if tag.get("is_padding", False)]
        order = layout(
            [batch.tags[place]["minibatch"] for place in real],
            [batch.tags[place]["seq_len"] for place in real],
            range(len(real), len(real) + len(padding)),
            ranks,
        )
        places = real + padding
        batch.reorder([places[place] for place in order])
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Write midstream's advantages where verl's metrics expect them; the loss has them already."""
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask", FACTORS]
        )
        rows = [
            float(factors[0]) * mask.float() for factors, mask in zip(data[FACTORS], data["response_mask"], strict=True)
        ]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": nested, "returns": nested.clone()}, batch_size=len(rows))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Update once for each of midstream's mini-batches."""
        size = len(batch) // self._parts
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = size
        batch = super()._update_actor(batch, metrics)
        self._actor_metrics = dict(metrics)
        return batch

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        directory = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        self.agent_loop_manager.session.saved(directory)

    def on_step_end(self) -> None:
        """Write the step down, and evaluate with its weights."""
        super().on_step_end()
        session, prefix = self.agent_loop_manager.session, "actor/midstream/"
        # verl has averaged the sums over the mini-batches.
        sums = {
            name.removeprefix(prefix): float(value) * self._parts
            for name, value in self._actor_metrics.items()
            if name.startswith(prefix)
        }
        with reported():
            session.record(self.global_steps, sums, self._parts, float(self._actor_metrics["actor/grad_norm"]))
            session.evaluate(self.global_steps)


class reported:
    """Keep an error of midstream for the process that started verl, which sees only an exit code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, MidstreamError):
            record = {"kind": kind.__name__, "what": error.what, "code": error.code}
            record |= {"cause": error.cause, "fix": error.fix}
            atomic_write(Path(os.environ[RUN]) / "verl" / "error.json", json.dumps(record).encode())
