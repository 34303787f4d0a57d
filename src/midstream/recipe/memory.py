"""Estimate the memory that a recipe's models need: weights, training, key-value cache.

Parameter counts are exact, from the shape of a known model or a local directory's config.json. The bytes of an update
are bounds that tests/recipe/test_memory.py compares with PyTorch's tensors. Driver, allocator and server overheads are
allowances. Prefixes that variable-length attention gathers on a GPU are not included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midstream.components.component import Component
from midstream.engines.local.catalog import place_of
from midstream.engines.local.settings import LocalModelConfig
from midstream.engines.openai.settings import OpenAIConfig
from midstream.recipe.schema import InterleavedConfig, Recipe
from midstream.training.settings import BUCKET, LOGITS, LearnerConfig

GIB = 2**30
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
CONTEXT_BYTES = GIB // 2  # allowance: what a process takes of a card before it does anything
PROMPT_TOKENS = 1000  # allowance: a prompted planner's instructions and five tools, before any memory
SERVER_BYTES = 2 * GIB  # allowance: what vLLM takes besides weights and cache
SLACK = 2  # a subtree that forks early may hold this many times `learner.chunk_tokens` (`prefix_tree/stages.py`)
TRUNKS = 3  # allowance: nested prefixes held at once: instructions, a task, a rollout's memory
_FLOAT = 4
_LOGIT_BYTES = 12  # at the peak of an update: three float32 tensors of logits
_DRAW_BYTES = 32  # while sampling: logits four times in float32, their sum twice in float64
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])[:/]")
_CARD = re.compile(r"(?<!\d)(\d+)gb(?![a-z])")

Moment = Literal["always", "update", "step", "sampling"]


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
        return self.layers * self._layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def largest(self) -> int:
        """Number of weights of the largest part that runs as a whole: a layer, or the table of a vocabulary."""
        return max(self._layer, self.vocabulary * self.hidden)

    def adapter(self, rank: int) -> int:
        """Number of weights of a LoRA adapter on all linear layers: rank x (in + out) each."""
        return self.layers * rank * sum(wide + narrow for wide, narrow in self._linears())

    def kv_bytes(self, width: int) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    def kept_bytes(self, width: int, *, lora: bool) -> int:
        """Bytes that one layer keeps of one token for the backward pass, with attention that keeps no score matrix."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (2 * query + 2 * key) * width
        norms = 2 * self.hidden * _FLOAT  # always in float32
        if not lora:
            return attention + norms + 4 * (self.hidden + self.intermediate) * width
        if width == _FLOAT:
            return attention + norms + (2 * self.hidden + 4 * self.intermediate) * width
        copies = (5 * self.hidden + query + self.intermediate) * _FLOAT  # each adapter's input, in float32
        return attention + norms + copies + 3 * self.intermediate * width

    @property
    def _layer(self) -> int:
        """Number of weights of one layer."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = sum(wide * narrow for wide, narrow in self._linears()) + 2 * self.hidden
        return layer + (query + 2 * key) * self.bias + 2 * self.head_dim * self.head_norms

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


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one thing, the moment when they are needed, and the formula behind them.

    `host`: they are in host memory, next to the device, because of `learner.offload`.
    """

    name: str
    bytes: int
    formula: str
    moment: Moment = "always"
    host: bool = False


def peak(parts: list[Part]) -> int:
    """Bytes on the device at the peak: update, optimizer step and sampling take place one after another."""
    moments: tuple[Moment, ...] = ("update", "step", "sampling")
    here = [part for part in parts if not part.host]
    total = {moment: sum(part.bytes for part in here if part.moment == moment) for moment in ("always", *moments)}
    return total["always"] + max(total[moment] for moment in moments)


def offloaded(parts: list[Part]) -> int:
    """Bytes in host memory of what `learner.offload` takes off the device."""
    return sum(part.bytes for part in parts if part.host)


def weights(shape: Shape, dtype: str) -> Part:
    """The model itself."""
    count, width = shape.parameters, WIDTHS[dtype]
    return Part("weights", count * width, f"{count:,} parameters x {width} ({dtype})")


def update(shape: Shape, dtype: str, learner: LearnerConfig) -> list[Part] | None:
    """What training adds to the weights; None for a LoRA target whose layers are unknown.

    A bound for rows of up to `learner.chunk_tokens` tokens; attention by "dense" or "gather" copies more.
    """
    width = WIDTHS[dtype]
    if learner.lora is None:
        parts = _all_weights(shape, width, learner)
    elif learner.lora.target == "all-linear":
        parts = _adapter(shape, learner.lora.rank, learner)
    else:
        return None
    # Padded rows fill a chunk exactly; a prefix tree may hold a few chunks' worth of tokens.
    tokens = learner.chunk_tokens * (1 if learner.attention == "rows" else SLACK)
    per_token = token_bytes(shape, width, learner)
    parts.append(Part("activations", tokens * per_token, f"{tokens:,} tokens x {per_token:,}", "update"))
    if learner.attention != "rows":
        # Keys and values of prefixes that several stages of a tree attend to, at most three quarters of its tokens:
        # with their gradient, and once more as their passes left them (of every trunk, if that is not recomputed).
        copies = 2 + (1 if learner.recompute_activations else TRUNKS)
        longest, each = tokens * 3 // 4, shape.kv_bytes(width)
        formula = f"up to {copies} copies x {longest:,} tokens x {each:,} of keys and values"
        parts.append(Part("shared prefixes", copies * longest * each, formula, "update"))
    logits = min(LOGITS, tokens * shape.vocabulary)
    return [*parts, Part("logits", logits * _LOGIT_BYTES, f"{logits:,} at a time x {_LOGIT_BYTES}", "update")]


def _all_weights(shape: Shape, width: int, learner: LearnerConfig) -> list[Part]:
    """Gradient, AdamW and reference policy where all weights are trained."""
    count, head = shape.parameters, shape.vocabulary * shape.hidden
    state = _FLOAT if learner.masters else width
    parts = [
        Part("gradient", count * state, f"parameters x {state}"),
        *_adamw(count, state, learner),
        Part(
            "reference policy", count * width, f"a frozen copy: parameters x {width}", host=learner.offloads_reference
        ),
    ]
    if learner.offloads_reference:
        formula = f"one layer or table at a time: {shape.largest:,} x {width}"
        parts.append(Part("reference policy's layer", shape.largest * width, formula, "update"))
    if not (learner.offloads_optimizer or learner.masters):
        parts.append(Part("AdamW's step", count * width, f"temporary values: parameters x {width}", "step"))
    each = width + _FLOAT if learner.masters else width  # as it is computed, and as it is added
    formula = f"before it is added to the rest: {head:,} x {each}"
    return [*parts, Part("the head's gradient", head * each, formula, "update")]


def _adapter(shape: Shape, rank: int, learner: LearnerConfig) -> list[Part]:
    """An adapter's weights, gradient and AdamW, all in float32."""
    count = shape.adapter(rank)
    if not learner.offloads_optimizer:
        formula = f"{count:,} x 4 (weights, gradient, AdamW's two moments) x 4 (float32)"
        parts = [Part("LoRA adapter", 4 * count * _FLOAT, formula)]
    else:
        formula = f"{count:,} x 2 (weights, gradient) x 4 (float32)"
        parts = [Part("LoRA adapter", 2 * count * _FLOAT, formula), *_adamw(count, _FLOAT, learner)]
    return [*parts, Part("reference policy", 0, "the model without its adapter")]


def _adamw(count: int, width: int, learner: LearnerConfig) -> list[Part]:
    """AdamW's state for `count` trained numbers, `width` bytes each, and what a streamed step holds of it at a time."""
    host = learner.offloads_optimizer
    parts = [Part("AdamW", 2 * count * width, f"two moments x parameters x {width}", host=host)]
    if learner.masters:
        parts.append(Part("masters", count * width, f"parameters x {width} (float32)", host=host))
    if host or learner.masters:
        bucket = min(BUCKET, count)
        copies = (2 + learner.masters) * host + 2  # what is in host memory, and two temporary values
        formula = f"{bucket:,} parameters at a time x {copies} x {width}"
        parts.append(Part("AdamW's step", bucket * copies * width, formula, "step"))
    return parts


def token_bytes(shape: Shape, width: int, learner: LearnerConfig) -> int:
    """Bytes of activations for each token: what all layers keep, and the gradients of one layer.

    With recomputed activations: the inputs of all layers, and one layer in full with its gradients.
    """
    kept = shape.kept_bytes(width, lora=learner.lora is not None)
    if not learner.recompute_activations:
        return (shape.layers + 1) * kept
    return shape.layers * shape.hidden * width + 2 * kept


def sampling(shape: Shape, dtype: str, batch: int, max_tokens: int) -> Part:
    """Key-value cache and logits of sampling `batch` requests in process, with the shortest prompts."""
    row, width = PROMPT_TOKENS + max_tokens, WIDTHS[dtype]
    cache = shape.kv_bytes(width)
    formula = f"{batch} rows x ({row:,} tokens x {cache:,} of cache + {shape.vocabulary:,} x {_DRAW_BYTES})"
    return Part("sampling", batch * (row * cache + shape.vocabulary * _DRAW_BYTES), formula, "sampling")


def engine_parts(
    shape: Shape, dtype: str, learner: LearnerConfig | None, *, sampled: tuple[int, int] | None, on_card: bool
) -> list[Part] | None:
    """Everything that a model in this process takes; None for a LoRA target whose layers are unknown.

    `learner`: of a model that is trained. `sampled`: the most requests at once, and the new tokens of one.
    """
    parts = [weights(shape, dtype)]
    if learner is not None:
        added = update(shape, dtype, learner)
        if added is None:
            return None
        parts += added
    if sampled is not None:
        parts.append(sampling(shape, dtype, *sampled))
    return [*parts, Part("the process itself", CONTEXT_BYTES, "an allowance")] if on_card else parts


def longest_reply(recipe: Recipe, users: list[Component]) -> int:
    """The most new tokens of a request of these modules; a stream consists of several replies, which count together."""
    if isinstance(recipe.agent, InterleavedConfig):
        return recipe.agent.max_tokens
    configs: list[Any] = [user.config for user in users]
    return max(module.sampling.max_tokens for module in configs if hasattr(module, "sampling"))


# -- the lines of a dry run --------------------------------------------------------------------------------------------


def memory_lines(recipe: Recipe, *, training: bool) -> list[str]:
    """The memory of every model in this process, and whether it fits a card that the recipe's name promises."""
    trained = None
    if recipe.training and training:
        trained = recipe.training.weights or recipe.modules[recipe.trained].engine
    lines: list[str] = []
    for name, engine in recipe.engines.items():
        users = [module for module in recipe.modules.values() if module.engine == name]
        if name == trained and recipe.learner.elsewhere:
            continue
        if isinstance(engine.config, LocalModelConfig) and (users or name == trained):
            lines += _engine_lines(recipe, name, engine.config, users, trained=name == trained)
    return lines


def promised_bytes(name: str) -> int | None:
    """The card that a recipe's name promises: 24 GB in "agentflow-1.5b-24gb"."""
    found = _CARD.search(name.lower())
    return int(found[1]) * GIB if found else None


def _engine_lines(
    recipe: Recipe, name: str, config: LocalModelConfig, users: list[Component], *, trained: bool
) -> list[str]:
    title = f"Memory of engine {name} ({config.model})"
    shape = shape_of(config.model)
    if shape is None:
        return [f"{title}: unknown, because this model's shape is not known."]
    parts = engine_parts(
        shape,
        config.dtype,
        recipe.learner if trained else None,
        sampled=(config.max_batch, longest_reply(recipe, users)) if users else None,
        on_card=config.device != "cpu",
    )
    if parts is None:
        return [f"{title}: unknown, because learner.lora.target is not all-linear."]
    taken, card = peak(parts), promised_bytes(recipe.name)
    lines = [f"{title} on {config.device}, about (1 GB is 2^30 bytes):"]
    lines += [_part_line(part) for part in parts if not part.host]
    lines.append(f"  {_gb(taken)}  at the peak; update, optimizer step and sampling follow one another")
    if any(part.host for part in parts):
        lines.append("In host memory, streamed to the device (learner.offload):")
        lines += [_part_line(part) for part in parts if part.host]
        lines.append(f"  {_gb(offloaded(parts))}  in all")
    if card is None or config.device == "cpu":
        return lines
    lines.append(f"On a card of {card // GIB} GB:")
    if taken > card:
        return [*lines, f"  WARNING: {_gb(taken).strip()} do not fit; lower learner.chunk_tokens or max_tokens"]
    left = card - taken
    # Rounded down: a server that is promised too much fails at the first update, not at its start.
    share = left * 100 // card / 100
    lines.append(f"  {_gb(left)}  left for a server: --gpu-memory-utilization {share:.2f} at most")
    servers = [engine.config for engine in recipe.engines.values() if isinstance(engine.config, OpenAIConfig)]
    served = [server.model for server in servers if server.provider == "vllm" and _LOCAL.match(server.base_url)]
    for model in dict.fromkeys(served):
        lines += _server_lines(model, config.dtype, left)
    return lines


def _server_lines(model: str, dtype: str, left: int) -> Iterator[str]:
    """What a vLLM server on the same card does with the bytes that are left."""
    shape = shape_of(model)
    if shape is None:
        yield f"  {'?':>8}     of it for {model}: unknown, because this model's shape is not known"
        return
    held, each = weights(shape, dtype), shape.kv_bytes(WIDTHS[dtype])
    cache = left - held.bytes - SERVER_BYTES
    yield f"  {_gb(held.bytes)}  of it {model}: {held.formula}"
    yield f"  {_gb(SERVER_BYTES)}  of it the server itself: an allowance"
    if cache <= 0:
        yield "  WARNING: that leaves the server no cache; lower learner.chunk_tokens, or use two cards"
    else:
        yield f"  {_gb(cache)}  of it cache: {cache // each:,} tokens x {each:,} bytes"


def _part_line(part: Part) -> str:
    return f"  {_gb(part.bytes)}  {part.name}: {part.formula}"


def _gb(count: int) -> str:
    return f"{count / GIB:8.1f} GB"
