"""Settings of a pretrained model in this process. Importing them needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context, EngineConfig
from midstream.core.errors import needs_extra

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
        model: a directory, a GGUF file, a short name of `midstream models`, a name on the Hugging Face Hub, or the
            directory of a LoRA adapter, such as a run's `policy`
        dtype: `float32`, `bfloat16` or `float16`; where all weights are trained in 16 bits, AdamW updates float32
            copies of them, so that small steps add up
        device: PyTorch's name of the device
        max_batch: the most completions sampled at once
        chat_template_kwargs: settings of the chat template, such as `{ enable_thinking = false }`
    """

    model: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    max_batch: int = Field(default=64, ge=1)
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)

    def build(self, context: Context) -> TransformersLocal:
        """Build it; the model is loaded."""
        require_torch()
        from midstream.engines.local.engine import TransformersLocal
        from midstream.engines.local.pretrained import load_model

        recipe = context.recipe
        trainable = recipe.training is not None and recipe.learner.lora is not None
        trainable &= context.name == recipe.trained_engine
        model, tokenizer = load_model(self.model, self.dtype, self.device, trainable=trainable)
        return TransformersLocal(
            model,
            tokenizer,
            name=context.name,
            max_batch=self.max_batch,
            chat_template_kwargs=self.chat_template_kwargs,
        )


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
    with needs_extra("in-process models need torch and transformers, which are not installed", "train"):
        import torch  # noqa: F401
        import transformers
    # Ours is the only progress bar.
    transformers.utils.logging.disable_progress_bar()
