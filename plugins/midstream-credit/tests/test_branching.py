"""Rollouts that branch: what forks share, where they fork, what they cost, and that runs of them are equal."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.own_agent import own_agent
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.cli.main import main
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError, PromptTooLongError
from midstream.core.metrics import branches
from midstream.core.stream_template import load_template
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Call, Sampling, Score, Trajectory, Usage, usage_of, without_clocks
from midstream.prefix_tree.tree import tree_of
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import Environment, Group, RolloutConfig, rollout
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig, BudgetedAgent, budgeted
from midstream.training.flow_grpo import FlowGRPO
from midstream.training.rows import build_rows, group_advantages
from midstream.training.settings import TrainingConfig
from midstream_credit.branching import Fork, ForkConfig, TreeConfig, branching_rollout, choose
from support.errors import raises
from support.gateway_sessions import ask, client
from support.interleaved import Pairs, Shout, Talk
from support.killed_training import differences, train_with_kills
from support.rollouts import TASKS, StubReward, flat

RANDOM = ForkConfig(initial=3, at="random")


class Dice(Engine):
    """Draws each reply from `texts` by the request's seed, and its log-probabilities too."""

    name, token_exact = "dice", True

    def __init__(self, *texts: str, longest: int = 10**6) -> None:
        self.texts, self.longest, self.codec = texts, longest, Pairs()
        self.requests: list[Request] = []

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        prompt_ids = tuple(self.codec.encode(request))
        if len(prompt_ids) > self.longest:
            raise PromptTooLongError("too long", code="prompt-too-long", calls=(Call(role=request.role),))
        await asyncio.sleep(0)
        rng = random.Random(request.seed)
        text = rng.choice(self.texts)
        ids = self.codec.encode_text(text)
        return request.answered(
            self.name,
            text,
            prompt_ids=prompt_ids,
            completion_ids=ids,
            logprobs=tuple(-3 * rng.random() for _ in ids),
            finish_reason="stop",
            usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(ids), cost_usd=0.01),
        )


@dataclass
class Ticks(Shout):
    """A stateful tool: each of its answers is another one."""

    name: str = "python"
    count: int = 0

    async def call(self, arguments: Any) -> ToolResult:
        self.count += 1
        return ToolResult(text=f"{self.count}")


async def talks(question, model, tools):
    """Four replies, with a tool's result between them."""
    said = question
    for _ in range(4):
        said = f"{said} {await model(said)}"
        said = f"{said} {await tools['python'](code=said[-1])}"
    return said


def function_agent(function: Any) -> Any:
    return own_agent("agent", "python:agent", function)().build(None)


@dataclass
class Parts:
    """What a rollout is made of, with defaults."""

    agent: Any = field(default_factory=lambda: function_agent(talks))
    engine: Engine = field(default_factory=lambda: Dice(*"abcdefgh"))
    tools: Sequence[Any] = field(default_factory=lambda: [Shout()])
    reward: Any = field(default_factory=lambda: StubReward(lambda task, found: len(found.answer) % 2))
    sampling: Any = None

    def environment(self) -> Environment:
        return Environment(
            agent=self.agent,
            tools=self.tools,
            engines={"policy": self.engine, "other": self.engine},
            reward=self.reward,
            config=RolloutConfig(max_attempts=1),
            sampling=self.sampling,
        )


def play(config: ForkConfig = RANDOM, size: int = 8, seed: int = 7, **parts: Any) -> list[Group]:
    made = Parts(**parts)
    work = branching_rollout(config, made.environment(), TASKS[:2], group_size=size, seed=seed, roles=("policy",))
    return asyncio.run(asyncio.wait_for(work, timeout=30))


def sampled(call: Call) -> tuple[Any, ...]:
    return call.role, call.prompt_ids, call.completion_ids, call.logprobs


def forks_of(groups: Sequence[Group]) -> list[tuple[Trajectory, Trajectory]]:
    """Each fork with its parent."""
    known = {trajectory.id: trajectory for trajectory in flat(groups)}
    return [(each, known[each.fork_of]) for each in flat(groups) if each.fork_of]


def check_trunks(groups: Sequence[Group]) -> int:
    """Each fork shares its parent's first calls and then draws for itself; returns how many drew something else."""
    others = 0
    for fork, parent in forks_of(groups):
        ours, theirs, at = fork.calls, parent.calls, fork.fork_at
        assert 0 < at < len(ours)
        assert [call.replayed for call in ours] == [True] * at + [False] * (len(ours) - at)
        assert list(map(sampled, ours[:at])) == list(map(sampled, theirs[:at]))
        assert ours[at].prompt_ids == theirs[at].prompt_ids
        others += ours[at].completion_ids != theirs[at].completion_ids
    return others


# --- where they fork --------------------------------------------------------------------------------------------------


FORKS = st.lists(
    st.builds(
        Fork,
        parent=st.integers(0, 3),
        call=st.integers(1, 9),
        rise=st.floats(-5, 5),
        after_tool=st.booleans(),
    ),
    max_size=20,
    unique_by=lambda fork: (fork.parent, fork.call),
)


@given(FORKS, st.integers(0, 12), st.sampled_from(["entropy", "tool", "random"]), st.integers(2, 4), st.integers(0, 99))
def test_a_choice_is_of_the_candidates_and_no_fork_has_more_ways_than_it_may(found, slots, at, ways, seed):
    config = ForkConfig(at=at, ways=ways)
    taken = choose(found, slots, config, seed)
    assert taken == choose(found, slots, config, seed)
    assert len(taken) <= slots
    counts = Counter(taken)
    assert set(counts) <= set(found)
    assert max(counts.values(), default=0) < ways
    if at == "entropy":
        assert [fork.rise for fork in taken] == sorted((fork.rise for fork in taken), reverse=True)
    else:
        fitting = [fork for fork in found if at == "random" or fork.after_tool]
        assert set(counts) <= set(fitting)
        assert len(taken) == min(slots, len(fitting) * (ways - 1))
        per_parent = Counter(fork.parent for fork in counts)
        left = Counter(fork.parent for fork in fitting) - per_parent
        # Who has places left has at most one distinct fork less than any other.
        assert all(per_parent[parent] + 1 >= max(per_parent.values()) for parent in left if counts)


@pytest.mark.parametrize(("probability", "slope", "share"), [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.5, 0.2, 0.7)])
def test_forks_at_entropy_are_drawn_by_how_far_it_rose(probability, slope, share):
    config = ForkConfig(probability=probability, slope=slope)
    found = [Fork(parent=number, call=1, rise=1.0) for number in range(4000)]
    assert len(choose(found, 4000, config, 1)) / 4000 == pytest.approx(share, abs=0.03)


def test_the_most_uncertain_replies_fork_first():
    sure = ForkConfig(initial=4, at="entropy", probability=1.0, slope=0.0)
    for group in play(sure):
        rises = [
            (-sum(call.logprobs) / len(call.logprobs) + sum(first.logprobs) / len(first.logprobs), each.id, place)
            for each in group.trajectories[:4]
            for first in each.calls[:1]
            for place, call in enumerate(each.calls[1:4], 1)
        ]
        expected = {(parent, place) for _, parent, place in sorted(rises, reverse=True)[:4]}
        assert {(each.fork_of, each.fork_at) for each in group.trajectories[4:]} == expected


def test_forks_at_tools_follow_a_tools_result():
    async def uneven(question, model, tools):
        said = question + await model(question)
        said += await model(said)
        said += await tools["python"](code="x")
        said += await model(said)
        return said + await model(said)

    groups = play(ForkConfig(initial=4, at="tool"), agent=function_agent(uneven))
    assert {each.fork_at for each, _ in forks_of(groups)} == {2}
    assert {each.fork_at for each, _ in forks_of(play(agent=function_agent(uneven)))} == {1, 2, 3}


# --- what they share --------------------------------------------------------------------------------------------------


def test_forks_share_the_trunk_and_draw_for_themselves_after_it():
    engine = Dice(*"abcdefgh")
    groups = play(engine=engine)
    assert [each.id for each in flat(groups)] == [f"{task.id}#{index}" for task in TASKS[:2] for index in range(8)]
    assert [bool(each.fork_of) for each in flat(groups)] == ([False] * 3 + [True] * 5) * 2
    assert check_trunks(groups) > 5
    assert len({each.seed for each in flat(groups)}) == 16
    # Engines are asked only for what is new, with seeds that are new.
    live = [call for each in flat(groups) for call in each.calls if not call.replayed]
    assert len(engine.requests) == len(live)
    assert len({request.seed for request in engine.requests}) == len(live)


def test_the_first_trajectories_are_those_of_a_rollout_without_branches():
    plain = asyncio.run(rollout(Parts().environment(), TASKS[:2], group_size=3, seed=7))
    first = [each for group in play() for each in group.trajectories[:3]]
    assert list(map(without_clocks, first)) == list(map(without_clocks, flat(plain)))


def test_two_rollouts_are_equal_and_another_seed_is_not():
    one, same, other = (list(map(without_clocks, flat(play(seed=seed)))) for seed in (7, 7, 8))
    assert one == same != other


def test_forks_of_forks_replay_their_whole_trunk():
    groups = play(ForkConfig(initial=1, at="random", rounds=4), size=9)
    check_trunks(groups)
    assert any(parent.fork_of for _, parent in forks_of(groups))
    nodes = Counter((each.fork_of, each.fork_at) for each in flat(groups) if each.fork_of)
    assert max(nodes.values()) == 1


def test_a_tool_that_answers_otherwise_makes_the_rest_new():
    groups = play(ForkConfig(initial=3, at="random"), tools=[Ticks()])
    counts = branches(flat(groups))
    forks = forks_of(groups)
    assert counts["forks that left the trunk early, as a request differed"] == sum(
        each.fork_at > 1 for each, _ in forks
    )
    for fork, parent in forks:
        # The first request is the question alone; the second holds a tool's result.
        assert [call.replayed for call in fork.calls] == [True, False, False, False]
        assert sampled(fork.calls[0]) == sampled(parent.calls[0])


def test_after_another_answer_of_a_tool_nothing_is_replayed_even_if_it_was_asked_before():
    async def forgets(question, model, tools):
        said = await model(question)
        said += await model(await tools["python"](code="x"))
        for number in range(4):
            said += await model(f"{question} {number}")
        return said

    agent = function_agent(forgets)
    replayed = [
        {sum(call.replayed for call in fork.calls) for fork, _ in forks_of(play(agent=agent, tools=[tool]))}
        for tool in (Ticks(), Shout())
    ]
    assert replayed[0] == {1}
    assert max(replayed[1]) > 2


def test_concurrent_requests_of_the_trunk_are_replayed_also_after_the_fork():
    async def several(question, model, models):
        async def chain(name):
            said = f"{name} {question}"
            for _ in range(3):
                said += await model(said)
            return said

        return "".join(await asyncio.gather(*map(chain, "xyz")))

    groups = play(agent=function_agent(several))
    for fork, parent in forks_of(groups):
        trunk = Counter(sampled(call) for call in fork.calls if call.replayed)
        assert trunk.total() == fork.fork_at
        assert trunk <= Counter(map(sampled, parent.calls))
    assert branches(flat(groups)).keys() == {"trajectories that forked", "tokens of replies that were replayed"}


@pytest.mark.parametrize("asks", [2, 3])
def test_a_trunk_of_concurrent_requests_outlasts_what_is_answered_sooner(asks):
    """The parent waits long for x1, so that z1 and z2 come before x2; a fork has x1 at once."""

    class Slow(Dice):
        async def sample(self, request):
            said = request.messages[0].content
            for _ in range(5 if said[0] == "x" and said[-1] == "?" else 0):
                await asyncio.sleep(0)
            return await super().sample(request)

    async def two(question, model):
        async def chain(said, asks):
            for _ in range(asks):
                said += await model(said)
            return said

        async def later():
            for _ in range(3):
                await asyncio.sleep(0)
            return await chain(f"z {question}", 2)

        return "".join(await asyncio.gather(chain(f"x {question}", asks), later()))

    groups = play(agent=function_agent(two), engine=Slow(*"abcdefgh"))
    checked = [fork for fork, _ in forks_of(groups) if fork.fork_at > 2 or asks == 2]
    assert len(checked) > 1
    for fork in checked:
        assert sum(call.replayed for call in fork.calls) == fork.fork_at


def test_equal_requests_are_replayed_in_their_order():
    async def votes(question, model):
        return "".join([await model(question) for _ in range(6)])

    check_trunks(play(agent=function_agent(votes)))


def test_a_prompt_that_was_too_long_for_the_parent_too_ends_no_trunk():
    async def shortens(question, model):
        said = question
        for _ in range(4):
            said += await model(said)
            try:
                await model(said * 9)
            except PromptTooLongError:
                said += "!"
        return said

    groups = play(agent=function_agent(shortens), engine=Dice(*"abcdefgh", longest=60))
    assert forks_of(groups)
    for fork, _ in forks_of(groups):
        assert sum(call.replayed for call in fork.calls) == fork.fork_at


# --- what fails -------------------------------------------------------------------------------------------------------


def test_where_the_first_trajectories_failed_the_others_begin_at_the_start():
    class Fails(Dice):
        async def sample(self, request):
            if request.messages[0].content.startswith(TASKS[0].question) and len(self.requests) < 12:
                self.requests.append(request)
                raise EngineError("down", code="server", retryable=False)
            return await super().sample(request)

    broken, whole = play(engine=Fails(*"abcdefgh"))
    assert [each.status for each in broken.trajectories[:3]] == ["error"] * 3
    later = broken.trajectories[3:]
    assert [each.fork_of for each in later] == [""] * 5
    assert {each.status for each in later} == {"ok"}
    assert all(each.fork_of for each in whole.trajectories[3:])


def test_a_fork_that_fails_is_tried_again_from_its_trunk():
    class FailsOnce(Dice):
        failed = False

        async def sample(self, request):
            if len(self.requests) > 25 and not self.failed:
                self.failed = True
                raise EngineError("down", code="server", retryable=True)
            return await super().sample(request)

    made = Parts(engine=FailsOnce(*"abcdefgh"))
    environment = replace(made.environment(), config=RolloutConfig(max_attempts=2))
    work = branching_rollout(RANDOM, environment, TASKS[:2], group_size=8, seed=7, roles=("policy",))
    groups = asyncio.run(work)
    [again] = [each for each in flat(groups) if each.attempts == 2]
    assert again.fork_of
    check_trunks(groups)
    assert list(map(sampled, again.calls)) in [list(map(sampled, each.calls)) for each in flat(play())]


# --- what they cost ---------------------------------------------------------------------------------------------------


def test_budgets_and_costs_count_what_was_sampled():
    budget = Budget(BudgetConfig())
    engine = Dice(*"abcdefgh")
    groups = play(
        ForkConfig(initial=2, at="random"),
        agent=BudgetedAgent(function_agent(talks), budget),
        engine=budgeted(engine, budget),
    )
    everyone = flat(groups)
    live = [call for each in everyone for call in each.calls if not call.replayed]
    spent = budget.spent()
    assert (spent.rollouts, spent.calls) == (16, len(live))
    assert len(live) == len(engine.requests) < sum(len(each.calls) for each in everyone)
    used = usage_of(call for each in everyone for call in each.calls)
    assert spent.tokens == used.prompt_tokens + used.completion_tokens
    assert spent.cost_usd == pytest.approx(sum(each.cost_usd for each in everyone)) == pytest.approx(0.01 * len(live))


# --- advantages within trees ------------------------------------------------------------------------------------------


def test_advantages_are_of_the_group_and_of_the_tree():
    made = [("a", ""), ("b", ""), ("c", "a"), ("d", "c"), ("e", "b"), ("f", "")]
    trajectories = [Trajectory(id=name, task_id="t", fork_of=parent) for name, parent in made]
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    group = group_advantages(rewards)
    tree = dict(zip("acd", group_advantages([1.0, 0.0, 1.0]), strict=True))
    expected = [value + 0.5 * tree.get(name, 0.0) for value, (name, _) in zip(group, made, strict=True)]
    found = TreeConfig(weight=0.5).build(None)(rewards, trajectories)
    assert found == pytest.approx(expected)
    centered = TreeConfig(normalize_by_std=False).build(None)(rewards, trajectories)
    assert centered == pytest.approx([0.5 + 1 / 3, -0.5, -0.5 - 2 / 3, 0.5 + 1 / 3, -0.5, 0.5])


# --- every kind of agent ----------------------------------------------------------------------------------------------


@pytest.fixture
def stream():
    """A policy that writes one stream, and a model that may write its next part."""
    policy = ModelPolicy(PolicyConfig(sampling=Sampling(temperature=1.0, max_tokens=200)))
    agent = InterleavedLoop(policy=policy, template=load_template("artist-math"), config=StreamConfig(max_turns=4))
    calls = [f"<think>{letter}</think><python>{letter}</python>" for letter in "abcdefgh"]
    reward = StubReward(lambda task, found: float(found.answer is not None))
    return {"agent": agent, "engine": Dice(*calls, "<think>so</think><answer>7</answer>"), "reward": reward}


def test_one_stream_forks_at_its_replies_and_its_row_holds_the_trunk(stream):
    groups = play(ForkConfig(initial=4, at="tool"), **stream)
    forks = forks_of(groups)
    assert len(forks) > 4
    assert check_trunks(groups) > 2
    batch = build_rows([group.trajectories for group in groups], TrainingConfig(turns="merged"), role="policy")
    rows = {row.trajectory_id: row for row in batch.rows}
    assert len(batch.rows) == len(rows) == 16
    trunks = 0
    for fork, parent in forks:
        ours, theirs = rows[fork.id], rows[parent.id]
        shared = len(fork.calls[fork.fork_at].prompt_ids)
        after = slice(shared - len(ours.prompt_ids))
        assert (ours.prompt_ids, ours.completion_ids[after]) == (theirs.prompt_ids, theirs.completion_ids[after])
        assert ours.old_logprobs[after] == theirs.old_logprobs[after]
        assert sum(ours.sampled[after]) == sum(len(call.completion_ids) for call in fork.calls if call.replayed)
        trunks += shared
    tree = tree_of([row.prompt_ids + row.completion_ids for row in batch.rows])
    assert tree.unique <= tree.total - trunks


def test_a_dialogue_opens_and_a_tool_is_made_as_for_the_parent(stream):
    class Users:
        """Each run has a user who says something else."""

        def open(self, task, *, seed):
            return Talk([f"{seed} {place}" for place in range(5)], [()])

    class Odd(Shout):
        """Each run has a tool that answers otherwise."""

        def for_run(self, run):
            return Seeded(run.seed)

        def probabilities(self, progress):
            return {}

    class Seeded(Shout):
        def __init__(self, seed):
            super().__init__()
            self.seed = seed

        async def call(self, arguments):
            return ToolResult(text=f"{self.seed}")

    groups = play(tools=[Odd()])
    check_trunks(groups)
    assert forks_of(groups)
    template = load_template("native")
    agent = InterleavedLoop(policy=stream["agent"].policy, template=template, config=StreamConfig())
    environment = Parts(agent=agent, tools=[], reward=StubReward(lambda task, found: 0.5)).environment()
    environment = replace(environment, dialogues=Users())
    work = branching_rollout(RANDOM, environment, TASKS[:2], group_size=8, seed=7, roles=("policy",))
    groups = asyncio.run(work)
    check_trunks(groups)
    assert len(forks_of(groups)) == 10


def test_an_agent_of_another_program_forks_at_its_requests():
    async def program(question, session, tools):
        async with client() as http:
            messages = [{"role": "user", "content": question}]
            for _ in range(4):
                body = {"model": session.model, "messages": messages, "temperature": 0.3}
                status, reply = await ask(http, session.base_url, body, key=session.api_key)
                assert status == 200
                assert reply["usage"]["prompt_tokens"] > 0
                messages.append(reply["choices"][0]["message"])
                messages.append({"role": "user", "content": await tools["python"](code="x")})
        return messages[-2]["content"]

    agent = function_agent(program)

    async def run_all():
        made = Parts(agent=agent, sampling=Sampling(temperature=1.0, max_tokens=50))
        try:
            return await branching_rollout(
                RANDOM, made.environment(), TASKS[:2], group_size=6, seed=7, roles=("policy",)
            )
        finally:
            await agent.gateway.close()

    groups = asyncio.run(run_all())
    assert len(forks_of(groups)) == 6
    assert check_trunks(groups) > 2


# --- training ---------------------------------------------------------------------------------------------------------

BRANCHING = 'training.branching={initial=2, at="random"}'


class Parity:
    """A reward of the first sampled token, which forks share, and of the last, which they don't."""

    def __init__(self) -> None:
        self.stops_at = 10**6

    async def score(self, task, trajectory):
        self.stops_at -= 1
        if self.stops_at == 0:
            raise asyncio.CancelledError
        calls = trajectory.calls
        return Score((calls[0].completion_ids[0] % 2 + calls[-1].completion_ids[-2] % 2) / 2)


@pytest.fixture
def make(make_build):
    """`make(*overrides)` gives Flow-GRPO on a small random planner."""

    def build(*overrides):
        parts = parts_of(make_build("agent.max_turns=3", *overrides))
        algorithm = parts.flow_grpo(parts.training)
        algorithm.environment = replace(algorithm.environment, reward=Parity())
        return algorithm

    return build


def step(algorithm: FlowGRPO, number: int = 1) -> Any:
    return asyncio.run(algorithm.step(number))


def test_a_step_of_flow_grpo_branches(make):
    outcome = step(make(BRANCHING, "training.minibatches=1", "training.uniform_kl_fraction=1.0"))
    metrics, trajectories = outcome.metrics, outcome.trajectories
    groups = [Group(task=None, trajectories=tuple(trajectories[start : start + 4])) for start in range(0, 16, 4)]
    assert len(forks_of(groups)) == metrics.branches["trajectories that forked"] == 8
    assert check_trunks(groups) > 4
    calls = [call for each in trajectories for call in each.calls]
    live = [call for call in calls if not call.replayed]
    assert metrics.trajectories == 16
    assert metrics.completion_tokens == sum(len(call.completion_ids) for call in live)
    assert metrics.prompt_tokens == sum(len(call.prompt_ids) for call in live)
    assert metrics.branches["tokens of replies that were replayed"] == sum(
        len(call.completion_ids) for call in calls if call.replayed
    )
    # Replayed calls are rows, exactly as they were sampled: every ratio is 1.
    assert metrics.rows == len(calls)
    assert metrics.total_tokens == metrics.prompt_tokens + sum(
        len(call.completion_ids) + len(call.prompt_ids) * call.replayed for call in calls
    )
    tree = tree_of([call.prompt_ids + call.completion_ids for call in calls])
    assert metrics.unique_tokens == tree.unique
    assert metrics.logprob_gap == pytest.approx(0.0, abs=1e-5)
    assert metrics.grad_norm > 0


def test_the_order_of_a_small_concurrency_changes_no_count(make):
    """Waves of a lockstep engine hold a few trajectories each, and forks are alone in theirs."""
    outcome = step(make(BRANCHING, "rollout.concurrency=3"))
    assert outcome.metrics.branches["trajectories that forked"] == 8
    assert outcome.metrics.trajectories_error == 0


def test_a_step_is_repeated_with_the_same_bits_also_after_it_was_stopped_among_the_forks(make):
    whole, stopped = make(BRANCHING), make(BRANCHING)
    expected = step(whole)
    stopped.environment.reward.stops_at = 12
    with pytest.raises(asyncio.CancelledError):
        step(stopped)
    stopped.environment.reward.stops_at = 10**6
    found = step(stopped)
    assert found.metrics == expected.metrics
    assert list(map(without_clocks, found.trajectories)) == list(map(without_clocks, expected.trajectories))
    assert step(stopped, 2).metrics == step(whole, 2).metrics


def test_without_branching_nothing_is_written_of_it(make):
    metrics = step(make()).metrics
    assert "branches" not in metrics.model_dump()


def test_a_group_without_a_place_for_a_fork_is_refused(ten_steps):
    recipe = load_recipe(str(ten_steps), ["training.branching.initial=4"])
    with raises("setting-range", "leaves no fork in a group of 4"):
        resolve(recipe)
    assert resolve(load_recipe(str(ten_steps), ["training.branching.initial=3"]))["training"]["branching"] == {
        "type": "fork",
        **ForkConfig(initial=3).model_dump(),
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")
def test_a_killed_run_that_branches_ends_bit_for_bit_like_one_that_was_not(ten_steps, tmp_path):
    recipe, whole, root = tmp_path / "branches.toml", tmp_path / "whole", tmp_path / "killed"
    recipe.write_text(
        f'extends = "{ten_steps}"\nname = "branches"\ntraining = {{ steps = 6, branching = {{ initial = 2 }} }}\n',
        encoding="utf-8",
    )
    assert main(["train", str(recipe), "--out", str(whole), "--quiet"]) == 0
    assert train_with_kills(recipe, root, iter(("record", "any")), random.Random(1))
    assert sum(step.branches.get("trajectories that forked", 0) for step in RunDirectory.open(root).metrics.read()) > 6
    assert differences(whole, root) == []
