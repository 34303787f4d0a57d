"""Estimate what a run would do: trajectories, requests. Nothing is asked or downloaded; files are read.

The numbers are upper bounds for a run without failures: every trajectory takes all its turns, and every module asks as
often as it may. The number of a user's messages in a dialogue is unknown: requests are those after one message. Sets
whose size only the Hugging Face Hub knows are "?". `recipe/memory.py` has the memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from midstream.agents.prompted import ExecutorConfig
from midstream.components.component import Component, wrapper_config
from midstream.components.tables import parse_strategy
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.engines.openai.providers import prices_used
from midstream.evaluation.settings import SetConfig
from midstream.recipe.build import Build
from midstream.recipe.check import draw, is_dialogues, set_reward, tasks_config, with_parts
from midstream.recipe.memory import memory_lines
from midstream.recipe.schema import InterleavedConfig, OwnAgentConfig, Recipe
from midstream.runs.budget import BudgetConfig
from midstream.sources.benchmarks import BenchmarkTasks
from midstream.sources.finite import NoTasks

Requested = Counter[tuple[str, str]]  # by who asks and engine


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories of one purpose.

    `count` is None if it depends on data on the Hub. `planner` is the component that plans. `turns` are those after
    each message of a user if `dialogue`. `agent_runs` is how often a strategy runs the agent for one of them. Tools are
    wrapped where the agent `learns` from them.
    """

    what: str
    count: int | None
    turns: int
    reward: Component
    planner: Component | None
    dialogue: bool = False
    agent_runs: int = 1
    learns: bool = False


def describe(build: Build, *, training: bool) -> list[str]:
    """Describe what a run would do, and the memory that it needs; without `training`, what an evaluation would do."""
    recipe, batches = build.recipe, batches_of(build, training=training)
    lines = ["Trajectories, at most:"]
    for batch in batches:
        count = "?" if batch.count is None else f"{batch.count:,}"
        after = " after each message of a user" if batch.dialogue else ""
        runs = f"{batch.agent_runs:,} agent runs, each of " if batch.agent_runs > 1 else ""
        lines.append(f"  {count:>12}  of {runs}{batch.turns} turns{after}: {batch.what}")
    requests = _requests(recipe, batches, training=training)
    lines.append(
        "Requests, at most; retries come on top:" if requests else "Requests: none, every module is a program."
    )
    for (name, engine), count in requests.items():
        component = recipe.engines[engine]
        lines.append(f"  {count:>12,}  of {name}: {engine} ({getattr(component.config, 'model', component.type)})")
    if prices := prices_used(recipe.table()):
        lines.append(f"Prices: {prices}")
    limits = recipe.budget or BudgetConfig()
    listed = ", ".join(f"{name} = {value:,}" for name, value in limits.limits.items())
    lines.append(f"Limits of the whole run: {listed or 'none (--budget)'}")
    if training and recipe.training:
        updates = recipe.training.steps * recipe.training.minibatches
        before = f", and {recipe.warm_start.steps:,} of the warm start" if recipe.warm_start else ""
        lines.append(f"Optimizer steps: {updates:,}{before}")
    return [*lines, *memory_lines(recipe, training=training)]


def counts(build: Build, *, training: bool) -> dict[str, int]:
    """What a run does at most, as sums; without `training`, an evaluation. Sets of unknown size are left out."""
    recipe, batches = build.recipe, batches_of(build, training=training)
    schedule = recipe.training if training else None
    warm = recipe.warm_start.steps if training and recipe.warm_start else 0
    return {
        "trajectories": sum(batch.count or 0 for batch in batches),
        "requests": _requests(recipe, batches, training=training).total(),
        "optimizer steps": warm + (schedule.steps * schedule.minibatches if schedule else 0),
    }


# -- trajectories ------------------------------------------------------------------------------------------------------


def batches_of(build: Build, *, training: bool) -> list[Batch]:
    """All trajectories of a run, or of an evaluation of the recipe as it is."""
    recipe = build.recipe
    config, warm = recipe.evaluation, recipe.warm_start
    schedule, lessons = (recipe.training, recipe.lessons) if training else (None, None)
    planner = recipe.modules[recipe.trained]
    agent_runs = parse_strategy(config.strategy).agent_runs if config.strategy else 1

    def most_turns(*, dialogue: bool, limit: int | None = None) -> int:
        alone = isinstance(recipe.agent, InterleavedConfig) and not recipe.tools and not dialogue
        # A policy without tools answers in one reply; of an agent of your own one is counted.
        return 0 if alone or isinstance(recipe.agent, OwnAgentConfig) else limit or recipe.agent.max_turns

    def batch(what: str, count: int | None, planner: Component | None, *, dialogue: bool = False) -> Batch:
        return Batch(what, count, most_turns(dialogue=dialogue), recipe.reward, planner, dialogue)

    def evaluation(chosen: SetConfig, times: int) -> Batch:
        tasks = set_size(build, chosen)
        size = "all its tasks" if tasks is None else f"{tasks:,} tasks"
        dialogue = is_dialogues(chosen.tasks or recipe.tasks)
        turns = most_turns(dialogue=dialogue, limit=chosen.max_turns)
        count = None if tasks is None else tasks * times
        what, reward = f"{chosen.name}, {size} x {times}", set_reward(recipe, chosen)
        return Batch(what, count, turns, reward, planner, dialogue, agent_runs)

    found: list[Batch] = []
    dialogue = is_dialogues(recipe.tasks)
    if (schedule or lessons) and warm and warm.file is None:
        found.append(batch("warm start", warm.transcripts, None))
        validation = config.validation.model_copy(
            update={"name": "copy gate", "max_turns": None, "reward": recipe.reward}
        )
        found.append(evaluation(validation, tasks_config(recipe.tasks).gate_samples))
    if schedule and schedule.algorithm == "supervised":
        count = schedule.supervised.transcripts if schedule.steps else 0
        found.append(batch("transcripts to learn from", count, schedule.supervised.planner, dialogue=dialogue))
    elif schedule:
        sizes, rounds = (schedule.steps, schedule.tasks_per_step, schedule.group_size), 1 + schedule.resample_uniform
        again = f" x {rounds} (training.resample_uniform)" if rounds > 1 else ""
        what = f"training, {sizes[0]} steps x {sizes[1]} tasks x {sizes[2]}{again}"
        rollouts = batch(what, math.prod(sizes) * rounds, planner, dialogue=dialogue)
        found.append(replace(rollouts, learns=True))
    if lessons:
        # Those to learn from, then those of the gate.
        for what, count in lessons.most_rollouts(recipe.budget or BudgetConfig()).items():
            rollouts = batch(what, count, planner, dialogue=dialogue)
            found.append(replace(rollouts, learns=what.startswith("learning")))
    learns = bool(lessons or (schedule and schedule.steps))
    times = {"both": 2, "end": 1, "none": 0}[config.at] if learns else 1  # before and after
    times += bool(times and schedule and lessons)  # and with the lessons taken away
    found += [evaluation(chosen, times * len(config.temperatures) * config.trials) for chosen in config.sets if times]
    if schedule and config.at != "none":
        first = config.at == "both"
        found.append(evaluation(config.validation, first + math.ceil(schedule.steps / schedule.validate_every)))
    return found


def set_tasks(build: Build, chosen: SetConfig) -> list[Task] | None:
    """The tasks of an evaluation set; None without tasks, or if they would have to be downloaded."""
    source = build.tasks(chosen.tasks or build.recipe.tasks)
    return None if on_hub(source) or isinstance(source, NoTasks) else draw(source, chosen)


def set_size(build: Build, chosen: SetConfig) -> int | None:
    """The number of tasks of an evaluation set; None if only data on the Hugging Face Hub say it."""
    if (tasks := set_tasks(build, chosen)) is not None:
        return len(tasks)
    source = build.tasks(chosen.tasks or build.recipe.tasks)
    if isinstance(source, BenchmarkTasks) and chosen.count is None and chosen.per_family is None:
        return source.benchmark.sizes.get(chosen.split)
    return chosen.count


def on_hub(source: TaskSource) -> bool:
    """Whether tasks would have to be loaded from the Hugging Face Hub."""
    if isinstance(source, BenchmarkTasks):
        return source.config.file is None
    # Those of a source that is made of others, such as a mixture.
    parts = getattr(source, "parts", None)
    return isinstance(parts, Mapping) and any(map(on_hub, parts.values()))


# -- requests ----------------------------------------------------------------------------------------------------------


def requests_of(recipe: Recipe, batch: Batch) -> Requested:
    """The most requests of a batch, without retries; who can ask again for a reply that cannot be used asks twice."""
    runs = (batch.count or 0) * batch.agent_runs
    turns = runs * batch.turns
    # The last reply of a policy calls no tool. How often an agent of your own asks its other models is unknown: once.
    often = {"planner": turns, "policy": turns + runs, "executor": 2 * turns, "verifier": 2 * turns}
    often |= {"generator": 2 * runs, "analyst": 2 * runs}
    found = Requested()
    for name, module in {**recipe.modules, recipe.trained: batch.planner}.items():
        if module is not None and module.engine is not None:
            found[name, module.engine] += often.get(name, runs)
    executor, calls = recipe.modules.get("executor"), 1
    if executor is not None and isinstance(executor.config, ExecutorConfig) and executor.config.mode == "code":
        # A turn calls one tool; an executor's program calls it several times.
        calls = executor.config.program.max_tool_calls
    for engine in dict.fromkeys(tool.engine for tool in recipe.tools.values() if tool.engine is not None):
        found["tools", engine] += calls * turns
    for tool, wrappers in recipe.wrappers.items():
        for name, wrapper in wrappers.items():
            if wrapper.engine is not None and (batch.learns or wrapper_config(wrapper).everywhere):
                found[f"{name} {tool}", wrapper.engine] += 2 * turns
    for _, component in with_parts("", batch.reward):
        judge: Any = component.config
        if component.engine is not None:
            found["judge", component.engine] += 2 * judge.votes * (batch.count or 0)
    return found


def _requests(recipe: Recipe, batches: Sequence[Batch], *, training: bool) -> Requested:
    found = sum((requests_of(recipe, batch) for batch in batches), Requested())
    if training and recipe.lessons:
        found.update(recipe.lessons.most_requests(recipe.budget or BudgetConfig()))
    return found
