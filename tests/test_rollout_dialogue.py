"""Rollouts of dialogues: each attempt has one of its own, which is always closed and says how the run went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from midstream.agents.agentflow import AgentFlowLoop
from midstream.agents.interleaved import InterleavedLoop
from midstream.agents.own_agent import own_agent
from midstream.core.agent import RunContext
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.source import OVER, Dialogues, UserTurn
from midstream.core.task import Task
from midstream.core.trajectory import ErrorInfo, Score, Trajectory
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.rollout import Environment, RolloutConfig
from support.errors import coded
from support.rollouts import TASKS, StubReward, flat, pause, run


@dataclass
class Talk:
    """A dialogue that counts what its agent said."""

    task: Task
    seed: int
    system: str = ""
    said: list[str] = field(default_factory=list)
    closed: int = 0
    broken: bool = False

    async def begin(self) -> UserTurn:
        return UserTurn(text=self.task.question, tools=())

    async def reply(self, text: str) -> UserTurn:
        self.said.append(text)
        return OVER

    def outcome(self) -> dict[str, Any]:
        assert not self.closed
        if self.broken:
            raise ToolServerError("the check broke")
        return {"success": self.said == [self.task.answer], "said": list(self.said)}

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Talks:
    """Opens dialogues and remembers them; `broken` are the first so many."""

    broken: int = 0
    opened: list[Talk] = field(default_factory=list)

    def open(self, task: Task, *, seed: int) -> Talk:
        self.opened.append(Talk(task, seed, broken=len(self.opened) < self.broken))
        return self.opened[-1]


@dataclass
class Agent:
    """Says the number in the question; fails the first `failing` runs of a seed, by raising or in its trajectory."""

    failing: int = 0
    raises: bool = True
    name: str = "talker"
    runs: dict[int, int] = field(default_factory=dict)
    given: list[RunContext] = field(default_factory=list)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        seed, dialogue = context.seed, context.dialogue
        self.given.append(context)
        self.runs[seed] = self.runs.get(seed, 0) + 1
        await pause()
        trajectory = Trajectory(id="x", task_id=task.id, question=task.question, seed=seed, cost_usd=1.0)
        if dialogue is not None:
            first = await dialogue.begin()
            await dialogue.reply(first.text.split()[3].removeprefix("Place"))
        if self.runs[seed] <= self.failing:
            if self.raises:
                raise ToolServerError("the desk is on fire")
            error = ErrorInfo(type="ToolServerError", message="the desk is on fire", retryable=True)
            return trajectory.model_copy(update={"status": "error", "stop_reason": "error", "error": error})
        return trajectory.model_copy(update={"stop_reason": "ended"})

    async def close(self) -> None:
        pass


def reported(task: Task, trajectory: Trajectory) -> float:
    return float(bool(trajectory.outcome.get("success")))


def environment(agent: Agent, talks: Talks | None, reward: Any = None, **config: Any) -> Environment:
    return Environment(
        agent=agent,
        tools=(),
        engines={},
        reward=reward or StubReward(reported),
        config=RolloutConfig(**config),
        dialogues=talks,
    )


def test_every_rollout_has_a_dialogue_of_its_own_with_the_whole_task():
    talks = Talks()
    done = flat(run(environment(Agent(), talks), group_size=3))
    assert isinstance(talks, Dialogues)
    assert sorted(one.task.id for one in talks.opened) == sorted(task.id for task in TASKS for _ in range(3))
    assert {one.task.answer for one in talks.opened} == {task.answer for task in TASKS}
    assert sorted(one.seed for one in talks.opened) == sorted(one.seed for one in done)
    assert [one.closed for one in talks.opened] == [1] * 18


def test_the_outcome_is_in_the_trajectory_before_it_is_scored():
    done = flat(run(environment(Agent(), Talks())))
    assert [one.outcome for one in done] == [{"success": True, "said": [task.answer]} for task in TASKS]
    assert [one.reward for one in done] == [Score(value=1.0)] * 6


def test_without_dialogues_agents_hear_of_none():
    agent = Agent()
    done = flat(run(environment(agent, None)))
    assert [given.dialogue for given in agent.given] == [None] * 6
    assert [one.outcome for one in done] == [{}] * 6


@pytest.mark.parametrize("raises", [True, False])
def test_another_attempt_begins_another_dialogue(raises):
    talks = Talks()
    [done] = flat(run(environment(Agent(failing=1, raises=raises), talks), tasks=TASKS[:1]))
    first, second = talks.opened
    assert (first.closed, second.closed, first.said, second.said) == (1, 1, ["0"], ["0"])
    assert (done.attempts, done.status, done.outcome["said"]) == (2, "ok", ["0"])


@pytest.mark.parametrize("raises", [True, False])
def test_a_run_that_stays_broken_has_no_outcome(raises):
    talks = Talks()
    [done] = flat(run(environment(Agent(failing=9, raises=raises), talks), tasks=TASKS[:1]))
    assert (done.status, done.reward, done.outcome) == ("error", None, {})
    assert [one.closed for one in talks.opened] == [1, 1]


def test_a_broken_check_is_an_error_and_never_a_wrong_answer():
    done = flat(run(environment(Agent(), Talks(broken=1)), tasks=TASKS[:1]))
    assert [(one.status, one.attempts, one.reward) for one in done] == [("ok", 2, Score(value=1.0))]
    [done] = flat(run(environment(Agent(), Talks(broken=2)), tasks=TASKS[:1]))
    assert (done.status, done.reward, done.outcome) == ("error", None, {})


def test_a_score_that_is_tried_again_opens_no_second_dialogue():
    judged: list[str] = []

    def flaky(task: Task, trajectory: Trajectory) -> float:
        judged.append(task.id)
        if len(judged) == 1:
            raise ToolServerError("the judge is away")
        return reported(task, trajectory)

    talks = Talks()
    [done] = flat(run(environment(Agent(), talks, StubReward(flaky)), tasks=TASKS[:1]))
    assert (len(talks.opened), len(judged), done.outcome["success"], done.reward) == (1, 2, True, Score(value=1.0))


def test_a_task_that_is_no_dialogue_ends_the_run():
    class Picky(Talks):
        def open(self, task: Task, *, seed: int) -> Talk:
            raise RecipeError("no plan", cause="it is of another world", fix="take others")

    with pytest.raises(RecipeError, match="no plan"):
        run(environment(Agent(), Picky()))


@pytest.mark.parametrize("recipe", ["agentflow-prompted", "artist-prompted"])
@pytest.mark.parametrize("where", ["tasks", "evaluation.sets.0.tasks", "evaluation.validation.tasks"])
def test_an_agent_that_holds_no_dialogues_is_refused_before_any_work(recipe, where):
    desks = '{type="desks"}'
    override = {
        "tasks": f"tasks={desks}",
        "evaluation.sets.0.tasks": f'evaluation.sets=[{{name="desks", tasks={desks}}}]',
        "evaluation.validation.tasks": f'evaluation.validation={{name="desks", tasks={desks}}}',
    }[where]
    with pytest.raises(RecipeError, check=coded("dialogues-not-supported", f"{where}.type = 'desks'")):
        resolve(load_recipe(recipe, [override]))


class Silent:
    name = "silent"

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        raise AssertionError

    async def close(self) -> None:
        pass


class Talker(Silent):
    dialogues = True


class OwnStream(InterleavedLoop):
    def __init__(self) -> None:
        pass


class OwnFlow(AgentFlowLoop):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(("agent", "holds"), [(Silent, False), (Talker, True), (OwnStream, True), (OwnFlow, False)])
def test_an_agent_of_your_own_says_that_it_holds_dialogues(agent, holds):
    assert own_agent("agent", "mine.py:Agent", agent).dialogues is holds
