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
from typing import TYPE_CHECKING, Any

from midstream.core.component import ComponentConfig, Context, Kind
from midstream.core.errors import TrainingError
from midstream.core.own import name_of
from midstream.core.own_settings import described, given, own_values, plain_function, settings_of, where_raised
from midstream.core.trajectory import Trajectory
from midstream.training.losses import PolicyLoss

if TYPE_CHECKING:
    import torch

Advantage = Callable[[Sequence[float], Sequence[Trajectory]], list[float]]

_OF_GROUP = ("rewards", "trajectories")
_OF_TOKENS = ("logprobs", "old_logprobs", "advantages")
_CLIP = ("clip_low", "clip_high", "dual_clip")


def own_advantage(kind: Kind, reference: str, value: Any) -> type[ComponentConfig]:
    """The settings of an advantage: a function of a group's rewards that returns a number for each trajectory."""
    function = plain_function(kind, reference, value, "a function that takes `rewards`, `trajectories` or both")

    def build(self: ComponentConfig, context: Context) -> Advantage:
        def advantages(rewards: Sequence[float], trajectories: Sequence[Trajectory]) -> list[float]:
            passed = given(function, {"rewards": list(rewards), "trajectories": list(trajectories)}) | own_values(self)
            try:
                numbers = [float(number) for number in function(**passed)]
            except Exception as error:  # what a user's function raises can be anything
                raise _failed(kind, reference, error) from error
            if len(numbers) != len(rewards) or not all(map(math.isfinite, numbers)):
                raise TrainingError(
                    f"advantage {name_of(reference)} returned {numbers!r:.200} for the rewards {list(rewards)}",
                    code="component-failed",
                    fix="return one finite number for each reward",
                )
            return numbers

        return advantages

    return settings_of(ComponentConfig, reference, function, build=build, given=_OF_GROUP)


def own_loss(kind: Kind, reference: str, value: Any) -> type[PolicyLoss]:
    """The settings of a loss: those of `PolicyLoss` and the function's own.

    The function returns the loss of each token, [_N], before weights and the KL term. The tokens of an update come in
    parts and in any order, so that shared prefixes are computed once: a token's loss depends on its own values alone.
    """
    if isinstance(value, type) and issubclass(value, PolicyLoss):
        return value
    function: Any = plain_function(kind, reference, value, f"a function of {', '.join(_OF_TOKENS)}")

    def policy(
        self: PolicyLoss, logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = dict(zip(_OF_TOKENS, (logprobs, old_logprobs, advantages), strict=True))
        values |= {name: getattr(self, name) for name in (*_CLIP, *own)}
        try:
            loss = function(**given(function, values))
        except Exception as error:  # what a user's function raises can be anything
            raise _failed(kind, reference, error) from error
        shape = getattr(loss, "shape", None)
        if shape != logprobs.shape or not loss.requires_grad:
            raise TrainingError(
                f"loss {name_of(reference)} returned {type(loss).__name__} of shape {shape}",
                code="component-failed",
                cause=f"the loss of {tuple(logprobs.shape)} tokens, with the gradient of `logprobs`, was expected",
                fix="return one number for each token, without a sum or mean, and not detached",
            )
        return loss, loss.new_zeros(loss.shape, dtype=bool)

    made: Any = settings_of(PolicyLoss, reference, function, given=(*_OF_TOKENS, *_CLIP), policy=policy)
    own: tuple[str, ...] = made.own_settings
    return made


def _failed(kind: Kind, reference: str, error: Exception) -> TrainingError:
    return TrainingError(
        f"{kind} {name_of(reference)} raised {described(error)}",
        code="component-failed",
        cause=where_raised(error),
        fix="correct it, and start over: a run records the digest of its file",
    )
