"""Load a Hugging Face causal language model and a LoRA adapter, merged into its weights or kept apart to be trained.

Problems that transformers or peft hide (missing weights drawn at random, an adapter of another model) are errors.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from midstream.core.errors import RecipeError
from midstream.engines.adapters import ADAPTER_CONFIG, adapters_in
from midstream.engines.local.catalog import place_of
from midstream.engines.local.codec import load_tokenizer, one_line

_CORRECT = f"correct base_model_name_or_path in {ADAPTER_CONFIG}"


def load_model(
    name: str, dtype: str, device: str, *, trainable: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load weights and tokenizer from a directory, a GGUF file, the hub, or the directory of a LoRA adapter.

    An adapter is loaded onto the model that it was trained on: merged into the weights, or, to train it further
    (`trainable`), as a peft model; so are those of a directory with an adapter for each role. Raises `RecipeError` if
    model, adapter or device is missing, unknown, or does not fit the others, or if memory is too small for the weights.
    """
    require_device(device)
    place = place_of(name)
    adapters = adapters_in(Path(place))
    for adapter in adapters.values():
        place = _base_of(adapter)
    if place.endswith(".gguf"):
        # Imported where used: it takes half a second.
        from midstream.engines.local.gguf import convert

        place = str(convert(Path(place)))
    try:
        if device == "cpu":
            _check_memory(place, dtype)
        pair: Any = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype), output_loading_info=True)
        model, loaded = pair
        tokenizer = load_tokenizer(place)
    except RecipeError:
        raise
    except Exception as failure:
        # Of three libraries; tokenizers raises plain ones for a file that it cannot read.
        raise RecipeError(
            f"model {name!r} could not be loaded: {one_line(failure)}",
            code="model-not-loaded",
            fix="correct the name or path in the recipe's [engines.*] table; midstream models lists short names",
        ) from failure
    # Transformers would draw them at random, and say so in a log.
    if loaded["missing_keys"]:
        raise RecipeError(
            f"model {name!r} lacks {len(loaded['missing_keys'])} weights, {min(loaded['missing_keys'])} among them",
            code="model-not-loaded",
            fix="name another model, or save it again",
        )
    if adapters:
        model = _with_adapters(model, adapters, trainable)
    return model.to(device), tokenizer


def _base_of(adapter: Path) -> str:
    """The model that an adapter was trained on: a directory, or a name on the hub."""
    try:
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if config["peft_type"] != "LORA":
            raise ValueError(f"peft_type is {config['peft_type']!r}")
    except (OSError, ValueError, KeyError, TypeError) as failure:
        fix = "name the `policy` directory of a run with [learner.lora]"
        raise _invalid(adapter, f"is not a LoRA adapter: {one_line(failure)}", fix) from failure
    base = str(config.get("base_model_name_or_path") or "")
    if not base or (Path(base).is_absolute() and not Path(base).exists()):
        raise _invalid(adapter, f"was trained on {base or 'a model without a name'!r}, which is not here", _CORRECT)
    return place_of(base)


def _check_memory(directory: str, dtype: str) -> None:
    """Refuse with `RecipeError` weights that are larger than the memory that is available, where both are known."""
    stored = sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))
    memory = Path("/proc/meminfo")
    if stored and memory.is_file():
        kind: Any = AutoConfig.from_pretrained(directory).dtype or torch.float32
        needed = stored // kind.itemsize * getattr(torch, dtype).itemsize
        available = int(memory.read_text().partition("MemAvailable:")[2].split()[0]) << 10
        if needed > available:
            numbers = f"{needed >> 20:,} MB as {dtype}, and {available >> 20:,} MB of memory are free"
            fix = "end other programs, or name a smaller model" + ', or set dtype = "bfloat16"' * (dtype == "float32")
            raise RecipeError(f"model {directory!r} needs {numbers}", code="too-little-memory", fix=fix)


def merge_adapter(adapter: Path, directory: Path) -> None:
    """Write the model of a LoRA adapter with the adapter merged into its weights, in the dtype that it is stored in.

    The directory appears when it is whole. Raises `RecipeError` if there is no adapter, or the directory exists.
    """
    base = _base_of(adapter)
    if directory.exists():
        raise RecipeError(f"{directory} exists", code="file-exists", fix="name another directory")
    # Merged in single precision: in bfloat16 a small step would be lost twice.
    model, tokenizer = load_model(str(adapter), "float32", "cpu")
    stored = AutoConfig.from_pretrained(base).dtype or torch.float32
    partial = directory.with_name(f".{directory.name}.partial")
    model.to(stored).save_pretrained(partial)  # type: ignore[arg-type]
    tokenizer.save_pretrained(partial)
    partial.rename(directory)


def require_device(device: str) -> None:
    """Refuse with `RecipeError` a device that PyTorch cannot use here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as failure:
        # PyTorch without CUDA asserts.
        raise RecipeError(
            f"device {device!r} cannot be used: {one_line(failure)}",
            code="no-device",
            fix='set device = "cpu", or install PyTorch for the device',
        ) from failure


def _with_adapters(model: Any, adapters: Mapping[str, Path], trainable: bool) -> Any:
    """The model with a LoRA adapter: merged, or apart from its weights and trainable; several always are apart."""
    # Imported where used: it takes a second.
    from peft import PeftModel

    for name, adapter in adapters.items():
        try:
            with warnings.catch_warnings():
                # Peft asks transformers by a name that is being retired.
                warnings.simplefilter("ignore", FutureWarning)
                # Those would stay as they were drawn.
                warnings.filterwarnings("error", "Found missing adapter keys")
                if isinstance(model, PeftModel):
                    model.load_adapter(str(adapter), name, is_trainable=trainable)
                else:
                    model = PeftModel.from_pretrained(model, str(adapter), name, is_trainable=trainable)
        except (OSError, RuntimeError, SafetensorError, UserWarning, ValueError) as failure:
            raise _invalid(adapter, f"does not fit its model: {one_line(failure)}", _CORRECT) from failure
    if trainable or "default" not in adapters:
        return model.eval()
    # Peft froze it.
    return model.merge_and_unload().eval().requires_grad_(True)  # type: ignore[operator]


def _invalid(adapter: Path, what: str, fix: str) -> RecipeError:
    return RecipeError(f"adapter {str(adapter)!r} {what}", code="adapter-invalid", fix=fix)
