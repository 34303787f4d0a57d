"""Memory that a recipe's models need, by formula: parameters, an update of them, a key-value cache.

Shapes are those of each model's public config.json, or of a local directory's; their parameter counts are exact. What
an update takes was counted in PyTorch's tensors as they come and go (tests/recipe/test_memory.py); what a card's
driver, an allocator's gaps and a server's own buffers take is an allowance, and said to be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midstream.recipe.schema import Recipe, modules_of
from midstream.training.settings import LOGITS, LearnerConfig

GIB = 2**30
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
CONTEXT_BYTES = GIB // 2  # allowance: what a process takes of a card before it does anything
PROMPT_TOKENS = 1000  # what a prompted planner's instructions and five tools come to, before any memory
# Allowance: prefixes held one upon the other (`prefix_tree/stages.py`): instructions, a task, a rollout's memory.
TRUNKS = 3
SLACK = 2  # a subtree that forks soon may take so many times `learner.chunk_tokens` (`prefix_tree/stages.py`)
FORK_TOKENS = 128  # allowance: how far apart the forks of a trie are
_FLOAT = 4
_LOGIT_BYTES = 12  # at its peak three float32 tensors of logits are there at once
_DRAW_BYTES = 32  # sampling: logits four times in float32, their sum twice in float64

SERVER_BYTES = 2 * GIB  # allowance: what vLLM takes beside weights and cache
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])[:/]")
_CARD = re.compile(r"(?<!\d)(\d+)gb(?![a-z])")

Moment = Literal["always", "update", "step", "sampling"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder of the Llama family. `bias`: query, key and value have one; `head_norms`: so do their norms (Qwen3)."""

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
        """All weights, tied embeddings once."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = sum(wide * narrow for wide, narrow in self._linears()) + 2 * self.hidden
        layer += (query + 2 * key) * self.bias + 2 * self.head_dim * self.head_norms
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on all linear layers: rank x (in + out) each."""
        return self.layers * rank * sum(wide + narrow for wide, narrow in self._linears())

    def kv_bytes(self, width: int) -> int:
        """Key and value of one token in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    def kept_bytes(self, width: int, *, lora: bool) -> int:
        """What one layer keeps of one token for its backward pass, with attention that keeps no matrix of scores."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (2 * query + 2 * key) * width
        norms = 2 * self.hidden * _FLOAT  # in float32 whatever the weights are
        if not lora:
            return attention + norms + 4 * (self.hidden + self.intermediate) * width
        if width == _FLOAT:
            return attention + norms + (2 * self.hidden + 4 * self.intermediate) * width
        copies = (5 * self.hidden + query + self.intermediate) * _FLOAT  # each adapter's input, in its own float32
        return attention + norms + copies + 3 * self.intermediate * width

    def _linears(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's seven matrices."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        return [*attention, *[(self.hidden, self.intermediate)] * 3]


def _qwen(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, *, tied: bool) -> Shape:
    vocabulary = 151936 if tied else 152064
    return Shape(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=intermediate,
        vocabulary=vocabulary, head_dim=hidden // heads, tied=tied,
    )  # fmt: skip


SHAPES: Mapping[str, Shape] = {
    "Qwen2.5-0.5B": _qwen(896, 24, 14, 2, 4864, tied=True),
    "Qwen2.5-1.5B": _qwen(1536, 28, 12, 2, 8960, tied=True),
    "Qwen2.5-3B": _qwen(2048, 36, 16, 2, 11008, tied=True),
    "Qwen2.5-7B": _qwen(3584, 28, 28, 4, 18944, tied=False),
    "Qwen2.5-14B": _qwen(5120, 48, 40, 8, 13824, tied=False),
}
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def shape_of(model: str) -> Shape | None:
    """The shape of a model by its directory or its public name; None where neither tells."""
    config = Path(model) / "config.json"
    if config.is_file():
        return _read(config)
    named = re.fullmatch(r"(?:Qwen/)?(Qwen2\.5-)(?:Math-)?([\d.]+B)(?:-Instruct)?", model)
    return SHAPES.get(named[1] + named[2]) if named else None


def _read(path: Path) -> Shape | None:
    """The shape that a model's config.json tells; None for a family whose layers are others."""
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        family = config["model_type"]
        if family not in _FAMILIES or config.get("mlp_bias") or (family != "qwen2" and config.get("attention_bias")):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """So many bytes for one thing, when they are needed, and how they were reckoned."""

    name: str
    bytes: int
    formula: str
    moment: Moment = "always"


def peak(parts: list[Part]) -> int:
    """Bytes when most is needed: update, optimizer step and sampling come one after another."""
    moments: tuple[Moment, ...] = ("update", "step", "sampling")
    of = {moment: sum(part.bytes for part in parts if part.moment == moment) for moment in ("always", *moments)}
    return of["always"] + max(of[moment] for moment in moments)


def weights(shape: Shape, dtype: str) -> Part:
    """The model itself."""
    width = WIDTHS[dtype]
    return Part(
        name="weights", bytes=shape.parameters * width, formula=f"{shape.parameters:,} parameters x {width} ({dtype})"
    )


def update(shape: Shape, dtype: str, learner: LearnerConfig, device: str) -> list[Part] | None:
    """What training adds to the weights; None where a LoRA target is no known set of layers.

    It bounds an update of rows that are at most `longest_row(learner)` long; `row_bytes` is what a longer one adds.
    Attention by "dense" or "gather" copies more than is said here.
    """
    if learner.lora and learner.lora.target != "all-linear":
        return None
    width, tokens = WIDTHS[dtype], _held_tokens(learner)
    parts = _adapter(shape.adapter(learner.lora.rank)) if learner.lora else _all_weights(shape, width)
    per_token = token_bytes(shape, width, learner)
    parts.append(_at_update("activations", tokens * per_token, f"{tokens:,} tokens x {per_token:,}"))
    if learner.attention != "rows":
        parts += _prefixes(shape, width, learner, gathered=device != "cpu" and width < _FLOAT)
    logits = min(LOGITS, tokens * shape.vocabulary)
    parts.append(_at_update("logits", logits * _LOGIT_BYTES, f"{logits:,} at a time x {_LOGIT_BYTES}"))
    return parts


def longest_row(learner: LearnerConfig) -> int:
    """How long a row may be before it takes more than is said.

    However much the prefixes before it hold, a stage of a trie gets its quarter.
    """
    tokens = _held_tokens(learner)
    return tokens if learner.attention == "rows" else tokens * 3 // 4


def _held_tokens(learner: LearnerConfig) -> int:
    """Tokens that are held for a backward pass, at most: padded ones, or those of a trie, which pass for more."""
    return learner.chunk_tokens * (1 if learner.attention == "rows" else SLACK)


def token_bytes(shape: Shape, width: int, learner: LearnerConfig) -> int:
    """What one token takes: what all its layers keep and the gradients of one.

    Where activations are recomputed, its layers' inputs, and one layer in full with its gradients.
    """
    kept = shape.kept_bytes(width, lora=learner.lora is not None)
    if not learner.recompute_activations:
        return (shape.layers + 1) * kept
    return shape.layers * shape.hidden * width + 2 * kept


def row_bytes(shape: Shape, width: int, learner: LearnerConfig) -> int:
    """What a row takes for each token that it is longer than `longest_row`: it may be one that others share."""
    copies = 0 if learner.attention == "rows" else _copies(1, learner)
    return token_bytes(shape, width, learner) + copies * shape.kv_bytes(width)


def _prefixes(shape: Shape, width: int, learner: LearnerConfig, *, gathered: bool) -> list[Part]:
    """What keys and values cost that several stages of a trie look at; `gathered`: by variable-length attention."""
    each, longest, copies = shape.kv_bytes(width), longest_row(learner), _copies(TRUNKS, learner)
    parts = [
        _at_update(
            "shared prefixes",
            copies * longest * each,
            f"up to {copies} copies x {longest:,} tokens x {each:,} of keys and values",
        )
    ]
    if gathered and learner.attention in ("auto", "varlen"):
        # Of so many tokens half may be a prefix, which each run between forks of the other half looks at.
        keys = _held_tokens(learner) ** 2 // (4 * FORK_TOKENS)
        layers = 2 if learner.recompute_activations else shape.layers + 1
        layer = each // shape.layers
        parts.append(
            _at_update("gathered prefixes", keys * layers * layer, f"{keys:,} keys x {layers} layers x {layer:,}")
        )
    return parts


def _copies(trunks: int, learner: LearnerConfig) -> int:
    """How often a prefix's keys and values are there, where so many trunks of nearly its length hang on one another.

    What stages go on from, and its gradient; then, what the passes of the trunks left, or, where that is not
    recomputed, what each pass puts before its own keys.
    """
    return 2 + (1 if learner.recompute_activations else trunks)


def _at_update(name: str, count: int, formula: str) -> Part:
    return Part(name=name, bytes=count, formula=formula, moment="update")


def checkpoint_bytes(shape: Shape, width: int, learner: LearnerConfig) -> int:
    """What `LocalLearner.save` writes: trained weights and two moments, and a reference policy of its own."""
    return 3 * shape.adapter(learner.lora.rank) * _FLOAT if learner.lora else 4 * shape.parameters * width


def _adapter(count: int) -> list[Part]:
    return [
        Part(
            name="LoRA adapter",
            bytes=4 * count * _FLOAT,
            formula=f"{count:,} x 4 (weights, gradient, AdamW's two moments) x 4 (float32)",
        ),
        Part(name="reference policy", bytes=0, formula="the model without its adapter"),
    ]


def _all_weights(shape: Shape, width: int) -> list[Part]:
    count, head = shape.parameters, shape.vocabulary * shape.hidden
    return [
        Part(name="gradient", bytes=count * width, formula=f"parameters x {width}"),
        Part(name="AdamW", bytes=2 * count * width, formula=f"two moments x parameters x {width}"),
        Part(name="reference policy", bytes=count * width, formula=f"a frozen copy: parameters x {width}"),
        Part(
            name="AdamW's step", bytes=count * width, formula=f"what it holds for a moment: parameters x {width}",
            moment="step",
        ),
        _at_update("the head's gradient", head * width, f"before it is added to the rest: {head:,} x {width}"),
    ]  # fmt: skip


def sampling(shape: Shape, dtype: str, batch: int, max_tokens: int) -> Part:
    """What sampling `batch` requests in process takes, their prompts at their shortest."""
    row, width = PROMPT_TOKENS + max_tokens, WIDTHS[dtype]
    return Part(
        name="sampling",
        bytes=batch * (row * shape.kv_bytes(width) + shape.vocabulary * _DRAW_BYTES),
        formula=f"{batch} rows x ({row:,} tokens x {shape.kv_bytes(width):,} of cache + {shape.vocabulary:,} x 32)",
        moment="sampling",
    )


# -- the lines of a dry run --------------------------------------------------------------------------------------------


def memory_lines(recipe: Recipe, resolved: Mapping[str, Any], *, training: bool) -> list[str]:
    """What every model in this process takes, and where a card is promised whether that and the server fit."""
    named: list[Any] = [module.engine for module in recipe.modules.values()]
    named.append(recipe.training.weights if recipe.training and training else None)
    lines: list[str] = []
    for name, table in resolved["engines"].items():
        if name in named and table["type"] == "transformers_local":
            lines += _engine_lines(recipe, resolved, name, training)
    return lines


def promised_bytes(name: str) -> int | None:
    """The card that a recipe's name promises: 24 GB in "agentflow-1.5b-24gb"."""
    found = _CARD.search(name.lower())
    return int(found[1]) * GIB if found else None


def engine_parts(
    recipe: Recipe, resolved: Mapping[str, Any], name: str, shape: Shape, *, training: bool
) -> list[Part] | None:
    """The memory of one in-process engine; None where the layers of its LoRA adapter are not known."""
    table, trained = resolved["engines"][name], resolved["agent"][recipe.trained]
    parts = [weights(shape, table["dtype"])]
    if training and recipe.training and name == (recipe.training.weights or trained["engine"]):
        more = update(shape, table["dtype"], recipe.learner, table["device"])
        if more is None:
            return None
        parts += more
    agent = resolved["agent"]
    asking = [one for module in modules_of(agent) if (one := agent[module]).get("engine") == name]
    if asking:
        longest = max(_after_prompt(agent, module) for module in asking)
        parts.append(sampling(shape, table["dtype"], table["max_batch"], longest))
    return parts


def _after_prompt(agent: Mapping[str, Any], module: Mapping[str, Any]) -> int:
    """How many tokens follow a module's prompt at most: those of one reply, or of the stream that replies make."""
    return agent["max_tokens"] if agent["type"] == "interleaved" else module["sampling"]["max_tokens"]


def _engine_lines(recipe: Recipe, resolved: Mapping[str, Any], name: str, training: bool) -> list[str]:
    table = resolved["engines"][name]
    title, device = f"Memory of engine {name} ({table['model']})", table["device"]
    shape = shape_of(table["model"])
    if shape is None:
        return [f"{title}: cannot tell, this model's shape is not known here."]
    parts = engine_parts(recipe, resolved, name, shape, training=training)
    if parts is None:
        return [f"{title}: cannot tell, learner.lora.target is not all-linear."]
    if device != "cpu":
        parts.append(Part(name="the process itself", bytes=CONTEXT_BYTES, formula="an allowance"))
    lines = [f"{title} on {device}, about (1 GB is 2^30 bytes):"]
    lines += [f"  {_gb(part.bytes)}  {part.name}: {part.formula}" for part in parts]
    lines.append(f"  {_gb(peak(parts))}  at its peak; update, optimizer step and sampling follow one another")
    if any(part.name == "activations" for part in parts):
        width = WIDTHS[table["dtype"]]
        more, longest = 1000 * row_bytes(shape, width, recipe.learner), longest_row(recipe.learner)
        lines.append(f"  {_gb(more)}  more for every 1,000 tokens that a row is longer than {longest:,}")
        lines.append(f"  {_gb(checkpoint_bytes(shape, width, recipe.learner))}  on disk for a checkpoint; two are kept")
    card = promised_bytes(recipe.name)
    return (
        lines if card is None or device == "cpu" else lines + _card_lines(resolved, table["dtype"], peak(parts), card)
    )


def _card_lines(resolved: Mapping[str, Any], dtype: str, taken: int, card: int) -> list[str]:
    """Whether it fits the card, together with the servers that may run beside it."""
    lines = [f"On a card of {card // GIB} GB:"]
    if taken > card:
        return [*lines, f"  WARNING: {_gb(taken).strip()} do not fit; lower learner.chunk_tokens or max_tokens"]
    left = card - taken
    # Rounded down: a server that is promised too much fails at the first update, not at its start.
    share = left * 100 // card / 100
    lines.append(f"  {_gb(left)}  left for a server: --gpu-memory-utilization {share:.2f} at most")
    for model in dict.fromkeys(_served_here(resolved)):
        lines += _server_lines(model, dtype, left)
    return lines


def _served_here(resolved: Mapping[str, Any]) -> list[str]:
    """Models of this machine's vLLM server."""
    tables = [table for table in resolved["engines"].values() if table["type"] == "openai_compatible"]
    return [one["model"] for one in tables if one["provider"] == "vllm" and _LOCAL.match(one["base_url"])]


def _server_lines(model: str, dtype: str, left: int) -> list[str]:
    shape = shape_of(model)
    if shape is None:
        return [f"  {'?':>8}     of it for {model}: cannot tell, this model's shape is not known here"]
    held, each = weights(shape, dtype), shape.kv_bytes(WIDTHS[dtype])
    cache = left - held.bytes - SERVER_BYTES
    lines = [
        f"  {_gb(held.bytes)}  of it {model}: {held.formula}",
        f"  {_gb(SERVER_BYTES)}  of it the server itself: an allowance",
    ]
    if cache <= 0:
        return [*lines, "  WARNING: that leaves the server no cache; lower learner.chunk_tokens, or use two cards"]
    return [*lines, f"  {_gb(cache)}  of it cache: {cache // each:,} tokens x {each:,} bytes"]


def _gb(count: int) -> str:
    return f"{count / GIB:8.1f} GB"
