"""The in-process engine over a rollout's turns: what it holds, for how long, and that it changes nothing but speed."""

from __future__ import annotations

import asyncio

import pytest
import torch

from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Sampling
from midstream.engines.local import prefill
from midstream.engines.local.engine import TransformersLocal
from midstream.engines.local.prefill import Prefill
from midstream.prefix_tree import cost

WORDS = (" How", " high", " is", " find", " plus")
SHARED = " goal" * 12


@pytest.fixture
def trie_always(monkeypatch):
    monkeypatch.setattr("midstream.prefix_tree.cost.SMALLEST", 0)
    monkeypatch.setattr(cost, "CALL", 0)


@pytest.fixture
def passes(monkeypatch):
    """The tokens of each prefill."""
    counts: list[int] = []
    call = Prefill.__call__

    def counted(self, model, asked):
        found = call(self, model, asked)
        counts.append(found.computed)
        return found

    monkeypatch.setattr(Prefill, "__call__", counted)
    return counts


def engine_of(tiny_model, **settings):
    model, tokenizer = tiny_model(embedding_std=0.3)
    return TransformersLocal(model.double(), tokenizer, **settings)


def prompt_of(order, turn):
    """Append-only: what all have in common, the trajectory's own, and one more for each turn."""
    return SHARED + WORDS[order] + "".join(WORDS[(order + i) % 5] * 3 for i in range(turn))


async def one(engine, order, turns, roles):
    calls = []
    try:
        for turn in range(turns):
            for role in roles:
                asked = ("" if role == "planner" else " ?" * 5) + prompt_of(order, turn)
                sampling = Sampling(max_tokens=5)
                request = Request(role=role, prompt=asked, seed=10 * order + turn, order=order, sampling=sampling)
                calls.append(await engine.sample(request))
    finally:
        engine.leave(order)
    return calls


async def together(engine, turns=3, count=4, roles=("planner",)):
    for order in range(count):
        engine.join(order)
    return await asyncio.gather(*(one(engine, order, turns, roles) for order in range(count)))


def drawn(calls):
    return [[(call.prompt_ids, call.completion_ids) for call in each] for each in calls]


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("max_batch", "roles"), [(256, ["planner"]), (256, ["planner", "verifier"]), (3, ["planner"])])
def test_turns_compute_what_is_new_and_sample_the_same(tiny_model, passes, monkeypatch, max_batch, roles):
    plain = asyncio.run(together(engine_of(tiny_model, max_batch=max_batch), roles=roles))
    padded_tokens = sum(passes)
    passes.clear()
    monkeypatch.setattr("midstream.prefix_tree.cost.SMALLEST", 0)
    monkeypatch.setattr(cost, "CALL", 0)
    assert drawn(asyncio.run(together(engine_of(tiny_model, max_batch=max_batch), roles=roles))) == drawn(plain)
    prefixes = {call.prompt_ids[: i + 1] for calls in plain for call in calls for i in range(len(call.prompt_ids))}
    assert sum(passes) == len(prefixes) < padded_tokens


def test_single_requests_hold_no_more_than_one_of_them_takes(trie_always, tiny_model, passes):
    engine, sizes = engine_of(tiny_model, max_batch=1), []
    leave = engine.leave

    def measured(order):
        sizes.append(engine._prefills[False, ""].prefixes.size)
        leave(order)

    engine.leave = measured
    calls = drawn(asyncio.run(together(engine)))
    assert calls == drawn(asyncio.run(together(engine_of(tiny_model))))
    assert 0 < max(sizes) <= max(len(ids) for each in calls for ids, _ in each)


def test_nothing_is_held_once_nobody_is_live(trie_always, tiny_model, passes):
    engine = engine_of(tiny_model)
    first = asyncio.run(together(engine))
    assert engine._prefills[False, ""].prefixes.size == 0
    assert engine._prefills[False, ""].prefixes.layers == []
    whole = list(passes)
    second = asyncio.run(together(engine))
    assert passes == whole * 2
    assert [[call.logprobs for call in each] for each in first] == [[call.logprobs for call in each] for each in second]


def test_who_never_joined_leaves_nothing(trie_always, tiny_model, passes):
    engine = engine_of(tiny_model)
    request = Request(role="planner", prompt=SHARED, sampling=Sampling(max_tokens=2))
    for _ in range(2):
        asyncio.run(engine.sample(request))
    assert passes == [12, 12]


def test_one_that_ends_early_is_held_no_longer(trie_always, tiny_model, monkeypatch):
    sizes: list[int] = []
    by_trie = Prefill.by_trie

    def measured(self, *args):
        found = by_trie(self, *args)
        sizes.append(self.prefixes.size)
        return found

    monkeypatch.setattr(Prefill, "by_trie", measured)
    engine = engine_of(tiny_model)

    async def play():
        for order in range(2):
            engine.join(order)
        return await asyncio.gather(one(engine, 0, 2, ["planner"]), one(engine, 1, 1, ["planner"]))

    calls = asyncio.run(play())
    assert sizes[-2:] == [12 + 2, len(calls[0][1].prompt_ids)]


def test_weights_that_change_between_turns_sample_again(trie_always, tiny_model, passes):
    """As a learner's step would, if it came in the middle of a rollout."""
    engine = engine_of(tiny_model)

    async def play():
        engine.join(0)
        calls = []
        for _ in range(2):
            asked = Request(role="planner", prompt=SHARED, seed=3, order=0, sampling=Sampling(max_tokens=4))
            calls.append(await engine.sample(asked))
            with torch.no_grad():
                for weight in engine.model.parameters():
                    weight.mul_(1.5)
        engine.leave(0)
        return calls

    first, second = asyncio.run(play())
    assert passes == [12, 12]
    assert first.logprobs != second.logprobs


def test_one_that_is_cancelled_does_not_spoil_the_others(trie_always, tiny_model):
    engine = engine_of(tiny_model)

    async def impatient(order):
        try:
            async with asyncio.timeout(0.01):
                request = Request(role="planner", prompt=SHARED, order=order, sampling=Sampling(max_tokens=3))
                await engine.sample(request)
        except TimeoutError:
            engine.leave(order)

    async def play():
        for order in range(4):
            engine.join(order)

        async def late(order):
            await asyncio.sleep(0.05)
            return await one(engine, order, 3, ["planner"])

        return (await asyncio.gather(impatient(3), *map(late, range(3))))[1:]

    cancelled = drawn(asyncio.run(play()))
    assert cancelled == drawn(asyncio.run(together(engine_of(tiny_model), count=3)))
    assert engine._prefills[False, ""].prefixes.size == 0


@pytest.mark.slow
def test_a_pass_that_fails_leaves_nothing_half_written(trie_always, tiny_model, monkeypatch):
    engine = engine_of(tiny_model)
    select = prefill.select_tokens

    def broken(layer, index):
        if engine._prefills[False, ""].prefixes.layers:
            raise torch.OutOfMemoryError("out of memory")
        return select(layer, index)

    async def play():
        engine.join(0)
        engine.join(1)
        monkeypatch.setattr(prefill, "select_tokens", broken)
        failed = await asyncio.gather(*(one(engine, order, 1, ["planner"]) for order in (0, 1)), return_exceptions=True)
        assert [type(each) for each in failed] == [EngineError] * 2
        monkeypatch.setattr(prefill, "select_tokens", select)
        return await together(engine)

    assert drawn(asyncio.run(play())) == drawn(asyncio.run(together(engine_of(tiny_model))))


def test_an_empty_prompt_does_not_spoil_the_others(trie_always, tiny_model):
    engine = engine_of(tiny_model)

    async def empty(order):
        engine.join(order)
        try:
            return await engine.sample(Request(role="planner", order=order, sampling=Sampling(max_tokens=3)))
        finally:
            engine.leave(order)

    async def play():
        return await asyncio.gather(together(engine, turns=1), empty(4), return_exceptions=True)

    calls, failure = asyncio.run(play())
    assert "a prompt of no tokens" in str(failure)
    assert drawn(calls) == drawn(asyncio.run(together(engine_of(tiny_model), turns=1)))
