"""Batches and models that the update benchmarks measure, and the FLOPs that a batch takes.

A made batch has the shape of AgentFlow's: a prompt is static text (instructions, tools), then the question, then what
the turns before put into memory, then a short tail; no text is in two places by chance. `recipe_rows` are real.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from midstream.core.seeds import derive_seed
from midstream.prefix_tree.tree import Tree, tree_of
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import rollout
from midstream.training.losses import row_weights
from midstream.training.protocols import Row
from midstream.training.rows import build_rows
from midstream.training.session import Parts
from midstream.training.supervised import warm_start

TAIL = 8  # tokens after the memory
FIRST_ID = 3
SHORT = ["warm_start.transcripts=1000", "warm_start.steps=100", "warm_start.min_copy_rate=0"]
RECIPES = {"demo": ("flow-grpo-tiny", SHORT), "text": ("text-tiny", ())}  # shapes of real rows: recipe, settings


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Lengths in tokens. `shared` off draws a text for every row, so that no two rows begin alike."""

    questions: int = 1
    group: int = 8
    turns: int = 3
    static: int = 800
    question: int = 60
    memory: int = 150
    completion: int = 150
    shared: bool = True


SHAPES = {
    "base": Shape(),
    "static-2000": Shape(static=2000),
    "turns-10": Shape(turns=10),
    "unshared": Shape(shared=False),
    "large": Shape(questions=8, static=3500),
}
SIZES = {  # width, layers, heads, key-value heads, inner width, vocabulary
    "tiny": (256, 4, 4, 2, 704, 2_000),
    "mid": (768, 12, 12, 4, 2048, 32_000),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
    "7b": (3584, 28, 28, 4, 18944, 152_064),
}


def make_model(
    size: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, vocabulary: int = 0
) -> PreTrainedModel:
    """A randomly initialized Qwen2 of one of `SIZES`; `vocabulary` makes it larger where a batch needs more."""
    width, layers, heads, key_heads, inner, words = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=inner,
        vocab_size=max(words, vocabulary),
        max_position_embeddings=32_768,
        tie_word_embeddings=size != "7b",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype=dtype,
    )
    config._attn_implementation = "sdpa"
    with torch.device(device):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return Qwen2ForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(previous)


def make_rows(shape: Shape, vocabulary: int) -> list[Row]:
    """The rows of one update, a question's rollouts one after the other; `old_logprobs` are still to be recorded."""
    rng = random.Random(0)

    def text(tokens: int) -> list[int]:
        return rng.choices(range(FIRST_ID, vocabulary), k=tokens)

    static, tail, rows = text(shape.static), text(TAIL), []
    for question in range(shape.questions):
        asked = text(shape.question)
        for rollout_index in range(shape.group):
            memory: list[int] = []
            for _ in range(shape.turns):
                prompt = static + asked + memory + tail
                own = prompt if shape.shared else text(len(prompt))
                rows.append(_row(own, text(shape.completion), f"{question}-{rollout_index}"))
                memory += text(shape.memory)
    return comparable(rows)


def _row(prompt: Sequence[int], completion: Sequence[int], trajectory_id: str) -> Row:
    return Row(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        old_logprobs=(0.0,) * len(completion),
        advantage=0.0,
        weight=0.0,
        kl_weight=0.0,
        trajectory_id=trajectory_id,
    )


def comparable(rows: Sequence[Row]) -> list[Row]:
    """The rows with what every peer can express and what leaves no gradient 0.

    GRPO's weights, 1 / (rows x tokens of the row), and an advantage that is drawn for each trajectory. Tool output has
    a loss too: the peers here know no mask.
    """
    rng = random.Random(1)
    advantages = {row.trajectory_id: rng.gauss(0, 1) for row in rows}
    weights = row_weights([len(row.completion_ids) for row in rows], "seq-mean-token-mean")
    return [
        replace(row, sampled=(), advantage=advantages[row.trajectory_id], weight=weight, kl_weight=weight)
        for row, weight in zip(rows, weights, strict=True)
    ]


def recipe_rows(shape: str) -> tuple[PreTrainedModel, list[Row]]:
    """A mini-batch of one of `RECIPES`, after a short warm start if it has one, and the policy that sampled it.

    Eight questions on real tools, eight rollouts each; as ragged as they come.
    """
    with Build(load_recipe(*RECIPES[shape])) as build:
        parts = parts_of(build)
        rows = asyncio.run(_rollout(parts, build.recipe.trained))
        return copy.deepcopy(parts.student.model), comparable(rows)  # a copy leaves the learner's hooks behind


async def short_warm_start(parts: Parts, seed: int) -> None:
    """Warm start the policy of a recipe changed by `SHORT`, whatever it then copies."""
    assert parts.warm_start is not None
    await warm_start(
        parts.warm_start,
        learner=parts.learner,
        student=parts.student,
        source=parts.source,
        make_environment=parts.make_environment,
        teacher=parts.teacher,
        validation=parts.set_tasks(parts.evaluation.validation),
        seed=seed,
        report=lambda line: None,
        learned=lambda tasks: None,
    )


async def _rollout(parts: Parts, role: str) -> tuple[Row, ...]:
    seed = derive_seed("update benchmark")
    if parts.warm_start is not None:
        await short_warm_start(parts, seed)
    tasks = parts.source.sample("train", 8, seed)
    groups = await rollout(parts.make_environment(), tasks, group_size=8, seed=seed)
    return build_rows([group.trajectories for group in groups], role=role).rows


# --- what a batch takes -----------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What one pass computes: tokens through the layers, attention pairs, positions through the head."""

    tokens: int
    pairs: int
    predicted: int


def inputs_of(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Each row's tokens but the last, which predicts nothing."""
    return [(row.prompt_ids + row.completion_ids)[:-1] for row in rows]


def trie_work(rows: Sequence[Row]) -> Work:
    """Every unique token, and every unique predicted position, once."""
    tree = tree_of(inputs_of(rows))
    return Work(tree.unique, tree.pairs, len(_predicting(tree, rows)))


def _predicting(tree: Tree, rows: Sequence[Row]) -> np.ndarray:
    """The packed positions that predict a completion token of any row."""
    return np.unique(
        np.concatenate([path[len(row.prompt_ids) - 1 :] for path, row in zip(tree.paths, rows, strict=True)])
    )


def rows_work(rows: Sequence[Row]) -> Work:
    """Every row whole."""
    lengths = [len(ids) for ids in inputs_of(rows)]
    predicted = sum(len(row.completion_ids) for row in rows)
    return Work(sum(lengths), sum(n * (n + 1) // 2 for n in lengths), predicted)


def flops(work: Work, model: PreTrainedModel, *, trained: bool = True) -> float:
    """Of forward and backward pass. With `trained` off (an adapter alone is) no weight has a gradient of its own.

    A multiply-add is two; norms, activations, the softmax and what is computed again are not counted.
    """
    config = model.config
    keys = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    layer = config.hidden_size * (2 * config.hidden_size + 2 * keys + 3 * config.intermediate_size)
    linear = work.tokens * layer * config.num_hidden_layers + work.predicted * config.hidden_size * config.vocab_size
    attention = 2 * work.pairs * config.hidden_size * config.num_hidden_layers
    return 2 * (linear * (3 if trained else 2) + 3 * attention)


def longest_id(rows: Sequence[Row]) -> int:
    """The largest token id."""
    return max(chain.from_iterable(row.prompt_ids + row.completion_ids for row in rows))
