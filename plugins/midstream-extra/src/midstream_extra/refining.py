"""Deep self-evolving reasoning over any agent (DSER, arXiv 2510.17498).

    chain 1:  solve -> verify -> refine -> verify -> refine -> answer
    chain 2:  solve -> verify -> refine -> verify -> refine -> answer      the most frequent answer wins
    ...

A chain's state is a whole solution. Each round asks the agent to verify it, and then to write the next state from the
question, the state and the verification; the verdict decides nothing, so every round does both. Departures: any agent
takes the place of the paper's model, also one with tools; the vote is over the last answers of the chains alone (the
paper's figure 1 counts those of the last ten rounds); a decided vote ends the other chains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from midstream.agents.rendering import prompt_text
from midstream.core.agent import Agent, RunContext
from midstream.core.errors import BudgetError, DeadlineError, UnsupportedError
from midstream.core.events import TurnEvent
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import fill, neutral, shorten
from midstream.core.trajectory import ErrorInfo, Refinement, Trajectory, Turn
from midstream.rewards.votes import answer_key
from midstream_extra.agent_runs import AgentRuns
from midstream_extra.dser import Dser, is_decided, winner

_SHOWN = 80  # characters of an answer in an event


class Refining:
    """An agent (`core.agent.Agent`) that runs another one K(1 + 2T) times on a task, and votes.

    The trajectory has the turns of all agent runs in the order of chains and rounds, whatever the order in which they
    ended, and a `Refinement`. It depends on that order only in which chains an early stop has cut short, never in the
    answer. Each agent run has its own seed, and tools of its own where these differ in each run. One that fails is
    tried again, as `rollout.max_attempts` allows; if it fails for good, the trajectory has its error. From the deadline
    on no agent run begins, and the chains vote with what they have.

    Args:
        agent: runs each part; it is closed with this one.
        strategy: K, T, and whether to stop early.
        max_attempts: attempts at an agent run.
        kept: the file in which agent runs that ended are kept, and found again.
    """

    def __init__(
        self,
        agent: Agent,
        strategy: Dser,
        *,
        max_attempts: int = 1,
        kept: Path | None = None,
    ) -> None:
        self.agent, self.strategy, self.name = agent, strategy, agent.name
        self.max_attempts, self.kept = max_attempts, AgentRuns(kept)
        self.prompts = {part: prompt_text(f"dser_{part}", package="midstream_extra") for part in ("verify", "refine")}

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run all chains, and vote. Raises `UnsupportedError` for a dialogue."""
        if context.dialogue is not None:
            raise UnsupportedError(
                f"strategy {self.strategy} was given a task that is a dialogue",
                code="dialogues-not-supported",
                fix="leave out evaluation.strategy",
            )
        return await _RefiningRun(self, task, context).trajectory()

    async def close(self) -> None:
        """Close the file of agent runs, and the agent."""
        self.kept.close()
        await self.agent.close()


class _FailedError(Exception):
    """An agent run failed for good; `args` is its `ErrorInfo`."""


@dataclass(slots=True)
class _Chain:
    number: int  # from 1
    runs: list[Trajectory] = field(default_factory=list)  # that ended, in order, failed attempts included
    states: list[Trajectory] = field(default_factory=list)  # of these the solutions, of rounds 0, 1, ...

    @property
    def answers(self) -> tuple[str | None, ...]:
        return tuple(state.answer for state in self.states)


class _RefiningRun:
    """One task under way."""

    def __init__(self, refining: Refining, task: Task, context: RunContext) -> None:
        self.refining, self.task, self.context = refining, task, context
        self.chains = [_Chain(number) for number in range(1, refining.strategy.K + 1)]
        self.running: dict[int, asyncio.Task[None]] = {}
        self.is_late = False  # the deadline has kept a chain from its end
        self.refused: ErrorInfo | None = None  # by a spent budget, which does not cut what is under way

    async def trajectory(self) -> Trajectory:
        """Run the chains until all have ended or the vote is decided."""
        started, clock = time.time(), time.monotonic()
        error: ErrorInfo | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for chain in self.chains:
                    self.running[chain.number] = group.create_task(self._finish(chain))
        except ExceptionGroup as failures:
            [first, *_] = sorted(failures.exceptions, key=lambda failure: isinstance(failure, _FailedError))
            if not isinstance(first, _FailedError):
                raise first from None
            [error] = first.args
        error = error or self.refused
        if error is None and not any(chain.states for chain in self.chains):
            late = DeadlineError(
                "the run's deadline passed before any chain had a solution",
                code="deadline",
                fix="raise rollout.deadline_s, or lower max_tokens",
            )
            error = ErrorInfo(type=type(late).__name__, message=str(late))
        return self._trajectory_of(error, started, time.monotonic() - clock)

    async def _finish(self, chain: _Chain) -> None:
        """Run a chain to its end, and stop the others if they can no longer change the answer."""
        await self._walk(chain)
        del self.running[chain.number]
        if self.refining.strategy.early_stop and is_decided(self._keys(), self.running):
            for task in self.running.values():
                task.cancel()

    async def _walk(self, chain: _Chain) -> None:
        """Solve, then verify and refine; from the deadline on, nothing more."""
        prompts, question = self.refining.prompts, self.task.question
        solved = await self._agent_run(chain, 0, "solve", question)
        for number in range(1, self.refining.strategy.T + 1):
            if solved is None:
                return
            chain.states.append(solved)
            values = {"question": question, "solution": _last_words(solved)}
            verified = await self._agent_run(chain, number, "verify", fill(prompts["verify"], values))
            if verified is None:
                return
            values["verification"] = _last_words(verified)
            solved = await self._agent_run(chain, number, "refine", fill(prompts["refine"], values))
        if solved is not None:
            chain.states.append(solved)

    async def _agent_run(self, chain: _Chain, number: int, part: str, question: str) -> Trajectory | None:
        """One run of the agent, from disk if it is kept; None if the deadline has passed or the budget is spent.

        Raises `_FailedError` if it fails for good.
        """
        refining, context = self.refining, self.context
        key = (self.task.id, context.seed, chain.number, number, part)
        if (ended := refining.kept.find(*key)) is not None:
            chain.runs.append(ended)
            return ended
        seed = derive_seed(context.seed, chain.number, number, part)
        task = self.task.model_copy(update={"question": question})
        for left in reversed(range(refining.max_attempts)):
            if context.deadline_s is not None and time.monotonic() >= context.deadline_s:
                self.is_late = True
                return None
            try:
                tools = context.tools if context.tools_for is None else context.tools_for(seed)
                inner = replace(context, seed=seed, tools=tools, listener=None)
                ended = await refining.agent.run(task, inner)
            except BudgetError as failure:
                self.refused = ErrorInfo(type=type(failure).__name__, message=str(failure))
                return None
            chain.runs.append(ended)
            error = ended.error
            if error is None:
                refining.kept.keep(ended, *key)
                self._emit(chain, f"round {number}, {part}: {shorten(ended.answer or 'no answer', _SHOWN)}")
                return ended
            if error.type == DeadlineError.__name__:
                self.is_late = True
                return None
            if error.type == BudgetError.__name__:
                self.refused = error
                return None
            if not (left and error.retryable):
                raise _FailedError(error)
            self._emit(chain, f"round {number}, {part}, again after {error.line}")
        raise AssertionError("the last attempt returns or raises")

    def _emit(self, chain: _Chain, text: str) -> None:
        if self.context.listener is not None:
            self.context.listener(TurnEvent(turn=0, role=f"chain {chain.number}", kind="agent_run", value=text))

    def _keys(self) -> dict[int, Hashable | None]:
        """What each chain that has ended votes for, by its last state; one that was stopped has no vote."""
        return {
            chain.number: answer_key(self.task.question, chain.states[-1].answer)
            for chain in self.chains
            if chain.states and chain.number not in self.running
        }

    def _trajectory_of(self, error: ErrorInfo | None, started: float, duration_s: float) -> Trajectory:
        """The trajectory of all agent runs that ended."""
        runs = [run for chain in self.chains for run in chain.runs]
        best = None if error else winner(self._keys())
        voted = None if best is None else self.chains[best - 1].states[-1]
        ended = "ended" if voted is None else "answered"
        answers = tuple(chain.answers for chain in self.chains)
        return Trajectory(
            id=self.task.id,
            task_id=self.task.id,
            question=self.task.question,
            agent=self.refining.name,
            seed=self.context.seed,
            turns=_turns_of(runs),
            answer=voted.answer if voted else None,
            final=voted.final if voted else "",
            reward=voted.reward if voted else None,
            stop_reason="error" if error else "time_limit" if self.is_late else ended,
            status="error" if error else "ok",
            # Agent runs have had their attempts: another one of the whole would repeat them all.
            error=error.model_copy(update={"retryable": False}) if error else None,
            cost_usd=sum(run.cost_usd for run in runs),
            request_failures=sum(run.request_failures for run in runs),
            refinement=Refinement(strategy=str(self.refining.strategy), answers=answers, agent_runs=len(runs)),
            started_at=started,
            duration_s=duration_s,
        )


def _last_words(ended: Trajectory) -> str:
    """What an agent run has said, for the next prompt."""
    return neutral(ended.final or ended.answer or "(The agent gave no answer.)")


def _turns_of(runs: Sequence[Trajectory]) -> tuple[Turn, ...]:
    """The turns of agent runs, numbered; requests before the first and after the last one of a run are turns too."""
    found: list[Turn] = []
    for run in runs:
        before, after = (
            [Turn(index=0, events=("call",) * len(calls), calls=calls)] * bool(calls)
            for calls in (run.opening_calls, run.closing_calls)
        )
        found += [*before, *run.turns, *after]
    return tuple(turn.model_copy(update={"index": index}) for index, turn in enumerate(found, 1))
