"""Rollouts: groups in order, results that no timing changes, and the one error boundary."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.agents.agentflow import AgentFlow
from midstream.agents.agentflow import Config as LoopConfig
from midstream.agents.compact import CompactPlanner
from midstream.agents.compact import Config as PlannerConfig
from midstream.agents.programs import FormVerifier, SingleArgumentExecutor, VerifiedResultGenerator
from midstream.core.errors import EngineError, RecipeError, RewardError, ToolServerError, UnsupportedError, UsageError
from midstream.core.protocols import Engine, LockstepEngine, Request, Tool, ToolResult
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Call, Observation, Score, Trajectory, Turn
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Config, Environment, Group, rollout

TASKS = [Task(id=f"t{i}", question=f"How high is Place{i} ?", answer=f"{i}", family="lookup") for i in range(6)]


async def pause(longest_s: float = 0.005) -> None:
    """A random wait, another one each time the test runs."""
    await asyncio.sleep(random.SystemRandom().random() * longest_s)


@dataclass
class StubAgent:
    """Answers with what `step(task, seed, attempt)` gives; counts its runs of each seed."""

    step: Callable[[Task, int, int], Any] = lambda task, seed, attempt: task.id[1:]
    name: str = "stub"
    tasks: list[Task] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    live: int = 0
    most_live: int = 0

    async def run(self, task, tools, engines, *, seed, order=0, lessons="", deadline_s=None) -> Trajectory:
        self.tasks.append(task)
        self.attempts[seed] = self.attempts.get(seed, 0) + 1
        self.live, self.most_live = self.live + 1, max(self.most_live, self.live + 1)
        try:
            await pause()
            answer = self.step(task, seed, self.attempts[seed])
        finally:
            self.live -= 1
        turn = Turn(index=1, observation=Observation(status="ok", text=f"{order}"))
        return Trajectory(id="x", task_id=task.id, question=task.question, seed=seed, answer=answer, turns=(turn,))


@dataclass
class StubReward:
    judge: Callable[[Task, Trajectory], float] = lambda task, trajectory: float(task.answer == trajectory.answer)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        await pause()
        return Score(value=self.judge(task, trajectory))


def environment(agent: Any, reward: Any = None, engines: Mapping[str, Engine] | None = None, **config: Any):
    return Environment(
        agent=agent, tools=(), engines=engines or {}, reward=reward or StubReward(), config=Config(**config)
    )


def run(env: Environment, tasks: Sequence[Task] = TASKS, group_size: int = 1, seed: int = 7) -> list[Group]:
    return asyncio.run(asyncio.wait_for(rollout(env, tasks, group_size=group_size, seed=seed), timeout=30))


def flat(groups: Sequence[Group]) -> list[Trajectory]:
    return [one for group in groups for one in group.trajectories]


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
    assert sorted(agent.tasks, key=lambda task: task.id) == [task.without_answer() for task in TASKS]


def test_the_same_task_twice_is_two_groups():
    groups = run(environment(StubAgent()), tasks=[TASKS[0], TASKS[0]], group_size=2)
    assert [len(group.trajectories) for group in groups] == [2, 2]


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
        if task.id == "t2" and attempt < until_attempt:
            raise failure
        return task.id[1:]

    return StubAgent(step)


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_an_infrastructure_error_is_tried_again_then_recorded(max_attempts):
    agent = failing(EngineError("503", cause="overload", mend="wait"))
    good, bad, _ = run(environment(agent, max_attempts=max_attempts), TASKS[1:4], group_size=2)
    for one in bad.trajectories:
        assert (one.status, one.stop_reason, one.reward, one.answer) == ("error", "error", None, None)
        assert one.error
        assert (one.error.type, one.error.message) == ("EngineError", "503\n  cause: overload\n  mend: wait")
        assert (one.id, one.task_id, one.family, one.gold) == (f"t2#{one.rollout_index}", "t2", "lookup", "2")
        assert one.question == "How high is Place2 ?"
        assert agent.attempts[one.seed] == max_attempts
    assert [one.reward for one in good.trajectories] == [Score(value=1.0)] * 2
    assert all(agent.attempts[one.seed] == 1 for one in good.trajectories)


def test_an_error_that_passes_leaves_no_trace():
    healed = run(environment(failing(EngineError("503"), until_attempt=2), max_attempts=2))
    assert healed == run(environment(StubAgent()))


@pytest.mark.parametrize("failure", [KeyError("typo"), ZeroDivisionError(), TimeoutError(), AssertionError("odd")])
def test_a_bug_in_an_agent_costs_one_trajectory_and_is_named(failure):
    trajectories = flat(run(environment(failing(failure))))
    (bad,) = [one for one in trajectories if one.status == "error"]
    assert (bad.task_id, bad.reward, bad.stop_reason) == ("t2", None, "error")
    assert bad.error
    assert bad.error.type == type(failure).__name__
    assert "test_rollout.py" in bad.error.message  # where it happened, for whoever has to find it
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


def test_a_trajectory_with_an_error_is_not_scored():
    class Broken(StubAgent):
        async def run(self, *args: Any, **settings: Any) -> Trajectory:
            return (await super().run(*args, **settings)).model_copy(update={"status": "error"})

    trajectories = flat(run(environment(Broken())))
    assert [(one.status, one.reward) for one in trajectories] == [("error", None)] * len(TASKS)


def test_a_users_mistake_ends_the_rollout_at_once():
    agent = failing(RecipeError("tool 'browser' does not exist"))
    never = asyncio.Event()

    class Patient(StubAgent):
        async def run(self, task: Task, *args: Any, **settings: Any) -> Trajectory:
            if task.id == "t2":
                return await agent.run(task, *args, **settings)
            self.live += 1
            try:
                await never.wait()
            finally:
                self.live -= 1
            raise AssertionError

    async def go() -> int:
        patient = Patient()
        with pytest.raises(UsageError, match="browser"):
            await rollout(environment(patient), TASKS, seed=7)
        return patient.live

    assert asyncio.run(go()) == 0  # nothing goes on behind the back of whoever handles the error


def test_deadline_reaches_the_agent_afresh_at_each_attempt():
    limits: list[float] = []

    class Late(StubAgent):
        async def run(self, *args: Any, deadline_s: float | None = None, **settings: Any) -> Trajectory:
            assert deadline_s is not None
            limits.append(deadline_s - time.monotonic())
            await asyncio.sleep(0.05)
            raise EngineError("late")

    run(environment(Late(), deadline_s=60, max_attempts=2), TASKS[:1])
    assert limits == pytest.approx([60, 60], abs=0.04)


# --- AgentFlow on a real loop -------------------------------------------------------------------------------------


class Archive:
    """A tool that knows how high every place is; fails, breaks or dawdles as told."""

    name, description, timeout_s = "archive", "knows heights", 30.0
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
    }

    def __init__(self, broken: Mapping[str, Exception] | None = None) -> None:
        self.broken, self.seen, self.closed = broken or {}, [], 0

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        await pause()
        place = str(arguments["place"])
        self.seen.append(place)
        if place in self.broken:
            raise self.broken[place]
        return ToolResult(
            text=f"{place} height {place[5:]}" if place.startswith("Place") else "nothing", ok=place != "?"
        )

    async def close(self) -> None:
        self.closed += 1


def act(request: Request) -> str:
    """The policy: dawdles a number of turns that depends on the question, sometimes malformed, then looks it up."""
    question, turn = request.prompt.split("\n")[0], request.prompt.count("\n")
    place = question.split()[4]
    if turn <= int(place[5:]) % 4:
        return random.Random(request.seed).choice([" goal wait\n tool archive\n arg ?", "nonsense"])
    return f" goal find\n tool archive\n arg {place}"


class Lockstep:
    """A `LockstepEngine` that notes the batches it answers and who was live then."""

    name, token_exact = "lockstep", False

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.waiting: dict[int, tuple[Request, asyncio.Future[Call]]] = {}
        self.batches: list[tuple[int, ...]] = []

    def join(self, order: int) -> None:
        assert order not in self.live
        self.live.add(order)

    def leave(self, order: int) -> None:
        self.live.remove(order)
        self.answer()

    async def sample(self, request: Request) -> Call:
        assert request.order in self.live
        future: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self.waiting[request.order] = request, future
        self.answer()
        try:
            return await future
        finally:
            self.waiting.pop(request.order, None)

    def answer(self) -> None:
        if self.waiting and self.live == self.waiting.keys():
            self.batches.append(tuple(sorted(self.waiting)))
            for request, future in [self.waiting.pop(order) for order in self.batches[-1]]:
                if not future.done():
                    future.set_result(Call(role=request.role, completion=act(request)))

    async def close(self) -> None: ...


def agentflow(engine: Any, tool: Tool, *, max_turns: int = 5, reward: Any = None, **config: Any) -> Environment:
    agent = AgentFlow(
        planner=CompactPlanner(PlannerConfig()),
        executor=SingleArgumentExecutor(),
        verifier=FormVerifier(),
        generator=VerifiedResultGenerator(),
        config=LoopConfig(max_turns=max_turns),
    )
    return Environment(
        agent=agent,
        tools=(tool,),
        engines={"planner": engine, "spare": engine},
        reward=reward or ExactMatch(),
        config=Config(**config),
    )


def still(trajectory: Trajectory) -> Trajectory:
    """Without wall-clock times."""
    turns = [
        turn.model_copy(update={"observation": turn.observation.model_copy(update={"duration_s": 0.0})})
        for turn in trajectory.turns
        if turn.observation
    ]
    return trajectory.model_copy(update={"turns": tuple(turns), "started_at": 0.0, "duration_s": 0.0})


@dataclass
class FreeEngine:
    """The policy as an engine that answers each request by itself, after a while."""

    name: str = "free"
    token_exact: bool = False
    requests: list[Request] = field(default_factory=list)
    closed: int = 0

    async def sample(self, request: Request) -> Call:
        await pause()
        self.requests.append(request)
        return Call(role=request.role, completion=act(request))

    async def close(self) -> None:
        self.closed += 1


def results(engine: Engine, archive: Archive | None = None, group_size: int = 4, **config: Any) -> list[Trajectory]:
    groups = run(agentflow(engine, archive or Archive(), **config), group_size=group_size)
    return [still(one) for one in flat(groups)]


def test_an_engine_without_a_barrier_gives_the_same_whatever_the_timing():
    one = results(FreeEngine(), concurrency=1)
    assert one == results(FreeEngine(), concurrency=5) == results(FreeEngine(), concurrency=64)
    assert [len(trajectory.turns) for trajectory in one[::4]] == [1, 2, 3, 4, 1, 2]
    assert len({turn.action.error for trajectory in one for turn in trajectory.turns if turn.action}) > 1
    assert [trajectory.reward for trajectory in one] == [Score(value=1.0)] * 24


def test_no_module_tool_or_engine_sees_the_answer():
    seen: list[str] = []

    class Spy:
        def __init__(self, module: object) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
            async def call(*shown: Any) -> Any:
                seen.append(repr(shown))
                return await getattr(self.module, name)(*shown)

            return call

    engine, archive = FreeEngine(), Archive()
    plain = agentflow(engine, archive)
    flow = plain.agent
    assert isinstance(flow, AgentFlow)
    flow.planner, flow.executor, flow.verifier, flow.generator = map(
        Spy, (flow.planner, flow.executor, flow.verifier, flow.generator)
    )
    hidden = {"answer": "SECRET", "family": "SECRET", "metadata": {"proof": "SECRET"}}
    tasks = [task.model_copy(update={**hidden, "id": f"SECRET-{task.id}"}) for task in TASKS]
    trajectories = flat(run(plain, tasks))
    assert {(one.gold, one.family, one.status) for one in trajectories} == {("SECRET", "SECRET", "ok")}
    assert len(seen) > 3 * len(TASKS)
    assert "SECRET" not in repr([seen, archive.seen, engine.requests])


def test_close_closes_each_part_once():
    engine, archive = FreeEngine(), Archive()
    asyncio.run(agentflow(engine, archive).close())  # one engine under two modules' names
    assert (engine.closed, archive.closed) == (1, 1)


# --- lockstep engines ---------------------------------------------------------------------------------------------


def test_every_batch_holds_every_live_trajectory():
    engine = Lockstep()
    assert isinstance(engine, LockstepEngine)
    trajectories = results(engine)
    lengths = [len(one.turns) for one in trajectories]
    assert engine.batches == [
        tuple(order for order, length in enumerate(lengths) if length >= turn) for turn in range(1, max(lengths) + 1)
    ]
    assert engine.live == set()
    assert trajectories == results(FreeEngine())


@pytest.mark.parametrize("concurrency", [1, 5, 24])
def test_waves_are_made_of_the_same_trajectories_every_time(concurrency):
    first, second = Lockstep(), Lockstep()
    one, two = results(first, concurrency=concurrency), results(second, concurrency=concurrency)
    assert one == two == results(FreeEngine())
    assert first.batches == second.batches
    waves = [{order // concurrency for order in batch} for batch in first.batches]
    assert all(len(wave) == 1 for wave in waves)
    assert [min(wave) for wave in waves] == sorted(min(wave) for wave in waves)


@pytest.mark.parametrize("failure", [ToolServerError("archive burnt"), KeyError("typo")])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_failed_trajectory_holds_nobody_up(failure, max_attempts):
    engine = Lockstep()
    trajectories = results(engine, Archive({"Place1": failure, "Place3": failure}), max_attempts=max_attempts)
    assert [one.task_id for one in trajectories if one.status == "error"] == ["t1"] * 4 + ["t3"] * 4
    sound = results(Lockstep())
    assert [one for one in trajectories if one.status == "ok"] == [
        one for one in sound if one.task_id not in ("t1", "t3")
    ]
    assert engine.live == set()


def test_a_broken_reward_holds_nobody_up():
    def judge(task: Task, trajectory: Trajectory) -> float:
        if task.id == "t0":
            raise RewardError("judge down")
        return 1.0

    engine = Lockstep()
    trajectories = results(engine, reward=StubReward(judge))
    assert [one.status for one in trajectories] == ["error"] * 4 + ["ok"] * 20
    assert engine.live == set()


def test_a_users_mistake_leaves_no_trajectory_in_the_barrier():
    engine = Lockstep()
    with pytest.raises(UsageError):
        run(agentflow(engine, Archive({"Place2": RecipeError("no such place")})), group_size=4)
    assert engine.live == set()
    assert engine.waiting == {}


def test_two_lockstep_engines_are_refused_not_waited_for():
    env = replace(agentflow(Lockstep(), Archive()), engines={"planner": Lockstep(), "verifier": Lockstep()})
    with pytest.raises(UnsupportedError, match="2 in-process engines"):
        run(env)
