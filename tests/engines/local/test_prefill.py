"""Prefill by trie: the logits, caches and samples of padded prompts, for the work of what is new."""

from __future__ import annotations

import copy
import random
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.engine import Request
from midstream.core.trajectory import Sampling
from midstream.engines.local import prefill
from midstream.engines.local.engine import generate
from midstream.engines.local.prefill import Prefill, choice_of, prefill_padded
from midstream.prefix_tree import cost
from midstream.prefix_tree.support import Choice
from midstream.training.learner import LocalLearner
from midstream.training.settings import LearnerConfig, LoraConfig
from support.hf_models import FAMILIES

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
PROMPTS = [  # equal ones, one that another continues from, one that shares nothing
    (5, 6, 7, 8, 9), (5, 6, 7, 8, 9), (5, 6, 7), (5, 6, 7, 8, 10, 11, 12, 13), (20, 21), (5, 6, 30, 31, 32, 33),
]  # fmt: skip


@pytest.fixture
def trie_always(monkeypatch):
    """Also for the tests' small models: what a call takes is not counted."""
    monkeypatch.setattr("midstream.prefix_tree.cost.SMALLEST", 0)
    monkeypatch.setattr(cost, "CALL", 0)


def model_of(family="qwen2", dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return FAMILIES[family]().to(dtype).eval()


def asked_of(prompts, turn=0, **sampling):
    given = Sampling(**{"max_tokens": 6, **sampling})
    return [
        (tuple(one), Request(role="planner", seed=100 * i + turn, order=i, sampling=given))
        for i, one in enumerate(prompts)
    ]


def grown(prompts, rng):
    """The next turn's: each continues from its own last one, somewhere."""
    return [
        (
            *one[: rng.randrange(len(one) // 2, len(one) + 1)],
            *(rng.randrange(2, 60) for _ in range(rng.randrange(1, 5))),
        )
        for one in prompts
    ]


@torch.inference_mode()
def compared(model, way, asked):
    """The trie's prefill after it was compared with the padded one."""
    ours, theirs = way(model, asked), prefill_padded(model, asked)
    close = {"rtol": 0, "atol": EXACT[model.dtype]}
    torch.testing.assert_close(ours.logits, theirs.logits, **close)
    assert torch.equal(ours.mask, theirs.mask)
    assert torch.equal(ours.lengths, theirs.lengths)
    seen = ours.mask[:, None, :, None].bool()
    for own, other in zip(ours.cache.layers, theirs.cache.layers, strict=True):
        torch.testing.assert_close(own.keys * seen, other.keys * seen, **close)
        torch.testing.assert_close(own.values * seen, other.values * seen, **close)
    return ours


@pytest.mark.matrix(2)
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_logits_and_caches_are_those_of_padded_prompts(trie_always, family, dtype):
    model, way, rng, prompts = model_of(family, dtype), Prefill(), random.Random(1), PROMPTS
    for turn in range(4):
        compared(model, way, asked_of(prompts, turn))
        assert way.prefixes.size > 0
        prompts = grown(prompts, rng)


turns = st.lists(
    st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=12), min_size=4, max_size=4), min_size=1, max_size=4
)


@pytest.fixture(scope="module")
def double_model():
    return model_of("qwen2", torch.float64)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(turns)
def test_what_is_sampled_over_turns_does_not_depend_on_the_way(double_model, turns):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("midstream.prefix_tree.cost.SMALLEST", 0)
        patch.setattr(cost, "CALL", 0)
        way = Prefill()
        by_trie = [generate(double_model, asked_of(one, i), end_ids=(1,), prefill=way) for i, one in enumerate(turns)]
    plain = [generate(double_model, asked_of(one, i), end_ids=(1,)) for i, one in enumerate(turns)]
    assert [[ids for ids, _ in turn] for turn in by_trie] == [[ids for ids, _ in turn] for turn in plain]
    for ours, theirs in zip(chain(*by_trie), chain(*plain), strict=True):
        assert ours[1] == pytest.approx(theirs[1], abs=1e-6)


def test_each_distinct_prefix_is_computed_once(trie_always):
    model, way, rng = model_of(), Prefill(), random.Random(2)
    prompts, known = PROMPTS, set()
    for turn in range(4):
        prefixes = {tuple(one[: i + 1]) for one in prompts for i in range(len(one))}
        assert compared(model, way, asked_of(prompts, turn)).computed == len((prefixes - known) | set(prompts))
        known = prefixes
        prompts = grown(prompts, rng)


def test_a_prompt_asked_again_costs_one_token(trie_always):
    model, way = model_of(), Prefill()
    assert [compared(model, way, asked_of([PROMPTS[3]], turn)).computed for turn in range(2)] == [8, 1]


@pytest.mark.parametrize("change", ["step", "load", "other"])
def test_changed_weights_compute_everything_again(trie_always, change):
    model, way = model_of(), Prefill()
    other = model_of(seed=1)
    whole = compared(model, way, asked_of(PROMPTS)).computed
    if change == "step":
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.tensor([PROMPTS[0]])).logits[0, :, 0].sum().backward()
        optimizer.step()
    elif change == "load":
        model.load_state_dict(other.state_dict())
    again = compared(other if change == "other" else model, way, asked_of(PROMPTS, 1))
    assert again.computed == whole


def test_an_adapter_that_is_put_on_and_trained_is_seen(trie_always):
    model, way = model_of(), Prefill()
    bare = compared(model, way, asked_of(PROMPTS))
    adapted = LocalLearner(model, LearnerConfig(lora=LoraConfig(rank=2))).model
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name:
                one += 0.5
    trained = compared(model, way, asked_of(PROMPTS, 1))
    assert trained.computed == bare.computed
    assert (trained.logits - bare.logits).abs().max() > 0.1
    through_peft = compared(adapted, way, asked_of(PROMPTS, 2))  # as an engine holds one that is trained further
    torch.testing.assert_close(through_peft.logits, trained.logits)


def test_the_model_attends_afterwards_as_before(trie_always):
    model = model_of()
    before = model.config._attn_implementation
    with torch.inference_mode():
        assert Prefill()(model, asked_of(PROMPTS)).computed < prefill_padded(model, asked_of(PROMPTS)).computed
    assert model.config._attn_implementation == before


# -- which way ---------------------------------------------------------------------------------------------------------


def computed(model, prompts, way=None):
    with torch.inference_mode():
        return (way or Prefill())(model, asked_of(prompts)).computed


def wide_model():
    torch.manual_seed(0)
    config = copy.deepcopy(FAMILIES["qwen2"]().config)
    config.hidden_size, config.intermediate_size, config.max_position_embeddings = 256, 1024, 1024
    return type(FAMILIES["qwen2"]())(config).eval()


def test_a_long_shared_prefix_is_worth_a_trie_and_short_prompts_are_not():
    model = wide_model()
    shared = tuple(range(2, 60)) * 4
    assert computed(model, [(*shared, i) for i in range(2, 18)]) == len(shared) + 16
    assert computed(model, [(5, i) for i in range(2, 18)]) == 32


def test_prompts_that_share_nothing_are_kept_for_the_turn_after():
    """Padded they cost as much, but then the next turn computes them again."""
    model, way, rng = wide_model(), Prefill(), random.Random(4)
    prompts = [tuple(rng.choices(range(2, 60), k=100)) for _ in range(4)]
    assert computed(model, prompts, way) == 400
    assert computed(model, [(*one, 5, 6) for one in prompts], way) == 8


def test_a_small_model_continues_as_it_always_did(monkeypatch):
    monkeypatch.setattr(prefill, "choose", lambda model: pytest.fail("it was tried"))
    shared = tuple(range(2, 50))
    assert computed(model_of(), [(*shared, i) for i in range(2, 10)]) == 8 * 49


def test_a_model_that_cannot_attend_over_a_trie_is_padded_and_tried_once(trie_always, monkeypatch):
    tried = []
    monkeypatch.setattr(prefill, "choose", lambda model: tried.append(model) or Choice(None, "keeps a state"))
    model, way = model_of(), Prefill()
    assert [computed(model, PROMPTS, way) for _ in range(2)] == [5 * 8] * 2
    assert tried == [model]


def test_prompts_longer_than_a_window_are_padded(trie_always):
    model = model_of("mistral")  # eight tokens
    assert computed(model, [(5, 6, 7, i) for i in range(8, 12)]) == 7
    assert computed(model, [(*range(2, 10), i) for i in range(10, 14)]) == 4 * 9


@pytest.mark.parametrize("failure", ["other keys", "fewer layers"])
def test_a_model_that_fills_its_cache_in_its_own_way_is_padded(trie_always, monkeypatch, failure):
    def strange(model, asked):
        found = prefill_padded(model, asked)
        if failure == "fewer layers":
            raise IndexError("list index out of range")
        for layer in found.cache.layers:
            layer.keys = -layer.keys
        return found

    model = model_of()
    assert choice_of(model).backend is not None
    monkeypatch.setattr(prefill, "prefill_padded", strange)
    refused = choice_of(model)
    assert refused.backend is None
    assert "fills its cache in its own way" in refused.reason
