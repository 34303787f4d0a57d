"""A model small enough for a laptop: a from-scratch Qwen2 decoder with a word-level tokenizer, closed vocabulary.

Copying a name that was never trained on is what a small model finds hard. Three things make it carry over:

- all place names share one trained vector; the rest of a name's vector is random, the same for no two names, and is
  drawn again before every warm-start batch and every training step (numbers likewise). A name of the test split is
  therefore, to the model, one more random draw around a vector it knows well: it is never itself trained on;
- input and output embeddings are tied, and every attention output starts as the transpose of its value projection, so
  that attending to a token raises that token's logit from the first step;
- a number up to 199 is one token; a larger one is spelled in digits. A mark of a stream (<think>) is one token.

The ranges of redrawn token ids travel in the model's configuration (`midstream_redrawn`), so that a saved planner is
an ordinary Hugging Face directory. `attach_redraw` gives a model that has them the hooks that a learner calls: this is
the only module of the worlds that imports torch, and only inside its functions.

What the model can read and write is its world's (`TinyWorld.vocabulary`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from midstream.components.component import Context
from midstream.core.errors import RecipeError
from midstream.core.stream_template import load_template
from midstream.engines.local.settings import InProcessConfig, require_torch
from midstream_worlds.bases import WarmStartWorld

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from midstream.engines.local.engine import TransformersLocal
    from midstream.recipe.schema import Recipe

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PAD_ID, EOS_ID = 0, 1
PIECES = r"\n|</?[a-z_]+>| (?:1\d\d|\d\d?)(?!\d)| \d\d?(?=\d)|\d| ?[A-Za-z_]\w*| ?[^\s\w]"
LARGEST_NUMBER = 199


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """What a tiny model can read and write; anything else is `UNKNOWN` to it.

    `words` follow a space, `names` likewise and are redrawn, `bare` are pieces of text as they are. A model with a
    `chat_template` (Jinja, as in Hugging Face tokenizers) reads chats, any other plain text.
    """

    words: Iterable[str] = ()
    names: Sequence[str] = ()
    bare: Sequence[str] = ()
    chat_template: str | None = None


class TinyWorld(WarmStartWorld):
    """Base of a `training.protocols.TrainableWorld` in which a tiny model learns from nothing."""

    def vocabulary(self, context: Context) -> Vocabulary:
        """What the recipe's agent writes and reads in this world."""
        raise NotImplementedError

    def attach(self, model: Any) -> None:
        """Have a learner draw the names of a tiny model's vocabulary again before every step."""
        attach_redraw(model)


class TinyModelConfig(InProcessConfig):
    """A model of half a million parameters that learns from nothing, with the vocabulary of its world.

    Attributes:
        hidden_size: width
        layers: depth
        heads: attention heads
        max_positions: the most tokens of prompt and completion together
        embedding_std: standard deviation of initial weights and of redrawn vectors
        max_batch: the most completions sampled at once
    """

    tiny = True
    limits = (
        "The model has half a million parameters and a closed vocabulary: it acts in its made-up world and nowhere "
        "else. Questions come from templates, and the test's differ from the training's in their places, facts and "
        "numbers, not in their wording. What this shows is that the loop, the credit and the update work, on real "
        "tools and held-out facts; it says nothing about how much a large model gains."
    )

    hidden_size: int = Field(default=128, multiple_of=8, gt=0)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    max_positions: int = Field(default=256, ge=64)
    embedding_std: float = Field(default=0.1, gt=0)
    max_batch: int = Field(default=256, ge=1)

    @property
    def needs_world(self) -> bool:
        """Its vocabulary is the world's."""
        return True

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyModelConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of twice the {self.heads} heads")
        return self

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """Check that a policy of this vocabulary can read its prompts. Raises `RecipeError`."""
        # Recipes name this class before anything else of midstream is loaded.
        from midstream.recipe.check import is_dialogues
        from midstream.recipe.lessons import lessons_of
        from midstream.recipe.schema import InterleavedConfig

        agent, name = recipe.agent, recipe.modules[recipe.trained].engine
        if where != f"engines.{name}":
            return
        questions = not is_dialogues(recipe.tasks)
        if questions and isinstance(agent, InterleavedConfig) and load_template(agent.template).chat:
            raise RecipeError(
                f"agent.template = {agent.template!r} with a policy of engine {name!r}",
                code="setting-conflict",
                cause="the template is a chat in English; this policy reads only the words of its world",
                fix='set agent.template = "tiny", or name a model',
            )
        shown = {f"agent.lessons = {str(agent.lessons)!r}": lessons_of(agent, agent.lessons)}
        if recipe.lessons is not None:
            shown["lessons.modules"] = dict.fromkeys(recipe.lessons.modules, "")
        taught = recipe.warm_start is not None and recipe.warm_start.lessons > 0
        for setting, modules in shown.items():
            if recipe.trained in modules and not taught:
                raise RecipeError(
                    f"{setting} has lessons for a tiny planner, whose vocabulary has none of their words: "
                    "warm_start.lessons = 0",
                    code="setting-conflict",
                    fix="set warm_start.lessons, e.g. to 0.5",
                )

    def build(self, context: Context) -> TransformersLocal:
        """Build it."""
        require_torch()
        from midstream.engines.local.engine import TransformersLocal

        if not isinstance(context.source, TinyWorld):
            raise RecipeError(
                f"engines.{context.name} is of type tiny, which reads a closed vocabulary, and the tasks have none",
                code="world-missing",
                fix='set type = "tiny_text", whose model reads any text, or tasks.type = "gazetteer"',
            )
        vocabulary = context.source.vocabulary(context)
        tokenizer = make_tokenizer(vocabulary.words, vocabulary.names, vocabulary.bare)
        tokenizer.chat_template = vocabulary.chat_template
        model = make_model(self, tokenizer, len(vocabulary.names), context.recipe.warm_seed)
        return TransformersLocal(model, tokenizer, name=context.name, max_batch=self.max_batch)


def pieces_of(text: str) -> list[str]:
    """The pieces of a text that are tokens of a vocabulary which has them."""
    return re.findall(PIECES, text)


def make_tokenizer(words: Iterable[str], names: Sequence[str], bare: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: spaces belong to the word after them, `\\n` and digits are tokens.

    A bare piece that is longer than a word, such as the syntax between the values of a call, is one token too.

    Token order: specials, bare pieces, words, the numbers " 0" to " 199", names; the last two are what is redrawn.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = dict.fromkeys(["\n", "Question", *(f"r{i}" for i in range(1, 10)), *map(str, range(10)), *bare])
    spaced = [" " + word for word in sorted(set(words))]
    numbers = [f" {i}" for i in range(LARGEST_NUMBER + 1)]
    vocabulary = [PAD, EOS, UNKNOWN, *pieces, *spaced, *numbers, *(" " + name for name in sorted(names))]
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    long = sorted((piece for piece in bare if not re.fullmatch(PIECES, piece)), key=len, reverse=True)
    pattern = "|".join([*map(re.escape, long), PIECES])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def make_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast, names: int, seed: int) -> PreTrainedModel:
    """An untrained decoder whose last `names` tokens are names and the 200 before them numbers.

    Where there are no names, nothing is redrawn.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    size = len(tokenizer)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            intermediate_size=3 * config.hidden_size,
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=True,
            initializer_range=config.embedding_std,
            pad_token_id=PAD_ID,
            bos_token_id=None,
            eos_token_id=EOS_ID,
        )
    )
    numbers = size - names - LARGEST_NUMBER - 1
    model.config.midstream_redrawn = [[numbers, size - names], [size - names, size]] if names else []
    with torch.no_grad():
        layers: Any = model.model.layers
        for attention in (layer.self_attn for layer in layers):
            torch.nn.init.orthogonal_(attention.v_proj.weight)
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)
        for start, stop in model.config.midstream_redrawn:
            model.model.embed_tokens.weight[start:stop] = torch.randn(config.hidden_size) * config.embedding_std
    redraw(model, seed)
    return model.eval()


def redrawn_ranges(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Token-id ranges whose vectors share one trained part; empty for any other model."""
    return [(start, stop) for start, stop in getattr(model.config, "midstream_redrawn", ())]


def redraw(model: PreTrainedModel, seed: int) -> None:
    """Draw the random parts of names and numbers again; their shared part stays."""
    import torch

    weight: Any = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    std = model.config.get_text_config().initializer_range
    with torch.no_grad():
        for start, stop in redrawn_ranges(model):
            noise = torch.randn(stop - start, weight.shape[1], generator=generator) * std
            weight[start:stop] = weight[start:stop].mean(0) + noise - noise.mean(0)


def attach_redraw(model: PreTrainedModel) -> None:
    """Redraw a model before every training step, and train only what the tokens of a redrawn range share.

    A learner calls `model.before_step(seed)`; a hook on the embedding's gradient gives every token of a range the
    range's summed gradient. A model without redrawn ranges is left alone, and so is one that has the hooks.
    """
    ranges = redrawn_ranges(model)
    if not ranges or hasattr(model, "before_step"):
        return

    def share(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        for start, stop in ranges:
            gradient[start:stop] = gradient[start:stop].sum(0)
        return gradient

    weight: Any = model.get_input_embeddings().weight
    weight.register_hook(share)
    model.before_step = MethodType(redraw, model)  # type: ignore[assignment]  # bound, so a deep copy redraws itself
