"""How many tokens a training step samples and computes: from a recipe's counts, or as a run measured them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from midstream.core.errors import UnsupportedError
from midstream.core.metrics import StepMetrics
from midstream.recipe.memory import PROMPT_TOKENS
from midstream.recipe.schema import InterleavedConfig, OwnAgentConfig, Recipe
from midstream.training.settings import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The tokens of one step, and where their number is from.

    `prefilled`: prompt tokens that an engine with a prefix cache computes. `longest`: tokens that the slowest
    trajectory samples one after another. `context`: mean tokens before a sampled one.
    """

    tasks: int
    trajectories: int
    turns: float
    rows: float
    prompt: float
    prefilled: float
    sampled: float
    all: float
    unique: float
    longest: float
    context: float
    source: str

    @property
    def row(self) -> float:
        """Mean tokens of a training row."""
        return self.all / self.rows

    def unique_of(self, ranks: int) -> float:
        """Unique tokens of the slowest of several ranks: one with a row more, and its task's prompt again."""
        ranks_used = min(ranks, self.rows)
        uneven = math.ceil(self.rows / ranks_used) * ranks_used / self.rows
        return (self.unique + max(0.0, ranks_used - self.tasks) * self.prompt) / ranks_used * uneven


def reinforced(recipe: Recipe) -> TrainingConfig:
    """The settings of a recipe's training. Raises `UnsupportedError` if it trains nothing by reinforcement."""
    if recipe.training is None or recipe.training.algorithm == "supervised":
        raise UnsupportedError(
            f"{recipe.name} trains no weights by reinforcement",
            code="nothing-to-plan",
            fix="name a recipe whose [training] has algorithm = flow_grpo: midstream recipes",
        )
    return recipe.training


def load_of(
    recipe: Recipe, *, turns: float | None = None, prompt: int = PROMPT_TOKENS, completion: int | None = None,
    observed: int = 300,
) -> Load:  # fmt: skip
    """From the recipe's counts and these assumptions.

    `turns`: replies of a trajectory, by default all that it may take. `prompt`: tokens of the first. `completion`: new
    tokens of a reply, by default a quarter of the most. `observed`: tokens that each later turn finds added.
    """
    training = reinforced(recipe)
    stream, planner = isinstance(recipe.agent, InterleavedConfig), recipe.modules[recipe.trained].config
    sampling: Any = getattr(planner, "sampling", None)
    most = sampling.max_tokens if sampling else completion or 512
    # A stream's last reply calls no tool; of an agent of your own one reply is counted.
    replies = 1 if isinstance(recipe.agent, OwnAgentConfig) else recipe.agent.max_turns + stream
    tasks, turns = training.tasks_per_step, replies if turns is None else turns
    count, completion = tasks * training.group_size, completion or math.ceil(most / 4)
    added, said = (turns - 1) * observed, turns * completion
    longest = replies * most
    if isinstance(recipe.agent, InterleavedConfig):
        longest = min(longest, recipe.agent.max_tokens)
        rows, each, context = count, prompt + added + said, prompt + (added + said) / 2
    else:  # each turn is a row, whose prompt has what the turns before added
        rows, each = count * turns, prompt + added / 2 + completion
        context = prompt + added / 2 + completion / 2
    return Load(
        tasks=tasks, trajectories=count, turns=turns, rows=rows, prompt=prompt, context=context, longest=longest,
        prefilled=tasks * prompt + count * added, sampled=count * said, all=rows * each,
        unique=tasks * prompt + count * (added + said),
        source=f"assumed: {turns:g} replies of {completion:,} after a prompt of {prompt:,}, {observed:,} more a turn",
    )  # fmt: skip


def load_like(recipe: Recipe, metrics: Sequence[StepMetrics], tail: float = 2.0) -> Load:
    """From the records of a run, for as many trajectories as the recipe has; `tail`: the longest over the mean."""
    measured = [step for step in metrics if step.trajectories and step.total_tokens]
    if not measured:
        raise UnsupportedError(
            "the run has no step whose tokens were counted",
            code="no-counts",
            fix="name a run that was trained, or give --turns, --prompt-tokens and --completion-tokens",
        )
    tasks = reinforced(recipe).tasks_per_step
    count = tasks * reinforced(recipe).group_size

    def mean(value: Callable[[StepMetrics], float]) -> float:
        return fmean(value(step) / step.trajectories for step in measured) * count

    sampled, unique = mean(lambda step: step.completion_tokens), mean(lambda step: step.unique_tokens)
    replies = mean(lambda step: step.streams.replies if step.streams else step.tool_use.turns)
    rows = mean(lambda step: step.rows)
    prompt = mean(lambda step: step.prompt_tokens) / rows
    return Load(
        tasks=tasks, trajectories=count, turns=replies / count, rows=rows, prompt=prompt,
        prefilled=max(0.0, unique - sampled), sampled=sampled, all=mean(lambda step: step.total_tokens), unique=unique,
        longest=tail * sampled / count, context=prompt + sampled / rows / 2,
        source=f"measured in {len(measured)} steps of a run; assumed: the longest takes {tail:g} times the mean",
    )  # fmt: skip
