"""The budget: no limit is ever passed, whatever runs at once; and a run that was killed knows what it had used."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.agent import RunContext
from midstream.core.engine import LockstepEngine, Request
from midstream.core.errors import BudgetError, EngineError
from midstream.core.metrics import Spent
from midstream.core.trajectory import Call, ErrorInfo, Message, Sampling, Trajectory, Usage
from midstream.runs.budget import (
    Budget,
    BudgetConfig,
    BudgetedAgent,
    Entry,
    budgeted,
    parse_limits,
    prompt_bound,
    read_spent,
)
from midstream.runs.journal import Records
from support.errors import coded

PRICE = (2.0, 8.0)


class Varied:
    """An engine whose replies use another number of tokens each time; `none` says no usage, `lost` never answers."""

    token_exact = False

    def __init__(self, *, seed=0, usage=True, error=None, hang=False, sent=None):
        self.name, self.random, self.usage, self.error, self.hang = "varied", random.Random(seed), usage, error, hang
        self.sent = sent or {}
        self.tokens, self.cost_usd, self.under_way, self.most = 0, 0.0, 0, 0

    async def sample(self, request):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.random.random() * 0.002)
        if self.hang:
            await asyncio.sleep(60)
        self.under_way -= 1
        if self.error:
            raise self.error
        prompt = self.random.randint(1, sum(len(message.content) for message in request.messages))
        completion = self.random.randint(0, request.sampling.max_tokens)
        cost = (prompt * 2.0 + completion * 8.0) / 1e6
        self.tokens += prompt + completion
        self.cost_usd += cost
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cost_usd=cost) if self.usage else Usage()
        return Call(role=request.role, completion="four", usage=usage, sent=self.sent)

    async def close(self):
        pass


class Stepped(Varied):
    """One that a rollout joins and leaves."""

    def join(self, order):
        self.joined = order

    def leave(self, order):
        self.left = order


class Agent:
    name = "agent"

    def __init__(self, error=None):
        self.error = error

    async def run(self, task, context):
        return Trajectory(id=task, task_id=task, question=f"order {context.order}", seed=context.seed, error=self.error)

    async def close(self):
        pass


def request(text="x" * 400, max_tokens=100):
    return Request(
        role="planner", messages=(Message(role="user", content=text),), sampling=Sampling(max_tokens=max_tokens)
    )


BOUND = prompt_bound(request()) + 100


async def ask_all(engine, count, **named):
    return await asyncio.gather(*(engine.sample(request(**named)) for _ in range(count)), return_exceptions=True)


def test_what_a_prompt_holds_besides_its_messages_counts():
    words, tools = request(), ({"type": "function", "function": {"name": "add"}},)
    assert prompt_bound(replace(words, tools=tools)) == prompt_bound(words) + len(json.dumps(tools[0]))
    fields = {"tool_calls": [{"function": {"name": "add", "arguments": "9" * 100_000}}], "reasoning_content": "7" * 500}
    called = Message(role="assistant", content="", fields=fields)
    assert prompt_bound(replace(words, messages=(*words.messages, called))) > prompt_bound(words) + 100_500
    assert prompt_bound(replace(words, prompt_ids=(7,) * 5000)) == 5000
    assert prompt_bound(replace(words, prompt_ids=(7,))) == prompt_bound(words)


@pytest.mark.parametrize(("limits", "sent"), [({"tokens": 9_000}, 2048), ({"rollouts": 5}, None)])
def test_a_request_without_a_limit_gets_one_where_tokens_are_limited(limits, sent):
    class Seen(Varied):
        async def sample(self, request):
            self.asked = request.max_tokens
            return await super().sample(request)

    engine = Seen()
    asked = budgeted(engine, Budget(BudgetConfig(**limits)))
    asyncio.run(asked.sample(replace(request(max_tokens=2048), options={"temperature": 0.2})))
    assert engine.asked == sent


def test_the_engines_codec_is_passed_through_also_when_it_comes_late():
    inner, budget = Varied(), Budget(BudgetConfig())
    engine = budgeted(inner, budget)
    assert engine.codec is None
    inner.codec = object()
    assert engine.codec is inner.codec


@pytest.mark.matrix(3)
@pytest.mark.parametrize("limits", [{"tokens": 20_000}, {"cost_usd": 0.05}, {"tokens": 20_000, "cost_usd": 0.05}])
@pytest.mark.parametrize("seed", range(3))
def test_no_limit_is_passed_and_little_is_left_over(limits, seed):
    inner, budget = Varied(seed=seed), Budget(BudgetConfig(**limits))
    answers = asyncio.run(ask_all(budgeted(inner, budget, PRICE), 300))
    assert inner.tokens <= limits.get("tokens", 10**9)
    assert inner.cost_usd <= limits.get("cost_usd", 10**9)
    refused = [one for one in answers if isinstance(one, BudgetError)]
    assert len(refused) + sum(isinstance(one, Call) for one in answers) == 300
    assert refused
    assert inner.most > 5  # they did run at once
    spent = budget.spent()
    assert (spent.tokens, spent.cost_usd) == (inner.tokens, pytest.approx(inner.cost_usd))
    left = [limit - getattr(spent, name) for name, limit in limits.items()]
    assert min(left[0] / BOUND, left[-1] / (BOUND if "cost_usd" not in limits else (BOUND - 100) * 2e-6 + 8e-4)) < 1


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_calls_are_a_limit_too(limit):
    inner, budget = Varied(seed=1), Budget(BudgetConfig(**parse_limits(f"{limit} calls")))
    answers = asyncio.run(ask_all(budgeted(inner, budget), 120))
    assert sum(isinstance(one, Call) for one in answers) == budget.spent().calls == limit


def test_a_request_waits_for_others_rather_than_being_refused():
    budget = Budget(BudgetConfig(tokens=2 * BOUND - 1))
    inner = Varied(seed=1)
    answers = asyncio.run(ask_all(budgeted(inner, budget), 2))
    assert all(isinstance(one, Call) for one in answers)
    assert inner.most == 1


def test_an_engine_in_lockstep_refuses_at_once_for_all_wait_for_all():
    budget, inner = Budget(BudgetConfig(tokens=BOUND + 10)), Stepped()
    engine = budgeted(inner, budget)
    assert isinstance(engine, LockstepEngine)
    engine.join(3)
    engine.leave(4)
    assert (inner.joined, inner.left) == (3, 4)
    first, second = asyncio.run(ask_all(engine, 2))
    assert isinstance(first, Call)
    assert isinstance(second, BudgetError)


def test_nobody_waits_for_an_engine_in_lockstep_which_may_be_waiting_for_them():
    async def both():
        budget = Budget(BudgetConfig(tokens=1000))
        await budget.reserve("planner", Spent(tokens=600), wait=False)
        with pytest.raises(BudgetError):
            await asyncio.wait_for(budget.reserve("search", Spent(tokens=600), wait=True), 5)

    asyncio.run(both())


def test_a_request_that_failed_used_nothing_one_that_was_cut_off_perhaps_all():
    budget = Budget(BudgetConfig())
    asyncio.run(ask_all(budgeted(Varied(error=EngineError("down")), budget), 1))
    assert budget.spent() == Spent(calls=1)

    async def cut_off():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(budgeted(Varied(hang=True), budget).sample(request()), 0.01)

    asyncio.run(cut_off())
    assert budget.spent() == Spent(calls=2, tokens=BOUND)


@pytest.mark.parametrize(("sent", "completion"), [(None, 4), ({"model": "m"}, 100)], ids=["function", "server"])
def test_bytes_are_counted_where_a_function_counts_nothing_and_the_bound_where_a_server_does(sent, completion):
    budget = Budget(BudgetConfig())
    asyncio.run(ask_all(budgeted(Varied(usage=False, sent=sent), budget, PRICE), 1))
    prompt = BOUND - 100
    spent = Spent(calls=1, tokens=prompt + completion, cost_usd=(prompt * 2 + completion * 8) / 1e6)
    assert budget.spent() == spent


def test_rollouts_are_counted_before_they_start():
    budget = Budget(BudgetConfig(rollouts=2))
    agent = BudgetedAgent(Agent(), budget)
    ran = [asyncio.run(agent.run("t", RunContext(seed=i, order=4))) for i in range(2)]
    assert [(one.task_id, one.seed, one.question) for one in ran] == [("t", 0, "order 4"), ("t", 1, "order 4")]
    with pytest.raises(BudgetError, check=coded("budget-spent", "2 (rollouts)", fix='--budget "MORE rollouts"')):
        asyncio.run(agent.run("t", RunContext(seed=2)))
    assert budget.spent() == Spent(rollouts=2)


def test_a_rollout_that_could_not_pay_for_its_first_request_does_not_count():
    budget = Budget(BudgetConfig(rollouts=1))
    refused = BudgetedAgent(Agent(ErrorInfo(type="BudgetError", message="spent", retryable=False)), budget)
    for seed in range(3):
        asyncio.run(refused.run("t", RunContext(seed=seed)))
    assert budget.spent() == Spent()


def test_after_its_time_nothing_new_begins():
    now = [100.0]
    budget = Budget(BudgetConfig(time_s=60), clock=lambda: now[0])
    budget.start_rollout()
    now[0] += 60
    with pytest.raises(BudgetError) as caught:
        budget.start_rollout()
    assert caught.value.code == "budget-spent"
    assert "(time_s)" in caught.value.what
    with pytest.raises(BudgetError):
        asyncio.run(budgeted(Varied(), budget).sample(request()))


def test_what_the_first_evaluation_used_is_held_back_for_the_last():
    budget = Budget(BudgetConfig(rollouts=20))
    budget.phase = "evaluation 0"
    for _ in range(4):
        budget.start_rollout()
    budget.phase = "learning"
    budget.hold_back("evaluation 0")
    for _ in range(11):
        budget.start_rollout()
    with pytest.raises(BudgetError) as caught:
        budget.start_rollout()
    assert caught.value.code == "budget-spent"
    assert "5 held back" in caught.value.what
    budget.release()
    for _ in range(5):
        budget.start_rollout()
    with pytest.raises(BudgetError):
        budget.start_rollout()


def test_a_new_process_knows_what_was_used_and_counts_what_was_under_way_whole(tmp_path):
    path, now = tmp_path / "spent.jsonl", [0.0]
    budget = Budget(BudgetConfig(), clock=lambda: now[0])
    budget.open(path)
    budget.phase = "learning"
    inner = Varied(seed=3)
    asyncio.run(ask_all(budgeted(inner, budget, PRICE), 5))
    budget.start_rollout()
    now[0] = 7.0

    async def killed():
        await budget.reserve("critic", Spent(calls=1, tokens=1000), wait=True)

    asyncio.run(killed())
    budget.close()
    now[0] = 1000.0
    again = Budget(BudgetConfig(time_s=8), clock=lambda: now[0])
    again.open(path)
    assert (
        again.spent()
        == budget.spent()
        == Spent(rollouts=1, calls=6, tokens=inner.tokens + 1000, cost_usd=budget.spent().cost_usd)
    )
    assert again.elapsed_s == 7.0
    again.start_rollout()
    now[0] += 1.0
    with pytest.raises(BudgetError):
        again.start_rollout()
    again.close()
    by_role = read_spent(path)
    assert by_role["learning", "critic"] == Spent(calls=1, tokens=1000)
    assert by_role["learning", "planner"].tokens == inner.tokens
    assert by_role["learning", ""].rollouts == 1
    assert [one.number for one in Records(path, Entry).read()][-1] == 7


@given(st.lists(st.floats(0, 3), max_size=30), st.randoms())
def test_dollars_add_up_the_same_in_any_order(costs, rng):
    def added(values):
        budget = Budget(BudgetConfig())
        for value in values:
            budget.settle(asyncio.run(budget.reserve("a", Spent(cost_usd=value * 2), wait=True)), Spent(cost_usd=value))
        return budget.spent()

    shuffled = costs.copy()
    rng.shuffle(shuffled)
    assert added(costs) == added(shuffled)
