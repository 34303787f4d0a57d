"""Memory by formula, against models that PyTorch made: parameters exactly, an update's activations bounded."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from midstream.engines.adapters import adapter_of
from midstream.recipe.memory import GIB, SHAPES, shape_of, update_bytes, weights_bytes
from midstream.training.learner import LocalLearner, RoleLearner
from midstream.training.settings import LearnerConfig, LoraConfig
from support.hf_models import FAMILIES, save_chat_model

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
# The parameter counts of the safetensors files that are published.
PUBLISHED = {
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
}
LORA = LoraConfig(rank=4, alpha=8)


def save_model(directory, vocabulary=1000, **settings):
    """A random Qwen2 of 2 million weights; returns its directory."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=512, tie_word_embeddings=True, **settings,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


def make_learner(directory, dtype, config):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    return LocalLearner(model, config)


# -- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_tables_shapes_have_the_published_number_of_parameters(name):
    assert SHAPES[name].parameters == PUBLISHED[name]
    assert shape_of(f"Qwen/{name}-Instruct") == shape_of(name) == SHAPES[name]
    assert shape_of(f"Qwen/{name.replace('-', '-Math-')}") == SHAPES[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_a_directory_are_counted_exactly(family, tmp_path):
    directory = save_chat_model(tmp_path / "model", family)
    shape = shape_of(str(directory))
    if family not in KNOWN:
        assert shape is None
        return
    assert shape is not None
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.matrix(2)
@pytest.mark.parametrize("family", KNOWN)
def test_an_adapters_weights_are_counted_exactly(family, tmp_path):
    directory = save_chat_model(tmp_path / "model", family)
    learner = make_learner(directory, "float32", LearnerConfig(lora=LORA))
    shape = shape_of(str(directory))
    assert shape is not None
    assert shape.adapter(4) == sum(parameter.numel() for parameter in learner.parameters)


def test_each_role_has_an_adapter_of_its_own(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(directory := save_chat_model(tmp_path / "model", "llama"))
    config = LearnerConfig(lora=LORA.model_copy(update={"per_role": True}))
    roles = ("planner", "verifier")
    learner = RoleLearner(model, config, adapters=[adapter_of(role) for role in roles])
    shape = shape_of(str(directory))
    assert shape is not None
    counted = weights_bytes(shape, "float32", config, roles=len(roles))
    assert counted["LoRA adapter"] == sum(parameter.nbytes for parameter in learner.parameters)


def test_tied_and_untied_heads_differ_by_one_table(tmp_path):
    tied = shape_of(str(save_model(tmp_path / "tied")))
    config = AutoConfig.from_pretrained(tmp_path / "tied")
    config.tie_word_embeddings = False
    config.save_pretrained(tmp_path / "untied")
    untied = shape_of(str(tmp_path / "untied"))
    assert tied is not None
    assert untied is not None
    assert untied.parameters - tied.parameters == config.vocab_size * config.hidden_size


@pytest.mark.parametrize("name", ["gpt-4o", "Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen3-8B", "other/Qwen2.5-7B"])
def test_what_is_not_known_is_not_guessed(name):
    assert shape_of(name) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_type": "llama"}', '{"model_type": "llama", "mlp_bias": 1}'])
def test_an_incomplete_config_is_not_guessed(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert shape_of(str(tmp_path)) is None


# -- the whole -------------------------------------------------------------------------------------------------------


def test_one_case_calculated_by_hand():
    """Qwen2.5-1.5B-Instruct in bfloat16, a LoRA adapter of rank 16, 4,096 tokens recomputed."""
    config = LearnerConfig(lora=LoraConfig(rank=16), recompute_activations=True, chunk_tokens=4096)
    shape = SHAPES["Qwen2.5-1.5B"]
    rank_sums = 2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960)  # q and o; k and v; gate, up and down
    adapter = 28 * 16 * rank_sums
    held = weights_bytes(shape, "bfloat16", config)
    assert held == {
        "weights": 2 * 1_543_714_304,
        "LoRA adapter": 4 * adapter,
        "gradient": 4 * adapter,
        "AdamW": 8 * adapter,
    }
    layer = (12 * 1536 + 4 * 8960) * 4
    per_token = 28 * 1536 * 4 + 2 * layer + 4 * (28 * 2 * 2 * 128 * 2)
    assert update_bytes(shape, "bfloat16", config) == 2 * 4096 * per_token + 2**25 * 12


def test_what_is_offloaded_takes_nothing_of_the_device():
    shape = SHAPES["Qwen2.5-0.5B"]
    here = weights_bytes(shape, "bfloat16", LearnerConfig(offload=True))
    assert here == {"weights": shape.parameters * 2, "gradient": shape.parameters * 4}


def test_the_config_of_a_saved_model_is_read_as_it_stands(tmp_path):
    """No weights are opened: a dry run of a model of 100 GB reads one small file."""
    save_model(tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors"):
        file.unlink()
    shape = shape_of(str(tmp_path / "model"))
    assert shape is not None
    assert weights_bytes(shape, "float32", None)["weights"] < GIB
