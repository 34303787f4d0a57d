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
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from midstream.core.errors import RecipeError
from midstream.engines.local.codec import load_tokenizer, one_line

_ADAPTER_CONFIG = "adapter_config.json"


def load_model(
    name: str, dtype: str, device: str, *, adapter: Path | None = None, trainable: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load weights and tokenizer from a directory or the hub, and a LoRA adapter from its directory.

    The adapter is merged into the weights, or, to train it further (`trainable`), the result is a peft model. Raises
    `RecipeError` if model, adapter or device is missing, unknown, or does not fit the others.
    """
    require_device(device)
    if (Path(name) / _ADAPTER_CONFIG).is_file():
        raise RecipeError(
            f"model {name!r} is a LoRA adapter, not a whole model",
            code="model-not-loaded",
            fix=f'set adapter = "{name}" and model = "{_adapter_config(Path(name)).get("base_model_name_or_path")}"',
        )
    try:
        pair: Any = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype), output_loading_info=True)
        model, loaded = pair
        tokenizer = load_tokenizer(name)
    except (OSError, RuntimeError, SafetensorError, ValueError) as failure:
        raise RecipeError(
            f"model {name!r} could not be loaded: {one_line(failure)}",
            code="model-not-loaded",
            fix="correct the name or path in the recipe's [engines.*] table",
        ) from failure
    if loaded["missing_keys"]:  # transformers would draw them at random and say so in a log
        raise RecipeError(
            f"model {name!r} lacks {len(loaded['missing_keys'])} weights, {min(loaded['missing_keys'])} among them",
            code="model-not-loaded",
            fix="name another model, or save it again",
        )
    if adapter is not None:
        model = _with_adapter(model, name, adapter, trainable)
    return model.to(device), tokenizer


def require_device(device: str) -> None:
    """Refuse with `RecipeError` a device that PyTorch cannot use here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as failure:  # PyTorch without CUDA asserts
        raise RecipeError(
            f"device {device!r} cannot be used: {one_line(failure)}",
            code="no-device",
            fix='set device = "cpu", or install PyTorch for the device',
        ) from failure


def _with_adapter(model: PreTrainedModel, name: str, adapter: Path, trainable: bool) -> Any:
    """The model with a LoRA adapter: merged, or apart from its weights and trainable."""
    config = _adapter_config(adapter)
    base = str(config.get("base_model_name_or_path") or "")
    if Path(base).name not in ("", Path(name).name):  # the same model may lie elsewhere now
        raise _other_base(adapter, name, f"it was trained on {base!r}")
    from peft import PeftModel  # imported where used: it takes a second

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is being retired
            warnings.filterwarnings("error", "Found missing adapter keys")  # those would stay as they were drawn
            adapted = PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable)
    except (OSError, RuntimeError, SafetensorError, UserWarning, ValueError) as failure:
        raise _other_base(adapter, name, one_line(failure)) from failure
    if trainable:
        return adapted.eval()
    return adapted.merge_and_unload().eval().requires_grad_(True)  # type: ignore[operator]  # peft froze it


def _adapter_config(adapter: Path) -> Mapping[str, Any]:
    """The configuration in a LoRA adapter's directory."""
    try:
        config = json.loads((adapter / _ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if config["peft_type"] != "LORA":
            raise ValueError(f"peft_type is {config['peft_type']!r}")
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise RecipeError(
            f"adapter {str(adapter)!r} is not a LoRA adapter: {one_line(failure)}",
            code="adapter-invalid",
            fix="set `adapter` of [engines.*] to the `policy` directory of a run with [learner.lora]",
        ) from failure
    return config


def _other_base(adapter: Path, name: str, reason: str) -> RecipeError:
    return RecipeError(
        f"adapter {str(adapter)!r} does not fit model {name!r}: {reason}",
        code="adapter-invalid",
        fix="set `model` to that one; if it only has another name here, correct base_model_name_or_path in "
        f"{_ADAPTER_CONFIG}",
    )
