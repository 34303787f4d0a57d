"""Base of the worlds in which a tiny planner learns: names in splits, endless questions, what training needs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from midstream.components.component import Context, TasksConfig
from midstream.core.errors import RecipeError, UsageError
from midstream.core.task import Task
from midstream.core.texts import Lessons
from midstream.core.trajectory import Message
from midstream.rollout import Environment, rollout
from midstream.runs.budget import require_within_budget
from midstream.sources.finite import SPLIT_FIX, check_known
from midstream_worlds.endless import Endless
from midstream_worlds.planning import action_lines, reflector, scripted
from midstream_worlds.planning.lessons import draw_lessons, lesson_words
from midstream_worlds.planning.words import FIRST, SECOND, Topic
from midstream_worlds.tiny_model import TinyWorld, Vocabulary

GATE_SAMPLES = 4  # rollouts of a validation task: for a copy rate that is steady to a few points


class PlannedConfig(TasksConfig):
    """Base of the worlds' settings."""

    endless = True
    plays: ClassVar[tuple[str, ...]] = ("reflector",)
    world = True
    teacher = "clumsy"
    gate_samples = GATE_SAMPLES


class PlannedWorld(TinyWorld, Endless):
    """A `training.protocols.TrainableWorld` whose questions name things: subclasses implement `words` and `make`.

    `lists` are the names of each kind of thing; item i of each belongs to the split that has i.
    """

    teacher = PlannedConfig.teacher

    def __init__(self, what: str, *, topics: Sequence[Topic], **families: Any) -> None:
        super().__init__(what, **families)
        self.searches = [topic.search for topic in topics]
        self.lists: tuple[Sequence[str], ...] = ()

    def draw_names(self, rng: random.Random, count: int, kinds: int, setting: str) -> None:
        """Draw `count` names of each of so many kinds, and split them 67, 13 and 20 %."""
        every = sorted({first + second.lower() for first in FIRST for second in SECOND if first != second})
        most = len(every) // kinds
        # Of 21, validation would get two; the deepest questions about graphs need three.
        if not 20 <= count <= most or count == 21:
            raise RecipeError(
                f"{setting} = {count} cannot be made",
                code="setting-range",
                fix=f"set `{setting}` between 20 and {most}, except 21",
            )
        rng.shuffle(every)
        train, validation = int(count * 0.67), int(count * 0.80)
        self.lists = tuple(every[kind * count : (kind + 1) * count] for kind in range(kinds))
        self.splits = {
            "train": range(train),
            "validation": range(train, validation),
            "test": range(validation, count),
        }

    def indices(self, split: str) -> range:
        """Which of the `lists` belong to a split."""
        return self.splits[split]  # type: ignore[return-value]  # a range, in these worlds

    def words(self) -> set[str]:
        """Every word of its questions and results, except names and numbers."""
        raise NotImplementedError

    def play(self, role: str, skill: float, context: Context) -> Callable[[Sequence[Message], int], str]:
        """The program that plays the reflector."""
        return reflector.reply

    def vocabulary(self, context: Context) -> Vocabulary:
        """Every word of the world and of the agent that acts in it."""
        tools = [tool.name for tool in context.build.tools]
        words = {*self.words(), *action_lines.WORDS, *scripted.action_words(), *tools}
        bare = [*action_lines.BARE, *tools]  # they begin the lines of a prompt
        if (warm := context.recipe.warm_start) is not None and warm.lessons > 0:
            words |= lesson_words()
            bare.append("-")
        if context.template is not None:
            words.add(scripted.ANSWER)
            bare = scripted.stream_marks(context.template, tools)
        return Vocabulary(words=words, names=self.names(), bare=bare)

    def readable(self, question: str) -> str:
        """Put a space before the question mark, and refuse words of which the planner knows none.

        To the planner, each of them would be the same unknown token, and it would answer as if it had understood.
        """
        question = re.sub(r"\s*\?\s*$", " ?", question)
        known = {*self.words(), *self.names()}
        words = [word for word in question.split() if word not in known and not word.isdecimal()]
        if not words:
            return question
        examples = [self.make("test", family, random.Random(0), "").question for family in self.families[:2]]
        raise UsageError(
            f"the planner does not know {', '.join(map(repr, words))}",
            code="question-unknown",
            fix=f'ask "{examples[0]}" or "{examples[1]}"; a question about the real world needs a real model: '
            f'midstream solve "{question}" --provider ollama --model qwen2.5:7b',
        )

    def names(self, split: str | None = None) -> list[str]:
        """All names, or those of one split."""
        check_known("split", [split] if split else [], self.splits, self.what, SPLIT_FIX)
        indices = self.indices(split) if split else range(len(self.lists[0]))
        return [names[i] for names in self.lists for i in indices]

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons for the prompts of `share` of some tasks (`planning/lessons.py`)."""
        return draw_lessons(task_ids, share, seed)

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Refuse validation tasks that name nothing of the world, unless any copy rate will do."""
        if least and set(self.names()).isdisjoint(word for task in tasks for word in task.question.split()):
            raise RecipeError(
                f"no question of evaluation.validation names anything of {self.what}",
                code="setting-conflict",
                fix="give it questions of the world that do, or set warm_start.min_copy_rate = 0",
            )

    async def warm_rate(self, environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[float, str]:
        """Of the first actions that look something up, the share that names a thing of the question asked.

        A planner that cannot copy a name that it was never trained on cannot be rewarded for looking it up.
        """
        names = set(self.names())
        asked = [task for task in tasks if names & set(task.question.split())]
        looked_up = copied = 0
        groups = await rollout(environment, asked, group_size=GATE_SAMPLES, seed=seed)
        require_within_budget([trajectory for group in groups for trajectory in group.trajectories])
        for group in groups:
            places = names & set(group.task.question.split())
            for trajectory in group.trajectories:
                action = trajectory.turns[0].action if trajectory.turns else None
                if action and action.tool in self.searches:
                    looked_up += 1
                    copied += bool(places & set(action.context.split()))
        return copied / max(1, looked_up), "copy rate of validation names"
