"""Loading: models and LoRA adapters of any family, and everything that is not one."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from midstream.core.engine import Request
from midstream.core.trajectory import Sampling
from midstream.engines.local.engine import generate
from midstream.engines.local.pretrained import load_model, merge_adapter
from support.errors import raises
from support.hf_models import forward_logprobs, save_chat_model

EOS = 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_is_honored(saved_model, dtype):
    model, _ = load_model(saved_model("llama"), dtype, "cpu")
    assert model.dtype == getattr(torch, dtype)
    [(ids, logprobs)] = generate(
        model, [((5, 6), Request(role="planner", sampling=Sampling(max_tokens=5)))], end_ids=(EOS,)
    )
    assert ids
    assert all(math.isfinite(value) and value <= 0 for value in logprobs)


def test_a_model_that_is_not_there_is_named(tmp_path):
    started = time.monotonic()
    with raises("model-not-loaded", "nowhere"):
        load_model(str(tmp_path / "nowhere"), "float32", "cpu")
    assert time.monotonic() - started < 20


def test_a_model_that_was_cut_off_is_named(saved_model):
    directory = saved_model("llama")
    file = Path(directory) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with raises("model-not-loaded", directory):
        load_model(directory, "float32", "cpu")


def test_a_model_that_lacks_weights_is_refused(saved_model):
    """transformers would draw them at random."""
    directory = saved_model("llama")
    file = Path(directory) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with raises("model-not-loaded", "1 weights", "model.layers.1.mlp.up_proj.weight"):
        load_model(directory, "float32", "cpu")


def test_an_unknown_device_is_named(saved_model):
    with raises("no-device", "abacus"):
        load_model(saved_model("llama"), "float32", "abacus")


# -- LoRA adapters ----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved_adapter(saved_model, tmp_path):
    """(model directory, adapter directory, a prompt's log-probabilities under the adapter)."""
    base = saved_model("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a retired name
        adapted = get_peft_model(load_model(base, "float32", "cpu")[0], LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.5)
    adapted.save_pretrained(tmp_path / "policy")
    return base, tmp_path / "policy", forward_logprobs(adapted, (5, 6, 7), (8, 9, 10, 11))


@pytest.mark.parametrize("trainable", [False, True])
def test_an_adapter_is_sampled_from(saved_adapter, trainable):
    base, adapter, expected = saved_adapter
    model, _ = load_model(str(adapter), "float32", "cpu", trainable=trainable)
    assert forward_logprobs(model, (5, 6, 7), (8, 9, 10, 11)) == pytest.approx(expected, abs=1e-5)
    assert forward_logprobs(load_model(base, "float32", "cpu")[0], (5, 6, 7), (8, 9, 10, 11)) != pytest.approx(
        expected, abs=0.1
    )
    asked = [((5, 6, 7), Request(role="planner", seed=seed, sampling=Sampling(max_tokens=9))) for seed in range(3)]
    for ids, logprobs in generate(model, asked, end_ids=(EOS,)):
        assert logprobs == pytest.approx(forward_logprobs(model, (5, 6, 7), ids), abs=1e-5)


def test_only_a_trained_adapter_stays_apart(saved_adapter):
    _, adapter, _ = saved_adapter
    merged, _ = load_model(str(adapter), "float32", "cpu")
    assert not any("lora_" in name for name, _ in merged.named_parameters())
    assert all(parameter.requires_grad for parameter in merged.parameters())
    apart, _ = load_model(str(adapter), "float32", "cpu", trainable=True)
    assert all(("lora_" in name) == parameter.requires_grad for name, parameter in apart.named_parameters())


@pytest.mark.parametrize("text", ['{"peft_type": "IA3"}', "{", "[]"])
def test_what_is_no_lora_adapter_is_named(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with raises("adapter-invalid", "LoRA"):
        load_model(str(tmp_path), "float32", "cpu")


def test_an_adapter_whose_weights_have_no_place_in_its_base_is_refused(saved_adapter, tmp_path):
    base, adapter, _ = saved_adapter
    other = save_chat_model(tmp_path / "elsewhere", "gpt2")
    file = adapter / "adapter_config.json"
    file.write_text(file.read_text().replace(base, str(other)))
    with raises("adapter-invalid", adapter, "correct base_model_name_or_path"):
        load_model(str(adapter), "float32", "cpu")


def test_an_adapter_whose_base_is_gone_is_named(saved_adapter):
    base, adapter, _ = saved_adapter
    shutil.rmtree(base)
    with raises("adapter-invalid", adapter, base, "which is not here", "base_model_name_or_path"):
        load_model(str(adapter), "float32", "cpu")


def test_an_adapter_is_merged_into_a_directory(saved_adapter, tmp_path):
    base, adapter, expected = saved_adapter
    merge_adapter(adapter, tmp_path / "whole")
    model, _ = load_model(str(tmp_path / "whole"), "float32", "cpu")
    assert forward_logprobs(model, (5, 6, 7), (8, 9, 10, 11)) == pytest.approx(expected, abs=1e-5)
    assert not list(tmp_path.glob(".*"))
    with raises("file-exists", "whole"):
        merge_adapter(adapter, tmp_path / "whole")
    with raises("adapter-invalid", base):
        merge_adapter(Path(base), tmp_path / "other")


# -- models that do not fit, or lack something -------------------------------------------------------------------------


def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(saved_model):
    directory = saved_model("llama")
    with (Path(directory) / "more.safetensors").open("wb") as file:
        file.truncate(1 << 42)
    with raises("too-little-memory", directory, "4,194,304 MB as float32", "MB of memory are free", "bfloat16"):
        load_model(directory, "float32", "cpu")


@pytest.mark.parametrize("text", ["", "{}", '{"added_tokens": [], "model": 3}'])
def test_a_tokenizer_that_cannot_be_read_is_named(saved_model, text):
    directory = saved_model("llama")
    (Path(directory) / "tokenizer.json").write_text(text)
    with raises("model-not-loaded", directory):
        load_model(directory, "float32", "cpu")
