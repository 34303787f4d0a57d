"""The update equals the loss of each sample's own forward pass, however it is packed, recomputed or trained."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from support.exact import LOSS, VOCABULARY, Expected, expected, learner_of, model_of, near_policy, ragged_rows
from support.tries import prefixes

# peft asks transformers by a name that is being retired.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
LORA = LoraConfig(rank=4, alpha=8)
BACKENDS = ["rows", "dense", "gather", "cascade"]  # those with a backward pass on a CPU
PACKINGS = [1, 70, 6000]  # each trunk alone; a task or so; all at once


@cache
def truth(family: str, lora: LoraConfig | None = None, double_norm: bool = True) -> Expected:
    """Of the ragged batch."""
    learner = learner_of(model_of(family, double_norm=double_norm), LearnerConfig(lora=lora))
    return expected(learner, near_policy(ragged_rows(), learner.model))


def require_exact(learner, truth, logprob=1e-12, gradient=1e-10):
    """Log-probabilities, loss, its parts and its gradient, within absolute tolerances."""
    for reference, wanted in ((False, truth.logprobs), (True, truth.reference)):
        got = learner.logprobs(truth.rows, reference=reference)
        assert [len(one) for one in got] == [len(one) for one in wanted]
        for one, other in zip(got, wanted, strict=True):
            assert one == pytest.approx(other, abs=logprob, rel=0)
    stats = learner.forward_backward(truth.rows, LOSS)
    assert stats.loss == pytest.approx(truth.loss, abs=gradient)
    assert stats.kl_sum == pytest.approx(truth.kl_sum, abs=gradient)
    assert stats.gap_sum == pytest.approx(truth.gap_sum, abs=gradient)
    assert (stats.clipped, stats.tokens) == (truth.clipped, truth.tokens)
    require_gradient(learner, truth.gradient, gradient)


def require_gradient(learner, wanted, tolerance):
    got = {name: one.grad for name, one in learner.model.named_parameters() if one.grad is not None}
    assert got.keys() == wanted.keys()
    assert max(one.abs().max().item() for one in wanted.values()) > 0.1
    for name, one in wanted.items():
        torch.testing.assert_close(
            got[name], one, atol=tolerance, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


# (back end, LoRA, recomputing, packing): each at least once; the slow tests take every combination.
QUICK = {
    ("rows", None, False, 1),
    ("rows", LORA, True, 6000),
    ("dense", LORA, True, 1),
    ("gather", None, False, 70),
    ("cascade", LORA, False, 70),
    ("cascade", None, True, 1),
}
WAYS = [
    pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow)
    for way in product(BACKENDS, (None, LORA), (False, True), PACKINGS)
]


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("attention", "lora", "recompute", "chunk_tokens"), WAYS)
def test_every_way_to_compute_it_is_exact(attention, lora, recompute, chunk_tokens):
    config = LearnerConfig(attention=attention, lora=lora, recompute_activations=recompute, chunk_tokens=chunk_tokens)
    require_exact(learner_of(model_of("qwen2"), config), truth("qwen2", lora))


@pytest.mark.parametrize("attention", ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS)])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_every_family_is_exact(family, attention):
    config = LearnerConfig(attention=attention, chunk_tokens=70)
    require_exact(learner_of(model_of(family), config), truth(family))


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_own_norm_costs_its_single_precision(family, attention):
    """Its upcast to float32 rounds what the packing adds up in another order."""
    learner = learner_of(model_of(family, double_norm=False), LearnerConfig(attention=attention, chunk_tokens=70))
    require_exact(learner, truth(family, double_norm=False), 1e-6, 1e-6)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", ["auto", "cascade"])
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.filterwarnings("ignore:.*sliding:UserWarning")
def test_a_sliding_window_is_followed(family, attention):
    learner = learner_of(model_of(family, double_norm=False), LearnerConfig(attention=attention))
    require_exact(learner, truth(family, double_norm=False), 1e-6, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", PACKINGS)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_gives_the_same_logprobs(chunk_tokens):
    """Its backward pass needs CUDA."""
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention="flex", chunk_tokens=chunk_tokens))
    learner.attention = learner.attention._replace(backend="flex")  # without a GPU it is not chosen
    for one, other in zip(learner.logprobs(truth("qwen2").rows), truth("qwen2").logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-12, rel=0)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
def test_gradients_of_parts_of_a_batch_add_up(attention):
    learner, wanted = learner_of(model_of("qwen2"), LearnerConfig(attention=attention)), truth("qwen2")
    for part in (wanted.rows[::3], wanted.rows[1::3], wanted.rows[2::3]):
        learner.forward_backward(part, LOSS)
    require_gradient(learner, wanted.gradient, 1e-10)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
def test_the_model_is_left_as_it_was(attention):
    """An engine samples from it between updates."""
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention=attention, recompute_activations=True))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    before = [learner.model(input_ids=ids).logits, learner.model.config._attn_implementation, learner.model.training]
    learner.logprobs(truth("qwen2").rows)
    learner.forward_backward(truth("qwen2").rows, LOSS)
    after = [learner.model(input_ids=ids).logits, learner.model.config._attn_implementation, learner.model.training]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.matrix(1)
@pytest.mark.parametrize("chunk_tokens", PACKINGS)
@pytest.mark.parametrize("attention", BACKENDS)
def test_a_head_that_is_trained_alone_is_exact(attention, chunk_tokens, monkeypatch):
    """Nothing below it has a gradient, nor have the keys and values that trunks keep."""
    monkeypatch.setattr("midstream.training.passes.LOGITS", 3 * VOCABULARY)
    model = model_of("qwen2").requires_grad_(False)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    learner = learner_of(model, LearnerConfig(attention=attention, chunk_tokens=chunk_tokens))
    wanted = expected(learner, near_policy(ragged_rows(), model))
    learner.forward_backward(wanted.rows, LOSS)
    require_gradient(learner, wanted.gradient, 1e-10)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
def test_layers_in_training_stay_in_training(attention):
    model = model_of("qwen2").train()
    learner = learner_of(model, LearnerConfig(attention=attention, recompute_activations=True))
    learner.forward_backward(truth("qwen2").rows, LOSS)
    assert all(one.training for one in model.modules())


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
def test_tokens_are_counted(attention):
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention=attention, chunk_tokens=70))
    rows = truth("qwen2").rows
    stats = learner.forward_backward(rows, LOSS)
    sequences = [row.prompt_ids + row.completion_ids for row in rows]
    assert stats.total_tokens == sum(map(len, sequences))
    assert stats.unique_tokens == len(prefixes(sequences))


@pytest.mark.slow
@pytest.mark.parametrize("attention", BACKENDS[1:])
def test_bfloat16_is_as_far_from_the_truth_as_plain_rows(attention):
    """Half-precision results differ with the order of summing, but no more by the trie than by padded rows.

    The clip is set too wide to matter: which side of it a token is on turns on its last digit.
    """
    loss = LOSS.model_copy(update={"clip_low": 0.99, "clip_high": 50.0, "dual_clip": None})
    double = learner_of(model_of("qwen2", double_norm=False), LearnerConfig())
    exact = expected(double, truth("qwen2").rows, loss)

    def distances(attention):
        half = model_of("qwen2", dtype=torch.bfloat16, double_norm=False)
        learner = learner_of(half, LearnerConfig(attention=attention, chunk_tokens=70))
        learner.model.load_state_dict(double.model.state_dict())
        learner.reference.load_state_dict(double.reference.state_dict())
        learner.forward_backward(exact.rows, loss)
        gradient = torch.cat([one.grad.flatten().double() for one in learner.parameters])
        wanted = torch.cat([one.flatten() for one in exact.gradient.values()])
        logprobs, true = (torch.tensor(sum(one, ())) for one in (learner.logprobs(exact.rows), exact.logprobs))
        return (logprobs - true).norm() / true.norm(), (gradient - wanted).norm() / wanted.norm()

    for mine, plain in zip(distances(attention), distances("rows"), strict=True):
        assert mine < 1.3 * plain < 0.1


@pytest.mark.matrix(3)
@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("count", [0, 1, 2], ids=["empty", "one", "two"])
def test_a_batch_without_a_sampled_token_changes_nothing(attention, count):
    rows = [
        Row(
            prompt_ids=(5, 6), completion_ids=(7, 8 + i), sampled=(False, False), old_logprobs=(0.0, 0.0),
            advantage=1.0, weight=1.0, kl_weight=1.0,
        )
        for i in range(count)
    ]  # fmt: skip
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention=attention))
    assert learner.logprobs(rows) == [(0.0, 0.0)] * count
    stats = learner.forward_backward(rows, LOSS)
    assert (stats.loss, stats.tokens) == (0.0, 0)
    assert not any(one.grad is not None and one.grad.any() for one in learner.parameters)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
def test_a_row_of_one_token_has_nothing_to_predict(attention):
    alone = Row(prompt_ids=(7,), completion_ids=(), old_logprobs=(), advantage=1.0, weight=1.0, kl_weight=1.0)
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention=attention, chunk_tokens=1))
    rows = [alone, truth("qwen2").rows[0]]
    assert learner.logprobs(rows)[0] == ()
    assert learner.forward_backward(rows, LOSS).tokens == len(rows[1].completion_ids)


# -- any rows ----------------------------------------------------------------------------------------------------------


@st.composite
def any_rows(draw):
    """Rows of few distinct tokens, cut into prompt and completion anywhere, partly masked, at two temperatures."""
    rows = []
    for _ in range(draw(st.integers(1, 7))):
        ids = draw(st.lists(st.integers(2, 4), min_size=2, max_size=9))
        cut = draw(st.integers(1, len(ids) - 1))
        size = len(ids) - cut
        sampled = draw(st.just(()) | st.lists(st.booleans(), min_size=size, max_size=size).filter(any).map(tuple))
        rows.append(
            Row(
                prompt_ids=tuple(ids[:cut]), completion_ids=tuple(ids[cut:]), sampled=sampled,
                old_logprobs=(0.0,) * size, advantage=draw(st.sampled_from([-1.0, 0.5, 2.0])),
                weight=draw(st.sampled_from([0.0, 0.3, 1.0])), kl_weight=draw(st.sampled_from([0.0, 1.0])),
                temperature=draw(st.sampled_from([1.0, 0.6])),
            )
        )  # fmt: skip
    return rows


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", BACKENDS)
@given(any_rows(), st.sampled_from(PACKINGS))
@settings(max_examples=5)
def test_any_rows_are_exact(attention, rows, chunk_tokens):
    learner = learner_of(model_of("llama"), LearnerConfig(attention=attention, chunk_tokens=chunk_tokens))
    exact = expected(learner, near_policy(rows, learner.model))
    for one, other in zip(learner.logprobs(exact.rows), exact.logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-12, rel=0)
    learner.forward_backward(exact.rows, LOSS)
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.grad, exact.gradient[name], atol=1e-10, rtol=0)
