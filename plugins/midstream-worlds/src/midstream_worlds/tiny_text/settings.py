"""Settings of the tiny language model in open text. Importing them needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from midstream.components.component import Context
from midstream.core.errors import RecipeError
from midstream.engines.local.settings import InProcessConfig, require_torch

if TYPE_CHECKING:
    from midstream.engines.local.engine import TransformersLocal


class TinyTextConfig(InProcessConfig):
    """A language model in open text that is made here, small enough to learn from nothing on a laptop.

    Attributes:
        weights: `atlas`: the model that comes with the package, warm-started on the atlas (recipe `text-start`), of the
            default sizes; `copying`: new weights that copy; or the directory of a saved model, such as a run's
            `policy`, relative to the working directory, which has its own sizes
        hidden_size: width; 128 with 4 layers and 4 heads is 1 M parameters, 256, 6, 8 are 5 M, 512, 6, 16 are 21 M
        layers: depth
        heads: attention heads
        max_positions: the most tokens of prompt and completion together
        device: PyTorch's name of the device
        max_batch: the most completions sampled at once
    """

    tiny = True
    vocabulary: ClassVar[int] = 1024

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
        from midstream_worlds.tiny_text.model import make_model
        from midstream_worlds.tiny_text.tokenizer import load_tokenizer

        if isinstance(self.weights, str):
            require_device(self.device)
            tokenizer = load_tokenizer()
            model = make_model(self, tokenizer, context.recipe.warm_seed).to(self.device)  # type: ignore[arg-type]
        else:
            if not self.weights.is_dir():
                raise RecipeError(
                    f"engines.{context.name}.weights: there is no directory {str(self.weights)!r}",
                    code="file-not-found",
                    fix='correct the path, or set weights = "atlas" (comes with the package) or "copying" (new)',
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
