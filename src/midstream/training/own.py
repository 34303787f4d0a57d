"""An advantage and a loss of your own: `training.advantage = "mine.py:rank"`, `training.loss.type = "mine.py:cispo"`.

def rank(rewards) -> list[float]:
    return [sum(reward > other for other in rewards) / len(rewards) - 0.5 for reward in rewards]

def cispo(logprobs, old_logprobs, advantages, bound: float = 5.0):
    weight = (logprobs - old_logprobs).exp().clamp(max=bound).detach()
    return -weight * advantages * logprobs

def first_action(rewards, calls) -> list[list[float]]:
    mean = sum(rewards) / len(rewards)
    return [[reward - mean if place == 0 else 0.0 for place in range(len(own))] for reward, own in zip(rewards, calls)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from midstream.components.component import ComponentConfig, Context, Kind
from midstream.components.own_settings import OwnFunction
from midstream.core.errors import RecipeError, TrainingError
from midstream.core.trajectory import Call, Trajectory
from midstream.training.losses import PolicyLoss

if TYPE_CHECKING:
    import torch

# Of a group's rewards, trajectories and, for each of these, the calls that are trained: a number for each trajectory,
# or for each of its calls.
Advantage = Callable[
    [Sequence[float], Sequence[Trajectory], Sequence[Sequence[Call]]], Sequence[float | Sequence[float]]
]

_OF_GROUP = ("rewards", "trajectories", "calls")
_OF_TOKENS = ("logprobs", "old_logprobs", "advantages")
_ROWS = "rows"
_CLIP = ("clip_low", "clip_high", "dual_clip")


def own_advantage(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """The settings of an advantage: a function of a group that returns a number a trajectory, or one a call."""
    function = OwnFunction(kind, reference, value, _OF_GROUP, f"a function of {', '.join(_OF_GROUP)}, or of some")

    def build(settings: ComponentConfig, context: Context) -> Advantage:
        def advantages(
            rewards: Sequence[float], trajectories: Sequence[Trajectory], calls: Sequence[Sequence[Call]]
        ) -> list[float | list[float]]:
            given = (list(rewards), list(trajectories), [list(own) for own in calls])
            with function.failing():
                found = function.function(**function.passed(settings, dict(zip(_OF_GROUP, given, strict=True))))
                found = found.tolist() if hasattr(found, "tolist") else found
                numbers = [[*map(float, one)] if hasattr(one, "__len__") else float(one) for one in found]
            expected = [len(own) for own in calls]
            fits = len(numbers) == len(rewards) and all(
                not isinstance(one, list) or len(one) == count for one, count in zip(numbers, expected, strict=True)
            )
            every = [each for one in numbers for each in (one if isinstance(one, list) else [one])]
            if not fits or not all(map(math.isfinite, every)):
                fix = f"return one finite number for each of the rewards {list(rewards)}, or for each of "
                raise function.wrong(numbers, f"{fix}{', '.join(map(str, expected))} calls")
            return numbers

        return advantages

    return function.settings(ComponentConfig, build=build)


def own_loss(kind: Kind, reference: str, value: object) -> type[PolicyLoss]:
    """The settings of a loss: all of `PolicyLoss`, and the function's own.

    The function returns the loss of each token, [_N], before weights and the KL term. The tokens of an update come in
    parts and in any order, so that shared prefixes are computed once: a token's loss depends on its own values alone.
    A function that takes `rows`, int64 [_N], the row of each token, sees all tokens of each row at once; this costs a
    forward pass.
    """
    if isinstance(value, type) and issubclass(value, PolicyLoss):
        return value
    names = (*_OF_TOKENS, _ROWS)
    function = OwnFunction(kind, reference, value, (*names, *_CLIP), f"a function of {', '.join(names)}")

    def policy(
        self: PolicyLoss,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = dict(zip(names, (logprobs, old_logprobs, advantages, rows), strict=True))
        values |= {name: getattr(self, name) for name in _CLIP}
        with function.failing():
            loss = function.function(**function.passed(self, values))
        shape = getattr(loss, "shape", None)
        if shape != logprobs.shape or not getattr(loss, "requires_grad", False):
            raise TrainingError(
                f"loss {function.name} returned {type(loss).__name__} of shape {shape}",
                code="component-failed",
                cause=f"the loss of {tuple(logprobs.shape)} tokens, with the gradient of `logprobs`, was expected",
                fix="return one number for each token, without a sum or mean, and not detached",
            )
        return loss, loss.new_zeros(loss.shape, dtype=bool)

    return function.settings(PolicyLoss, policy=policy, whole_rows=_ROWS in function.takes)


def own_learner(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """Raise `RecipeError` for what is no class of a learner's settings."""
    raise RecipeError(
        f"{reference}, named as a {kind}, is a {type(value).__name__}",
        code="component-invalid",
        fix="name a class derived from midstream.training.settings.LearnerConfig",
    )
