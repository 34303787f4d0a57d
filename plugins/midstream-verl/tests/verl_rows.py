"""Rows as verl stores them, through midstream's loss as verl calls it, on a model in this process."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from midstream.training.losses import PolicyLoss
from midstream_verl.rows import Output
from midstream_verl.verl_trainer import FACTORS, fields_of, policy_loss


def stored(outputs: list[Output]) -> list[dict[str, Any]]:
    """The fields that verl's queue holds of each row."""
    return [fields_of(output, "uid") for output in outputs]


def gradient_of(
    outputs: list[Output], model: PreTrainedModel, reference: PreTrainedModel, loss: PolicyLoss
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of all outputs in two micro-batches, the second with a row of padding, and its gradient by name."""
    half, value = len(outputs) // 2, 0.0
    model.zero_grad()
    for part, padded in ((outputs[half:], False), (outputs[:half], True)):
        fields = stored(part)
        if padded:
            nothing = torch.zeros_like(fields[0]["response_mask"])
            fields.append(fields[0] | {"response_mask": nothing, FACTORS: fields[0][FACTORS] * 1e9})
        data = list_of_dict_to_tensordict(fields)
        for name in ("prompts", "responses", "response_mask", "rollout_log_probs"):  # as verl hands them to workers
            data[name] = torch.nested.as_nested_tensor([row[name] for row in fields], layout=torch.jagged)
        tu.assign_non_tensor(data, dp_size=1)
        data["ref_log_prob"] = torch.nested.as_nested_tensor(
            [
                logprobs[len(row["prompts"]) - 1 : -1]
                for row, logprobs in zip(fields, _logprobs(fields, reference), strict=True)
            ],
            layout=torch.jagged,
        ).detach()
        nested = torch.nested.as_nested_tensor(_logprobs(fields, model), layout=torch.jagged)
        result, _ = policy_loss({"log_probs": nested}, data, loss=loss)
        result.backward()
        value += result.item()
    return value, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _logprobs(fields: list[dict], model: PreTrainedModel) -> list[torch.Tensor]:
    """Of each row, the log-probability of the token after each token, as verl's engines return it."""
    found = []
    for row in fields:
        ids = row["input_ids"]
        scores = torch.log_softmax(model(ids[None]).logits[0], -1)
        found.append(scores.gather(1, ids.roll(-1)[:, None])[:, 0])
    return found
