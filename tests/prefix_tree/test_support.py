"""A model is tried before it is trusted with a trie, and what it cannot do is reported."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from midstream.prefix_tree.attention import use_backend
from midstream.prefix_tree.support import Choice, choose

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_of(family, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")
    return AutoModelForCausalLM.from_config(config(**{**SIZES, **settings})).eval()


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    "family", ["Llama", "Qwen2", "Qwen3", "Phi3", "Gemma", "Olmo2", "Granite", "Mixtral", "SmolLM3"]
)
def test_common_families_attend_over_a_trie(family):
    assert choose(model_of(family)) == Choice("cascade")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_other_types_too(dtype):
    assert choose(model_of("Qwen2").to(dtype)).backend == "cascade"


def test_a_back_end_that_is_named_is_the_one_that_is_tried():
    model = model_of("Llama")
    assert choose(model, "gather") == Choice("gather")
    assert choose(model, "rows") == Choice(None, "the recipe asks for rows")
    assert "varlen" in choose(model, "varlen").reason  # flash attention of variable length needs CUDA


def test_a_window_bounds_the_rows():
    assert choose(model_of("Mistral", sliding_window=64)) == Choice("cascade", longest=64)


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("Gemma2", {"head_dim": 8}, "Gemma2ForCausalLM cannot attend over a trie: gather: attention with softcap"),
        ("GptOss", {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
         "GptOssForCausalLM cannot attend over a trie: gather: attention with s_aux"),
        ("Mamba", {}, "MambaForCausalLM has layers of type linear_attention"),
        ("Doge", {}, "DogeForCausalLM cannot attend over a trie: gather: attention with attention_mask"),
        ("Bloom", {}, "BloomForCausalLM accepts no attention function from outside"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
         "LlamaForCausalLM scales its positions by the longest row (dynamic)"),
        ("Gemma3Text", {"head_dim": 8, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}},
         "Gemma3ForCausalLM scales its positions by the longest row (dynamic)"),
    ],
)  # fmt: skip
def test_the_reason_says_what_a_model_cannot_do(family, settings, reason):
    assert choose(model_of(family, **settings)) == Choice(None, reason)


def test_dropout_counts_in_training_only():
    model = model_of("Llama", attention_dropout=0.1)
    assert choose(model).backend == "cascade"
    assert choose(model.train()) == Choice(None, "LlamaForCausalLM is in training mode with dropout")


def test_a_model_that_mixes_tokens_behind_our_back_is_found_out():
    """The hidden state of a token is made to depend on the one before it in the batch, as a recurrent layer's would."""
    model = model_of("Llama")
    layer = model.model.layers[0]
    layer.register_forward_hook(lambda module, inputs, out: out + out.roll(1, dims=1))
    choice = choose(model)
    assert choice.backend is None
    assert "computes something else over a trie" in choice.reason


def test_a_layer_that_attends_twice_a_pass_is_found_out():
    """Of its two sets of keys, a trunk keeps the last: right where all is one pass, wrong below a trunk."""
    choice = choose(model_of("DiffLlama", initializer_range=0.2))
    assert choice.backend is None
    assert "computes something else over a trie" in choice.reason


def test_a_layer_without_a_number_is_reported():
    model = model_of("Llama")
    del model.model.layers[1].self_attn.layer_idx
    choice = choose(model)
    assert choice.backend is None
    assert "layer_idx" in choice.reason


def test_the_model_is_left_as_it_was():
    model = model_of("Qwen2")
    before = model.config._attn_implementation
    choose(model)
    assert model.config._attn_implementation == before
    with use_backend(model, "dense"):
        assert model.config._attn_implementation == "midstream_dense"
    assert model.config._attn_implementation == before
