"""Convert a GGUF file once to a Hugging Face directory of bfloat16 weights, and find it again by the file's state.

transformers unpacks the weights. It takes much longer to read a GGUF file, and its tokenizer, than the directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import quantization_config

from midstream.core.errors import RecipeError, needs_extra
from midstream.engines.local.catalog import cache_directory, lock_cache
from midstream.engines.local.codec import one_line

# Raise it when a conversion gives another result: it is a part of the names in the cache.
_VERSION = 1
# A file's tensors: of the model, and of each layer.
_WHOLE = ("token_embd.weight", "output_norm.weight")
_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
# What layers have besides, by architecture.
_MORE = {
    "llama": (),
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
}
ARCHITECTURES = tuple(_MORE)
# Two embeddings that differ by less than this share of their norm are two roundings of the same weights.
_ROUNDING = 0.5
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
        raise RecipeError(
            f"{path} could not be converted into {cache}: {one_line(failure)}",
            code="gguf-no-space",
            fix="free some space, or set XDG_CACHE_HOME to a directory on another disk",
        ) from failure
    return directory


class _File:
    """An open GGUF file of an architecture that is supported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with needs_extra(f"{path} is a GGUF file", "train"):
            from gguf import GGUFReader
        try:
            reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as failure:
            if "GGMLQuantizationType" in str(failure) or "appears to be version" in str(failure):
                raise self._unsupported_error(one_line(failure)) from failure
            raise self._damaged_error(one_line(failure)) from failure
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        kind = self._field("general.architecture")
        if kind not in ARCHITECTURES:
            raise self._unsupported_error(
                f"its architecture is {kind!r}; midstream converts {', '.join(ARCHITECTURES)}"
            )
        names = ("block_count", "embedding_length", "feed_forward_length")
        names += ("attention.head_count", "attention.head_count_kv", "attention.key_length")
        numbers = {name: self._field(f"{kind}.{name}") for name in names}
        for name, value in numbers.items():
            # Some families have a value for each layer.
            if not isinstance(value, int | None):
                raise self._unsupported_error(f"it has no single value of {kind}.{name}")
        hidden, heads = numbers["embedding_length"] or 0, numbers["attention.head_count"] or 1
        self._head_size = numbers["attention.key_length"] or hidden // heads
        rotated, scaling = (self._field(f"{kind}.rope.{name}") for name in ("dimension_count", "scaling.type"))
        # transformers rotates whole heads at the positions as they are, whatever the file says.
        if rotated not in (None, self._head_size) or scaling not in (None, "none"):
            raise self._unsupported_error("its positions are scaled, or rotate only a part of a head")
        own = (*(f"{name}.weight" for name in _LAYER), *_MORE[kind])
        wanted = {*_WHOLE, *(f"blk.{layer}.{name}" for layer in range(numbers["block_count"] or 0) for name in own)}
        # transformers leaves out what the model has no place for. A file of tied embeddings has no output.weight.
        if odd := sorted(wanted ^ (self._tensors.keys() - {"output.weight"})):
            has = "has" if odd[0] in self._tensors else "lacks"
            raise self._unsupported_error(f"it {has} the tensor {odd[0]}, unlike a {kind}")

    def convert(self, directory: Path) -> None:
        """Write the directory next to its place, then rename it: a killed conversion leaves no model."""
        for stale in directory.parent.glob("partial-gguf-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-gguf-", dir=directory.parent))
        try:
            count = sum(int(tensor.n_elements) for tensor in self._tensors.values())
            size = f"{count / 1e6:,.1f} M weights, {2 * count >> 20:,} MB"
            sys.stderr.write(f"converting {self.path.name} to bfloat16, once: {size} in {directory}\n")
            began = time.monotonic()
            model, tokenizer = self._read(partial)
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

    def _field(self, key: str) -> Any:
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def _unsupported_error(self, what: str, fix: str = "") -> RecipeError:
        fix = fix or "name the model's directory in Hugging Face's format, or serve the file: --provider llama_cpp"
        return RecipeError(f"{self.path} is not supported: {what}", code="gguf-unsupported", fix=fix)

    def _damaged_error(self, what: str) -> RecipeError:
        what = f"{self.path} ({self.path.stat().st_size:,} bytes) is cut short or damaged: {what}"
        fix = "fetch it again, and compare its size and checksum with those at its source"
        return RecipeError(what, code="gguf-truncated", fix=fix)

    def _read(self, directory: Path) -> tuple[Any, Any]:
        """The model and its tokenizer, from a link in `directory`."""
        kind, split = (self._field(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
        if kind is None or "tokenizer.ggml.tokens" not in self._fields:
            raise self._unsupported_error("it has no tokenizer", "take a file of the model that has one")
        if kind != "gpt2" or (split or "default") not in (*_SINGLE_DIGITS, *_QWEN, *_PLAIN):
            raise self._unsupported_error(f"its tokenizer is {kind!r}, with text split as {split!r}")
        # Older versions of transformers have no such class, and unpack always.
        packing: Any = getattr(quantization_config, "GgufConfig", None)
        unpacked = {"quantization_config": packing(dequantize=True)} if packing else {}
        # By itself: a tokenizer's files next to it would be read in its place.
        link = directory / "model.gguf"
        link.symlink_to(self.path.resolve())
        place: dict[str, Any] = {"pretrained_model_name_or_path": str(directory), "gguf_file": link.name}
        try:
            config: Any = AutoConfig.from_pretrained(**place)
            # transformers counts the tokenizer's tokens instead, and gives every qwen3 heads of one size.
            config.vocab_size, config.head_dim = int(self._tensors["token_embd.weight"].shape[-1]), self._head_size
            pair: Any = AutoModelForCausalLM.from_pretrained(
                **place, **unpacked, config=config, dtype=torch.bfloat16, output_loading_info=True
            )
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(**place)
        except (OSError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, RuntimeError) as failure:
            raise self._unsupported_error(f"transformers cannot read it: {one_line(failure)}") from failure
        finally:
            link.unlink()
        model, loaded = pair
        if odd := sorted(loaded["missing_keys"] | loaded["unexpected_keys"]):
            raise self._unsupported_error(f"{odd[0]} is not both in it and in a {model.config.model_type}")
        for name, weight in model.named_parameters():
            if not weight.isfinite().all():
                raise self._damaged_error(f"{name} has values that are not finite")
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        first = embedding[:256].float()
        if head is not embedding and (first - head[:256].float()).norm() < _ROUNDING * first.norm():
            # Of two roundings of the same weights, the one with more bytes is nearer to them.
            if self._tensors["output.weight"].n_bytes > self._tensors["token_embd.weight"].n_bytes:
                embedding.data.copy_(head)
            model.config.tie_word_embeddings = True
            model.tie_weights()
        if split in _SINGLE_DIGITS:
            parts = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
        elif split in _QWEN:
            tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        return model, tokenizer
