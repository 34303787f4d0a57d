"""Flow-GRPO on single-turn rows is GRPO: its loss and gradient are those of TRL's own GRPOTrainer.

The trainer's default of weighting the KL term by the ratio (`use_bias_correction_kl`) is off: the paper has none. TRL
keeps log-probabilities in single precision, which bounds how far both can agree.
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from midstream.training.losses import PolicyLoss, row_weights
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig
from support.exact import VOCABULARY, learner_of, model_of, near_policy

LOSS = PolicyLoss(clip_low=0.2, clip_high=0.3, kl_coefficient=0.04)


def single_turn_rows(temperature, masked):
    """Two groups of four rollouts, each of one row; with `masked`, some tokens of a completion are a tool's."""
    draw = random.Random(0)

    def ids(size):
        return tuple(draw.choices(range(3, VOCABULARY), k=size))

    static = ids(12)
    completions = [ids(draw.randint(4, 9)) for _ in range(8)]
    completions[1] = completions[0]  # equal answers
    completions[2] = completions[0][:3]  # one that ends early
    sampled = [(True, True, *draw.choices((True, False), k=len(one) - 2)) if masked else () for one in completions]
    weights = row_weights(
        [sum(mask) if mask else len(one) for mask, one in zip(sampled, completions, strict=True)],
        "trajectory-turn-token",
        range(8),
    )
    prompts = [(*static, *ids(5)), (*static, *ids(3))]
    return [
        Row(
            prompt_ids=prompts[i // 4], completion_ids=completion, sampled=mask, temperature=temperature,
            old_logprobs=(0.0,) * len(completion), advantage=draw.gauss(0, 1), weight=weight, kl_weight=weight,
        )
        for i, (completion, mask, weight) in enumerate(zip(completions, sampled, weights, strict=True))
    ]  # fmt: skip


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """`trainer(model, temperature)` is a GRPOTrainer as its user would make it, but for a reference model on disk."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def make(model, temperature):
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0")),
            pad_token="t0",
            eos_token="t1",
        )
        config = GRPOConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, loss_type="grpo", beta=0.0,
            epsilon=LOSS.clip_low, epsilon_high=LOSS.clip_high, temperature=temperature, use_cpu=True, bf16=False,
            use_bias_correction_kl=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        made = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["t5"] * 8}),
            processing_class=tokenizer,
        )
        made.beta = LOSS.kl_coefficient  # given to the constructor, it would fetch a reference model by name
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's and its dependencies'
        yield make


def padded_inputs(rows, reference):
    """Rows as TRL's trainer holds them: prompts padded on the left, completions on the right."""
    prompt, completion = (max(len(ids) for ids in all_ids) for all_ids in _ids(rows))
    shape = (len(rows), completion)
    inputs = {
        "prompt_ids": torch.zeros(len(rows), prompt, dtype=torch.long),
        "prompt_mask": torch.zeros(len(rows), prompt, dtype=torch.long),
        "completion_ids": torch.zeros(shape, dtype=torch.long),
        "completion_mask": torch.zeros(shape, dtype=torch.long),
        "tool_mask": torch.ones(shape, dtype=torch.long),
        "old_per_token_logps": torch.zeros(shape, dtype=torch.float64),
        "ref_per_token_logps": torch.zeros(shape, dtype=torch.float64),
        "advantages": torch.tensor([row.advantage for row in rows], dtype=torch.float64),
    }
    for i, row in enumerate(rows):
        first, end = prompt - len(row.prompt_ids), len(row.completion_ids)
        inputs["prompt_ids"][i, first:] = torch.tensor(row.prompt_ids)
        inputs["prompt_mask"][i, first:] = 1
        inputs["completion_ids"][i, :end] = torch.tensor(row.completion_ids)
        inputs["completion_mask"][i, :end] = 1
        inputs["old_per_token_logps"][i, :end] = torch.tensor(row.old_logprobs, dtype=torch.float64)
        inputs["ref_per_token_logps"][i, :end] = torch.tensor(reference[i], dtype=torch.float64)
        if row.sampled:
            inputs["tool_mask"][i, :end] = torch.tensor(row.sampled)
    return inputs


def _ids(rows):
    return [row.prompt_ids for row in rows], [row.completion_ids for row in rows]


@pytest.mark.matrix(1)
@pytest.mark.parametrize("masked", [False, True], ids=["sampled", "with tool output"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("attention", ["rows", "cascade"])
def test_loss_and_gradient_equal_trls(trainer, attention, temperature, masked):
    learner = learner_of(model_of("qwen2"), LearnerConfig(attention=attention, chunk_tokens=60))
    rows = near_policy(single_turn_rows(temperature, masked), learner.model)
    stats = learner.forward_backward(rows, LOSS)
    assert 0 < stats.clipped < stats.tokens

    model = model_of("qwen2")
    model.load_state_dict(learner.model.state_dict())
    theirs = trainer(model, temperature)
    loss = theirs._compute_loss(model, padded_inputs(rows, learner.logprobs(rows, reference=True)))
    loss.backward()
    assert stats.loss == pytest.approx(loss.item(), abs=1e-6)
    for mine, their in zip(learner.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, their.grad, atol=2e-6, rtol=0)
