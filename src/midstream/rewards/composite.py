"""Rewards made of others: the weighted mean of several, and the one that each task names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from pydantic import field_validator

from midstream.components.component import Context, Parts, RewardConfig
from midstream.components.kinds import IN_A_PACKAGE, rules
from midstream.components.tables import parse_component
from midstream.core.answers import is_number
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward


class CompositeConfig(RewardConfig):
    """The weighted mean of several rewards.

    The table of a part has a `type`, that type's settings, and `weight` (default 1).

    Attributes:
        parts: the parts, by names of your choice
    """

    parts: Parts

    @field_validator("parts")
    @classmethod
    def _no_part_is_rule(cls, parts: Parts) -> Parts:
        if "rule" in parts:
            raise ValueError('no part may be called "rule": that is the rule-based score that a judge reports')
        return parts

    def build(self, context: Context) -> Reward:
        """Build it."""
        return Composite({name: (part.weight or 1.0, context.reward(part)) for name, part in self.parts.items()})


class Composite(BaseReward):
    """The mean of its parts' values, each weighted by its share of all weights; judged if one of them is.

    The score's `parts` hold each value by its name, and a part's own parts by both names ("math.timed_out"). The
    caller that made the rewards closes them. If a part fails, the whole fails.
    """

    def __init__(self, parts: Mapping[str, tuple[float, Reward]]) -> None:
        self._parts = dict(parts)
        self._total = math.fsum(weight for weight, _ in self._parts.values())
        shares = (f"{weight / self._total:.3g} {reward.name}" for weight, reward in self._parts.values())
        self.name = f"composite ({' + '.join(shares)})"
        self.judged = any(reward.judged for _, reward in self._parts.values())

    def check(self, task: Task) -> None:
        """Every part must be able to score it."""
        for _, reward in self._parts.values():
            reward.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score by every part, one after the other."""
        scores = {name: await reward.score(task, trajectory) for name, (_, reward) in self._parts.items()}
        value = math.fsum(self._parts[name][0] * score.value for name, score in scores.items()) / self._total
        inner = {f"{name}.{key}": part for name, score in scores.items() for key, part in score.parts.items()}
        return Score(
            # Three times 0.1 of 0.3 may round above.
            value=min(value, 1.0),
            parts={name: score.value for name, score in scores.items()} | inner,
            calls=tuple(call for score in scores.values() for call in score.calls),
            feedback="\n".join(f"{name}: {score.feedback}" for name, score in scores.items() if score.feedback),
        )


class PerTaskConfig(RewardConfig):
    """The reward that each task names; of a task that names none, the one that its gold answer asks for.

    That is `multiple_choice` for a task with options, `numeric` where every accepted answer is a number, else
    `exact_match`.

    Attributes:
        parts: `otherwise` scores the tasks that name no reward
    """

    parts: Parts | None = None

    @field_validator("parts")
    @classmethod
    def _only_otherwise(cls, parts: Parts | None) -> Parts | None:
        if parts and (other := parts.keys() - {"otherwise"}):
            raise ValueError(f'its one part is called "otherwise", not {min(other)!r}')
        return parts

    def build(self, context: Context) -> PerTask:
        """Build it."""

        def make(name: str) -> Reward:
            part = (self.parts or {}).get(name) or parse_component("reward", {"type": name}, "reward")
            return context.reward(part)

        return PerTask(make, rules(), otherwise="otherwise" if self.parts else "")


class PerTask(BaseReward):
    """Score a task by the reward type that it names, or by `otherwise`; each reward is made once, when it is needed.

    `make` makes a reward of one of the types `rules` with default settings, or `otherwise`; its caller closes what it
    made. Only rule-based rewards can be named. Without `otherwise`, the gold answer of a task decides (`rule_for`).
    """

    name = "benchmark"

    def __init__(self, make: Callable[[str], Reward], rules: Collection[str], otherwise: str = "") -> None:
        self._make, self._rules, self._otherwise = make, rules, otherwise
        self._made = dict[str, Reward]()

    def check(self, task: Task) -> None:
        """Refuse a task that names no rule-based reward, or one that cannot score it."""
        self._reward(task).check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The score by the task's own reward, which `parts` names. Raises `RecipeError` as `check` does."""
        score = await self._reward(task).score(task, trajectory)
        if self._reward_of(task) == self._otherwise:
            return score
        return score.model_copy(update={"parts": {self._reward_of(task): score.value, **score.parts}})

    def used(self, tasks: Iterable[Task]) -> list[Reward]:
        """The rewards that score these tasks, by name; raises as `check` does, and if a judge and a rule would."""
        found = sorted({id(reward): reward for reward in map(self._reward, tasks)}.values(), key=lambda used: used.name)
        if len({reward.judged for reward in found}) > 1:
            raise RecipeError(
                f"some tasks name a reward, and others would be judged: {', '.join(used.name for used in found)}",
                code="setting-conflict",
                fix="name a reward in every row or in none, or one for the whole set",
            )
        return found

    def _reward_of(self, task: Task) -> str:
        return task.reward or self._otherwise or rule_for(task)

    def _reward(self, task: Task) -> Reward:
        named = self._reward_of(task)
        if named not in self._rules and (task.reward or named != self._otherwise):
            raise RecipeError(
                f"task {task.id!r} names the reward {named!r}, which no installed package has as a rule",
                code="unknown-type",
                fix=f"{did_you_mean(named, self._rules)}name one of: {', '.join(self._rules)}; or score the whole set "
                f'by a judge: its own `reward`, or [reward] type = "judge"; {IN_A_PACKAGE}',
            )
        if named not in self._made:
            self._made[named] = self._make(named)
        return self._made[named]


def rule_for(task: Task) -> str:
    """The type of reward for a task that names none."""
    if task.metadata.get("options"):
        return "multiple_choice"
    return "numeric" if all(map(is_number, task.answers)) else "exact_match"
