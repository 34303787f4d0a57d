"""What does not fit ends a run's turns: the run is answered and scored, and its group keeps it.

Rollouts of the prompted AgentFlow over real HTTP, against servers with a small context, a tool that hangs, and a server
that hangs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.agents.rendering import smaller_memories
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Action, Memory, MemoryRecord, Sampling, Trajectory
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream.training.rows import build_rows
from midstream.training.settings import TrainingConfig
from support.flaky_server import FlakyServer
from support.small_server import SmallServer

MODULES = ("planner", "executor", "verifier", "generator")
CONTEXT, GROUP = 3000, 5
COUNTS = pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])


class Long:
    """Answers with a page of text; hangs from call number `hangs_from` of each run on, if it is given."""

    name, description, timeout_s, output_tokens = "echo", "repeats", 60.0, 100_000
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        if self.hangs:
            await asyncio.sleep(60)
        return ToolResult(text=f"{arguments['text']} " + "and so on " * 250)

    async def close(self) -> None: ...


def run(
    server: FlakyServer,
    *,
    tool: Long | None = None,
    settings: Mapping[str, Any] | None = None,
    count: int,
    deadline_s: float | None = None,
    **loop: Any,
) -> list[tuple[Trajectory, ...]]:
    """The groups of `count` tasks, five runs each, with one server for all modules."""
    sampling = Sampling(temperature=0.5, max_tokens=200)

    async def main() -> list[tuple[Trajectory, ...]]:
        async with server:
            config = OpenAIConfig(model="m", base_url=server.base_url, **(settings or {}))
            engine = OpenAICompatibleEngine(config, "server")
            trained = OpenAICompatibleEngine(config.model_copy(update={"token_ids": True}), "trained")
            agent = AgentFlowLoop(
                planner=prompted.PromptedPlanner(prompted.PlannerConfig(sampling=sampling)),
                executor=prompted.PromptedExecutor(prompted.ExecutorConfig(sampling=sampling)),
                verifier=prompted.PromptedVerifier(prompted.VerifierConfig(sampling=sampling)),
                generator=prompted.PromptedGenerator(prompted.GeneratorConfig(sampling=sampling)),
                config=LoopConfig(**{"max_turns": 10, **loop}),
            )
            environment = Environment(
                agent=agent,
                tools=(tool or Long(),),
                engines=dict.fromkeys(MODULES, engine) | {"planner": trained},
                reward=ExactMatch(),
                config=RolloutConfig(deadline_s=deadline_s),
            )
            tasks = [Task(id=f"t{i}", question=f"Say word {i}", answer="hello") for i in range(count)]
            groups = await asyncio.wait_for(rollout(environment, tasks, group_size=GROUP, seed=11), timeout=120)
            await environment.close()
            return [group.trajectories for group in groups]

    return asyncio.run(main())


def check_kept(groups: Sequence[Sequence[Trajectory]], stop_reason: str) -> list[Trajectory]:
    """No run is lost, each is scored and says what ended it, and its group has all of them."""
    runs = [trajectory for group in groups for trajectory in group]
    assert Counter((one.status, one.stop_reason) for one in runs) == {("ok", stop_reason): len(runs)}
    assert {one.reward.value if one.reward else None for one in runs} == {0.0, 1.0}
    batch = build_rows(groups)
    assert (batch.groups, batch.groups_broken, batch.trajectories) == (len(groups), 0, len(runs))
    assert batch.left_out == {}
    assert len(batch.rows) == sum(call.role == "planner" and call.error is None for one in runs for call in one.calls)
    masked = build_rows(groups, TrainingConfig(mask_cut_off=True))
    assert (masked.rows, masked.groups_broken) == ((), 0)
    return runs


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("kind", "listing", "settings"),
    [
        ("vllm", "", {}),
        pytest.param("llama_cpp", "", {}, marks=pytest.mark.slow),
        pytest.param("openai", "", {}, marks=pytest.mark.slow),
        ("unworded", "/v1/models", {}),
        ("ollama", "", {"context_tokens": CONTEXT}),
        ("ollama", "/api/ps", {"provider": "ollama"}),
    ],
    ids=["vllm", "llama_cpp", "openai", "unworded", "ollama-set", "ollama-asked"],
)
@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_small_context_ends_the_turns_and_loses_no_run(kind, listing, settings, count):
    server = SmallServer(kind, context=CONTEXT, listing=listing)
    runs = check_kept(run(server, settings=settings, count=count), "context_limit")
    assert len(runs) == count * GROUP
    assert {len(one.turns) for one in runs} <= {3, 4}
    assert all(one.turns[-1].error and one.turns[-1].error.type == "PromptTooLongError" for one in runs)
    assert server.cut == 0
    assert (server.refused > 0) == (kind != "ollama")
    assert all(one.closing_calls[-1].error is None for one in runs)


@COUNTS
def test_a_server_that_gives_its_context_and_cuts_what_is_far_beyond_is_not_sent_it(count):
    server = SmallServer("cuts", context=1200, listing="/v1/models")
    check_kept(run(server, count=count), "context_limit")
    assert server.listed == 2  # by each of the two engines


@COUNTS
def test_a_server_that_has_room_enough_is_asked_for_it_at_most_once(count):
    server = SmallServer("vllm", context=100_000, listing="/v1/models", turns=3)
    groups = run(server, count=count)
    assert {one.stop_reason for group in groups for one in group} == {"verified"}
    assert (server.listed, server.refused) == (2, 0)


@COUNTS
def test_a_tool_that_hangs_ends_the_turns_and_loses_no_run(count):
    server = SmallServer("vllm", context=100_000)
    runs = check_kept(run(server, tool=Long(hangs=True), count=count, deadline_s=0.7), "time_limit")
    assert all(one.turns[0].observation is None for one in runs)
    assert any(one.turns[0].command for one in runs)


@COUNTS
def test_a_server_that_hangs_ends_the_turns_and_loses_no_run(count):
    def fault(body: Any) -> str | None:
        return "hang" if body["messages"][0]["content"].startswith("# Verifier") else None

    server = SmallServer("vllm", context=100_000, fault_of=fault)
    runs = check_kept(run(server, count=count, deadline_s=0.7), "time_limit")
    assert all(one.turns[0].verdict is None for one in runs)
    assert any(one.turns[0].observation for one in runs)


def test_ever_smaller_memories_keep_short_results_and_newest_turns():
    texts = ["short", "x" * 1000, "y" * 450]
    memory = Memory(records=tuple(MemoryRecord(turn=i, action=Action(), result=text) for i, text in enumerate(texts)))
    smaller = list(smaller_memories(memory))
    lengths = [[len(record.result.partition("\n[cut")[0]) for record in each.records] for each in smaller]
    assert lengths[:2] == [[5, 500, 450], [5, 250, 250]]
    assert "[cut: 1000 characters, of which the first 250 are shown]" in smaller[1].records[1].result
    assert [[record.result == "[cut]" for record in each.records] for each in smaller[2:]] == [
        [True, True, False],
        [True, True, True],
    ]
    assert all(len(each) == 3 for each in smaller)
    assert list(smaller_memories(Memory())) == []
    assert smaller == list(smaller_memories(memory))
