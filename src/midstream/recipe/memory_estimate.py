"""Memory that a recipe's models need, part by part, and what that leaves a server on the same card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midstream.recipe.memory import (
    CONTEXT_BYTES,
    GIB,
    WIDTHS,
    Part,
    Shape,
    checkpoint_bytes,
    longest_row,
    peak,
    row_bytes,
    sampling,
    shape_of,
    update,
    weights,
)
from midstream.recipe.schema import Recipe, modules_of

SERVER_BYTES = 2 * GIB  # allowance: what vLLM takes beside weights and cache
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])[:/]")
_CARD = re.compile(r"(?<!\d)(\d+)gb(?![a-z])")


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
