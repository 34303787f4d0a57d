"""Rollouts of AgentFlow on engines with and without a barrier: no timing, failure or neighbor changes a result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.engine import Engine, LockstepEngine, Request
from midstream.core.errors import RecipeError, RewardError, ToolServerError, UnsupportedError, UsageError
from midstream.core.task import Task
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call, Score, Trajectory, without_clocks
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, RolloutConfig
from midstream_worlds.compact import SingleArgumentExecutor
from midstream_worlds.planning.action_lines import ActionLinesConfig, ActionLinesPlanner
from midstream_worlds.planning.programs import FormVerifier, VerifiedResultGenerator
from support.errors import coded
from support.rollouts import TASKS, StubReward, flat, pause, run


class Archive:
    """A tool that knows how high every place is; fails, breaks or dawdles as emitted."""

    name, description, timeout_s, output_tokens = "archive", "knows heights", 30.0, 1000
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
        self.live.discard(order)
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
    agent = AgentFlowLoop(
        planner=ActionLinesPlanner(ActionLinesConfig()),
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
        config=RolloutConfig(**config),
    )


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


def results(
    engine: Engine, archive: Archive | None = None, *, more: dict[str, Any] | None = None, **config: Any
) -> list[Trajectory]:
    groups = run(agentflow(engine, archive or Archive(), **config), group_size=4, **more or {})
    return [without_clocks(one) for one in flat(groups)]


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
    assert isinstance(flow, AgentFlowLoop)
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


def test_a_wave_is_done_as_a_whole_and_kept_as_a_whole():
    waves: list[list[Trajectory]] = []
    engine = Lockstep()
    whole = results(engine, more={"on_done": waves.append}, concurrency=5)
    assert [len(wave) for wave in waves] == [5, 5, 5, 5, 4]
    assert [without_clocks(one) for wave in waves for one in wave] == whole
    kept = {(one.task_id, one.rollout_index): one for wave in waves[:2] for one in wave}
    again = Lockstep()
    assert results(again, more={"kept": kept}, concurrency=5) == whole
    assert again.batches == [batch for batch in engine.batches if min(batch) >= 10]


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
    with pytest.raises(UnsupportedError, check=coded("engine-in-process", "2 ")):
        run(env)
