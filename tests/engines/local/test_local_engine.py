"""The in-process engine: what it samples, with which log-probabilities, in which batches."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from contextlib import nullcontext

import pytest
import torch

from midstream.core.engine import Engine, LockstepEngine, Request
from midstream.core.errors import EngineError, UnsupportedError
from midstream.core.trajectory import Message, Sampling
from midstream.engines.local import engine as transformers_local
from midstream.engines.local.engine import ReferencePolicy, TransformersLocal, generate
from midstream.engines.local.pretrained import load_model
from midstream.engines.local.settings import require_torch
from support.errors import coded, raises
from support.hf_models import FAMILIES, TEMPLATE, forward_logprobs

EOS = 1
PROMPTS = ((5, 6, 7, 8), (9,), (5, 6, 7, 8), tuple(range(10, 30)), (30, 31))


def request(seed=0, order=0, prompt="", **sampling):
    return Request(role="planner", prompt=prompt, seed=seed, order=order, sampling=Sampling(**sampling))


def mixed_requests(temperature=1.0, top_p=1.0):
    return [
        (ids, request(seed=i, order=i, temperature=temperature, top_p=top_p, max_tokens=3 + 4 * i))
        for i, ids in enumerate(PROMPTS)
    ]


# -- generate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
def test_logprobs_are_those_of_a_plain_forward_at_the_sampling_temperature(tiny_model, temperature):
    model, _ = tiny_model(embedding_std=0.3)
    requests = mixed_requests(temperature)
    sampled = generate(model, requests, end_ids=(EOS,))
    for (prompt, _), (ids, logprobs) in zip(requests, sampled, strict=True):
        assert logprobs == pytest.approx(forward_logprobs(model, prompt, ids, temperature), abs=1e-5)
    if temperature != 1.0:  # the check above distinguishes temperatures
        ids, logprobs = sampled[3]
        assert logprobs != pytest.approx(forward_logprobs(model, PROMPTS[3], ids, 1.0), abs=1e-2)


def test_a_row_ends_at_the_end_token_or_its_own_limit(tiny_model):
    model, _ = tiny_model()
    whole, _ = generate(model, mixed_requests(), end_ids=())[3]
    for end in whole[2:8]:
        ids, logprobs = generate(model, mixed_requests(), end_ids=(EOS, end))[3]
        assert ids == whole[: whole.index(end) + 1]
        assert logprobs == pytest.approx(forward_logprobs(model, PROMPTS[3], ids), abs=1e-5)
    assert [len(ids) for ids, _ in generate(model, mixed_requests(), end_ids=())] == [3, 7, 11, 15, 19]


def test_greedy_takes_the_likeliest_token_and_records_temperature_one(tiny_model):
    model, _ = tiny_model(embedding_std=0.3)
    for (prompt, _), (ids, logprobs) in zip(
        mixed_requests(), generate(model, mixed_requests(0.0), end_ids=(EOS,)), strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(ids)
        assert logprobs == pytest.approx(forward_logprobs(model, prompt, ids), abs=1e-5)


def test_a_sample_does_not_depend_on_its_neighbors(tiny_model):
    model, _ = tiny_model(embedding_std=0.3)
    together = generate(model, mixed_requests(), end_ids=(EOS,))
    for one, (ids, logprobs) in zip(mixed_requests(), together, strict=True):
        [(alone, alone_logprobs)] = generate(model, [one], end_ids=(EOS,))
        assert alone == ids
        assert alone_logprobs == pytest.approx(logprobs, abs=1e-5)
    backwards = generate(model, mixed_requests()[::-1], end_ids=(EOS,))[::-1]
    assert [ids for ids, _ in backwards] == [ids for ids, _ in together]


def test_equal_prompts_with_different_seeds_differ_and_with_equal_seeds_agree(tiny_model):
    model, _ = tiny_model()
    draws = [((5, 6, 7), request(seed=seed, max_tokens=12)) for seed in (1, 2, 1)]
    first, second, third = generate(model, draws, end_ids=(EOS,))
    assert first == third
    assert first[0] != second[0]


@pytest.mark.matrix(1)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_softmax(tiny_model, temperature):
    """A chi-square test at a fixed seed: with 60 tokens or so its statistic stays below 2.2 per degree of freedom."""
    model, _ = tiny_model(embedding_std=0.3)
    count, prompt = 4000, (5, 6, 7)
    draws = [(prompt, request(seed=seed, temperature=temperature, max_tokens=1)) for seed in range(count)]
    drawn = torch.tensor([ids[0] for ids, _ in generate(model, draws, end_ids=(EOS,))])
    with torch.no_grad():
        expected = (model(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1) * count
    seen = drawn.bincount(minlength=len(expected)).float()
    common = expected >= 5
    statistic = ((seen - expected)[common] ** 2 / expected[common]).sum().item()
    degrees = int(common.sum()) - 1
    assert degrees > 5
    assert statistic < 2.2 * degrees


def test_top_p_keeps_the_smallest_set_that_reaches_it(tiny_model):
    model, _ = tiny_model(embedding_std=0.3)
    draws = [((5, 6, 7), request(seed=seed, top_p=0.5, max_tokens=1)) for seed in range(500)]
    sampled = generate(model, draws, end_ids=(EOS,))
    with torch.no_grad():
        ordered, index = model(torch.tensor([(5, 6, 7)])).logits[0, -1].softmax(-1).sort(descending=True)
    size = int((ordered.cumsum(0) < 0.5).sum()) + 1
    assert {ids[0] for ids, _ in sampled} == set(index[:size].tolist())


def test_nothing_is_drawn_twice_from_one_number(tiny_model):
    """Successive tokens use successive numbers of the seed: else a run of equal distributions repeats one token."""
    model, _ = tiny_model(embedding_std=0.01)  # nearly uniform at every position
    [(ids, _)] = generate(model, [((5,), request(seed=3, max_tokens=30))], end_ids=())
    assert len(set(ids)) > 10


# -- the engine ------------------------------------------------------------------------------------------------------


def engine_of(tiny_model, **settings):
    model, tokenizer = tiny_model(embedding_std=0.3)
    return TransformersLocal(model, tokenizer, name="policy", **settings)


def test_it_is_an_engine_with_exact_tokens(tiny_model):
    engine = engine_of(tiny_model)
    assert isinstance(engine, Engine)
    assert isinstance(engine, LockstepEngine)
    assert engine.token_exact


def test_a_call_records_what_was_sampled(tiny_model):
    engine = engine_of(tiny_model)
    engine.policy_version = 7
    call = asyncio.run(engine.sample(request(seed=4, prompt=" How high is Amberbank ?", max_tokens=20)))
    assert engine.tokenizer.decode(call.prompt_ids) == call.prompt == " How high is Amberbank ?"
    assert (call.role, call.engine, call.policy_version) == ("planner", "policy", 7)
    assert len(call.completion_ids) == len(call.logprobs) == call.usage.completion_tokens
    assert call.usage.prompt_tokens == len(call.prompt_ids) == 5
    ended = call.completion_ids[-1] == engine.tokenizer.eos_token_id
    assert call.finish_reason == ("stop" if ended else "length")
    assert call.completion == engine.tokenizer.decode(call.completion_ids[:-1] if ended else call.completion_ids)
    assert call.logprobs == pytest.approx(
        forward_logprobs(engine.model, call.prompt_ids, call.completion_ids), abs=1e-5
    )


def test_the_end_token_is_trained_on_but_not_part_of_the_text(tiny_model):
    engine = engine_of(tiny_model)
    asked = request(seed=4, prompt=" How", max_tokens=20)
    whole = asyncio.run(engine.sample(asked))
    engine.codec.end_ids = (whole.completion_ids[3], EOS)
    call = asyncio.run(engine.sample(asked))
    end = whole.completion_ids.index(engine.codec.end_ids[0])
    assert (call.finish_reason, whole.finish_reason) == ("stop", "length")
    assert call.completion_ids == whole.completion_ids[: end + 1]
    assert call.completion == engine.tokenizer.decode(whole.completion_ids[:end])


@pytest.mark.slow
def test_a_stop_string_ends_the_completion(tiny_model):
    """The text ends before it, the ids are those that were sampled up to where it was said."""
    engine = engine_of(tiny_model)
    asked = [request(seed=seed, order=seed, prompt=" How", max_tokens=20) for seed in range(4)]
    wholes = [asyncio.run(engine.sample(one)) for one in asked]
    words = wholes[0].completion.split()
    stop = f"{words[2]} {words[3]}"  # over two tokens
    for one, whole in zip(asked, wholes, strict=True):
        sampling = one.sampling.model_copy(update={"stop": (stop, "never said")})
        call = asyncio.run(engine.sample(dataclasses.replace(one, sampling=sampling)))
        assert call.completion_ids == whole.completion_ids[: len(call.completion_ids)]
        assert call.logprobs == pytest.approx(whole.logprobs[: len(call.logprobs)], abs=1e-6)
        assert call.completion == whole.completion.split(stop)[0]
        if stop in whole.completion:
            assert call.finish_reason == "stop"
            assert engine.tokenizer.decode(call.completion_ids).endswith(stop)
        else:
            assert call == whole.model_copy(update={"sampling": sampling})
    assert stop in wholes[0].completion


def test_a_stop_string_inside_a_batch_ends_its_own_request_alone(tiny_model):
    model, tokenizer = tiny_model(embedding_std=0.3)
    plain = generate(model, mixed_requests(), end_ids=(EOS,))
    stop = tokenizer.decode(plain[3][0][4:5])
    requests = mixed_requests()
    requests[3] = (PROMPTS[3], request(seed=3, order=3, max_tokens=15, stop=(stop,)))
    stopped = generate(model, requests, end_ids=(EOS,), decode=tokenizer.decode)
    end = next(i for i, one in enumerate(plain[3][0]) if stop in tokenizer.decode([one]))
    assert stopped[3][0] == plain[3][0][: end + 1]
    assert [ids for i, (ids, _) in enumerate(stopped) if i != 3] == [ids for i, (ids, _) in enumerate(plain) if i != 3]


def test_what_does_not_fit_is_an_engine_error(tiny_model):
    engine = engine_of(tiny_model)
    prompt = " How" * 60
    with raises("prompt-too-long", "60 tokens", "5 new", "64 positions"):
        asyncio.run(engine.sample(request(prompt=prompt, max_tokens=5)))
    assert asyncio.run(engine.sample(request(prompt=prompt, max_tokens=4))).completion_ids


def test_messages_without_a_chat_template_are_refused(tiny_model):
    chat = Request(role="planner", messages=(Message(role="user", content="hi"),))
    with raises("chat-template", "no chat template"):
        asyncio.run(engine_of(tiny_model).sample(chat))


async def rounds(engine, orders, delays, turns=3):
    """Every trajectory samples `turns` times, and is late as `delays` says."""
    calls = {}

    async def one(order):
        for turn in range(turns + order % 2):
            await asyncio.sleep(next(delays))
            made = request(seed=100 * order + turn, order=order, prompt=" How" * (1 + order), max_tokens=6)
            calls[order, turn] = await engine.sample(made)
        engine.leave(order)

    for order in orders:
        engine.join(order)
    await asyncio.gather(*(one(order) for order in orders))
    return calls


def test_batches_do_not_depend_on_the_order_of_arrival(tiny_model, monkeypatch):
    batches: list[list[int]] = []

    def recorded(model, prompts, **settings):
        batches.append([asked.order for _, asked in prompts])
        return generate(model, prompts, **settings)

    monkeypatch.setattr(transformers_local, "generate", recorded)
    seen = []
    for seed in range(3):
        batches.clear()
        late = random.Random(seed)
        delays = (late.uniform(0, 0.004) for _ in iter(int, 1))
        orders = list(range(6))
        late.shuffle(orders)
        seen.append((asyncio.run(rounds(engine_of(tiny_model), orders, delays)), list(batches)))
    assert seen[0][1] == [[0, 1, 2, 3, 4, 5]] * 3 + [[1, 3, 5]]
    assert seen[0] == seen[1] == seen[2]


def test_a_large_batch_is_cut_in_a_fixed_order(tiny_model, monkeypatch):
    sizes: list[list[int]] = []

    def recorded(model, prompts, **settings):
        sizes.append([asked.order for _, asked in prompts])
        return generate(model, prompts, **settings)

    monkeypatch.setattr(transformers_local, "generate", recorded)
    asyncio.run(rounds(engine_of(tiny_model, max_batch=2), [4, 2, 0], iter([0.0] * 20), turns=1))
    assert sizes == [[0, 2], [4]]


def test_one_that_is_cancelled_while_waiting_does_not_hold_up_the_others(tiny_model):
    engine = engine_of(tiny_model)

    async def impatient():
        try:
            async with asyncio.timeout(0.01):
                await engine.sample(request(order=0, prompt=" How", max_tokens=4))
        finally:
            engine.leave(0)

    async def patient(order, wait_s):
        await asyncio.sleep(wait_s)
        call = await engine.sample(request(order=order, seed=order, prompt=" is", max_tokens=4))
        engine.leave(order)
        return call

    async def play():
        for order in range(3):
            engine.join(order)
        work = asyncio.gather(impatient(), patient(1, 0.0), patient(2, 0.05), return_exceptions=True)
        return await asyncio.wait_for(work, 10)

    cancelled, first, second = asyncio.run(play())
    assert isinstance(cancelled, TimeoutError)
    assert first.completion_ids
    assert second.completion_ids


def test_one_that_leaves_lets_the_waiting_continue(tiny_model):
    engine = engine_of(tiny_model)

    async def play():
        engine.join(0)
        engine.join(1)
        waiting = asyncio.create_task(engine.sample(request(order=1, prompt=" is", max_tokens=4)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        engine.leave(0)
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(play()).completion_ids


def test_the_reference_policy_answers_behind_the_same_barrier(tiny_model):
    """Half of the trajectories ask the policy, half its reference; each is answered by its own weights."""
    engine, other = engine_of(tiny_model), tiny_model(seed=1)[0]
    engine.reference_policy = lambda: nullcontext(other)
    reference = ReferencePolicy(engine, "modules")

    async def play(asked):
        for order in range(4):
            engine.join(order)
        calls = [who.sample(request(order=order, prompt=" is", max_tokens=4)) for order, who in enumerate(asked)]
        return await asyncio.wait_for(asyncio.gather(*calls), 10)

    mixed = asyncio.run(play([engine, reference, reference, engine]))
    of_policy, of_reference = (asyncio.run(play([who] * 4)) for who in (engine, reference))
    ids = [call.completion_ids for call in mixed]
    expected = [call.completion_ids for call in (of_policy[0], *of_reference[1:3], of_policy[3])]
    assert ids == expected != [call.completion_ids for call in of_policy]
    assert {call.engine for call in of_reference} == {"modules"}


def test_a_bug_while_sampling_reaches_the_caller_who_came_last_and_strands_nobody(tiny_model, monkeypatch):
    def broken(model, prompts, **settings):
        raise AttributeError("a bug")

    monkeypatch.setattr(transformers_local, "generate", broken)
    engine = engine_of(tiny_model)

    async def play():
        for order in range(3):
            engine.join(order)
        asked = [engine.sample(request(order=order, prompt=" is", max_tokens=4)) for order in range(3)]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    outcomes = asyncio.run(play())
    assert [type(one) for one in outcomes] == [EngineError, EngineError, AttributeError]


def test_two_requests_of_one_trajectory_at_once_are_refused_not_lost(tiny_model):
    engine = engine_of(tiny_model)

    async def play():
        engine.join(0)
        engine.join(1)
        first = asyncio.create_task(engine.sample(request(order=0, prompt=" is", max_tokens=4)))
        await asyncio.sleep(0)
        with raises("engine-busy"):
            await engine.sample(request(order=0, prompt=" is", max_tokens=4))
        engine.leave(1)
        return await asyncio.wait_for(first, 10)

    assert asyncio.run(play()).completion_ids


def test_a_model_that_fails_fails_every_waiting_trajectory_and_holds_up_none(tiny_model, monkeypatch):
    def broken(model, prompts, **settings):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(transformers_local, "generate", broken)
    engine = engine_of(tiny_model)

    async def one(order):
        try:
            return await engine.sample(request(order=order, prompt=" is", max_tokens=4))
        finally:
            engine.leave(order)

    async def play():
        for order in range(3):
            engine.join(order)
        return await asyncio.wait_for(asyncio.gather(*map(one, range(3)), return_exceptions=True), 10)

    outcomes = asyncio.run(play())
    assert [type(outcome) for outcome in outcomes] == [EngineError] * 3
    assert "out of memory" in str(outcomes[0])


# -- any Hugging Face model ------------------------------------------------------------------------------------------

CHAT = (Message(role="system", content="w1 w2"), Message(role="user", content="w3"))


def chat(engine, messages=CHAT, **sampling):
    return asyncio.run(engine.sample(Request(role="planner", messages=messages, sampling=Sampling(**sampling))))


@pytest.mark.matrix(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_causal_model_samples_with_its_own_logprobs(saved_model, family):
    model, _ = load_model(saved_model(family), "float32", "cpu")
    requests = mixed_requests(0.8)
    together = generate(model, requests, end_ids=(EOS,))
    assert max(len(ids) for ids, _ in together) > 8  # longer than a sliding window
    for one, (ids, logprobs) in zip(requests, together, strict=True):
        assert logprobs == pytest.approx(forward_logprobs(model, one[0], ids, 0.8), abs=1e-5)
        [(alone, alone_logprobs)] = generate(model, [one], end_ids=(EOS,))
        assert alone == ids
        assert alone_logprobs == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_goes_through_the_models_own_template(saved_model, family):
    model, tokenizer = load_model(saved_model(family), "float32", "cpu")
    call = chat(TransformersLocal(model, tokenizer), max_tokens=8)
    spoken = ["<|system|>", *"w1", "Ġ", *"w2", "<eos>", "<|user|>", *"w3", "<eos>", "<|assistant|>"]
    assert list(call.prompt_ids) == tokenizer.convert_tokens_to_ids(spoken)
    assert call.messages == CHAT
    assert call.logprobs == pytest.approx(forward_logprobs(model, call.prompt_ids, call.completion_ids), abs=1e-5)


def test_the_template_is_given_its_settings(saved_model):
    model, tokenizer = load_model(saved_model("qwen3"), "float32", "cpu")
    plain = chat(TransformersLocal(model, tokenizer), max_tokens=1)
    engine = TransformersLocal(model, tokenizer, chat_template_kwargs={"enable_thinking": False})
    without_thoughts = chat(engine, max_tokens=1)
    assert without_thoughts.prompt_ids == (*plain.prompt_ids, *tokenizer.convert_tokens_to_ids(["<think/>"]))


def test_a_template_that_refuses_the_messages_is_named(saved_model):
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    model, tokenizer = load_model(saved_model("gemma2", template=template + TEMPLATE), "float32", "cpu")
    engine = TransformersLocal(model, tokenizer, name="policy")
    with raises("chat-template", "policy", "system+user", "not supported"):
        chat(engine)
    assert chat(engine, CHAT[1:], max_tokens=2).completion_ids


def test_a_model_without_a_chat_template_is_refused(saved_model):
    model, tokenizer = load_model(saved_model("gpt2", template=None), "float32", "cpu")
    with raises("chat-template", "no chat template"):
        chat(TransformersLocal(model, tokenizer))


def test_a_model_without_a_limit_of_positions_is_given_none(saved_model):
    model, tokenizer = load_model(saved_model("llama"), "float32", "cpu")
    del model.config.max_position_embeddings
    call = asyncio.run(TransformersLocal(model, tokenizer).sample(request(prompt="w" * 70, max_tokens=2)))
    assert len(call.prompt_ids) == 70


# -- a stream that continues -------------------------------------------------------------------------------------------


def test_a_stream_continues_the_ids_that_were_sampled(saved_model):
    """A reply ends at a mark, output is put in, and the next reply's log-probabilities are those of all of it."""
    engine = TransformersLocal(*load_model(saved_model("qwen2"), "float32", "cpu"))
    first = chat(engine, CHAT[1:], max_tokens=30)
    stop = first.completion[3:5]
    sampling = Sampling(max_tokens=20, stop=(stop,))
    asked = Request(role="policy", messages=CHAT[1:], sampling=sampling, keep_stop=True)
    stopped = asyncio.run(engine.sample(asked))
    assert (stopped.completion, stopped.finish_reason) == (first.completion[: first.completion.find(stop) + 2], "stop")
    ids = (*stopped.prompt_ids, *stopped.completion_ids, *engine.codec.encode_text("<eos>=5"))
    after = asyncio.run(engine.sample(dataclasses.replace(asked, prompt_ids=ids, seed=1)))
    assert after.prompt_ids == ids
    assert EOS not in ids[len(stopped.prompt_ids) :]
    assert after.messages == CHAT[1:]
    assert after.logprobs == pytest.approx(forward_logprobs(engine.model, ids, after.completion_ids), abs=1e-5)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, check=coded("missing-extra", package, fix="midstream[train]")):
        require_torch()
