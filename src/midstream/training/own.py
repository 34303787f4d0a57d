"""An advantage and a loss of your own: `training.advantage = "mine.py:rank"`, `training.loss.type = "mine.py:cispo"`.

def rank(rewards) -> list[float]:
    return [sum(reward > other for other in rewards) / len(rewards) - 0.5 for reward in rewards]

def cispo(logprobs, old_logprobs, advantages, bound: float = 5.0):
    weight = (logprobs - old_logprobs).exp().clamp(max=bound).detach()
    return -weight * advantages * logprobs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from midstream.components.component import ComponentConfig, Context, Kind
from midstream.components.own_settings import OwnFunction
from midstream.core.errors import RecipeError, TrainingError
from midstream.core.trajectory import Trajectory
from midstream.training.losses import PolicyLoss

if TYPE_CHECKING:
    import torch

Advantage = Callable[[Sequence[float], Sequence[Trajectory]], list[float]]

_OF_GROUP = ("rewards", "trajectories")
_OF_TOKENS = ("logprobs", "old_logprobs", "advantages")
_CLIP = ("clip_low", "clip_high", "dual_clip")


def own_advantage(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """The settings of an advantage: a function of a group's rewards that returns a number for each trajectory."""
    function = OwnFunction(kind, reference, value, _OF_GROUP, "a function of `rewards`, `trajectories` or both")

    def build(settings: ComponentConfig, context: Context) -> Advantage:
        def advantages(rewards: Sequence[float], trajectories: Sequence[Trajectory]) -> list[float]:
            values = {"rewards": list(rewards), "trajectories": list(trajectories)}
            with function.failing():
                numbers = [float(number) for number in function.function(**function.passed(settings, values))]
            if len(numbers) != len(rewards) or not all(map(math.isfinite, numbers)):
                raise function.wrong(numbers, f"return one finite number for each of the rewards {list(rewards)}")
            return numbers

        return advantages

    return function.settings(ComponentConfig, build=build)


def own_loss(kind: Kind, reference: str, value: object) -> type[PolicyLoss]:
    """The settings of a loss: all of `PolicyLoss`, and the function's own.

    The function returns the loss of each token, [_N], before weights and the KL term. The tokens of an update come in
    parts and in any order, so that shared prefixes are computed once: a token's loss depends on its own values alone.
    """
    if isinstance(value, type) and issubclass(value, PolicyLoss):
        return value
    function = OwnFunction(kind, reference, value, (*_OF_TOKENS, *_CLIP), f"a function of {', '.join(_OF_TOKENS)}")

    def policy(
        self: PolicyLoss, logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = dict(zip(_OF_TOKENS, (logprobs, old_logprobs, advantages), strict=True))
        values |= {name: getattr(self, name) for name in _CLIP}
        with function.failing():
            loss = function.function(**function.passed(self, values))
        shape = getattr(loss, "shape", None)
        if shape != logprobs.shape or not loss.requires_grad:
            raise TrainingError(
                f"loss {function.name} returned {type(loss).__name__} of shape {shape}",
                code="component-failed",
                cause=f"the loss of {tuple(logprobs.shape)} tokens, with the gradient of `logprobs`, was expected",
                fix="return one number for each token, without a sum or mean, and not detached",
            )
        return loss, loss.new_zeros(loss.shape, dtype=bool)

    return function.settings(PolicyLoss, policy=policy)


def own_learner(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """Raise `RecipeError` for what is no class of a learner's settings."""
    raise RecipeError(
        f"{reference}, named as a {kind}, is a {type(value).__name__}",
        code="component-invalid",
        fix="name a class derived from midstream.training.settings.LearnerConfig",
    )
