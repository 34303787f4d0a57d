"""Continuous batching: a sample does not depend on what else is asked, and requests join and leave at any token."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from midstream.core.engine import Engine, LockstepEngine, Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Sampling
from midstream.engines.local import continuous
from midstream.engines.local.continuous import ContinuousLocal
from midstream.engines.local.decoding import DecodingBatch
from midstream.engines.local.engine import TransformersLocal, generate
from midstream.engines.local.prefill import Prefill
from midstream.engines.local.pretrained import load_model
from midstream_worlds.tiny_text.settings import TinyTextConfig
from support.errors import raises
from support.hf_models import FAMILIES

EOS = 1
LIMIT_S = 60


@dataclass
class Seen:
    """What the batches of a test held, token by token; `hook` runs before each token, in the engine's thread."""

    joined: list[tuple[int, int]] = field(default_factory=list)  # rows that were there, rows that joined
    rows: list[int] = field(default_factory=list)  # before each token
    slack: list[int] = field(default_factory=list)  # after each token: cache slots a row beyond the longest row's
    empty: bool = True  # nothing is in the cache
    hook: Any = staticmethod(lambda: None)


@pytest.fixture
def seen(monkeypatch) -> Seen:
    seen = Seen()

    class Watched(DecodingBatch):
        def add(self, prompts):
            seen.joined.append((len(self.rows), len(prompts)))
            return super().add(prompts)

        def step(self):
            seen.hook()
            seen.rows.append(len(self.rows))
            return super().step()

        def trim(self):
            super().trim()
            seen.empty = not self.rows and not self.cache.layers
            if self.rows:
                longest = max(row.prompt + len(row.ids) for row in self.rows)
                layers: list[Any] = self.cache.layers
                assert {len(layer.keys) for layer in layers} == {len(self.rows)}
                seen.slack.append(max(layer.keys.shape[2] for layer in layers) - longest)

    monkeypatch.setattr(continuous, "DecodingBatch", Watched)
    return seen


@pytest.fixture
def double_engine(saved_model):
    def make(family="llama", **settings) -> TransformersLocal:
        model, tokenizer = load_model(saved_model(family), "float32", "cpu")
        if family != "gemma2":  # in float64 its attention, which is not PyTorch's, makes padding NaN
            model = model.double()
        return TransformersLocal(model, tokenizer, name="policy", **settings)

    return make


def mixed(rng: random.Random, count: int, longest: int = 40, **sampling: Any) -> list[Request]:
    """Requests of very different lengths, some with equal prompts."""
    prompts = [tuple(rng.choices(range(6, 200), k=rng.choice([1, 3, 8, 20]))) for _ in range(max(1, count // 2))]
    return [
        Request(
            role="policy",
            prompt_ids=rng.choice(prompts),
            seed=rng.randrange(10**6),
            order=rng.randrange(4),  # several at once from one trajectory
            sampling=Sampling.model_validate({"max_tokens": rng.choice([1, 4, 12, longest])} | sampling),
        )
        for _ in range(count)
    ]


async def asked_late(engine: Engine, requests: list[Request], delays: list[float]) -> list[Any]:
    async def one(request, delay):
        await asyncio.sleep(delay)
        return await engine.sample(request)

    work = asyncio.gather(*map(one, requests, delays), return_exceptions=True)
    return await asyncio.wait_for(work, LIMIT_S)


def alone(engine: TransformersLocal, request: Request):
    asked = [(request.prompt_ids, request)]
    [sampled] = generate(engine.model, asked, end_ids=engine.codec.end_ids, decode=engine.codec.decode)
    return sampled


def check_as_alone(engine: TransformersLocal, requests: list[Request], calls: Sequence[Any]) -> None:
    for request, call in zip(requests, calls, strict=True):
        ids, logprobs = alone(engine, request)
        assert call.completion_ids == ids
        assert call.logprobs == pytest.approx(logprobs, abs=1e-8 if engine.model.dtype == torch.float64 else 1e-5)
        assert (call.prompt_ids, call.sampling) == (request.prompt_ids, request.sampling)


def running(engine: ContinuousLocal) -> threading.Thread:
    assert engine._thread is not None
    return engine._thread


# -- what is sampled ---------------------------------------------------------------------------------------------------


def test_it_is_an_engine_without_a_barrier(double_engine):
    inner = double_engine()
    engine = ContinuousLocal(inner)
    assert isinstance(engine, Engine)
    assert not isinstance(engine, LockstepEngine)
    assert engine.token_exact
    assert (engine.name, engine.model, engine.codec) == ("policy", inner.model, inner.codec)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_is_that_of_the_request_alone_in_any_order_of_arrival(double_engine, seen, family):
    """Greedy or not, with sliding windows, learned positions and shared key heads."""
    engine, rng = double_engine(family, max_batch=4), random.Random(family)
    for pause in (0.0, 0.02):
        requests = [
            one
            for temperature in (0.0, 0.8)
            for one in mixed(rng, 4, temperature=temperature, top_p=rng.choice([1.0, 0.7]))
        ]
        rng.shuffle(requests)
        calls = asyncio.run(asked_late(ContinuousLocal(engine), requests, [rng.uniform(0, pause) for _ in requests]))
        check_as_alone(engine, requests, calls)
    assert any(before and new for before, new in seen.joined)
    assert max(seen.slack) <= 0  # less in a sliding window


@pytest.mark.slow
def test_64_requests_of_very_different_lengths_arrive_staggered(seen):
    """Prompts that share a long beginning, so that a prefix trie computes them; a model with 1,000 positions."""
    context: Any = SimpleNamespace(name="policy", recipe=SimpleNamespace(warm_seed=0))
    engine = TinyTextConfig(max_positions=1000, max_batch=16).build(context)
    engine.model.double()
    engine.codec.end_ids = ()
    rng, head = random.Random(0), tuple(random.Random(1).choices(range(20, 500), k=150))
    requests = mixed(rng, 64, 60)
    requests = [replace(one, prompt_ids=head[: rng.choice([10, 150])] + one.prompt_ids) for one in requests]
    asking = ContinuousLocal(engine)
    calls = asyncio.run(asked_late(asking, requests, [rng.uniform(0, 0.5) for _ in requests]))
    check_as_alone(engine, requests[::3], calls[::3])
    assert [len(call.completion_ids) for call in calls] == [one.sampling.max_tokens for one in requests]
    assert max(seen.rows) <= 16
    assert sum(before > 0 for before, _ in seen.joined) > 5
    assert asking._prefills[""]._choice.backend is not None  # by trie where that pays


@pytest.mark.slow
def test_stop_strings_end_their_own_request_alone(double_engine):
    engine = double_engine()
    plain = mixed(random.Random(3), 10, max_tokens=30)
    stops = [engine.codec.decode(alone(engine, one)[0][4:6]) for one in plain]
    requests = [
        replace(one, sampling=one.sampling.model_copy(update={"stop": (stop,)}), keep_stop=i % 3 == 0)
        if i % 2 == 0
        else one
        for i, (one, stop) in enumerate(zip(plain, stops, strict=True))
    ]
    calls = asyncio.run(asked_late(ContinuousLocal(engine), requests, [0.003 * i for i in range(10)]))
    check_as_alone(engine, requests, calls)
    expected = [asyncio.run(engine.sample(one)) for one in requests]
    assert [(c.completion, c.finish_reason) for c in calls] == [(c.completion, c.finish_reason) for c in expected]
    assert all(len(call.completion_ids) <= 6 for call in calls[::2])


def test_the_end_token_ends_a_request(double_engine):
    engine = double_engine()
    request = mixed(random.Random(4), 1, max_tokens=30)[0]
    whole, _ = alone(engine, request)
    engine.codec.end_ids = (whole[5],)
    [call] = asyncio.run(asked_late(ContinuousLocal(engine), [request], [0.0]))
    assert call.completion_ids == whole[: whole.index(whole[5]) + 1]
    assert call.finish_reason == "stop"


# -- the batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_at_most_max_batch_at_once_in_order_of_arrival(double_engine, seen):
    engine = double_engine(max_batch=4)
    requests = [replace(one, order=i) for i, one in enumerate(mixed(random.Random(5), 20))]
    finished: list[int] = []

    async def one(asking, request):
        call = await asking.sample(request)
        finished.append(request.order)
        return call

    async def play(asking, equal):
        return await asyncio.wait_for(asyncio.gather(*(one(asking, each) for each in equal)), LIMIT_S)

    calls = asyncio.run(play(ContinuousLocal(engine), requests))
    check_as_alone(engine, requests, calls)
    assert max(seen.rows) == 4
    assert sum(new for _, new in seen.joined) == 20
    finished.clear()
    long = Sampling(max_tokens=6)
    asyncio.run(play(ContinuousLocal(engine), [replace(one, sampling=long, seed=1) for one in requests]))
    assert sorted(finished) == list(range(20))
    assert all(abs(place - order) < 4 for place, order in enumerate(finished))  # places of one batch may swap


def test_the_cache_shrinks_when_requests_leave(double_engine, seen):
    """A long prompt with a short reply leaves; what is left has neither its row nor its padding."""
    for family in ("llama", "mistral"):
        batch = DecodingBatch(double_engine(family).model, end_ids=())
        long, short = (
            (prompt, Request(role="policy", sampling=Sampling(max_tokens=count)))
            for prompt, count in (((7,) * 40, 2), ((8, 9), 20))
        )
        with torch.inference_mode():
            batch.add([long, short, short])
            batch.step()
            assert (batch.width, len(batch.rows)) == (41, 3)
            batch.step()
            batch.trim()
            assert (batch.width, len(batch.rows)) == (4, 2)
            layers: list[Any] = batch.cache.layers
            for layer in layers:
                assert layer.keys.shape[::2] == layer.values.shape[::2] == (2, 4)
                assert layer.keys.untyped_storage().nbytes() == layer.keys.numel() * 8
            while batch.rows:
                batch.step()
            assert not batch.cache.layers


def test_nothing_is_held_when_nothing_is_asked(double_engine, seen, monkeypatch):
    monkeypatch.setattr(continuous, "IDLE_S", 0.05)
    engine = ContinuousLocal(double_engine())

    async def play():
        await engine.sample(mixed(random.Random(0), 1)[0])
        thread = running(engine)
        await asyncio.to_thread(thread.join, LIMIT_S)
        assert not thread.is_alive()
        assert engine._thread is None
        return await engine.sample(mixed(random.Random(0), 1)[0])  # another thread answers

    assert asyncio.run(play()).completion_ids
    assert engine._prefills[""].prefixes.layers == []


def test_a_model_whose_rows_cannot_join_is_refused(double_engine):
    engine = double_engine()
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    engine.model = Lfm2ForCausalLM(
        Lfm2Config(vocab_size=300, num_hidden_layers=2, layer_types=["conv", "full_attention"], **sizes)
    )
    with raises("cache-unsupported", "Lfm2ForCausalLM"):
        ContinuousLocal(engine)


# -- event loops, cancellation, errors ---------------------------------------------------------------------------------


def test_event_loops_one_after_the_other(double_engine):
    """The first loop is closed while its requests run: they leave, and the next loop is answered."""
    engine = ContinuousLocal(double_engine())
    for seed in range(3):
        requests = mixed(random.Random(seed), 6)
        loop = asyncio.new_event_loop()
        calls = loop.run_until_complete(asked_late(engine, requests, [0.0] * 6))
        check_as_alone(engine._engine, requests, calls)
        left = [loop.create_task(engine.sample(one)) for one in requests]
        loop.run_until_complete(asyncio.sleep(0))
        for task in left:  # nobody will ever look at them
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()


@pytest.mark.slow
def test_two_event_loops_at_once(double_engine):
    engine = ContinuousLocal(double_engine())
    both = [mixed(random.Random(seed), 8) for seed in range(2)]
    calls: dict[int, list[Any]] = {}

    def ask(which):
        calls[which] = asyncio.run(asked_late(engine, both[which], [0.0] * 8))

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    for which in range(2):
        check_as_alone(engine._engine, both[which], calls[which])


def test_a_cancelled_request_leaves_at_the_next_token(double_engine, seen):
    engine = ContinuousLocal(double_engine(max_batch=3))
    seen.hook = lambda: time.sleep(0.005)
    requests = mixed(random.Random(6), 4, max_tokens=40)

    async def play():
        first, second, third, queued = (asyncio.create_task(engine.sample(one)) for one in requests)
        while len(seen.rows) < 5:
            await asyncio.sleep(0.001)
        queued.cancel()
        second.cancel()
        third.cancel()
        before = len(seen.rows)
        call = await asyncio.wait_for(first, LIMIT_S)
        return call, seen.rows[before + 2 :], [task.cancelled() for task in (second, third, queued)]

    call, rows, cancelled = asyncio.run(play())
    assert cancelled == [True] * 3
    assert rows
    assert set(rows) == {1}
    check_as_alone(engine._engine, requests[:1], [call])


def test_all_cancelled_is_no_work(double_engine, seen):
    engine = ContinuousLocal(double_engine())
    requests = mixed(random.Random(7), 3, max_tokens=40)
    seen.hook = lambda: time.sleep(0.005)

    async def play():
        tasks = [asyncio.create_task(engine.sample(one)) for one in requests]
        while len(seen.rows) < 3:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        async with engine.paused():  # nothing is left
            steps = len(seen.rows)
            await asyncio.sleep(0.03)
            assert len(seen.rows) == steps < 20
        assert seen.empty
        return await asyncio.wait_for(engine.sample(requests[0]), LIMIT_S)

    check_as_alone(engine._engine, requests[:1], [asyncio.run(play())])


@pytest.mark.matrix(1)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, AttributeError])
def test_an_error_fails_the_batch_and_the_engine_works_on(double_engine, seen, kind):
    engine = ContinuousLocal(double_engine(max_batch=3))
    requests = mixed(random.Random(8), 4, max_tokens=10)

    def fail():
        if len(seen.rows) == 5:
            seen.rows.append(0)
            raise kind("made up")

    seen.hook = fail
    outcomes = asyncio.run(asked_late(engine, requests, [0.0] * 4))
    assert [type(one) for one in outcomes[:3]] == [EngineError] * 3
    assert {one.code for one in outcomes[:3]} == {"sampling-failed"}
    assert {type(one.__cause__) for one in outcomes[:3]} == {kind}
    check_as_alone(engine._engine, requests[3:], outcomes[3:])  # it was not in the batch
    again = asyncio.run(asked_late(engine, requests, [0.0] * 4))
    check_as_alone(engine._engine, requests, again)


def test_an_error_of_the_prompt_pass_fails_what_is_asked_and_the_engine_works_on(double_engine, monkeypatch):
    engine = ContinuousLocal(double_engine())
    [request] = mixed(random.Random(9), 1)

    def broken(self, model, asked):
        raise RuntimeError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(Prefill, "__call__", broken)
        [outcome] = asyncio.run(asked_late(engine, [request], [0.0]))
    assert outcome.code == "sampling-failed"
    check_as_alone(engine._engine, [request], asyncio.run(asked_late(engine, [request], [0.0])))


def test_what_does_not_fit_is_refused_before_it_joins(double_engine, seen):
    engine = ContinuousLocal(double_engine())
    fits, long, empty = (
        Request(role="policy", prompt_ids=ids, sampling=Sampling(max_tokens=5)) for ids in ((7,) * 59, (7,) * 60, ())
    )
    outcomes = asyncio.run(asked_late(engine, [fits, long, empty], [0.0] * 3))
    assert [one.code for one in outcomes[1:]] == ["prompt-too-long", "empty-prompt"]
    check_as_alone(engine._engine, [fits], outcomes[:1])


def test_close_cancels_what_is_asked_and_ends_the_thread(double_engine, seen):
    engine = ContinuousLocal(double_engine(max_batch=2))
    seen.hook = lambda: time.sleep(0.005)

    async def play():
        tasks = [asyncio.create_task(engine.sample(one)) for one in mixed(random.Random(10), 5, max_tokens=40)]
        while len(seen.rows) < 3:
            await asyncio.sleep(0.001)
        thread = running(engine)
        await asyncio.wait_for(engine.close(), LIMIT_S)
        assert not thread.is_alive()
        await asyncio.wait(tasks, timeout=LIMIT_S)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(play()) == [True] * 5
    assert len(seen.rows) < 20
    asyncio.run(engine.close())  # again does nothing


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_change_inside_a_pause(double_engine, seen):
    """What began before ends before, by the old weights; what came meanwhile is answered by the new ones."""
    inner = double_engine()
    engine, seen.hook = ContinuousLocal(inner), lambda: time.sleep(0.002)
    requests = mixed(random.Random(11), 6, max_tokens=20)
    expected = [[alone(inner, one)[0] for one in requests]]

    async def play():
        before = [asyncio.create_task(engine.sample(one)) for one in requests]
        while len(seen.rows) < 5:
            await asyncio.sleep(0.001)
        async with engine.paused():
            steps = len(seen.rows)
            after = [asyncio.create_task(engine.sample(one)) for one in requests]
            await asyncio.sleep(0.02)
            assert len(seen.rows) == steps
            assert not any(task.done() for task in after)
            with torch.no_grad():
                for parameter in inner.model.parameters():
                    parameter.data.mul_(1.3)  # a change that PyTorch does not count
            inner.policy_version += 1
        return [await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S) for tasks in (before, after)]

    calls = asyncio.run(play())
    expected.append([alone(inner, one)[0] for one in requests])
    assert [[call.completion_ids for call in each] for each in calls] == expected
    assert expected[0] != expected[1]
    assert [{call.policy_version for call in each} for each in calls] == [{0}, {1}]


def test_a_pause_of_an_idle_engine_begins_at_once_and_pauses_nest(double_engine):
    engine = ContinuousLocal(double_engine())
    [request] = mixed(random.Random(12), 1)

    async def play():
        async with engine.paused():
            async with engine.paused():
                task = asyncio.create_task(engine.sample(request))
            await asyncio.sleep(0.02)
            assert not task.done()
        return await asyncio.wait_for(task, LIMIT_S)

    check_as_alone(engine._engine, [request], [asyncio.run(asyncio.wait_for(play(), LIMIT_S))])


def test_a_pause_that_is_given_up_holds_nothing(double_engine, seen):
    engine, seen.hook = ContinuousLocal(double_engine()), lambda: time.sleep(0.005)
    requests = mixed(random.Random(13), 2, max_tokens=40)

    async def play():
        first = asyncio.create_task(engine.sample(requests[0]))
        while not seen.rows:
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), engine.paused():
                raise AssertionError("the first request is not finished")
        return await asyncio.wait_for(asyncio.gather(first, engine.sample(requests[1])), LIMIT_S)

    check_as_alone(engine._engine, requests, asyncio.run(play()))
