"""The reward of dialogues: the outcome that the other side reported at the end (`core.source.Dialogue.outcome`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, StrictBool, ValidationError

from midstream.components.component import RewardConfig
from midstream.core.data import problems_of
from midstream.core.errors import RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward

Matched = tuple[NonNegativeInt, NonNegativeInt]


class TurnOutcome(BaseModel):
    """One user turn: (matched, expected) parts of the state, and (matched, expected) calls."""

    model_config = ConfigDict(frozen=True)

    state: Matched = (0, 0)
    calls: Matched = (0, 0)


class DialogueOutcome(BaseModel):
    """The fields that every dialogue's outcome has; a benchmark may add others.

    `turns` holds all user turns of the task; one that was never reached has nothing matched.
    """

    model_config = ConfigDict(frozen=True)

    success: StrictBool
    turns: tuple[TurnOutcome, ...] = ()

    def share(self, of: Literal["state", "calls"]) -> float:
        """Matched / expected over all turns; if nothing was expected, whether the dialogue succeeded."""
        pairs = [turn.state if of == "state" else turn.calls for turn in self.turns]
        total = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / total if total else float(self.success)


def outcome_of(trajectory: Trajectory, reward: str) -> DialogueOutcome:
    """The outcome of a trajectory's dialogue. Raises `RewardError` if it is missing or malformed."""
    try:
        return DialogueOutcome.model_validate(trajectory.outcome)
    except ValidationError as error:
        problems = "; ".join(problems_of(error)[:3])
        raise RewardError(
            f"the reward {reward!r} finds no outcome of a dialogue in task {trajectory.task_id!r}: "
            f"{trajectory.outcome!r:.80}",
            code="outcome-missing",
            cause=problems if trajectory.outcome else "it scores tasks with a user and a state",
            fix="choose tasks that are dialogues, or another reward",
            retryable=False,
        ) from error


class DialogueSuccess(BaseReward):
    """1 if the dialogue's own check reports success, else 0, whatever the agent says.

    BFCL's multi-turn tasks, tau-bench and the offline desks are evaluated by it. `parts` holds the shares of state and
    of calls that were matched, and every other yes or no of the check.
    """

    name = "dialogue"

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Read the outcome. Raises `RewardError` without an outcome."""
        outcome = outcome_of(trajectory, self.name)
        facts = {key: float(fact) for key, fact in trajectory.outcome.items() if isinstance(fact, bool)}
        facts.pop("success")
        if outcome.turns:
            facts = {"state": outcome.share("state"), "calls": outcome.share("calls")} | facts
        return Score(value=float(outcome.success), parts=facts)


class DialogueConfig(RewardConfig):
    """1 if the dialogue's own check reports success, else 0, whatever the agent says."""

    rule_based = True
    of_dialogues = True
    component = DialogueSuccess
