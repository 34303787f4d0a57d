"""Convert a GGUF file once to a Hugging Face directory of bfloat16 weights, and find it again by the file's checksum.

transformers keeps GGUF weights packed: it cannot save them, and computes on them far slower than on plain ones.
"""

from __future__ import annotations

import hashlib
import json
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
from safetensors.torch import save_file
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from midstream.core.errors import RecipeError, needs_extra
from midstream.engines.local.catalog import cache_directory, locked
from midstream.engines.local.codec import one_line

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Raise it when a conversion gives another result: it is a part of the names in the cache.
_VERSION = 1
_SHARD_BYTES, _SPARE_BYTES, _MB = 1 << 30, 64 << 20, 1 << 20
_REPORT_S = 10.0
# Two embeddings that differ by less than this share of their norm are two roundings of the same weights.
_ROUNDING = 0.5
_SETTINGS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_INPUT, _OUTPUT, _FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
# How text is split before its pairs are merged. transformers splits for the last line; `_tokenizer` corrects the rest.
_SINGLE_DIGITS, _QWEN = ("smollm", "starcoder", "refact"), ("qwen2", "deepseek-r1-qwen")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_SPLITS = (*_SINGLE_DIGITS, *_QWEN, *_LLAMA3, "gpt-2", "default", "tekken")


def converted(path: Path) -> Path:
    """Return the directory with the weights of a GGUF file, which is converted if that is not in the cache.

    Raises `RecipeError` if the file is damaged or of a kind that is not supported, or the disk has too little space.
    """
    cache = cache_directory()
    try:
        # Another process may be converting the same file.
        with locked(cache):
            directory = cache / f"gguf-{_VERSION}-{_checksum(path, cache)[:20]}"
            if not (directory / "config.json").is_file():
                _File(path).convert(directory)
    except (OSError, SafetensorError) as failure:
        raise _no_space(f"{path} could not be converted into {cache}: {one_line(failure)}") from failure
    return directory


def _checksum(path: Path, cache: Path) -> str:
    """The file's SHA-256, which is computed again only after its size or times have changed."""
    known_path, stat, key = cache / "checksums.json", path.stat(), str(path.resolve())
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    try:
        known = json.loads(known_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if known.get(key, [])[:-1] == state:
        return known[key][-1]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary = cache / "partial-checksums.json"
    temporary.write_text(json.dumps({**known, key: [*state, digest]}), encoding="utf-8")
    temporary.replace(known_path)
    return digest


def _no_space(what: str) -> RecipeError:
    fix = "free some space, or set XDG_CACHE_HOME to a directory on another disk"
    return RecipeError(what, code="gguf-no-space", fix=fix)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class _File:
    """An open GGUF file, of an architecture and in quantizations that are supported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with needs_extra(f"{path} is a GGUF file", "train"):
            from gguf import GGUFReader
            from gguf.quants import dequantize
        self._plain = lambda tensor, rows=None: dequantize(tensor.data[:rows], tensor.tensor_type)
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise self._damaged("it does not begin as a GGUF file does")
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as failure:
            if "GGMLQuantizationType" in str(failure) or "appears to be version" in str(failure):
                raise self._unsupported(one_line(failure)) from failure
            raise self._damaged(one_line(failure)) from failure
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._architecture = self._field("general.architecture")
        if self._architecture not in ARCHITECTURES:
            what = f"its architecture is {self._architecture!r}; supported are {', '.join(ARCHITECTURES)}"
            raise self._unsupported(what)
        if (self._field("split.count") or 0) > 1:
            raise self._unsupported("it is one part of a model", "merge the parts: llama-gguf-split --merge")
        for tensor in {tensor.tensor_type: tensor for tensor in self._tensors.values()}.values():
            try:
                self._plain(tensor, 1)
            except (NotImplementedError, ValueError) as failure:
                what = f"{tensor.name} has quantization {tensor.tensor_type.name}, which cannot be dequantized"
                raise self._unsupported(what, "take another quantization, such as Q8_0 or Q4_K_M") from failure

    def convert(self, directory: Path) -> None:
        """Write the directory next to its place, then rename it: a killed conversion leaves no model."""
        for stale in directory.parent.glob("partial-gguf-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-gguf-", dir=directory.parent))
        try:
            config = self._config()
            self._check_tensors(config)
            tokenizer = self._tokenizer(partial)
            count = sum(tensor.n_elements for tensor in self._tensors.values())
            needed, free = 2 * count + _SPARE_BYTES, shutil.disk_usage(partial).free
            numbers = (
                f"{count / 1e6:,.1f} M weights, {needed // _MB:,} MB in {directory}, {free // _MB:,} MB free there"
            )
            if free < needed:
                raise _no_space(f"{self.path} is too large as bfloat16: {numbers}")
            _say(f"converting {self.path.name} to bfloat16, once: {numbers}")
            began = time.monotonic()
            self._write_weights(config, partial)
            config.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            ends = {tokenizer.eos_token_id, self._field("tokenizer.ggml.eot_token_id")} - {None}
            ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "pad")}
            GenerationConfig(eos_token_id=sorted(ends) or None, **ids).save_pretrained(partial)
            for file in partial.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            partial.rename(directory)
            _say(f"converted {self.path.name} in {time.monotonic() - began:.0f} s")
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _unsupported(self, what: str, fix: str = "") -> RecipeError:
        fix = fix or "name the model's directory in Hugging Face's format, or serve the file: --provider llama_cpp"
        return RecipeError(f"{self.path} is not supported: {what}", code="gguf-unsupported", fix=fix)

    def _damaged(self, what: str) -> RecipeError:
        return RecipeError(
            f"{self.path} ({self.path.stat().st_size:,} bytes) is cut short or damaged: {what}",
            code="gguf-truncated",
            fix="fetch it again, and compare its size and checksum with those at its source",
        )

    def _field(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def _setting(self, name: str) -> Any:
        return self._field(f"{self._architecture}.{name}")

    def _config(self) -> Any:
        values = {ours: self._setting(theirs) for theirs, ours in _SETTINGS.items()}
        lacks = [theirs for theirs, ours in _SETTINGS.items() if not isinstance(values[ours], int | float)]
        if lacks or _INPUT not in self._tensors:
            raise self._unsupported(f"it has no single value of {lacks[0] if lacks else _INPUT}")
        heads = values["num_attention_heads"]
        width = self._setting("attention.key_length") or values["hidden_size"] // heads
        if any(self._setting(name) not in (None, width) for name in ("rope.dimension_count", "attention.value_length")):
            raise self._unsupported(f"rotated or value width other than the {width} of a head")
        if self._architecture == "llama":
            biases = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}
            values |= {key: f"blk.0.{name}" in self._tensors for key, name in biases.items()}
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        values |= {f"{ours}_token_id": self._field(f"tokenizer.ggml.{name}_token_id") for ours, name in names.items()}
        config: Any = AutoConfig.for_model(
            self._architecture,
            **values,
            num_key_value_heads=self._setting("attention.head_count_kv") or heads,
            head_dim=width,
            vocab_size=int(self._tensors[_INPUT].shape[-1]),
            tie_word_embeddings=self._tied(),
            dtype=torch.bfloat16,
        )
        theta, kind = self._setting("rope.freq_base") or 10000.0, self._setting("rope.scaling.type") or "none"
        config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
        if _FREQUENCIES in self._tensors:
            self._scale_as_llama3(config)
        elif kind in ("linear", "yarn"):
            config.rope_parameters |= {"rope_type": kind, "factor": self._setting("rope.scaling.factor")}
            if original := self._setting("rope.scaling.original_context_length"):
                config.rope_parameters["original_max_position_embeddings"] = original
        elif kind != "none":
            raise self._unsupported(f"positions scaled by {kind!r}")
        return config

    def _scale_as_llama3(self, config: Any) -> None:
        """Find the settings of scaled positions by their frequencies, which alone are in the file."""
        found, theta = np.array(self._tensors[_FREQUENCIES].data), config.rope_parameters["rope_theta"]
        plain = 1 / theta ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        for factor in (8.0, 32.0):  # Llama 3.1 and 3.2
            config.rope_parameters = {
                "rope_type": "llama3", "rope_theta": theta, "factor": factor, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            }  # fmt: skip
            scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
            if found.shape == plain.shape and np.allclose((plain / scaled).numpy(), found, rtol=1e-3):
                return
        raise self._unsupported("the frequencies of its positions are neither those of Llama 3.1 nor 3.2")

    def _tied(self) -> bool:
        """Whether input and output embeddings are the same weights: one of them, or two roundings."""
        if _OUTPUT not in self._tensors:
            return True
        both = [self._tensors[name] for name in (_INPUT, _OUTPUT)]
        first, second = (self._plain(tensor, 256) for tensor in both)
        return first.shape == second.shape and bool(np.linalg.norm(first - second) < _ROUNDING * np.linalg.norm(first))

    def _check_tensors(self, config: Any) -> None:
        """Refuse a file whose weights are not exactly those of the model."""
        with torch.device("meta"):
            state = AutoModelForCausalLM.from_config(config).state_dict()
        wanted = {name: tuple(weight.shape) for name, weight in state.items()}
        found = {
            _name(name): tuple(map(int, reversed(tensor.shape)))
            for name, tensor in self._tensors.items()
            if name != _FREQUENCIES
        }
        if config.tie_word_embeddings:
            found.setdefault(_name(_OUTPUT), found[_name(_INPUT)])
        odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if odd:
            what = f"{odd[0]} has shape {found.get(odd[0])}, and in a {config.model_type} {wanted.get(odd[0])}"
            raise self._unsupported(what)

    def _tokenizer(self, directory: Path) -> PreTrainedTokenizerFast:
        kind, split = (self._field(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
        if kind is None or "tokenizer.ggml.tokens" not in self._reader.fields:
            raise self._unsupported("it has no tokenizer", "take a file of the model that has one")
        if kind not in ("gpt2", "llama") or (kind == "gpt2" and (split or "default") not in _SPLITS):
            raise self._unsupported(f"tokenizer {kind!r}, with text split as {split!r}")
        # By itself: a tokenizer's files next to it would be read in its place.
        link = directory / "model.gguf"
        link.symlink_to(self.path.resolve())
        try:
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(directory), gguf_file=link.name)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as failure:
            raise self._unsupported(f"its tokenizer could not be read: {one_line(failure)}") from failure
        finally:
            link.unlink()
        inner = tokenizer.backend_tokenizer
        if split in _SINGLE_DIGITS:
            digits = pre_tokenizers.Digits(individual_digits=True)
            inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        if split in _QWEN:
            inner.normalizer = normalizers.NFC()
        if split in _LLAMA3:
            inner.model.ignore_merges = True
        return tokenizer

    def _write_weights(self, config: Any, directory: Path) -> None:
        """Write all weights in files of about `_SHARD_BYTES`, with the index that transformers reads."""
        places: dict[str, str] = {}
        shard: dict[str, torch.Tensor] = {}
        held, number = 0, 1
        for name, weight in self._weights(config):
            if shard and held + weight.nbytes > _SHARD_BYTES:
                save_file(shard, directory / f"model-{number:05}.safetensors", metadata={"format": "pt"})
                shard, held, number = {}, 0, number + 1
            shard[name], places[name] = weight, f"model-{number:05}.safetensors"
            held += weight.nbytes
        save_file(shard, directory / f"model-{number:05}.safetensors", metadata={"format": "pt"})
        index = json.dumps({"metadata": {}, "weight_map": places})
        (directory / "model.safetensors.index.json").write_text(index, encoding="utf-8")

    def _weights(self, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        tensors = {name: tensor for name, tensor in self._tensors.items() if name != _FREQUENCIES}
        if config.tie_word_embeddings and _OUTPUT in tensors:
            # Of two roundings of the same weights, the one with more bytes is nearer to them.
            tensors[_INPUT] = max(tensors[_INPUT], tensors.pop(_OUTPUT), key=lambda tensor: tensor.n_bytes)
        reported = time.monotonic()
        for number, (name, tensor) in enumerate(tensors.items(), start=1):
            value = self._plain(tensor)
            if not np.isfinite(value).all():
                raise self._damaged(f"{name} has values that are not finite")
            part = name.split(".")[-2]
            if self._architecture == "llama" and part in heads:
                # llama.cpp stores the two halves of each rotated pair next to each other.
                value = value.reshape(heads[part], -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
            yield _name(name), torch.from_numpy(np.array(value)).to(torch.bfloat16)
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                _say(f"converting {self.path.name}: {100 * number // len(tensors)} %")


def _name(name: str) -> str:
    """The name of a tensor in transformers, or itself: blk.3.attn_q.bias is model.layers.3.self_attn.q_proj.bias."""
    part, *path = name.split(".")
    if part == "blk" and len(path) == 3 and path[1] in _INNER:
        return f"model.layers.{path[0]}.{_INNER[path[1]]}.{path[2]}"
    return ".".join([_OUTER.get(part, part), *path])
