"""What holds when servers fail and many run at once: nothing lost, doubled, swapped or invented; all faults counted.

Rollouts of prompted AgentFlow over real HTTP. Every answer of the server says whose it is (task, turn, module) and has
a number of its own, so that each can be looked for where it belongs.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.engine import Engine
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Call, Sampling, Trajectory
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream.training.rows import build_rows
from support.flaky_server import NINE_FAULTS, Body, Fault, FlakyServer
from support.llm_server import prompt_of

MODULES = ("planner", "executor", "verifier", "generator")
TIMEOUT_S = 3.0


class Echo:
    """Repeats its text."""

    name, description, timeout_s, output_tokens = "echo", "repeats", 30.0, 100_000
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return ToolResult(text=str(arguments["text"]))

    async def close(self) -> None: ...


def tasks(count: int) -> list[Task]:
    """Task i asks for word i and wants it; `tagged` answers every third one wrongly."""
    words = [f"word-{i}-of-{count}" for i in range(count)]
    return [Task(id=f"t{i}", question=f"Say {word} !", answer=word) for i, word in enumerate(words)]


def whose(body: Body) -> tuple[str, str, int]:
    """(module, word, turn) of a request: from the question and the memory's length, or from the action's context."""
    text = prompt_of(body)
    module = text.partition("\n")[0].lstrip("# ").lower()
    word = re.findall(r"word-\d+-of-\d+", text)[0]
    found = re.findall(r"in turn (\d+)", text) if module == "executor" else []
    records = text.count('\n{"turn":')  # of the verifier's memory, the last is the turn under way
    return module, word, int(found[0]) if found else records + (module != "verifier")


def tagged(body: Body, number: int) -> str:
    """Plays the four modules; each reply carries `<module> <word> in turn <turn> #<number>.`"""
    module, word, turn = whose(body)
    tag = f"{module} {word} in turn {turn} #{number}."
    if module == "planner":
        return f"Justification: {tag}\nContext: {tag}\nSub-Goal: repeat it\nTool Name: echo"
    if module == "executor":
        return json.dumps({"text": tag})
    if module == "verifier":
        return json.dumps({"analysis": tag, "result_valid": True, "memory_sufficient": False})
    return f"{tag}\n<answer>{word if int(word.split('-')[1]) % 3 else 'something else'}</answer>"


def environment(
    engines: Mapping[str, Engine], *, turns: int = 5, answer_s: float = 60.0, sampling: Any = None, **config: Any
) -> Environment:
    chosen = sampling or dict.fromkeys(MODULES, Sampling(temperature=0.5))
    agent = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig(sampling=chosen["planner"])),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig(sampling=chosen["executor"])),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig(sampling=chosen["verifier"])),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig(sampling=chosen["generator"])),
        config=LoopConfig(max_turns=turns, answer_s=answer_s),
    )
    return Environment(
        agent=agent, tools=(Echo(),), engines=engines, reward=ExactMatch(), config=RolloutConfig(**config)
    )


def engine(server: FlakyServer, name: str = "server", **settings: Any) -> OpenAICompatibleEngine:
    settings = {"model": "m", "timeout_s": TIMEOUT_S, "first_pause_s": 0.001, **settings}
    return OpenAICompatibleEngine(OpenAIConfig(base_url=server.base_url, **settings), name)


def run(
    server: FlakyServer,
    todo: Sequence[Task],
    *,
    group_size: int = 1,
    streams: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[tuple[Trajectory, ...]]:
    """All trajectories of a rollout, group after group; the modules named in `streams` have replies come in pieces."""

    async def main() -> list[tuple[Trajectory, ...]]:
        async with server:
            plain = engine(server, **(settings or {}))
            streaming = engine(server, "streaming", stream=True, **(settings or {})) if streams else plain
            engines = {module: streaming if module in streams else plain for module in MODULES}
            env = environment(engines, **more)
            groups = await asyncio.wait_for(rollout(env, todo, group_size=group_size, seed=11), timeout=120)
            await env.close()
            return [group.trajectories for group in groups]

    return asyncio.run(main())


def tag_of(call: Call) -> tuple[str, str, int, int]:
    """(module, word, turn, number) that a call's completion carries."""
    [(module, word, turn, number)] = set(re.findall(r"(\w+) (word-\d+-of-\d+) in turn (\d+) #(\d+)\.", call.completion))
    return module, word, int(turn), int(number)


def check_own(trajectory: Trajectory, word: str) -> list[int]:
    """Every call and every field of a trajectory is of its own task and turn; returns the answers' numbers."""
    places = [(call, turn.index) for turn in trajectory.turns for call in turn.calls]
    places += [(call, len(trajectory.turns) + 1) for call in trajectory.closing_calls]
    tags = [tag_of(call) for call, _ in places]
    wanted = [(call.role, word, turn) for call, turn in places]
    assert [tag[:3] for tag in tags] == wanted
    for turn in trajectory.turns:
        planned, commanded, judged = (call.completion for call in turn.calls)
        assert turn.action
        assert turn.action.context in planned
        assert turn.command
        assert turn.command.arguments == json.loads(commanded)
        assert turn.observation
        assert turn.observation.text == turn.command.arguments["text"]
        assert turn.verdict
        assert turn.verdict.analysis == json.loads(judged)["analysis"]
    return [number for *_, number in tags]


# --- faults -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[50, pytest.param(200, marks=pytest.mark.slow)])
def flaky(request):
    """(server, trajectories) of so many rollouts of five turns; three requests in ten meet one of nine faults.

    Planner and verifier stream, executor and generator don't.
    """
    count = request.param
    server = FlakyServer(tagged, fault_rate=0.3, seed=5)
    settings = {"max_concurrency": 64}
    groups = run(server, tasks(count), concurrency=64, streams=("planner", "verifier"), settings=settings)
    dealt = [(asked.fault, asked.body.get("stream", False)) for asked in server.asked if asked.fault is not None]
    assert set(dealt) == {(fault, stream) for fault in NINE_FAULTS for stream in (False, True)}
    assert len(dealt) > 0.25 * len(server.asked) > 0.25 * 20 * count
    assert server.unread == 0
    return server, [one for (one,) in groups]


def test_no_answer_is_lost_doubled_or_swapped(flaky):
    server, trajectories = flaky
    todo = tasks(len(trajectories))
    assert [one.task_id for one in trajectories] == [task.id for task in todo]
    assert Counter(one.status for one in trajectories) == {"ok": len(todo)}
    assert all(len(one.turns) == 5 and len(one.calls) == 16 for one in trajectories)
    numbers = [n for one, task in zip(trajectories, todo, strict=True) for n in check_own(one, task.answer)]
    assert sorted(numbers) == [asked.number for asked in server.asked if asked.fault is None]


def test_there_is_a_reward_exactly_where_the_true_answer_came(flaky):
    _, trajectories = flaky
    for index, one in enumerate(trajectories):
        assert one.gold == f"word-{index}-of-{len(trajectories)}"
        assert one.reward is not None
        assert one.reward.value == (index % 3 > 0) == (one.answer == one.gold)


def test_every_fault_is_counted_where_it_happened(flaky):
    server, trajectories = flaky
    dealt = [whose(asked.body) for asked in server.asked if asked.fault is not None]
    by_word = Counter(word for _, word, _ in dealt)
    assert [one.request_failures for one in trajectories] == [by_word[one.gold] for one in trajectories]
    counted = {tag_of(call)[:3]: len(call.failures) for one in trajectories for call in one.calls if call.failures}
    assert counted == Counter(dealt)


@pytest.mark.slow
def test_where_retries_are_spent_there_is_an_error_and_no_reward():
    """Four copies of each task; the even tasks' generator, or their verifier of turn 2, is broken for good."""

    def broken(body: Body) -> Fault:
        module, word, turn = whose(body)
        index = int(word.split("-")[1])
        if index % 2 or (module, turn) != (("verifier", 2) if index % 4 else ("generator", 6)):
            return None
        return NINE_FAULTS[index % len(NINE_FAULTS)]

    todo = tasks(20)
    server = FlakyServer(tagged, fault_of=broken)
    settings = {"max_attempts": 2, "timeout_s": 3.0, "token_ids": True}
    groups = run(server, todo, group_size=4, concurrency=16, max_attempts=2, settings=settings)
    sound = [one for index, group in enumerate(groups) for one in group if index % 2]
    failed = [one for index, group in enumerate(groups) for one in group if index % 2 == 0]
    assert {one.status for one in sound} == {"ok"}
    for one in failed:
        assert (one.status, one.stop_reason, one.reward) == ("error", "error", None)
        assert one.error is not None
        assert one.error.type == "EngineError"
        assert (one.attempts, len(one.earlier_errors)) == (2, 1)
        assert one.request_failures == 4  # two attempts of the request in each of two runs
        check_own_part(one)
    assert Counter(asked.fault is None for asked in server.asked)[False] == 4 * len(failed)
    assert {asked.fault for asked in server.asked} == {None, *NINE_FAULTS}

    batch = build_rows(groups)
    assert (batch.groups, batch.groups_broken) == (20, 10)
    assert batch.left_out["trajectory error: EngineError"] == len(failed) == 40
    mixed = [groups[0][:2] + groups[1][:2]]  # two that failed with two that did not: the group counts without them
    assert build_rows(mixed).groups_broken == 0
    assert build_rows(mixed).left_out["trajectory error: EngineError"] == 2


def check_own_part(trajectory: Trajectory) -> None:
    """What a broken run holds is its own, up to where it broke."""
    word = trajectory.gold or ""
    whole = [turn for turn in trajectory.turns if turn.error is None]
    calls = [call for turn in whole for call in turn.calls]
    assert [tag_of(call)[1:3] for call in calls] == [(word, turn.index) for turn in whole for _ in turn.calls]
    assert len(whole) == (5 if trajectory.turns[-1].error is None else 1)
    last = trajectory.calls[-1]
    assert last.error is not None
    assert (last.role, last.completion, len(last.failures)) == ("generator" if len(whole) == 5 else "verifier", "", 2)


def test_a_verifier_that_hangs_ends_the_turns_and_the_generator_answers():
    server = FlakyServer(tagged, fault_of=lambda body: "hang" if whose(body)[0] == "verifier" else None)
    settings = {"timeout_s": 300.0}
    trajectories = [one for (one,) in run(server, tasks(8), deadline_s=0.5, max_attempts=3, settings=settings)]
    assert Counter(asked.fault for asked in server.asked) == {None: 24, "hang": 8}  # and none was tried again
    for index, one in enumerate(trajectories):
        assert (one.status, one.stop_reason, one.attempts) == ("ok", "time_limit", 1)
        assert one.reward is not None
        assert one.reward.value == (index % 3 > 0)
        assert 0.4 < one.duration_s < 10
        assert one.turns[-1].observation is not None  # what came before the hanging verifier is kept


def test_a_server_that_hangs_for_good_ends_with_the_time_for_the_answer():
    server = FlakyServer(tagged, fault_of=lambda body: "hang" if whose(body)[0] in ("verifier", "generator") else None)
    settings = {"timeout_s": 300.0}
    groups = run(server, tasks(4), deadline_s=0.5, answer_s=0.3, max_attempts=3, settings=settings)
    assert Counter(asked.fault for asked in server.asked) == {None: 8, "hang": 8}
    for (one,) in groups:
        assert one.error is not None
        assert (one.status, one.stop_reason, one.error.type) == ("error", "time_limit", "DeadlineError")
        assert (one.reward, one.attempts) == (None, 1)
        assert 0.7 < one.duration_s < 10
        assert one.turns[-1].observation is not None


# --- many at once -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [24, pytest.param(64, marks=pytest.mark.slow)])
def test_concurrent_runs_on_one_agent_know_nothing_of_each_other(count):
    rng = random.Random(3)
    server = FlakyServer(tagged, latency_s=lambda: rng.uniform(0, 0.02))
    todo = tasks(count)
    trajectories = [one for (one,) in run(server, todo, concurrency=64, settings={"max_concurrency": 64})]
    traces = [one.model_dump_json() for one in trajectories]
    canaries = [set(re.findall(r"word-\d+-of-\d+", trace)) for trace in traces]
    assert canaries == [{task.answer} for task in todo]
    words_in_order = [whose(asked.body)[1] for asked in server.asked]
    neighbors = sum(one != other for one, other in pairwise(words_in_order))
    assert neighbors > 0.9 * len(words_in_order)  # they did run at the same time


# --- what is sent -------------------------------------------------------------------------------------------------

SAMPLINGS = {
    "planner": Sampling(temperature=0.9, top_p=0.95, max_tokens=101),
    "executor": Sampling(temperature=0.1, top_p=0.5, max_tokens=202, stop=("\n\n",)),
    "verifier": Sampling(temperature=0.0, top_p=1.0, max_tokens=303, stop=("###", "END")),
    "generator": Sampling(temperature=1.3, top_p=0.7, max_tokens=404),
}


def sent_by_module(seed: int = 11, group_size: int = 2) -> dict[str, list[Body]]:
    """A server, an engine and a model for each module; returns what each server was sent."""

    async def main() -> dict[str, list[Body]]:
        servers = {module: FlakyServer(tagged) for module in MODULES}
        for server in servers.values():
            await server.__aenter__()
        engines = {name: engine(server, name, model=f"model-of-{name}") for name, server in servers.items()}
        env = environment(engines, turns=3, sampling=SAMPLINGS)
        await rollout(env, tasks(4), group_size=group_size, seed=seed)
        await env.close()
        for server in servers.values():
            await server.__aexit__()
        return {name: [asked.body for asked in server.asked] for name, server in servers.items()}

    return asyncio.run(asyncio.wait_for(main(), timeout=60))


def test_each_module_is_asked_at_its_own_server_with_its_own_settings():
    sent = sent_by_module()
    assert {module: len(bodies) for module, bodies in sent.items()} == dict(zip(MODULES, (24, 24, 24, 8), strict=True))
    for module, bodies in sent.items():
        wanted = SAMPLINGS[module]
        for body in bodies:
            assert whose(body)[0] == module
            assert body["model"] == f"model-of-{module}"
            assert (body["temperature"], body["top_p"]) == (wanted.temperature, wanted.top_p)
            assert body["max_tokens"] == wanted.max_tokens
            assert tuple(body.get("stop", ())) == wanted.stop


def seeds(sent: Mapping[str, Sequence[Body]]) -> Counter[tuple[Any, ...]]:
    return Counter((*whose(body), body["seed"]) for bodies in sent.values() for body in bodies)


def test_seeds_differ_by_turn_module_and_copy_and_repeat_with_the_runs_seed():
    first = seeds(sent_by_module())
    assert len({seed for *_, seed in first}) == sum(first.values()) == 80  # no two requests share one
    assert first == seeds(sent_by_module())
    other = seeds(sent_by_module(seed=12))
    assert not {seed for *_, seed in first} & {seed for *_, seed in other}
