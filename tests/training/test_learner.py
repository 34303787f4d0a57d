"""The learner: its gradient, what it changes and what it must not, and how it continues after a kill."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    LlamaConfig,
)

from midstream.core.errors import UnsupportedError
from midstream.training import learner as learner_module
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss, clipped_policy_loss, kl_estimate, token_ratio
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_worlds.tiny_model import attach_redraw
from support.errors import raises

# peft asks transformers by a name that is being retired.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
LORA = LoraConfig(rank=4, alpha=8)


@pytest.fixture
def llama():
    """`llama(seed)` is a random Llama of 64 tokens, large enough in its logits to distinguish wrong ones."""

    def make(seed=0, layers=2):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=48, max_position_embeddings=64, initializer_range=0.2, eos_token_id=1, bos_token_id=None,
        )  # fmt: skip
        return AutoModelForCausalLM.from_config(config).eval()

    return make


def make_rows(count=6, seed=0):
    """Rows of mixed lengths, temperatures, advantages and weights; the last two hold the same sequence."""
    draw = torch.Generator().manual_seed(seed)

    def ids(size):
        return tuple(torch.randint(2, 64, (size,), generator=draw).tolist())

    rows = []
    for i in range(count):
        completion = ids(1 + 3 * i % 7)
        rows.append(
            Row(
                prompt_ids=ids(2 + 5 * i % 11),
                completion_ids=completion,
                old_logprobs=tuple((-3 - torch.rand(len(completion), generator=draw)).tolist()),
                advantage=(-1.0) ** i * (0.5 + i),
                weight=0.1 * (1 + i),
                kl_weight=0.2 * (1 + i),
                temperature=(1.0, 0.7)[i % 2],
                trajectory_id=str(i),
            )
        )
    twin = rows[-1]
    return [
        *rows,
        Row(
            prompt_ids=twin.prompt_ids, completion_ids=twin.completion_ids, temperature=twin.temperature,
            old_logprobs=tuple(value + 0.3 for value in twin.old_logprobs), advantage=-2.0, weight=0.4, kl_weight=0.0,
        ),
    ]  # fmt: skip


def plain_logprobs(model, row):
    """By one forward pass over the row's own sequence alone, with the gradient."""
    logits = model(torch.tensor([row.prompt_ids + row.completion_ids])).logits[0, len(row.prompt_ids) - 1 : -1]
    logprobs = (logits / row.temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def gradients(learner):
    return [parameter.grad.clone() for parameter in learner.parameters if parameter.grad is not None]


def on_policy(learner, rows):
    """The rows as if the learner's present policy had sampled them."""
    return [
        Row(
            prompt_ids=row.prompt_ids, completion_ids=row.completion_ids, old_logprobs=logprobs,
            advantage=row.advantage, weight=row.weight, kl_weight=row.kl_weight, temperature=row.temperature,
        )
        for row, logprobs in zip(rows, learner.logprobs(rows), strict=True)
    ]  # fmt: skip


# -- log-probabilities and gradient ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_tokens", [1, 40, 6000])
def test_logprobs_equal_each_rows_own_forward_at_its_temperature(llama, chunk_tokens):
    model, rows = llama(), make_rows()
    learner = LocalLearner(model, LearnerConfig(chunk_tokens=chunk_tokens))
    for row, logprobs in zip(rows, learner.logprobs(rows), strict=True):
        assert logprobs == pytest.approx(plain_logprobs(model, row).tolist(), abs=1e-5)


def test_temperature_counts(llama):
    row = make_rows()[0]
    hot, warm = LocalLearner(llama(), LearnerConfig()).logprobs(
        [replace(row, temperature=2.0), replace(row, temperature=1.0)]
    )
    assert hot != pytest.approx(warm, abs=1e-2)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("chunk_tokens", [1, 30, 6000])
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
def test_gradient_equals_the_loss_written_out_row_by_row(llama, chunk_tokens, kl_coefficient):
    loss = PolicyLoss(clip_low=0.2, clip_high=0.3, kl_coefficient=kl_coefficient)
    model, reference, rows = llama(0), llama(1), make_rows()
    learner = LocalLearner(copy.deepcopy(model), LearnerConfig(chunk_tokens=chunk_tokens))
    learner.reference = copy.deepcopy(reference).requires_grad_(False)
    total = torch.zeros(())
    kl_sum = 0.0
    for row in rows:
        logprobs, old = plain_logprobs(model, row), torch.tensor(row.old_logprobs)
        policy = clipped_policy_loss(
            token_ratio(logprobs, old), torch.tensor(row.advantage), clip_low=0.2, clip_high=0.3
        )
        kl = kl_estimate(logprobs, plain_logprobs(reference, row).detach())
        total = total + (row.weight * policy + kl_coefficient * row.kl_weight * kl).sum()
        kl_sum += kl.sum().item()
    total.backward()

    stats = learner.forward_backward(rows, loss)
    assert stats.loss == pytest.approx(total.item(), rel=1e-5)
    assert stats.tokens == sum(len(row.completion_ids) for row in rows)
    assert stats.kl_sum == pytest.approx(kl_sum if kl_coefficient else 0.0, rel=1e-5)
    gaps = [
        abs(new - old)
        for row in rows
        for new, old in zip(plain_logprobs(learner.model, row).tolist(), row.old_logprobs, strict=True)
    ]
    assert stats.gap_sum == pytest.approx(sum(gaps), rel=1e-4)
    largest = max(grad.abs().max().item() for grad in gradients(learner))
    assert largest > 0.1
    for mine, plain in zip(learner.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_recomputed_activations_keep_less_and_change_nothing(llama, lora):
    """The same loss and gradient, from less memory; what is in training afterwards is what was before."""
    kept, grads = [], []
    for recompute in (False, True):
        learner = LocalLearner(llama(layers=6), LearnerConfig(lora=lora, recompute_activations=recompute))
        in_training = [module.training for module in learner.model.modules()]
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            learner.forward_backward(make_rows(), PolicyLoss())
        learner.supervised_step(make_rows(), 0.0)
        learner.forward_backward(make_rows(), PolicyLoss())
        kept.append(sum(sizes))
        grads.append(gradients(learner))
        assert in_training == [module.training for module in learner.model.modules()]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert any(grad.any() for grad in grads[0])
    assert kept[1] < kept[0]


def test_gradients_of_successive_calls_add_up_until_the_step(llama):
    rows = make_rows()
    whole, parts = (LocalLearner(llama(), LearnerConfig()) for _ in range(2))
    whole.forward_backward(rows, PolicyLoss())
    parts.forward_backward(rows[:2], PolicyLoss())
    parts.forward_backward(rows[2:], PolicyLoss())
    for one, other in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    whole.optimizer_step(1e-3)
    assert all(not parameter.grad.any() for parameter in whole.parameters if parameter.grad is not None)


def test_the_head_sees_predicted_positions_only_and_equal_sequences_once(llama):
    """Prompt tokens and padding have no logits at all, so nothing of theirs can have a gradient."""
    model, rows = llama(), make_rows()
    learner = LocalLearner(model, LearnerConfig())
    seen = []
    model.lm_head.register_forward_hook(lambda head, inputs, output: seen.append(len(inputs[0])))
    learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.0))
    assert seen == [sum(len(row.completion_ids) for row in rows[:-1])]


def test_rows_without_advantage_and_kl_have_no_gradient(llama):
    learner = LocalLearner(llama(), LearnerConfig())
    row = make_rows()[3]
    silent = Row(
        prompt_ids=row.prompt_ids, completion_ids=row.completion_ids, old_logprobs=row.old_logprobs,
        advantage=0.0, weight=1.0, kl_weight=0.0,
    )  # fmt: skip
    learner.forward_backward([silent], PolicyLoss(kl_coefficient=0.5))
    assert not any(grad.any() for grad in gradients(learner))


@pytest.mark.parametrize("chunk_tokens", [1, 6000])  # each row in a pass by itself; all in one
def test_leaving_out_rows_without_a_gradient_changes_no_other(precise, chunk_tokens):
    mixed = [replace(row, advantage=row.advantage * (i % 2)) for i, row in enumerate(make_rows())]
    found = []
    for rows in (mixed, [row for row in mixed if row.advantage]):
        learner = precise(chunk_tokens)
        stats = learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.0))
        found.append((stats.loss, gradients(learner)))
    (loss, whole), (left_loss, left) = found
    assert loss == pytest.approx(left_loss, abs=1e-14)
    for one, other in zip(whole, left, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0 if chunk_tokens == 1 else 1e-14)


def test_clipped_tokens_are_counted_and_have_no_gradient(llama):
    learner = LocalLearner(llama(), LearnerConfig())
    row = make_rows()[3]
    [now] = learner.logprobs([row])
    far = Row(
        prompt_ids=row.prompt_ids, completion_ids=row.completion_ids, temperature=row.temperature,
        old_logprobs=tuple(value - 2 for value in now), advantage=1.0, weight=1.0, kl_weight=1.0,
    )  # fmt: skip
    stats = learner.forward_backward([far], PolicyLoss(kl_coefficient=0.0))
    assert stats.clipped == stats.tokens == len(row.completion_ids)
    assert not any(grad.any() for grad in gradients(learner))


def test_a_step_raises_what_was_good_and_lowers_what_was_bad(llama):
    learner = LocalLearner(llama(), LearnerConfig())
    good, bad = make_rows()[2], make_rows()[3]
    rows = [
        Row(
            prompt_ids=row.prompt_ids, completion_ids=row.completion_ids, old_logprobs=logprobs, advantage=advantage,
            weight=1.0, kl_weight=0.0, temperature=row.temperature,
        )
        for row, logprobs, advantage in zip((good, bad), learner.logprobs([good, bad]), (1.0, -1.0), strict=True)
    ]  # fmt: skip
    before = [sum(values) for values in learner.logprobs(rows)]
    learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.0))
    norm = learner.optimizer_step(1e-3)
    after = [sum(values) for values in learner.logprobs(rows)]
    assert norm > 0
    assert after[0] > before[0]
    assert after[1] < before[1]


# -- what was not sampled ---------------------------------------------------------------------------------------------


@pytest.fixture
def precise():
    """`precise(chunk_tokens)` is a learner over a small model that computes in 64 bits throughout."""

    def make(chunk_tokens=6000):
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2, bos_token_id=None,
            eos_token_id=1, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config).double().eval()
        learner = LocalLearner(model, LearnerConfig(chunk_tokens=chunk_tokens, max_grad_norm=1e9))
        with torch.no_grad():
            for parameter in learner.reference.parameters():
                parameter.mul_(1.1)  # or there would be no KL
        return learner

    return make


def masked(rows, seed=1):
    """The rows with a part of each longer completion that the environment put in; 0 is recorded there."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for row in rows:
        sampled = tuple((torch.rand(len(row.completion_ids), generator=draw) < 0.6).tolist())
        if any(sampled):
            old = tuple(value if one else 0.0 for value, one in zip(row.old_logprobs, sampled, strict=True))
            row = replace(row, sampled=sampled, old_logprobs=old)
        made.append(row)
    assert sum(not all(row.sampled) for row in made) > 3
    return made


def accumulated(learner, rows, loss, *, one_by_one=False):
    """The stats of one `forward_backward`, or of one a row, and the gradient; it is cleared."""
    stats = [learner.forward_backward(part, loss) for part in ([[row] for row in rows] if one_by_one else [rows])]
    grads = gradients(learner)
    learner.optimizer.zero_grad()
    return stats, grads


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def of_one(stats):
    fields = ("loss", "kl_sum", "gap_sum", "clipped", "tokens")
    return {name: pytest.approx(sum(getattr(one, name) for one in stats), rel=1e-9) for name in fields}


OUTPUT = slice(3, 6)  # of the completion below, what a tool said


def with_output(**changes):
    """A row of 3 sampled tokens, 3 of tool output, 2 sampled; one token is said by both."""
    made = Row(
        prompt_ids=(5, 6, 7), completion_ids=(10, 11, 12, 20, 11, 22, 13, 14), old_logprobs=(-4.0,) * 8,
        sampled=(True,) * 3 + (False,) * 3 + (True,) * 2, advantage=1.0, weight=0.5, kl_weight=0.5,
    )  # fmt: skip
    return replace(made, **changes)


def hidden_gradient(learner, row, loss):
    """|gradient| that each position of the completion gives the hidden state that predicts it."""
    seen = []

    def keep(decoder, inputs, output):
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.retain_grad()
            seen.append(output.last_hidden_state)

    hook = learner.model.get_decoder().register_forward_hook(keep)
    learner.forward_backward([row], loss)
    hook.remove()
    [hidden] = seen
    return hidden.grad[0].abs().sum(-1)[len(row.prompt_ids) - 1 :]


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_tool_output_has_exactly_no_gradient_and_the_same_tokens_sampled_have(precise, beta):
    learner, loss = precise(), PolicyLoss(kl_coefficient=beta, clip_high=1e9)
    row = with_output()
    from_each = hidden_gradient(learner, row, loss)
    assert from_each[OUTPUT].tolist() == [0.0, 0.0, 0.0]
    assert (from_each[:3] > 0).all()
    assert (from_each[6:] > 0).all()
    assert (hidden_gradient(learner, replace(row, sampled=()), loss) > 0).all()


def test_what_a_tool_said_last_changes_nothing_at_all(precise):
    """Nothing is sampled behind it, so which token it is, or whether it is there, must not show in a single bit."""
    learner, loss = precise(), PolicyLoss(kl_coefficient=0.1)
    start = with_output(completion_ids=(10, 11, 12), sampled=(True,) * 3, old_logprobs=(-4.0,) * 3)

    def ending_in(token, sampled):
        mask = (*start.sampled, sampled)
        return replace(start, completion_ids=(10, 11, 12, token), sampled=mask, old_logprobs=(-4.0,) * 4)

    grads = [accumulated(learner, [ending_in(token, False)], loss)[1] for token in (20, 21)]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert_equal(grads[0], accumulated(learner, [start], loss)[1])
    sampled = [accumulated(learner, [ending_in(token, True)], loss)[1] for token in (20, 21)]
    assert not all(torch.equal(one, other) for one, other in zip(*sampled, strict=True))


@pytest.mark.matrix(1)
@pytest.mark.parametrize("chunk_tokens", [1, 30, 6000])
def test_a_batch_of_streams_is_its_rows_one_by_one(precise, chunk_tokens):
    """Padding, chunks and shared sequences change neither the gradient nor what is logged."""
    rows, loss = masked(make_rows()), PolicyLoss(kl_coefficient=0.3)
    alone, expected = accumulated(precise(), rows, loss, one_by_one=True)
    [together], grads = accumulated(precise(chunk_tokens), rows, loss)
    assert_equal(grads, expected)
    assert {name: getattr(together, name) for name in of_one(alone)} == of_one(alone)
    assert together.tokens == sum(sum(row.sampled) if row.sampled else len(row.completion_ids) for row in rows)
    assert max(grad.abs().max().item() for grad in grads) > 0.01 < together.kl_sum


def test_one_sequence_with_two_masks_is_two(precise):
    learner, loss = precise(), PolicyLoss()
    row = with_output()
    other = replace(row, sampled=(False,) * 6 + (True,) * 2, advantage=-2.0)
    rows = [row, other, replace(row, sampled=()), replace(row, advantage=0.5)]
    stats, expected = accumulated(learner, rows, loss, one_by_one=True)
    [together], grads = accumulated(learner, rows, loss)
    assert_equal(grads, expected)
    assert together.tokens == sum(one.tokens for one in stats) == 5 + 2 + 8 + 5


def test_a_stream_as_one_row_is_its_calls_as_rows(precise):
    """The same sampled tokens behind the same tokens: what is masked out costs and changes nothing."""
    learner, loss = precise(), PolicyLoss(kl_coefficient=0.2)
    row = with_output()
    prompt = row.prompt_ids + row.completion_ids[:6]
    calls = [
        replace(row, completion_ids=row.completion_ids[:3], sampled=(), old_logprobs=(-4.0,) * 3),
        replace(row, prompt_ids=prompt, completion_ids=row.completion_ids[6:], sampled=(), old_logprobs=(-4.0,) * 2),
    ]
    [whole], grads = accumulated(learner, [row], loss)
    [parts], expected = accumulated(learner, calls, loss)
    assert_equal(grads, expected)
    assert (whole.tokens, whole.loss) == (parts.tokens, pytest.approx(parts.loss, rel=1e-9))


def test_log_probabilities_stand_at_their_tokens_and_nothing_at_the_others(precise):
    learner = precise()
    row = with_output()
    [ours], [every] = learner.logprobs([row]), learner.logprobs([replace(row, sampled=())])
    assert ours[:3] + ours[6:] == pytest.approx(every[:3] + every[6:], abs=1e-12)
    assert ours[OUTPUT] == (0.0, 0.0, 0.0)
    assert all(value < 0 for value in every)


def test_the_head_sees_no_tool_output(precise):
    learner, seen = precise(), []
    learner.model.lm_head.register_forward_hook(lambda head, inputs, output: seen.append(len(inputs[0])))
    learner.forward_backward([with_output()], PolicyLoss(kl_coefficient=0.0))
    assert seen == [5]


# -- what changes ----------------------------------------------------------------------------------------------------


def test_only_the_planner_changes(llama):
    planner, verifier = llama(0), llama(0)
    learner = LocalLearner(planner, LearnerConfig())
    assert learner.reference is not None
    before, verifier_before, reference_before = weights(planner), weights(verifier), weights(learner.reference)
    rows = make_rows()
    reference_logprobs = learner.logprobs(rows, reference=True)
    learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.1))
    learner.optimizer_step(1e-2)
    assert changed(before, weights(planner)) == set(before)
    assert not changed(verifier_before, weights(verifier))
    assert not changed(reference_before, weights(learner.reference))
    assert learner.logprobs(rows, reference=True) == reference_logprobs != learner.logprobs(rows)


def test_lora_changes_its_adapter_alone(llama):
    model, rows = llama(), make_rows()
    original = copy.deepcopy(model)
    learner = LocalLearner(model, LearnerConfig(lora=LORA))
    before = weights(learner.model)
    for _ in range(2):  # the second factor starts at zero, so the first moves from the second step on
        learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.1))
        learner.optimizer_step(1e-2)
    moved = changed(before, weights(learner.model))
    assert moved == {name for name in before if "lora_" in name}
    assert {name.split(".")[-4] for name in moved} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    reference = LocalLearner(original, LearnerConfig()).logprobs(rows)
    assert learner.logprobs(rows, reference=True) == reference != learner.logprobs(rows)


def test_adapters_start_equal_and_leave_the_random_numbers_alone(llama):
    torch.manual_seed(5)
    one, expected = LocalLearner(llama(), LearnerConfig(lora=LORA)), torch.rand(3)
    torch.manual_seed(6)
    other = LocalLearner(llama(), LearnerConfig(lora=LORA))
    assert not changed(weights(one.model), weights(other.model))
    torch.manual_seed(0)
    llama()
    assert torch.equal(torch.rand(3), expected)


def test_an_in_process_engine_samples_from_the_adapted_model(llama):
    """peft puts its layers into the model object that the engine holds."""
    model, rows = llama(), make_rows()
    learner = LocalLearner(model, LearnerConfig(lora=LORA))
    for _ in range(2):
        learner.forward_backward(rows, PolicyLoss(kl_coefficient=0.0))
        learner.optimizer_step(1e-2)
    with torch.no_grad():
        assert plain_logprobs(model, rows[2]).tolist() == pytest.approx(learner.logprobs(rows)[2], abs=1e-5)


def test_the_exported_adapter_is_the_policy(llama, tmp_path):
    base, rows = llama(), make_rows()
    learner = LocalLearner(copy.deepcopy(base), LearnerConfig(lora=LORA))
    for _ in range(2):
        learner.forward_backward(rows, PolicyLoss())
        learner.optimizer_step(1e-2)
    learner.export_weights(tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        for row, logprobs in zip(rows, learner.logprobs(rows), strict=True):
            assert plain_logprobs(loaded, row).tolist() == pytest.approx(logprobs, abs=1e-5)


def test_exported_weights_are_the_policy(llama, tmp_path):
    learner, rows = LocalLearner(llama(), LearnerConfig()), make_rows()
    learner.forward_backward(rows, PolicyLoss())
    learner.optimizer_step(1e-2)
    learner.export_weights(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not changed(weights(learner.model), weights(loaded))


@pytest.mark.matrix(1)
@pytest.mark.parametrize("lora", [None, LORA])
def test_a_loaded_learner_continues_bit_for_bit(llama, tmp_path, lora):
    rows, loss = make_rows(), PolicyLoss(kl_coefficient=0.1)
    config = LearnerConfig(lora=lora, weight_decay=0.01)
    whole = LocalLearner(llama(), config)

    def step(learner):
        return learner.forward_backward(rows, loss), learner.optimizer_step(1e-2)

    step(whole)
    whole.save(tmp_path)
    expected = [step(whole), step(whole)]
    resumed = LocalLearner(llama(), config)
    step(resumed)  # whatever it did before does not count
    resumed.load(tmp_path)
    assert [step(resumed), step(resumed)] == expected
    assert not changed(weights(whole.model), weights(resumed.model))
    assert whole.logprobs(rows, reference=True) == resumed.logprobs(rows, reference=True)


def test_the_reference_policy_survives_saving(llama, tmp_path):
    rows = make_rows()
    learner = LocalLearner(llama(), LearnerConfig())
    learner.forward_backward(rows, PolicyLoss())
    learner.optimizer_step(1e-2)
    learner.rebase()
    learner.save(tmp_path)
    fresh = LocalLearner(llama(), LearnerConfig())
    fresh.load(tmp_path)
    assert fresh.logprobs(rows, reference=True) == learner.logprobs(rows)


def test_rebase_makes_the_present_policy_the_reference_and_forgets_the_optimizer(llama):
    rows = make_rows()
    learner = LocalLearner(llama(), LearnerConfig())
    learner.forward_backward(rows, PolicyLoss())
    learner.optimizer_step(1e-2)
    assert learner.logprobs(rows, reference=True) != learner.logprobs(rows)
    learner.rebase()
    assert learner.logprobs(rows, reference=True) == learner.logprobs(rows)
    assert not learner.optimizer.state


@pytest.mark.parametrize(
    ("other", "lora"), [({"layers": 1}, None), ({"layers": 3}, None), ({"layers": 2}, LORA)], ids=str
)
def test_a_checkpoint_of_another_model_is_refused(llama, tmp_path, other, lora):
    LocalLearner(llama(**other), LearnerConfig(lora=lora)).save(tmp_path)
    with raises("checkpoint-unfit"):
        LocalLearner(llama(), LearnerConfig()).load(tmp_path)


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_before_anything_is_stepped(llama):
    learner = LocalLearner(llama(), LearnerConfig())
    before = weights(learner.model)
    row = make_rows()[3]
    broken = Row(
        prompt_ids=row.prompt_ids, completion_ids=row.completion_ids, advantage=1.0, weight=float("nan"), kl_weight=0.0,
        old_logprobs=row.old_logprobs,
    )  # fmt: skip
    with raises("not-finite", "loss is nan"):
        learner.forward_backward([broken], PolicyLoss())
    assert not gradients(learner)
    assert not changed(before, weights(learner.model))


def test_a_gradient_that_is_not_finite_stops_before_the_step(llama):
    learner = LocalLearner(llama(), LearnerConfig())
    before = weights(learner.model)
    learner.forward_backward(make_rows(), PolicyLoss())
    learner.parameters[0].grad = torch.full_like(learner.parameters[0], float("inf"))
    with raises("not-finite", "gradient norm"):
        learner.optimizer_step(1e-2)
    assert not changed(before, weights(learner.model))
    assert not learner.optimizer.state


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(head_dim=8, final_logit_softcapping=30.0),
        CohereConfig(),
        GraniteConfig(logits_scaling=2.0),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_change_their_logits_are_refused(config):
    for name, value in {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
    }.items():  # fmt: skip
        setattr(config, name, value)
    config.layer_types = config.layer_types[:1] if getattr(config, "layer_types", None) else None
    model = AutoModelForCausalLM.from_config(config).eval()
    with raises("unsupported-model"):
        LocalLearner(model, LearnerConfig())


def test_a_tiny_planner_with_lora_is_refused(tiny_model):
    model, _ = tiny_model()
    attach_redraw(model)
    with pytest.raises(UnsupportedError) as caught:
        LocalLearner(model, LearnerConfig(lora=LORA))
    assert caught.value.code == "lora-unsupported"


@pytest.mark.parametrize("chunk_tokens", [1, 30, 6000])
def test_supervised_step_weighs_prompts_and_completions(llama, chunk_tokens, monkeypatch):
    """Against the cross-entropy written out, through the gradient of one step; memory is bounded as in any update."""
    model, rows = llama(), make_rows()
    learner = LocalLearner(copy.deepcopy(model), LearnerConfig(max_grad_norm=1e9, chunk_tokens=chunk_tokens))
    sizes = []
    kept = learner_module.hidden_states
    monkeypatch.setattr(learner_module, "hidden_states", lambda m, ids: sizes.append(ids.shape) or kept(m, ids))
    total, count = torch.zeros(()), 0.0
    for row in rows:
        ids = torch.tensor(row.prompt_ids + row.completion_ids)
        losses = torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="none")
        weight = torch.tensor([0.25] * (len(row.prompt_ids) - 1) + [1.0] * len(row.completion_ids))
        total, count = total + (losses * weight).sum(), count + weight.sum().item()
    (total / count).backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    seen = []
    stepped = learner.optimizer_step
    learner.optimizer_step = lambda rate: seen.append(stepped(rate)) or seen[-1]  # type: ignore[method-assign]
    assert learner.supervised_step(rows, 1e-3, 0.25) == pytest.approx((total / count).item(), rel=1e-5)
    assert seen == [pytest.approx(norm.item(), rel=1e-4)]
    assert all(count == 1 or count * (length + 1) <= chunk_tokens for count, length in sizes)


@pytest.mark.parametrize("attention", ["rows", "cascade"])
def test_supervised_steps_may_compute_shared_prefixes_once(llama, attention):
    """The same loss and gradient as row by row, to rounding."""
    rows = [replace(row, temperature=1.0) for row in make_rows()]
    steps = []
    for shared in (False, True):
        learner = LocalLearner(llama(), LearnerConfig(attention=attention))
        loss = learner.supervised_step(rows, 1e-3, shared=shared)
        steps.append((loss, torch.cat([weight.flatten() for weight in learner.parameters])))
    (loss, weights), (shared_loss, shared_weights) = steps
    assert shared_loss == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(weights, shared_weights, atol=1e-5)


def test_supervised_steps_leave_out_what_the_environment_said(precise):
    """The same loss and step as with the cross-entropy of prompt and sampled tokens written out."""
    learner = precise()
    row = with_output()
    model = copy.deepcopy(learner.model)
    ids = torch.tensor(row.prompt_ids + row.completion_ids)
    losses = torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="none")
    weight = torch.tensor([0.25, 0.25, *map(float, row.sampled)])
    expected = (losses * weight).sum() / weight.sum()
    expected.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    norms = []
    stepped = learner.optimizer_step
    learner.optimizer_step = lambda rate: norms.append(stepped(rate)) or norms[-1]  # type: ignore[method-assign]
    assert learner.supervised_step([row], 1e-3, 0.25) == pytest.approx(expected.item(), rel=1e-6)
    assert norms == [pytest.approx(norm.item(), rel=1e-6)]
