"""Rollouts: groups in order, results that no timing changes, and the one error boundary."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from midstream.core.agent import RunContext, lessons_digest
from midstream.core.errors import (
    EngineError,
    PromptTooLongError,
    RecipeError,
    RepeatedError,
    RewardError,
    StorageError,
    ToolServerError,
)
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Call, ErrorInfo, Observation, Score, Trajectory, Turn, Usage
from midstream.rollout import SAME_FAILURES, Environment, RolloutConfig, rollout
from support.rollouts import TASKS, StubReward, flat, pause, run


def number(task: Task) -> str:
    """Which of TASKS an agent was given; it sees the question alone."""
    return task.question.split()[3].removeprefix("Place")


@dataclass
class StubAgent:
    """Answers with what `step(task, seed, attempt)` gives; counts its runs of each seed."""

    step: Callable[[Task, int, int], Any] = lambda task, seed, attempt: number(task)
    name: str = "stub"
    tasks: list[Task] = field(default_factory=list)
    lessons: dict[str, Any] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    live: int = 0
    most_live: int = 0

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        seed = context.seed
        self.tasks.append(task)
        self.lessons[task.question] = context.lessons
        self.attempts[seed] = self.attempts.get(seed, 0) + 1
        self.live, self.most_live = self.live + 1, max(self.most_live, self.live + 1)
        try:
            await pause()
            answer = self.step(task, seed, self.attempts[seed])
        finally:
            self.live -= 1
        turn = Turn(index=1, observation=Observation(status="ok", text=f"{context.order}"))
        return Trajectory(id="x", task_id=task.id, question=task.question, seed=seed, answer=answer, turns=(turn,))


def environment(agent: Any, reward: Any = None, **config: Any) -> Environment:
    return Environment(agent=agent, tools=(), engines={}, reward=reward or StubReward(), config=RolloutConfig(**config))


# --- groups -------------------------------------------------------------------------------------------------------


def test_one_group_a_task_in_order():
    groups = run(environment(StubAgent()), group_size=3)
    assert [group.task for group in groups] == TASKS
    for group in groups:
        assert [one.rollout_index for one in group.trajectories] == [0, 1, 2]
        assert [one.id for one in group.trajectories] == [f"{group.task.id}#{i}" for i in range(3)]
        seeds = [derive_seed(7, group.task.id, i) for i in range(3)]
        assert [one.seed for one in group.trajectories] == seeds
        for one in group.trajectories:
            assert (one.task_id, one.family, one.gold) == (group.task.id, "lookup", group.task.answer)
            assert (one.status, one.reward) == ("ok", Score(value=1.0))


def test_no_tasks():
    assert run(environment(StubAgent()), tasks=[]) == []


def test_agents_get_tasks_without_answers():
    agent = StubAgent()
    run(environment(agent))
    assert sorted(agent.tasks, key=lambda task: task.question) == sorted(
        (task.without_answer() for task in TASKS), key=lambda task: task.question
    )


def test_the_same_task_twice_is_two_groups():
    groups = run(environment(StubAgent()), tasks=[TASKS[0], TASKS[0]], group_size=2)
    assert [len(group.trajectories) for group in groups] == [2, 2]


def test_lessons_are_the_environments_unless_a_task_has_others():
    agent = StubAgent()
    emitted = replace(environment(agent), lessons={"planner": "- Look twice."})
    others = {"t1": {"executor": "- Round up."}, "t2": {}}
    done = flat(run(emitted, tasks=TASKS[:3], lessons=others))
    assert [agent.lessons[one.question] for one in TASKS[:3]] == [emitted.lessons, *others.values()]
    assert [one.lessons for one in done] == [lessons_digest(emitted.lessons), lessons_digest(others["t1"]), ""]
    assert len({one.lessons for one in done}) == 3


# --- what is done already ---------------------------------------------------------------------------------------------


def test_each_trajectory_is_reported_once_as_it_ends():
    emitted: list[list[Trajectory]] = []
    groups = run(environment(StubAgent()), group_size=2, on_done=emitted.append)
    assert [len(some) for some in emitted] == [1] * 12
    assert sorted((one for [one] in emitted), key=lambda one: one.id) == sorted(flat(groups), key=lambda one: one.id)


def test_what_is_kept_is_not_run_again_and_the_rest_comes_out_the_same():
    whole = flat(run(environment(StubAgent()), group_size=2))
    kept = {(one.task_id, one.rollout_index): one for one in whole[3:8]}
    agent, emitted = StubAgent(), []
    assert flat(run(environment(agent), group_size=2, kept=kept, on_done=emitted.append)) == whole
    assert sorted(agent.attempts) == sorted(one.seed for one in [*whole[:3], *whole[8:]])
    assert len(emitted) == 7


def test_what_is_kept_of_other_tasks_and_trials_changes_nothing():
    whole = run(environment(StubAgent()))
    other = flat(whole)[0].model_copy(update={"answer": "another"})
    assert run(environment(StubAgent()), kept={("t0", 1): other, ("t99", 0): other}) == whole


@pytest.mark.parametrize("concurrency", [1, 4, 100])
def test_concurrency_bounds_the_trajectories_under_way(concurrency):
    agent = StubAgent()
    groups = run(environment(agent, concurrency=concurrency), group_size=4)
    assert len(flat(groups)) == 24
    assert agent.most_live <= concurrency
    if concurrency < 24:
        assert agent.most_live == concurrency


def test_neither_concurrency_nor_latency_changes_a_result():
    def step(task: Task, seed: int, attempt: int) -> str:
        if seed % 3 == 0:
            raise ToolServerError(f"{seed} is unlucky")
        return f"{random.Random(seed).random()}"

    results = [run(environment(StubAgent(step), concurrency=size), group_size=8) for size in (1, 3, 64, 64)]
    assert all(result == results[0] for result in results)
    assert {one.status for one in flat(results[0])} == {"ok", "error"}
    assert len({one.answer for one in flat(results[0])}) > 20


# --- the error boundary -------------------------------------------------------------------------------------------


def failing(failure: Exception, until_attempt: int = 10**9) -> StubAgent:
    """An agent that fails at task t2."""

    def step(task: Task, seed: int, attempt: int) -> str:
        if number(task) == "2" and attempt < until_attempt:
            raise failure
        return number(task)

    return StubAgent(step)


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_an_infrastructure_error_is_tried_again_then_recorded(max_attempts):
    agent = failing(EngineError("503", cause="overload", fix="wait"))
    good, bad, _ = run(environment(agent, max_attempts=max_attempts), TASKS[1:4], group_size=2)
    for one in bad.trajectories:
        assert (one.status, one.stop_reason, one.reward, one.answer) == ("error", "error", None, None)
        assert one.error
        assert (one.error.type, one.error.message) == ("EngineError", "503\n  cause: overload\n  fix: wait")
        assert (one.id, one.task_id, one.family, one.gold) == (f"t2#{one.rollout_index}", "t2", "lookup", "2")
        assert one.question == "How high is Place2 ?"
        assert agent.attempts[one.seed] == max_attempts
    assert [one.reward for one in good.trajectories] == [Score(value=1.0)] * 2
    assert all(agent.attempts[one.seed] == 1 for one in good.trajectories)


def test_an_error_that_passes_is_counted_and_leaves_no_other_trace():
    healed = flat(run(environment(failing(EngineError("503"), until_attempt=2), max_attempts=2)))
    assert [one.attempts for one in healed] == [2 if one.task_id == "t2" else 1 for one in healed]
    broken = ErrorInfo(type="EngineError", message="503", retryable=True)
    assert [one.earlier_errors for one in healed] == [(broken,) if one.task_id == "t2" else () for one in healed]
    bare = [one.model_copy(update={"attempts": 1, "earlier_errors": ()}) for one in healed]
    assert bare == flat(run(environment(StubAgent())))


def test_a_listener_is_reported_that_a_run_begins_again():
    heard = []
    broken = failing(EngineError("503"), until_attempt=2)
    run(environment(broken, max_attempts=2), TASKS[:3], listener=heard.append)
    assert [(one.kind, one.value.type) for one in heard] == [("restart", "EngineError")]


def test_what_cannot_heal_is_tried_once():
    (bad,) = [
        one for one in flat(run(environment(failing(PromptTooLongError("9000 tokens")), max_attempts=3))) if one.error
    ]
    assert (bad.attempts, bad.reward) == (1, None)


@pytest.mark.parametrize("failure", [KeyError("typo"), ZeroDivisionError(), TimeoutError(), AssertionError("odd")])
def test_a_bug_in_an_agent_costs_one_trajectory_and_is_named(failure):
    trajectories = flat(run(environment(failing(failure))))
    (bad,) = [one for one in trajectories if one.status == "error"]
    assert (bad.task_id, bad.reward, bad.stop_reason) == ("t2", None, "error")
    assert bad.error
    assert bad.error.type == type(failure).__name__
    assert "test_rollout.py" in bad.error.message  # where it happened, to be found
    assert sum(one.reward.value for one in trajectories if one.reward) == len(TASKS) - 1


@pytest.mark.parametrize("failure", [RewardError("judge down"), ValueError("not a number")])
def test_a_broken_reward_is_no_reward_of_zero(failure):
    def judge(task: Task, trajectory: Trajectory) -> float:
        if task.id == "t2":
            raise failure
        return 1.0

    trajectories = flat(run(environment(StubAgent(), StubReward(judge))))
    (bad,) = [one for one in trajectories if one.status == "error"]
    assert bad.error
    assert (bad.task_id, bad.reward, bad.error.type) == ("t2", None, type(failure).__name__)
    assert (bad.answer, len(bad.turns)) == ("2", 1)  # what the agent did is kept


def test_a_judge_that_fails_is_asked_again_about_the_same_run():
    asked: list[Trajectory] = []

    class Flaky(StubReward):
        async def score(self, task: Task, trajectory: Trajectory) -> Score:
            asked.append(trajectory)
            call = Call(role="judge", usage=Usage(cost_usd=1.0))
            if len(asked) < 3:
                failure = RewardError("judge down")
                failure.calls = (call,)
                raise failure
            return Score(value=1.0, calls=(call,))

    class Costly(StubAgent):
        async def run(self, task: Task, context: RunContext) -> Trajectory:
            return (await super().run(task, context)).model_copy(update={"cost_usd": 10.0, "request_failures": 4})

    agent, restarts = Costly(), []
    env = environment(agent, Flaky(), max_attempts=3)
    [one] = flat(run(env, tasks=TASKS[:1], listener=restarts.append))
    assert list(agent.attempts.values()) == [1]
    assert restarts == []  # nothing runs again
    assert (one.status, one.attempts, one.reward.value if one.reward else None) == ("ok", 3, 1.0)
    assert [error.type for error in one.earlier_errors] == ["RewardError"] * 2
    assert (one.cost_usd, one.request_failures) == (13.0, 4)
    assert {(ended.answer, ended.turns) for ended in asked} == {(one.answer, one.turns)}


def test_a_trajectory_with_an_error_is_not_scored():
    class Broken(StubAgent):
        async def run(self, task: Task, context: RunContext) -> Trajectory:
            return (await super().run(task, context)).model_copy(update={"status": "error"})

    trajectories = flat(run(environment(Broken())))
    assert [(one.status, one.reward) for one in trajectories] == [("error", None)] * len(TASKS)


@pytest.mark.parametrize("failure", [RecipeError("no tool 'browser'"), StorageError("no room for 'browser'")])
def test_what_no_trajectory_can_fix_ends_the_rollout_at_once(failure):
    agent = failing(failure)
    never = asyncio.Event()

    class Patient(StubAgent):
        async def run(self, task: Task, context: RunContext) -> Trajectory:
            if number(task) == "2":
                return await agent.run(task, context)
            self.live += 1
            try:
                await never.wait()
            finally:
                self.live -= 1
            raise AssertionError

    async def go() -> int:
        patient = Patient()
        with pytest.raises(type(failure), match="browser"):
            await asyncio.wait_for(rollout(environment(patient), TASKS, seed=7), timeout=30)
        return patient.live

    assert asyncio.run(go()) == 0  # nothing is still running when the error is handled


def test_deadline_is_set_again_for_each_attempt():
    limits: list[float] = []

    class Late(StubAgent):
        async def run(self, task: Task, context: RunContext) -> Trajectory:
            assert context.deadline_s is not None
            limits.append(context.deadline_s - time.monotonic())
            await asyncio.sleep(0.3)
            raise EngineError("late")

    run(environment(Late(), deadline_s=60, max_attempts=2), TASKS[:1])
    assert limits == pytest.approx([60, 60], abs=0.25)


# --- the same failure again and again ---------------------------------------------------------------------------------


def fails(error: Callable[[Task], Exception]) -> Callable[[Task, Trajectory], float]:
    def judge(task: Task, trajectory: Trajectory) -> float:
        raise error(task)

    return judge


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda task: RewardError(f"no score for {task.id}", code="reward-failed"), "reward-failed"),
        (lambda task: KeyError("score"), "component-failed"),
        (lambda task: RewardError("no file /data/t1/gold.json", code="reward-failed"), "reward-failed"),  # a task's id
        (lambda task: RewardError(f"no file data/{task.id}.json", code="reward-failed"), "reward-failed"),
        (lambda task: ToolServerError("add raised KeyError", code="tool-broken"), "tool-broken"),
    ],
)
def test_a_reward_that_fails_alike_five_times_in_a_row_ends_the_rollout(error, code):
    ended: list[Trajectory] = []
    stub = environment(StubAgent(), StubReward(fails(error)), concurrency=1, max_attempts=1)
    with pytest.raises(RepeatedError, check=lambda raised: raised.code == code):
        run(stub, group_size=3, on_done=ended.extend)
    assert [one.status for one in ended] == ["error"] * (SAME_FAILURES - 1)  # the last one ends it


def test_other_failures_and_outages_are_counted_in_the_trajectories():
    def sometimes(task: Task, trajectory: Trajectory) -> float:
        if trajectory.rollout_index or trajectory.seed % 3:
            raise RewardError(f"no score: {'abcdefgh'[trajectory.seed % 8]}")
        return 1.0

    outages = EngineError("down"), ToolServerError("down", code="service-failed")
    for reward in (sometimes, *(fails(lambda task, outage=outage: outage) for outage in outages)):
        done = flat(run(environment(StubAgent(), StubReward(reward), max_attempts=1), group_size=3))
        assert len(done) == 3 * len(TASKS)
