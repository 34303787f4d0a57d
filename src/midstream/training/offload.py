"""Weights and optimizer state in host memory, of which the device holds a piece at a time.

Trained weights, their gradient and activations stay on the device. On a GPU the host's tensors are page-locked, and
all copies are in the order of the device's one stream: a piece is freed before the next one is there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw
from transformers import PreTrainedModel

from midstream.training.settings import BUCKET


def on_host(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialized tensor in host memory, of the shape of `like`; page-locked if `like` is on a GPU."""
    return torch.empty(like.shape, dtype=dtype or like.dtype, pin_memory=like.device.type == "cuda")


def _on_device(piece: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(piece.shape, dtype=piece.dtype, device=device).copy_(piece, non_blocking=True)


# -- a model -----------------------------------------------------------------------------------------------------------


def streamed_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A frozen copy of a model with its weights in host memory; a layer's are on the device during its forward.

    Its `device` is the model's, where its inputs belong. It has no gradient, and saves and loads as any model does.
    """
    device = model.device
    # Found in the memo, a parameter is not copied again: the device never holds two models.
    memo: dict[int, object] = {
        id(weights): nn.Parameter(on_host(weights).copy_(weights.detach()), requires_grad=False)
        for weights in model.parameters()
    }
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        # It would say that it is where its first weights are, which is the host.
        if isinstance(module, PreTrainedModel):
            kind = type(module)
            module.__class__ = type(kind.__name__, (kind,), {"device": device})
    for unit in _units(copied):
        _stream(unit, device)
    return copied


def _units(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield what runs as a whole: each layer with all its parts, and outside of layers each module with weights."""
    if module._parameters:
        yield [module]
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield list(child.modules())
        else:
            yield from _units(child)


def _stream(unit: list[nn.Module], device: torch.device) -> None:
    """Have a unit's weights on the device while the forward of its first module lasts, also if that fails."""
    held = [(module, name, weights) for module in unit for name, weights in module.named_parameters(recurse=False)]

    def bring(*_: object) -> None:
        for module, name, weights in held:
            setattr(module, name, nn.Parameter(_on_device(weights, device), requires_grad=False))

    def free(*_: object) -> None:
        for module, name, weights in held:
            setattr(module, name, weights)

    unit[0].register_forward_pre_hook(bring)
    unit[0].register_forward_hook(free, always_call=True)


# -- AdamW -------------------------------------------------------------------------------------------------------------


class StreamedAdamW(torch.optim.AdamW):
    """PyTorch's AdamW, applied to at most `BUCKET` numbers at a time; with `host`, its state is in host memory.

    AdamW treats each number alone, so the weights equal what `torch.optim.AdamW` gives to the bit, and the state is in
    its format: either loads what the other saved. With `masters`, the state also has a float32 `master` of each
    parameter. AdamW updates that, and the parameter is its rounded value; gradients add up in float32.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, host: bool, masters: bool, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self._host, self._masters = host, masters
        self._names = ("exp_avg", "exp_avg_sq", *(("master",) if masters else ()))
        for parameter in self._parameters() if masters else ():
            parameter.grad_dtype = torch.float32

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    state = self.state[parameter] = self._empty(parameter)
                    state["exp_avg"].zero_()
                    state["exp_avg_sq"].zero_()
                    if self._masters:
                        state["master"].copy_(parameter.detach())
                for start in range(0, parameter.numel(), BUCKET):
                    self._update(parameter, slice(start, start + BUCKET), group)
                self.state[parameter]["step"] += 1
            if self._host and parameters and parameters[0].device.type == "cuda":
                # What is saved next must have arrived.
                torch.cuda.synchronize(parameters[0].device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy what `state_dict` returned; `KeyError` for masters that it lacks."""
        allocated = self.state
        # As PyTorch loads the state, it would all be on the device.
        super().load_state_dict({**state_dict, "state": {}})
        # Their places or, in a checkpoint of several ranks, their names.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, parameter in zip(keys, self._parameters(), strict=True):
            if saved := state_dict["state"].get(key):
                state = self.state[parameter] = allocated.get(parameter) or self._empty(parameter)
                for name, value in state.items():
                    value.copy_(saved[name])

    def allocate(self) -> None:
        """Make the state of every parameter, for a caller that fills it: PyTorch would do so by a step."""
        for parameter in self._parameters():
            self.state[parameter] = self._empty(parameter)

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _empty(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        dtype = torch.float32 if self._masters else parameter.dtype
        make = on_host if self._host else torch.empty_like
        return {"step": torch.tensor(0.0)} | {name: make(parameter.detach(), dtype=dtype) for name in self._names}

    def _update(self, parameter: nn.Parameter, piece: slice, group: dict[str, Any]) -> None:
        """Bring the state of a piece of a parameter, flattened, to the device, update it there, and bring it back."""
        kept = [self.state[parameter][name].view(-1)[piece] for name in self._names]
        state = [_on_device(values, parameter.device) for values in kept] if self._host else kept
        # `detach` and not `data`: an engine that shares the model sees from its version that it changed.
        weights = parameter.detach().view(-1)[piece]
        adamw(
            [state[2] if self._masters else weights],
            [parameter.grad.reshape(-1)[piece]],  # type: ignore[union-attr]
            [state[0]],
            [state[1]],
            [],
            # Each call counts it up.
            [self.state[parameter]["step"].clone()],
            foreach=group["foreach"],
            fused=group["fused"],
            amsgrad=group["amsgrad"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )
        if self._masters:
            weights.copy_(state[2])
        if self._host:
            for values, new in zip(kept, state, strict=True):
                values.copy_(new, non_blocking=values.is_pinned())
