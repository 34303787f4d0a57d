"""Rewards of dialogues: what the other side found when it was over (`core.dialogue.Dialogue.outcome`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, StrictBool, ValidationError

from midstream.core.component import Context, RewardConfig
from midstream.core.errors import RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory


def _no_more_than_all(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] > pair[1]:
        raise ValueError(f"{pair[0]} of {pair[1]} is more than all")
    return pair


Matched = Annotated[tuple[NonNegativeInt, NonNegativeInt], AfterValidator(_no_more_than_all)]


class TurnOutcome(BaseModel):
    """One user turn: of how many parts of the state, and of how many expected calls, how many were matched."""

    model_config = ConfigDict(frozen=True)

    state: Matched = (0, 0)
    calls: Matched = (0, 0)


class Outcome(BaseModel):
    """What every dialogue says at its end; what else a benchmark's check tells is left to it.

    `turns` holds all user turns of the task, those that were never reached with nothing matched.
    """

    model_config = ConfigDict(frozen=True)

    success: StrictBool
    turns: tuple[TurnOutcome, ...] = ()

    def share(self, of: Literal["state", "calls"]) -> float:
        """Matched / total over all turns; where nothing was to be matched, whether the dialogue succeeded."""
        pairs = [turn.state if of == "state" else turn.calls for turn in self.turns]
        total = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / total if total else float(self.success)


def outcome_of(trajectory: Trajectory, reward: str) -> Outcome:
    """The outcome of a trajectory's dialogue. Raises `RewardError` where there is none, or none of this form."""
    try:
        return Outcome.model_validate(trajectory.outcome)
    except ValidationError as error:
        seen = f"{trajectory.outcome!r:.80}"
        failure = RewardError(
            f"the reward {reward!r} finds no outcome of a dialogue in task {trajectory.task_id!r}: {seen}",
            cause="it judges tasks with a user and a state"
            if not trajectory.outcome
            else "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3]),
            fix="choose tasks that are dialogues, or another reward",
        )
        failure.retryable = False
        raise failure from error


class Config(RewardConfig):
    """No settings."""

    rule_based = True
    of_dialogues = True

    def build(self, context: Context) -> DialogueSuccess:
        """Build it."""
        return DialogueSuccess()


class DialogueSuccess:
    """1 if the dialogue's own check says success, else 0; its answer's words count for nothing by themselves.

    What BFCL's multi-turn tasks, tau-bench and the offline desks are evaluated by. `parts` tells beside it the shares
    of state and of calls that were matched, and every other yes or no of the check.
    """

    name = "dialogue"
    judged = False

    def check(self, task: Task) -> None:
        """Whether a task is a dialogue shows in its trajectory."""

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Read the outcome."""
        outcome = outcome_of(trajectory, self.name)
        facts = {key: float(fact) for key, fact in trajectory.outcome.items() if isinstance(fact, bool)}
        facts.pop("success")
        if outcome.turns:
            facts = {"state": outcome.share("state"), "calls": outcome.share("calls")} | facts
        return Score(value=float(outcome.success), parts=facts)

    async def close(self) -> None:
        """Nothing to release."""
