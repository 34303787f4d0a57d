"""GRPO's relatives as settings of one loss: what each sets where a recipe does not.

| variant   | source                           | aggregation             | clip      | baseline      | by std | beta  |
|-----------|----------------------------------|-------------------------|-----------|---------------|--------|-------|
| (none)    | Flow-GRPO, arXiv 2510.05592      | trajectory-turn-token   | 0.2, 0.2  | group_mean    | yes    | 0.001 |
| `grpo`    | arXiv 2402.03300                 | seq-mean-token-mean     | 0.2, 0.2  | group_mean    | yes    | 0.04  |
| `bnpo`    | TRL's name: GRPO over the batch  | token-mean              | 0.2, 0.2  | group_mean    | yes    | 0.001 |
| `dr_grpo` | arXiv 2503.20783                 | seq-mean-token-sum-norm | 0.2, 0.2  | group_mean    | no     | 0     |
| `dapo`    | arXiv 2503.14476                 | token-mean              | 0.2, 0.28 | group_mean    | yes    | 0     |
| `rloo`    | arXiv 2402.14740                 | seq-mean-token-sum      | 0.2, 0.2  | leave_one_out | no     | 0.001 |

What makes DAPO whole beside its loss, `resample_uniform` and `overlong`, costs rollouts or needs a length, so a recipe
names it. RLOO's paper takes the KL off the reward; here it is the same term of the loss as in all the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from midstream.core.errors import UnsupportedError
from midstream.training.losses import policy_loss_variant

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"loss": {"aggregation": policy_loss_variant("grpo"), "kl_coefficient": 0.04}},
    "bnpo": {"loss": {"aggregation": policy_loss_variant("bnpo")}},
    "dr_grpo": {
        "loss": {"aggregation": policy_loss_variant("dr_grpo"), "kl_coefficient": 0.0},
        "normalize_by_std": False,
    },
    "dapo": {"loss": {"aggregation": policy_loss_variant("dapo"), "clip_high": 0.28, "kl_coefficient": 0.0}},
    "rloo": {
        "loss": {"aggregation": "seq-mean-token-sum"},
        "baseline": "leave_one_out",
        "normalize_by_std": False,
    },
}

_OTHER_LOSSES = {
    "gspo": "gspo takes one ratio a sequence; only losses with a clipped ratio per token are there",
    "cispo": "cispo clips a weight and not the ratio; only losses with a clipped ratio per token are there",
    "sapo": "sapo has a soft gate; only losses with a clipped ratio per token are there",
}


def with_defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    """A `[training]` table in which what its `variant` sets stands wherever the table says nothing of its own.

    Raises:
        UnsupportedError: it names a variant that is none of `VARIANTS`.
    """
    name = table["variant"]
    if name not in VARIANTS:
        raise UnsupportedError(
            f"training.variant = {name!r} is not supported",
            cause=_OTHER_LOSSES.get(name, "it is misspelt"),
            fix=f"use one of {', '.join(VARIANTS)}",
        )
    own = dict(table)
    loss = own.get("loss", {})
    given = loss.model_dump(exclude_unset=True) if isinstance(loss, BaseModel) else loss
    if isinstance(given, Mapping):  # what is no table is told by whoever validates it
        own["loss"] = VARIANTS[name]["loss"] | given
    return VARIANTS[name] | own
