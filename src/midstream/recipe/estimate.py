"""What a run would do, reckoned from its recipe: trajectories, calls, tokens. Only files of questions are read.

The numbers are upper bounds for a run in which nothing fails: every trajectory takes all its turns, and every module
that may ask a second time does. How often the user of a dialogue speaks is not known: calls are those of one user turn,
tokens those of the longest stream. Memory is `recipe/memory.py`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.core.protocols import TaskSource
from midstream.evaluation import SetConfig
from midstream.practice.settings import PracticeConfig, Requests
from midstream.recipe.check import draw, is_dialogues, task_source
from midstream.recipe.memory import memory_lines
from midstream.recipe.schema import Recipe, Table, differing_settings, modules_of
from midstream.tasks.benchmarks import BenchmarkTasks
from midstream.tasks.mixture import Mixture
from midstream.training.settings import TrainingConfig
from midstream.worlds.gazetteer.warm_start import COPY_SAMPLES

_MAX_ASKS = 2  # executor, verifier, generator and judge ask again where a reply cannot be used
_OFTEN = {  # the policy's last reply calls no tool
    "planner": {"per_turn": 1},
    "policy": {"per_turn": 1, "per_trajectory": 1},
    "generator": {"per_trajectory": _MAX_ASKS},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Trajectories that are alike; `count` None: data on the Hub would have to be loaded to know.

    `planner` is the resolved table of whoever plans, None where that asks no model; `reward` is resolved, too.
    `dialogue`: `turns` are those to each word of a user.
    """

    what: str
    count: int | None
    turns: int
    reward: Table
    planner: Table | None
    dialogue: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Who asks which engine, at most how often a turn and a trajectory, for at most how many new tokens each time.

    `in_all` bounds the new tokens of a trajectory, where anything does.
    """

    name: str
    engine: str
    max_tokens: int
    per_turn: int = 0
    per_trajectory: int = 0
    in_all: int | None = None

    def of(self, batch: Batch) -> tuple[int, int]:
        """(calls, new tokens) of a batch."""
        calls = self.per_turn * batch.turns + self.per_trajectory
        tokens = calls * self.max_tokens
        if self.in_all is not None:
            tokens = self.in_all if batch.dialogue else min(tokens, self.in_all)
        return (batch.count or 0) * calls, (batch.count or 0) * tokens


def describe(recipe: Recipe, resolved: Mapping[str, Any], *, training: bool) -> list[str]:
    """Lines that say what the run, or without `training` the evaluation, would do, and the memory it would need."""
    batches = batches_of(recipe, resolved, training=training)
    practice = recipe.practice if training else None
    lines = [*_trajectory_lines(batches), *_call_lines(resolved, batches, practice.most_requests() if practice else ())]
    if practice:
        limits = practice.budget.model_dump(exclude_none=True)
        said = ", ".join(f"{name} = {value:,}" for name, value in limits.items())
        lines.append(f"Limits of the whole run: {said or 'none (practice.budget)'}")
    if training and recipe.training:
        updates = recipe.training.steps * recipe.training.minibatches
        before = f", and {recipe.warm_start.steps:,} of the warm start" if recipe.warm_start else ""
        lines.append(f"Optimizer steps: {updates:,}{before}")
        lines += _variant_lines(recipe.training)
    return [*lines, *memory_lines(recipe, resolved, training=training)]


# -- trajectories ------------------------------------------------------------------------------------------------------


def batches_of(recipe: Recipe, resolved: Mapping[str, Any], *, training: bool) -> list[Batch]:
    """All trajectories of a run, or of an evaluation of the recipe as it is."""
    config, schedule = recipe.evaluation, recipe.training if training else None
    planner = _asks(resolved["agent"][recipe.trained])
    practice = recipe.practice if training else None
    times = 2 if practice or (schedule and schedule.steps) else 1  # before and after
    each = times * len(config.temperatures) * config.trials
    chosen = [(one, each, table) for one, table in zip(config.sets, resolved["evaluation"]["sets"], strict=True)]
    if schedule:
        validations = 1 + math.ceil(schedule.steps / schedule.validate_every)
        chosen.append((config.validation, validations, resolved["evaluation"]["validation"]))
    return [
        *(_training(recipe, resolved, planner) if schedule else ()),
        *(_practice(recipe, practice, resolved, planner) if practice else ()),
        *(
            _evaluation(recipe, one, often, planner, table.get("reward", resolved["reward"]))
            for one, often, table in chosen
        ),
    ]


def _training(recipe: Recipe, resolved: Mapping[str, Any], planner: Table | None) -> Iterator[Batch]:
    training, turns, reward = recipe.training, recipe.agent.max_turns, resolved["reward"]
    assert training is not None
    if recipe.warm_start and recipe.warm_start.file is None:
        count = recipe.warm_start.transcripts
        yield Batch(what="warm start", count=count, turns=turns, reward=reward, planner=None)
        yield _evaluation(recipe, recipe.evaluation.validation, COPY_SAMPLES, planner, reward, what="copy gate")
    if training.algorithm == "supervised":
        teacher = resolved["training"]["supervised"].get("planner")
        yield Batch(
            what="transcripts to learn from",
            count=training.supervised.transcripts if training.steps else 0,
            turns=turns,
            reward=reward,
            planner=teacher and _asks(teacher),
            dialogue=is_dialogues(recipe.tasks),
        )
        return
    sizes, rounds = (training.steps, training.tasks_per_step, training.group_size), 1 + training.resample_uniform
    again = f" x {rounds} (training.resample_uniform)" if rounds > 1 else ""
    yield Batch(
        what=f"training, {sizes[0]} steps x {sizes[1]} tasks x {sizes[2]}{again}",
        count=math.prod(sizes) * rounds,
        turns=turns,
        reward=reward,
        planner=planner,
        dialogue=is_dialogues(recipe.tasks),
    )


def _practice(
    recipe: Recipe, practice: PracticeConfig, resolved: Mapping[str, Any], planner: Table | None
) -> Iterator[Batch]:
    turns, reward = recipe.agent.max_turns, resolved["reward"]
    if recipe.warm_start and recipe.warm_start.file is None:
        count = recipe.warm_start.transcripts
        yield Batch(what="warm start", count=count, turns=turns, reward=reward, planner=None)
        yield _evaluation(recipe, recipe.evaluation.validation, COPY_SAMPLES, planner, reward, what="copy gate")
    dialogue = is_dialogues(recipe.tasks)
    for what, count in practice.most_rollouts().items():
        yield Batch(what=what, count=count, turns=turns, reward=reward, planner=planner, dialogue=dialogue)


def _asks(planner: Table) -> Table | None:
    return planner if "engine" in planner else None


def _evaluation(
    recipe: Recipe, chosen: SetConfig, times: int, planner: Table | None, reward: Table, what: str = ""
) -> Batch:
    tasks = set_size(recipe, chosen)
    said = "all its tasks" if tasks is None else f"{tasks:,} tasks"
    turns = recipe.agent.max_turns if what else chosen.max_turns or recipe.agent.max_turns
    return Batch(
        what=f"{what or chosen.name}, {said} x {times}",
        count=None if tasks is None else tasks * times,
        turns=turns,
        reward=reward,
        planner=planner,
        dialogue=is_dialogues(chosen.tasks or recipe.tasks),
    )


def set_size(recipe: Recipe, chosen: SetConfig) -> int | None:
    """How many tasks an evaluation set has; None where only data on the Hugging Face Hub tell.

    Raises:
        MidstreamError: its file cannot be read, or has too few.
    """
    source = task_source(chosen.tasks or recipe.tasks)
    if not _on_hub(source):
        return len(draw(source, chosen))
    if chosen.count is not None:
        return chosen.count
    if chosen.per_family is not None:
        return chosen.per_family * len(chosen.families) or None
    return source.benchmark.sizes.get(chosen.split) if isinstance(source, BenchmarkTasks) else None


def _on_hub(source: TaskSource) -> bool:
    """Whether tasks would have to be loaded from the Hugging Face Hub."""
    if isinstance(source, Mixture):
        return any(map(_on_hub, source.parts.values()))
    return isinstance(source, BenchmarkTasks) and source.config.file is None


def _trajectory_lines(batches: list[Batch]) -> list[str]:
    numbers = ["?" if one.count is None else f"{one.count:,}" for one in batches]
    turns = [f"{one.turns} turns" + " to each word of a user" * one.dialogue for one in batches]
    said = [f"{n:>12}  of {often}: {one.what}" for n, often, one in zip(numbers, turns, batches, strict=True)]
    return ["Trajectories, at most:", *(f"  {line}" for line in said)]


# -- calls -------------------------------------------------------------------------------------------------------------


def askers(resolved: Mapping[str, Any], planner: Table | None) -> list[Asker]:
    """Every module and tool that asks a model. A turn calls one tool, a program of the executor's several times."""
    found = []
    modules = modules_of(resolved["agent"])
    for module in modules:
        table = planner if module == modules[0] else resolved["agent"][module]
        if table and "engine" in table:
            often = _OFTEN.get(module, {"per_turn": _MAX_ASKS})
            tokens = table["sampling"]["max_tokens"]
            in_all = resolved["agent"]["max_tokens"] if module == "policy" else None  # of a whole stream
            found.append(Asker(name=module, engine=table["engine"], max_tokens=tokens, in_all=in_all, **often))
    executor = resolved["agent"].get("executor", {})
    calls = executor["program"]["max_tool_calls"] if executor.get("mode") == "code" else 1
    by_engine: dict[str, list[str]] = {}
    for name, table in resolved["tools"].items():
        if "engine" in table:
            by_engine.setdefault(table["engine"], []).append(name)
    for engine, names in by_engine.items():
        longest = max(resolved["tools"][name].get("max_tokens", 0) for name in names)
        said = f"{len(names)} tools" if len(names) > 1 else names[0]
        found.append(Asker(name=said, engine=engine, max_tokens=longest, per_turn=calls))
    return found


def judges(reward: Any) -> Iterator[Asker]:
    """The judge that a reward's table names, or the judges inside it."""
    if isinstance(reward, Mapping):
        if isinstance(reward.get("engine"), str):
            yield Asker(
                name="judge",
                engine=reward["engine"],
                max_tokens=reward["max_tokens"],
                per_trajectory=_MAX_ASKS * reward["votes"],
            )
        for inner in reward.values():
            yield from judges(inner)


def _call_lines(resolved: Mapping[str, Any], batches: list[Batch], roles: Sequence[Requests] = ()) -> list[str]:
    calls, tokens = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for batch in batches:
        for one in (*askers(resolved, batch.planner), *judges(batch.reward)):
            more = one.of(batch)
            calls[one.name, one.engine] += more[0]
            tokens[one.name, one.engine] += more[1]
    for role in roles:
        calls[role.role, role.engine] += role.count
        tokens[role.role, role.engine] += role.count * role.max_tokens
    if not calls:
        return ["Calls: none, every module is a program."]
    lines = ["Calls, and the tokens they generate, at most; what is tried again comes on top:"]
    for (name, engine), count in calls.items():
        settings = resolved["engines"][engine]
        model = settings.get("model", settings["type"])
        lines.append(f"  {count:>12,}  {tokens[name, engine]:>18,} tokens  {name}: {engine} ({model})")
    cost = sum(
        count * resolved["engines"][engine].get("price_completion_usd", 0.0) for (_, engine), count in tokens.items()
    )
    if cost:
        lines.append(f"  These tokens cost at most {cost / 1e6:,.2f} dollars; prompts come on top.")
    if any(batch.dialogue for batch in batches):
        lines.append("  Calls of a dialogue are those of one user turn; its tokens are those of all.")
    if any(batch.count is None for batch in batches):
        lines.append("  Left out: sets whose size only data on the Hugging Face Hub tell.")
    return lines


def _variant_lines(training: TrainingConfig) -> list[str]:
    """Of a relative of GRPO, what the recipe says otherwise: that stands, and the name alone would hide it."""
    if training.variant is None:
        return []
    named = TrainingConfig(variant=training.variant)
    ours, theirs = (
        one.model_dump(mode="json", include={"loss", "baseline", "normalize_by_std"}, exclude_none=True)
        for one in (training, named)
    )
    differ = ", ".join(differing_settings(ours, theirs))
    return [f"Variant {training.variant}" + (f", but for (the recipe's | its own): {differ}" if differ else "")]
