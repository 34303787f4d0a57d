"""Estimate whether the models of a recipe fit: weights, AdamW, activations of an update, cache of sampling.

Parameter counts are exact, from the shape of a known model or a local directory's config.json; the rest are bounds
(tests/recipe/test_memory.py). `midstream plan` of midstream-extra counts more closely, and for several GPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.components.component import Component
from midstream.engines.local.catalog import place_of
from midstream.engines.local.settings import LocalModelConfig
from midstream.recipe.schema import InterleavedConfig, Recipe
from midstream.training.settings import LOGITS, LearnerConfig

GIB = 2**30
# Bytes of a number.
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
# Allowance: a prompted planner's instructions and five tools, before any memory.
PROMPT_TOKENS = 1000
# A subtree that forks early may hold this many times `learner.chunk_tokens` (`prefix_tree/stages.py`).
SLACK = 2
# Allowance: what a process takes of a card before it does anything.
_PROCESS_BYTES = GIB // 2
# At the peak of an update: three float32 tensors of logits.
_LOGIT_BYTES = 12
_CARD = re.compile(r"(?<!\d)(\d+)gb(?![a-z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The shape of a decoder of the Llama family.

    `bias`: query, key and value have biases. `head_norms`: the heads' queries and keys are normalized (Qwen3).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_dim: int
    tied: bool
    bias: bool = True
    head_norms: bool = False

    @property
    def parameters(self) -> int:
        """Number of all weights, with tied embeddings counted once."""
        return self.layers * self.layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def layer(self) -> int:
        """Number of weights of one layer."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = sum(wide * narrow for wide, narrow in self._linears()) + 2 * self.hidden
        return layer + (query + 2 * key) * self.bias + 2 * self.head_dim * self.head_norms

    def adapter(self, rank: int) -> int:
        """Number of weights of a LoRA adapter on all linear layers: rank x (in + out) each."""
        return self.layers * rank * sum(wide + narrow for wide, narrow in self._linears())

    def kv_bytes(self, width: int) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    def _linears(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's seven matrices."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        return [*attention, *[(self.hidden, self.intermediate)] * 3]


SHAPES: Mapping[str, Shape] = {
    name: Shape(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=intermediate,
        vocabulary=151936 if tied else 152064, head_dim=hidden // heads, tied=tied,
    )
    for name, (hidden, layers, heads, kv_heads, intermediate, tied) in {
        "Qwen2.5-0.5B": (896, 24, 14, 2, 4864, True),
        "Qwen2.5-1.5B": (1536, 28, 12, 2, 8960, True),
        "Qwen2.5-3B": (2048, 36, 16, 2, 11008, True),
        "Qwen2.5-7B": (3584, 28, 28, 4, 18944, False),
        "Qwen2.5-14B": (5120, 48, 40, 8, 13824, False),
        "Qwen2.5-32B": (5120, 64, 40, 8, 27648, False),
        "Qwen2.5-72B": (8192, 80, 64, 8, 29568, False),
    }.items()
}  # fmt: skip


def shape_of(model: str) -> Shape | None:
    """The shape of a model given by its directory or public name; None if it is unknown."""
    path = Path(place_of(model)) / "config.json"
    if not path.is_file():
        named = re.fullmatch(r"(?:Qwen/)?(Qwen2\.5-)(?:Math-)?([\d.]+B)(?:-Instruct)?", model)
        return SHAPES.get(named[1] + named[2]) if named else None
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        family = config["model_type"]
        # The formulas know the layers of these families only.
        known = family in ("llama", "mistral", "qwen2", "qwen3") and not config.get("mlp_bias")
        if not known or (family != "qwen2" and config.get("attention_bias")):
            return None
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Shape(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            head_dim=config.get("head_dim") or hidden // heads,
            tied=bool(config.get("tie_word_embeddings", False)),
            bias=family == "qwen2",
            head_norms=family == "qwen3",
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def weights_bytes(shape: Shape, dtype: str, learner: LearnerConfig | None, *, roles: int = 1) -> dict[str, int]:
    """What a device holds all the time: the weights, and for a `learner` their gradient, AdamW and reference policy.

    What `learner.offload` keeps in host memory is left out. Each of the trained `roles` may have an adapter of its own.
    """
    width = WIDTHS[dtype]
    found = {"weights": shape.parameters * width}
    if learner is None:
        return found
    masters = learner.has_masters(dtype)
    trained, state = shape.parameters, 4 if masters else width
    if learner.lora is not None:
        adapters = roles if learner.lora.per_role else 1
        trained, state = adapters * shape.adapter(learner.lora.rank), 4  # in float32
        found["LoRA adapter"] = trained * state
    elif not learner.offload:
        found["reference policy"] = trained * width
    found["gradient"] = trained * state
    if not learner.offload:
        found["AdamW"] = (3 if masters else 2) * trained * state
    return found


def update_bytes(shape: Shape, dtype: str, learner: LearnerConfig) -> int:
    """What an update of `learner.chunk_tokens` tokens keeps for its backward pass, with its logits and head.

    With recomputed activations: the inputs of all layers, and one layer in full with its gradients.
    """
    # An adapter keeps each of its inputs in float32.
    width = 4 if learner.lora is not None else WIDTHS[dtype]
    layer = (12 * shape.hidden + 4 * shape.intermediate) * width
    each = (shape.layers + 1) * layer
    if learner.recompute_activations:
        each = shape.layers * shape.hidden * width + 2 * layer
    # Logits are made a piece at a time, and the gradient of the head before it is added to the rest.
    head = 0 if learner.lora is not None else shape.vocabulary * shape.hidden * (width + 4 * learner.has_masters(dtype))
    # A prefix tree may hold a few chunks' worth of tokens, and copies of the keys and values that its branches share.
    tokens = learner.chunk_tokens
    if learner.attention != "rows":
        tokens, each = SLACK * tokens, each + 4 * shape.kv_bytes(WIDTHS[dtype])
    return tokens * each + min(LOGITS, tokens * shape.vocabulary) * _LOGIT_BYTES + head


def longest_reply(recipe: Recipe, users: Sequence[Component]) -> int:
    """The most new tokens of a request of these modules; a stream consists of several replies, which count together."""
    if isinstance(recipe.agent, InterleavedConfig):
        return recipe.agent.max_tokens
    return max(user.config.sampling.max_tokens for user in users if hasattr(user.config, "sampling"))  # type: ignore[attr-defined]


def memory_lines(recipe: Recipe, *, training: bool) -> list[str]:
    """The memory of every model in this process, and whether it fits a card that the recipe's name promises."""
    trained = recipe.trained_engine if recipe.training and training else None
    card, lines = promised_bytes(recipe.name), list[str]()
    for name, engine in recipe.engines.items():
        users = [module for module in recipe.modules.values() if module.engine == name]
        learner, config = recipe.learner if name == trained else None, engine.config
        if (learner and learner.elsewhere) or not isinstance(config, LocalModelConfig) or not (users or learner):
            continue
        title, shape = f"Memory of engine {name} ({config.model})", shape_of(config.model)
        if shape is None or (learner and learner.lora and learner.lora.target != "all-linear"):
            why = "this model's shape is not known" if shape is None else "learner.lora.target is not all-linear"
            lines.append(f"{title}: unknown, because {why}.")
            continue
        held, passing = weights_bytes(shape, config.dtype, learner, roles=len(recipe.trained_modules)), dict[str, int]()
        if learner is not None:
            update = f"activations of an update of {learner.chunk_tokens:,} tokens"
            passing[update] = update_bytes(shape, config.dtype, learner)
        if users:
            # With the shortest prompts.
            row = PROMPT_TOKENS + longest_reply(recipe, users)
            size = config.max_batch * row * shape.kv_bytes(WIDTHS[config.dtype])
            passing[f"cache of sampling {config.max_batch} rows of {row:,} tokens"] = size
        # An update and sampling follow one another.
        taken = sum(held.values()) + max(passing.values())
        lines.append(f"{title} on {config.device}, about (1 GB is 2^30 bytes):")
        lines += [f"  {_gb(size)}  {what}" for what, size in {**held, **passing, "at the peak": taken}.items()]
        if card is not None and config.device != "cpu":
            left = card - taken - _PROCESS_BYTES
            # Rounded down: a server that is promised too much fails at the first update, not at its start.
            share, of = left * 100 // card / 100, f"{card // GIB} GB"
            fits = f"  {_gb(left)}  of {of} left for a server: --gpu-memory-utilization {share:.2f} at most"
            does_not = f"  WARNING: that does not fit a card of {of}; lower learner.chunk_tokens or max_tokens"
            lines.append(fits if left >= 0 else does_not)
    return lines


def promised_bytes(name: str) -> int | None:
    """The card that a recipe's name promises: 24 GB in "agentflow-1.5b-24gb"."""
    found = _CARD.search(name.lower())
    return int(found[1]) * GIB if found else None


def _gb(count: int) -> str:
    return f"{count / GIB:8.1f} GB"
