"""Deep self-evolving reasoning (DSER, arXiv 2510.17498) as a strategy: its settings, and the vote of its chains."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

from pydantic import Field

from midstream.components.component import StrategyConfig
from midstream.core.agent import Agent
from midstream.core.answers import most_frequent

_MOST = 10_000


class Dser(StrategyConfig):
    """Deep self-evolving reasoning: several chains that verify and refine, and a vote.

    As text, `dser:K=8,T=4`, or `dser:K=8,T=4,early_stop=no`.

    Attributes:
        K: chains, each of which begins with a solution of its own
        T: rounds of a chain, each of a verification and a refinement; 0 is a vote over solutions alone
        early_stop: whether the other chains are stopped once they can no longer change the answer; "no" lets every
            chain end, which `studies/refine.py` needs for accuracies without bias
    """

    example = '"dser:K=8,T=4": K chains (at least 1), T rounds of each (0 or more); early_stop=no may follow'

    K: int = Field(ge=1, le=_MOST)
    T: int = Field(ge=0, le=_MOST)
    early_stop: bool = True

    def __str__(self) -> str:
        return f"dser:K={self.K},T={self.T}" + ("" if self.early_stop else ",early_stop=no")

    @property
    def agent_runs(self) -> int:
        """The most agent runs of a task, K(1 + 2T)."""
        return self.K * (1 + 2 * self.T)

    def wrap(self, agent: Agent, *, max_attempts: int, kept: Path | None) -> Agent:
        """The agent that runs `agent` in chains, and votes."""
        from midstream_extra.refining import Refining

        return Refining(agent, self, max_attempts=max_attempts, kept=kept)


def winner(keys: Mapping[int, Hashable | None]) -> int | None:
    """The chain whose answer wins: the lowest of those with a most frequent answer; None without any answer.

    `keys` has for each chain what its answer is equal by, None without an answer. Of answers that are equally frequent,
    the lowest chain's wins, whatever the order in which the chains ended.
    """
    leaders = most_frequent(keys.values())
    return min((chain for chain, key in keys.items() if key in leaders), default=None)


def is_decided(keys: Mapping[int, Hashable | None], pending: Collection[int]) -> bool:
    """Whether no answers of the `pending` chains can change which chain wins.

    A pending chain below the winner can always displace it: equal answers may be written in different ways, and the
    lowest chain's is taken. A rival, known or new, gets at most its own votes and those of all pending chains. It beats
    the leader if these are more than the leader's, or as many and one of them is of a lower chain.
    """
    first = winner(keys)
    if not pending:
        return True
    if first is None or min(pending) < first:
        return False
    most = sum(key == keys[first] for key in keys.values())
    for rival in {None, *keys.values()} - {keys[first]}:  # None stands for an answer that nobody has given yet
        votes = [*pending, *(chain for chain, key in keys.items() if key == rival and key is not None)]
        if len(votes) > most or (len(votes) == most and min(votes) < first):
            return False
    return True
