"""GGUF files: conversion that changes no weight, the cache, and files that are damaged or of another kind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from midstream.core.errors import MidstreamError
from midstream.engines.local import gguf
from midstream.engines.local.catalog import cache_directory
from midstream.engines.local.pretrained import load_model
from support.errors import raises
from support.gguf_files import Q, write_gguf

PROMPT = [[5, 6, 7, 8, 9, 40, 41]]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_directory()


@pytest.fixture
def file(saved_model, tmp_path):
    return write_gguf(saved_model("llama"), tmp_path / "model.gguf")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_file_has_the_weights_that_were_written(saved_model, tmp_path, family):
    directory = saved_model(family)
    path = write_gguf(directory, tmp_path / "model.gguf")
    model, tokenizer = load_model(str(path), "float32", "cpu")
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).float().eval()
    for name, weight in expected.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    with torch.no_grad():
        assert torch.equal(model(torch.tensor(PROMPT)).logits, expected(torch.tensor(PROMPT)).logits)
    original = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "12 plus 345, naïve"}]
    said = [each.apply_chat_template(messages, return_dict=False) for each in (tokenizer, original)]
    assert said[0] == said[1]
    assert model.generation_config.eos_token_id in (1, [1])


def test_of_two_roundings_of_one_embedding_the_finer_is_taken(saved_model, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(saved_model("llama"))
    embedding = model.get_input_embeddings().weight
    model.get_output_embeddings().weight.data.copy_(embedding)
    model.save_pretrained(tmp_path / "tied")
    AutoTokenizer.from_pretrained(saved_model("llama")).save_pretrained(tmp_path / "tied")
    path = write_gguf(str(tmp_path / "tied"), tmp_path / "model.gguf", kind=Q.Q8_0, only="token_embd")
    found, _ = load_model(str(path), "float32", "cpu")
    assert found.config.tie_word_embeddings
    assert found.get_input_embeddings().weight is found.get_output_embeddings().weight
    assert torch.equal(found.get_input_embeddings().weight, embedding.bfloat16().float())


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.F16, Q.BF16])
def test_quantized_weights_are_near_those_that_were_written(saved_model, tmp_path, kind):
    directory = saved_model("llama")
    model, _ = load_model(str(write_gguf(directory, tmp_path / "model.gguf", kind=kind)), "float32", "cpu")
    for name, weight in AutoModelForCausalLM.from_pretrained(directory).state_dict().items():
        assert torch.allclose(model.state_dict()[name], weight, atol=0.02), name


def test_the_second_load_takes_the_cache(file, cache, capsys):
    first = gguf.convert(file)
    assert "converting model.gguf to bfloat16, once:" in capsys.readouterr().err
    assert gguf.convert(file) == first
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in cache.iterdir()) == [".lock", first.name]


def test_another_file_of_the_same_size_and_time_is_converted_again(file, saved_model, tmp_path):
    first = gguf.convert(file)
    other = write_gguf(saved_model("llama", seed=1), tmp_path / "other.gguf")
    shutil.copystat(file, other)
    assert other.stat().st_size == file.stat().st_size
    other.replace(file)
    assert gguf.convert(file) != first


def _die_while_writing(path: Path) -> None:
    gguf._File._read = lambda self, directory: os._exit(9)  # pyright: ignore[reportAttributeAccessIssue]
    gguf.convert(path)


def test_a_killed_conversion_is_repeated(file, cache):
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(file,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert list(cache.glob("partial-gguf-*"))
    assert not list(cache.glob("gguf-*"))
    load_model(str(file), "float32", "cpu")
    assert not list(cache.glob("partial-*"))


@pytest.mark.parametrize("kept", [2, 30, 400, 0.5, 0.99])
def test_a_file_that_was_cut_is_named(file, cache, kept):
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if kept > 1 else int(kept * len(whole))])
    with raises("gguf-truncated", file, f"{file.stat().st_size:,} bytes", "fetch it again"):
        load_model(str(file), "float32", "cpu")
    assert not list(cache.glob("*gguf-*"))


def test_values_that_are_not_finite_are_named(saved_model, tmp_path):
    directory = saved_model("llama")
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("nan")
    model.save_pretrained(directory)
    with raises("gguf-truncated", "model.layers.1.mlp.up_proj.weight"):
        load_model(str(write_gguf(directory, tmp_path / "model.gguf")), "float32", "cpu")


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"architecture": "gemma3"}, ("'gemma3'", "llama, qwen2, qwen3", "--provider llama_cpp")),
        ({"architecture": "qwen2"}, ("lacks", "blk.0.attn_k.bias")),
        ({"extra": "blk.1.attn_q.bias"}, ("blk.1.attn_q.bias", "unlike a llama")),
        ({"extra": "rope_freqs.weight"}, ("rope_freqs.weight",)),
        ({"heads_by_layer": True}, ("no single value of llama.attention.head_count",)),
        ({"tokenizer": False}, ("no tokenizer",)),
        ({"split": "tekken"}, ("'tekken'",)),
        ({"settings": {"rope.scaling.type": "yarn"}}, ("positions are scaled",)),
    ],
)
def test_a_file_of_another_kind_is_refused(saved_model, tmp_path, written, named):
    path = write_gguf(saved_model("llama"), tmp_path / "model.gguf", **written)
    with raises("gguf-unsupported", path, *named):
        load_model(str(path), "float32", "cpu")


def test_a_disk_that_fills_leaves_nothing(file, cache, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.os, "fsync", full)
    with raises("gguf-no-space", "No space left on device"):
        gguf.convert(file)
    assert not list(cache.glob("*gguf-*"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MidstreamError, match="nowhere"):
        load_model(str(tmp_path / "nowhere.gguf"), "float32", "cpu")
