"""The feedback filter on an agent's answers, as a strategy: answers near three distinct votes against are held back."""

from __future__ import annotations

import os
from pathlib import Path

from midstream.components.component import StrategyConfig
from midstream.core.agent import Agent, RunContext
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.runs.journal import Records
from midstream_extra.votes import KeptVotes, read_votes, vote_guard


class Filtered(StrategyConfig):
    """The feedback filter: an answer near three distinct votes against is held back.

    As text, `filtered:votes=.midstream/votes.sqlite`.

    Attributes:
        votes: the file of votes
    """

    example = '"filtered:votes=.midstream/votes.sqlite": answers near three of these votes against are held back'

    votes: Path

    def __str__(self) -> str:
        return f"filtered:votes={os.path.abspath(self.votes)}"

    @property
    def agent_runs(self) -> int:
        """One."""
        return 1

    def wrap(self, agent: Agent, *, max_attempts: int, kept: Path | None) -> Agent:
        """The agent whose answers are filtered; each attempt at a rollout runs it once. Raises as `read_votes`."""
        # One file for all sets of the evaluation, so that all have the same votes.
        return FilteredAgent(agent, self.votes, kept and kept.with_name("votes.jsonl"))


class FilteredAgent:
    """An agent whose answers pass the filter, compared by shared words.

    An answer that is held back becomes None, as if the agent had given none, with the reason as `held_back` in
    `Trajectory.outcome`; `Trajectory.final` keeps what was written, and a reward that the agent gave is dropped. Votes
    are read when this object is made, for a resumed evaluation from the file `kept`. Raises as `read_votes`.
    """

    def __init__(self, agent: Agent, votes: Path, kept: Path | None = None) -> None:
        self.agent, self.name = agent, agent.name
        self._kept = Records(kept, KeptVotes) if kept is not None else None
        began = self._kept.read() if self._kept is not None else []
        self._votes = began[0] if began else KeptVotes(votes=read_votes(votes))
        self._refusal = vote_guard(self._votes.votes)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run once and filter the answer."""
        # Not before: a run directory is created after its agent.
        if self._kept is not None and not self._kept.path.exists():
            self._kept.path.parent.mkdir(parents=True, exist_ok=True)
            self._kept.append(self._votes)
        found = await self.agent.run(task, context)
        if found.status != "ok" or not found.answer or not (reason := self._refusal(found.answer)):
            return found
        outcome = {**found.outcome, "held_back": reason}
        refused = {"answer": None, "final": found.final or found.answer, "stop_reason": "ended", "reward": None}
        return found.model_copy(update={**refused, "outcome": outcome})

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()
