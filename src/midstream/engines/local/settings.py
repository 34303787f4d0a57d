"""Settings of a pretrained model in this process. Importing them needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, JsonValue, model_validator

from midstream.core.component import Context, EngineConfig
from midstream.core.errors import RecipeError, UnsupportedError

if TYPE_CHECKING:
    from midstream.engines.local.engine import ReferencePolicy, TransformersLocal


class InProcessConfig(EngineConfig):
    """Settings of a model in this process."""

    in_process = True
    extra = "train"
    packages = ("torch", "transformers")


class LocalModelConfig(InProcessConfig):
    """A Hugging Face causal language model in this process, which can be trained.

    Attributes:
        model: a directory, a GGUF file, a short name of `midstream models`, or a name on the Hugging Face Hub
        adapter: the directory of a LoRA adapter of that model, such as a run's `policy`
        dtype: `float32`, `bfloat16` or `float16`; training all weights needs `float32`, or `learner.masters`, because
            the others lose small steps
        device: PyTorch's name of the device
        max_batch: the most completions sampled at once
        chat_template_kwargs: settings of the chat template, such as `{ enable_thinking = false }`
    """

    model: str
    adapter: Path | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    max_batch: int = Field(default=64, ge=1)
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)

    def build(self, context: Context) -> TransformersLocal:
        """Build it; the model is loaded."""
        require_torch()
        from midstream.engines.local.engine import TransformersLocal
        from midstream.engines.local.pretrained import load_model

        trainable = context.trains_adapter
        model, tokenizer = load_model(self.model, self.dtype, self.device, adapter=self.adapter, trainable=trainable)
        return TransformersLocal(
            model,
            tokenizer,
            name=context.name,
            max_batch=self.max_batch,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class TinyTextConfig(InProcessConfig):
    """A language model in open text that is made here, small enough to learn from nothing on a laptop.

    Attributes:
        weights: `atlas`: the model that comes with midstream (recipe `text-start`); `copying`: new weights that copy;
            or the directory of a saved model, relative to the working directory
        hidden_size: width; with layers and heads, 128, 4, 4 is 1 M parameters; 256, 6, 8 are 5 M; 512, 6, 16 are 21 M
        layers: depth
        heads: attention heads
        max_positions: the most tokens of prompt and completion together
        device: PyTorch's name of the device
        max_batch: the most completions sampled at once
    """

    tiny = True

    weights: Literal["atlas", "copying"] | Path = "copying"
    hidden_size: int = Field(default=128, gt=0)
    layers: int = Field(default=4, ge=2)
    heads: int = Field(default=4, ge=2, multiple_of=2)
    max_positions: int = Field(default=2048, ge=64)
    device: str = "cpu"
    max_batch: int = Field(default=256, ge=1)

    @model_validator(mode="after")
    def _heads_fit(self) -> TinyTextConfig:
        if self.hidden_size % (2 * self.heads) or self.hidden_size < 16 * self.heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be an even multiple of the {self.heads} heads, 16 or more"
            )
        if self.weights == "atlas" and (self.hidden_size, self.layers, self.heads) != (128, 4, 4):
            raise ValueError('weights = "atlas" has hidden_size 128, 4 layers and 4 heads; for others set "copying"')
        return self

    def build(self, context: Context) -> TransformersLocal:
        """Build it; a saved model is loaded."""
        require_torch()
        from midstream.engines.local.engine import TransformersLocal
        from midstream.engines.local.pretrained import load_model, require_device
        from midstream.engines.local.tiny_text.model import make_model
        from midstream.engines.local.tiny_text.tokenizer import load_tokenizer

        if isinstance(self.weights, str):
            require_device(self.device)
            tokenizer = load_tokenizer()
            model = make_model(self, tokenizer, context.warm_seed).to(self.device)  # type: ignore[arg-type]
        else:
            if not self.weights.is_dir():
                raise RecipeError(
                    f"engines.{context.name}.weights: there is no directory {str(self.weights)!r}",
                    code="file-not-found",
                    fix='correct the path, or set weights = "atlas" (comes with midstream) or "copying" (new)',
                )
            model, tokenizer = load_model(str(self.weights), "float32", self.device)
            if model.config.get_text_config().vocab_size != len(tokenizer):  # type: ignore[arg-type]
                raise RecipeError(
                    f"the model in {str(self.weights)!r} has {model.config.get_text_config().vocab_size} tokens, and "
                    f"its tokenizer {len(tokenizer)}",  # type: ignore[arg-type]
                    code="model-not-loaded",
                    fix="save both again, or name another directory",
                )
        return TransformersLocal(model, tokenizer, name=context.name, max_batch=self.max_batch)


class ReferenceConfig(InProcessConfig):
    """The reference policy: the weights of another engine in process (`engine`) as they were before reinforcement.

    It takes no memory of its own, and several modules may ask it next to the engine itself.
    """

    asks = "always"

    def build(self, context: Context) -> ReferencePolicy:
        """Build it."""
        require_torch()
        from midstream.engines.local.engine import ReferencePolicy, TransformersLocal

        assert isinstance(context.engine, TransformersLocal)  # the recipe's check has seen to it
        return ReferencePolicy(context.engine, context.name)


def require_torch() -> None:
    """Refuse with `UnsupportedError` where PyTorch or Transformers is not installed."""
    try:
        import torch
        import transformers
    except ImportError as failure:
        raise UnsupportedError(
            f"{failure.name} is not installed, and in-process models need it",
            code="missing-extra",
            fix="pip install 'midstream[train]'",
        ) from failure
    del torch
    transformers.utils.logging.disable_progress_bar()  # ours is the only one
