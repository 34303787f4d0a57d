"""Convert a GGUF file once to a Hugging Face directory of bfloat16 weights, and find it again by the file's state.

transformers keeps GGUF weights packed: it cannot save them, and computes on them far slower than on plain ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from midstream.core.errors import RecipeError, needs_extra
from midstream.engines.local.catalog import cache_directory, lock_cache
from midstream.engines.local.codec import one_line

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Raise it when a conversion gives another result: it is a part of the names in the cache.
_VERSION = 1
_SPARE_BYTES, _MB = 64 << 20, 1 << 20
# Two embeddings that differ by less than this share of their norm are two roundings of the same weights.
_ROUNDING = 0.5
_SETTINGS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "blk": "model.layers",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_INPUT, _OUTPUT = "token_embd.weight", "output.weight"
# How text is split before its pairs are merged, by the names of llama.cpp.
_SINGLE_DIGITS, _QWEN, _PLAIN = ("smollm", "starcoder", "refact"), ("qwen2", "deepseek-r1-qwen"), ("gpt-2", "default")


def convert(path: Path) -> Path:
    """Return the directory with the weights of a GGUF file, which is converted if that is not in the cache.

    Raises `RecipeError` if the file is missing, damaged or of a kind that is not supported, or the disk is too full.
    """
    if not path.is_file():
        what, fix = f"there is no file {path}", "correct the path; midstream models lists models by name"
        raise RecipeError(what, code="model-not-loaded", fix=fix)
    cache = cache_directory()
    try:
        with lock_cache(cache):
            stat = path.stat()
            state = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
            directory = cache / f"gguf-{_VERSION}-{hashlib.sha256(state.encode()).hexdigest()[:20]}"
            if not directory.is_dir():
                _File(path).convert(directory)
    except (OSError, SafetensorError) as failure:
        raise _no_space(f"{path} could not be converted into {cache}: {one_line(failure)}") from failure
    return directory


def _no_space(what: str) -> RecipeError:
    fix = "free some space, or set XDG_CACHE_HOME to a directory on another disk"
    return RecipeError(what, code="gguf-no-space", fix=fix)


class _File:
    """An open GGUF file, of an architecture and in quantizations that are supported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with needs_extra(f"{path} is a GGUF file", "train"):
            from gguf import GGUFReader
            from gguf.quants import dequantize
        self._plain = lambda tensor, rows=None: dequantize(tensor.data[:rows], tensor.tensor_type)
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as failure:
            if "GGMLQuantizationType" in str(failure) or "appears to be version" in str(failure):
                raise self._unsupported_error(one_line(failure)) from failure
            raise self._damaged_error(one_line(failure)) from failure
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._architecture = self._field("general.architecture")
        if self._architecture not in ARCHITECTURES:
            names = ", ".join(ARCHITECTURES)
            raise self._unsupported_error(f"its architecture is {self._architecture!r}; midstream converts {names}")
        for tensor in {tensor.tensor_type: tensor for tensor in self._tensors.values()}.values():
            try:
                self._plain(tensor, 1)
            except (NotImplementedError, ValueError) as failure:
                what = f"{tensor.name} has quantization {tensor.tensor_type.name}, which cannot be dequantized"
                raise self._unsupported_error(what, "take another quantization, such as Q8_0 or Q4_K_M") from failure

    def convert(self, directory: Path) -> None:
        """Write the directory next to its place, then rename it: a killed conversion leaves no model."""
        for stale in directory.parent.glob("partial-gguf-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-gguf-", dir=directory.parent))
        try:
            model, tokenizer = self._empty_model(), self._tokenizer(partial)
            count, free = model.num_parameters(), shutil.disk_usage(partial).free
            needed = 2 * count + _SPARE_BYTES
            numbers = (
                f"{count / 1e6:,.1f} M weights, {needed // _MB:,} MB in {directory}, {free // _MB:,} MB free there"
            )
            if free < needed:
                raise _no_space(f"{self.path} is too large as bfloat16: {numbers}")
            sys.stderr.write(f"converting {self.path.name} to bfloat16, once: {numbers}\n")
            began = time.monotonic()
            model.load_state_dict(dict(self._weights(model.config)), strict=False, assign=True)
            model.tie_weights()
            ends = {tokenizer.eos_token_id, self._field("tokenizer.ggml.eot_token_id")} - {None}
            model.generation_config = GenerationConfig(
                eos_token_id=sorted(ends), bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id
            )
            model.save_pretrained(partial, max_shard_size="2GB")
            tokenizer.save_pretrained(partial)
            for file in partial.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            partial.rename(directory)
            sys.stderr.write(f"converted {self.path.name} in {time.monotonic() - began:.0f} s\n")
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _unsupported_error(self, what: str, fix: str = "") -> RecipeError:
        fix = fix or "name the model's directory in Hugging Face's format, or serve the file: --provider llama_cpp"
        return RecipeError(f"{self.path} is not supported: {what}", code="gguf-unsupported", fix=fix)

    def _damaged_error(self, what: str) -> RecipeError:
        what = f"{self.path} ({self.path.stat().st_size:,} bytes) is cut short or damaged: {what}"
        fix = "fetch it again, and compare its size and checksum with those at its source"
        return RecipeError(what, code="gguf-truncated", fix=fix)

    def _field(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def _setting(self, name: str) -> Any:
        return self._field(f"{self._architecture}.{name}")

    def _empty_model(self) -> Any:
        """The model without weights, after a check that the file has exactly its weights."""
        values = {ours: self._setting(theirs) for theirs, ours in _SETTINGS.items()}
        lacks = [theirs for theirs, ours in _SETTINGS.items() if not isinstance(values[ours], int | float)]
        if lacks or _INPUT not in self._tensors:
            raise self._unsupported_error(f"it has no single value of {lacks[0] if lacks else _INPUT}")
        heads, scaling = values["num_attention_heads"], self._setting("rope.scaling.type")
        width = self._setting("attention.key_length") or values["hidden_size"] // heads
        if self._setting("rope.dimension_count") not in (None, width) or scaling not in (None, "none"):
            raise self._unsupported_error("its positions are scaled, or rotate only a part of a head")
        if self._architecture == "llama":
            biases = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}
            values |= {key: f"blk.0.{name}" in self._tensors for key, name in biases.items()}
        ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
        config: Any = AutoConfig.for_model(
            self._architecture,
            **values,
            **{f"{ours}_token_id": self._field(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in ids.items()},
            num_key_value_heads=self._setting("attention.head_count_kv") or heads,
            head_dim=width,
            vocab_size=int(self._tensors[_INPUT].shape[-1]),
            tie_word_embeddings=self._has_tied_embeddings(),
            rope_parameters={"rope_type": "default", "rope_theta": self._setting("rope.freq_base") or 10000.0},
            dtype=torch.bfloat16,
        )
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
        wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        found = {_name(name): tuple(map(int, tensor.shape[::-1])) for name, tensor in self._tensors.items()}
        if config.tie_word_embeddings:
            found.setdefault(_name(_OUTPUT), found[_name(_INPUT)])
        if odd := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
            shapes = f"has shape {found.get(odd[0])}, and in a {config.model_type} {wanted.get(odd[0])}"
            raise self._unsupported_error(f"{odd[0]} {shapes}")
        return model

    def _has_tied_embeddings(self) -> bool:
        """Whether input and output embeddings are the same weights: one of them, or two roundings."""
        if _OUTPUT not in self._tensors:
            return True
        first, second = (self._plain(self._tensors[name], 256) for name in (_INPUT, _OUTPUT))
        return first.shape == second.shape and bool(np.linalg.norm(first - second) < _ROUNDING * np.linalg.norm(first))

    def _tokenizer(self, directory: Path) -> Any:
        kind, split = (self._field(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
        if kind is None or "tokenizer.ggml.tokens" not in self._reader.fields:
            raise self._unsupported_error("it has no tokenizer", "take a file of the model that has one")
        if kind != "gpt2" or (split or "default") not in (*_SINGLE_DIGITS, *_QWEN, *_PLAIN):
            raise self._unsupported_error(f"its tokenizer is {kind!r}, with text split as {split!r}")
        # By itself: a tokenizer's files next to it would be read in its place.
        link = directory / "model.gguf"
        link.symlink_to(self.path.resolve())
        try:
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(directory), gguf_file=link.name)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as failure:
            raise self._unsupported_error(f"its tokenizer could not be read: {one_line(failure)}") from failure
        finally:
            link.unlink()
        if split in _SINGLE_DIGITS:
            parts = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
        elif split in _QWEN:
            tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        return tokenizer

    def _weights(self, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        tensors = dict(self._tensors)
        if config.tie_word_embeddings and _OUTPUT in tensors:
            # Of two roundings of the same weights, the one with more bytes is nearer to them.
            tensors[_INPUT] = max(tensors[_INPUT], tensors.pop(_OUTPUT), key=lambda tensor: tensor.n_bytes)
        for number, (name, tensor) in enumerate(tensors.items()):
            if number % (len(tensors) // 4 + 1) == 0 and number:
                sys.stderr.write(f"converting {self.path.name}: {100 * number // len(tensors)} %\n")
            value = self._plain(tensor)
            if not np.isfinite(value).all():
                raise self._damaged_error(f"{name} has values that are not finite")
            part = name.split(".")[-2]
            if self._architecture == "llama" and part in heads:
                # llama.cpp stores the two halves of each rotated pair next to each other.
                value = value.reshape(heads[part], -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
            yield _name(name), torch.from_numpy(np.array(value)).to(torch.bfloat16)


def _name(name: str) -> str:
    """The name of a tensor in transformers: blk.3.attn_q.bias is model.layers.3.self_attn.q_proj.bias."""
    return ".".join(_NAMES.get(part, part) for part in name.split("."))
