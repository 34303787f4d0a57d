"""Checkpoints of a learner whose tensors are divided among ranks, readable on any number of them, one included.

They hold what `LocalLearner.save` writes, in the format of torch.distributed.checkpoint: each rank writes its parts,
and reads those that it needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
_WHOLE = StateDictOptions(full_state_dict=True, strict=False)


def save_state(
    directory: Path,
    model: nn.Module,
    reference: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    prepared: int | None,
) -> None:
    """Write the state; every rank calls it. A full disk shows as an `OSError`."""
    with _own_errors():
        save(_state(model, reference, optimizer, prepared, begun=bool(optimizer.state)), checkpoint_id=directory)


def load_state(
    directory: Path, model: nn.Module, reference: nn.Module | None, optimizer: torch.optim.Optimizer
) -> int | None:
    """Restore what `save_state` wrote, on any number of ranks; returns `prepared`.

    Raises `KeyError`, `RuntimeError` or `ValueError` where it does not fit the model.
    """
    metadata = FileSystemReader(directory).read_metadata().state_dict_metadata
    # An optimizer without a step has no state; asking for it would make some, one step old.
    begun = any(name.startswith("optimizer.") for name in metadata)
    state = _state(model, reference, optimizer, None, begun=begun)
    other = {name for name in metadata if name.startswith("model.")} ^ {f"model.{name}" for name in state["model"]}
    if other:
        raise KeyError(min(other))
    with warnings.catch_warnings(), _own_errors():
        # One process needs no process group.
        warnings.filterwarnings("ignore", "torch.distributed is .* uninitialized")
        load(state, checkpoint_id=directory, no_dist=not dist.is_initialized())
    set_model_state_dict(model, state["model"], options=_TRAINED)
    if reference is not None:
        set_model_state_dict(reference, state["reference"])
    if begun:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_TRAINED)
    return state["prepared"]


def load_whole(
    state: Mapping[str, Any], model: nn.Module, reference: nn.Module | None, optimizer: torch.optim.Optimizer
) -> None:
    """Divide what one process wrote among the ranks."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    other = state["model"].keys() ^ set(names)
    if other:
        raise KeyError(min(other))
    set_model_state_dict(model, state["model"], options=_WHOLE)
    if reference is not None:
        set_model_state_dict(reference, state["reference"], options=_WHOLE)
    moments, groups = state["optimizer"]["state"], state["optimizer"]["param_groups"]
    if moments:
        named = {
            "state": {names[place]: moments[place] for place in moments},
            "param_groups": [{**group, "params": [names[place] for place in group["params"]]} for group in groups],
        }
        set_optimizer_state_dict(model, optimizer, named, options=_WHOLE)


def _state(
    model: nn.Module,
    reference: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    prepared: int | None,
    *,
    begun: bool,
) -> dict[str, Any]:
    state: dict[str, Any] = {"model": get_model_state_dict(model, options=_TRAINED), "prepared": prepared}
    if reference is not None:
        state["reference"] = get_model_state_dict(reference)
    if begun:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=_TRAINED)
    return state


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what a rank met, in place of torch's exception, which no `except Exception` catches."""
    try:
        yield
    except CheckpointException as error:
        first: Any = next(iter(error.failures.values()))
        raise first[0] from error
