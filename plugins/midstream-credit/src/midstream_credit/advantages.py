"""Advantages of single calls: GiGPO's of steps from equal states, and returns of each call's own rewards.

Both give a number for each call of a trained role in place of Flow-GRPO's one for the trajectory:
`training.advantage = "gigpo"`, or a table with its settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from midstream.components.component import ComponentConfig
from midstream.core.trajectory import Call, Trajectory

if TYPE_CHECKING:
    from midstream.training.own import Advantage

Calls = Sequence[Sequence[Call]]


class GigpoConfig(ComponentConfig):
    """Group-in-group advantages (GiGPO, arXiv 2505.10978).

    With R_i the reward of trajectory i, and t the place of a call among its T_i calls:

        A_E(i)     = (R_i - mean(R)) / std(R)
        G(i, t)    = r(i, t) + discount G(i, t + 1)  (R_i comes with the last call)
        A_S(i, t)  = (G - mean(G)) / std(G), over the calls from an equal state
        A(i, t)    = A_E(i) + weight A_S(i, t)

    States of a group are equal where the prompts' tokens are: those calls meet in one node of the prefix tree. A state
    that only one call of the group saw has A_S = 0. A standard deviation has ddof = 1 and 1e-6 added, as everywhere in
    midstream. r is the call's own reward (`Call.reward`), less `error_cost` if its turn ended in an error. Departure:
    the paper compares states by the environment's observation, so that states with other histories can be equal; a
    prompt holds the history.

    Attributes:
        weight: of A_S, omega in the paper (1 there)
        discount: of the returns, gamma in the paper (0.95 there)
        error_cost: of a call whose turn ended in an error: a malformed action, an invalid command, a tool's error
        normalize_by_std: divide by standard deviations; without it (the paper's other form) by 1
    """

    weight: float = Field(default=1.0, ge=0)
    discount: float = Field(default=0.95, gt=0, le=1)
    error_cost: float = Field(default=0.0, ge=0)
    normalize_by_std: bool = True

    def build(self, context: Any) -> Advantage:
        """The function of a group."""

        def advantages(rewards: Sequence[float], trajectories: Sequence[Trajectory], calls: Calls) -> list[list[float]]:
            from midstream.training.rows import group_advantages

            task, by_std = trajectories[0].task_id, self.normalize_by_std
            episodes = group_advantages(rewards, task=task, normalize_by_std=by_std)
            returns = _returns(rewards, trajectories, calls, self.discount, self.error_cost)
            places: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
            for i, own in enumerate(calls):
                for t, call in enumerate(own):
                    places[call.prompt_ids].append((i, t))
            found = [[episode] * len(own) for episode, own in zip(episodes, calls, strict=True)]
            for equal in places.values():
                steps = group_advantages([returns[i][t] for i, t in equal], task=task, normalize_by_std=by_std)
                for (i, t), step in zip(equal, steps, strict=True):
                    found[i][t] += self.weight * step
            return found

        return advantages


class ReturnToGoConfig(ComponentConfig):
    """What a call and those after it earned, compared with the group (returns as in REINFORCE, with GRPO's baseline).

        r(i, t)  = the call's own reward, less `error_cost` if its turn ended in an error; with the last call, also R_i
        G(i, t)  = r(i, t) + discount G(i, t + 1)
        A(i, t)  = (G(i, t) - mean(G)) / std(G), over the calls with the number t (`by = "turn"`), or over all

    Attributes:
        discount: of later rewards
        error_cost: of a call whose turn ended in an error: a malformed action, an invalid command, a tool's error
        by: calls are compared with those at the same place of the other trajectories (`turn`), or with all (`group`)
        normalize_by_std: divide by the standard deviation
    """

    discount: float = Field(default=1.0, gt=0, le=1)
    error_cost: float = Field(default=0.1, ge=0)
    by: Literal["turn", "group"] = "turn"
    normalize_by_std: bool = True

    def build(self, context: Any) -> Advantage:
        """The function of a group."""

        def advantages(rewards: Sequence[float], trajectories: Sequence[Trajectory], calls: Calls) -> list[list[float]]:
            from midstream.training.rows import group_advantages

            returns = _returns(rewards, trajectories, calls, self.discount, self.error_cost)
            found = [[0.0] * len(own) for own in calls]
            places: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for i, own in enumerate(calls):
                for t in range(len(own)):
                    places[t if self.by == "turn" else 0].append((i, t))
            for compared in places.values():
                values = [returns[i][t] for i, t in compared]
                task = trajectories[0].task_id
                for (i, t), value in zip(
                    compared, group_advantages(values, task=task, normalize_by_std=self.normalize_by_std), strict=True
                ):
                    found[i][t] = value
            return found

        return advantages


def _returns(
    rewards: Sequence[float], trajectories: Sequence[Trajectory], calls: Calls, discount: float, error_cost: float
) -> list[list[float]]:
    """The return of each call: its own reward, less the cost of an error, plus `discount` times the next call's return.

    The trajectory's reward comes with its last call.
    """
    found: list[list[float]] = []
    for reward, trajectory, own in zip(rewards, trajectories, calls, strict=True):
        failed = _failed(trajectory) if error_cost else set[int]()
        value, returns = reward, list[float]()
        for call in reversed(own):
            value += (call.reward or 0.0) - (error_cost if id(call) in failed else 0.0)
            returns.append(value)
            value *= discount
        found.append(returns[::-1])
    return found


def _failed(trajectory: Trajectory) -> set[int]:
    """The calls, by identity, of turns that ended in an error."""
    return {
        id(call)
        for turn in trajectory.turns
        if (turn.action and turn.action.error)
        or (turn.command and turn.command.error)
        or (turn.observation and turn.observation.status == "error")
        for call in turn.calls
    }
