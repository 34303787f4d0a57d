"""Weight space: advantages, rows, losses, learner. With the in-process engine, the only room with torch.

Names load on first use, so that importing the package needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midstream.training.advantages import group_advantages
    from midstream.training.losses import (
        PolicyLoss,
        TokenLoss,
        aggregate,
        clipped_policy_loss,
        kl_estimate,
        policy_loss_variant,
        row_weights,
    )
    from midstream.training.rows import RowBatch, build_rows, split_minibatches

__all__ = [
    "PolicyLoss",
    "RowBatch",
    "TokenLoss",
    "aggregate",
    "build_rows",
    "clipped_policy_loss",
    "group_advantages",
    "kl_estimate",
    "policy_loss_variant",
    "row_weights",
    "split_minibatches",
]

_HOME = {"group_advantages": "advantages", "RowBatch": "rows", "build_rows": "rows", "split_minibatches": "rows"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'losses')}"), name)
