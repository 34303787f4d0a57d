"""A simulated gazetteer: thousands of facts about fictional places, and endless questions about them.

Every country has a capital, a river, a population, an area and a height; every capital a population, an area and a
height; every river a length. A fact is one short document, "Amberbank height 105", behind the search index. Countries
are split into train, validation and test together with their capitals and rivers and so with everything asked about
them; plain arithmetic is split by its operands. No test fact or question can therefore occur in training.

Families and the turns a sound plan needs (look-ups and calculations):

    lookup 1   How high is Amberbank ?
    arith  1   What is 45 plus 17 ?
    hop    2   What is the area of the capital of Amberbank ?
    scale  2   What is the height of Amberbank times 3 ?
    sum    3   How many people live in Amberbank and Oakfell together ?
    diff   3   How much higher is Amberbank than Oakfell ?
    compare 3  Is Amberbank higher than Oakfell ?   (yes or no)
    total3 5   What is the total height of Amberbank and Oakfell and Mistvale ?
    total4 to total7 likewise, of so many places: 7, 9, 11 and 13 turns

The gold answer is computed from the facts. A question's text alone reaches the agent.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from midstream.core.component import Context, TasksConfig
from midstream.core.errors import RecipeError, UsageError
from midstream.core.lessons import Lessons
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Message
from midstream.rollout import Environment, rollout
from midstream.runs.budget import require_within_budget
from midstream.sources.finite import SPLIT_FIX, check_known
from midstream.worlds.bases import Endless
from midstream.worlds.gazetteer import compact, reflector, scripted
from midstream.worlds.gazetteer.lessons import draw_lessons, lesson_words
from midstream.worlds.gazetteer.questions import (
    ASK,
    COMPARE,
    DIFF,
    FIRST,
    OPERATORS,
    PLACE_ATTRIBUTES,
    SECOND,
    SUM,
    question_words,
)
from midstream.worlds.tiny_model import TinyWorld, Vocabulary

Split = Literal["train", "validation", "test"]
DIFFICULTIES: dict[str, tuple[str, ...]] = {
    "easy": ("lookup", "arith", "hop", "scale"),
    "standard": ("lookup", "arith", "hop", "scale", "sum", "diff", "compare"),
    "deep": ("lookup", "arith", "hop", "scale", "sum", "diff", "compare", "total3", "total4", "total5"),
}
TOTALS = {f"total{places}": places for places in range(3, 8)}  # a look-up each, and a sum for each but the first
SMALLEST, LARGEST = 11, 199


class GazetteerConfig(TasksConfig):
    """Endless questions about a made-up gazetteer, in seven families of one to three turns.

    Attributes:
        difficulty: `easy`: lookup, arith, hop, scale; `standard`: also sum, diff, compare; `deep`: also total3, total4
            and total5, of five, seven and nine turns
        families: replaces the families of `difficulty`
        countries: each makes nine facts; the splits take 67, 13 and 20 %
        seed: the world's seed: the same world for every run seed
    """

    endless = True
    plays = ("reflector",)
    world = True
    teacher = "clumsy"
    gate_samples = 4  # for a copy rate that is steady to a few points

    difficulty: Literal["easy", "standard", "deep"] = "standard"
    families: tuple[str, ...] = ()
    countries: int = 300
    seed: Seed = 0

    def build(self, context: Context) -> Gazetteer:
        """Build it."""
        return Gazetteer(self)


class Gazetteer(TinyWorld, Endless):
    """Facts, documents and questions. Immutable after construction; a `core.protocols.TrainableWorld`."""

    teacher = GazetteerConfig.teacher

    def __init__(self, config: GazetteerConfig) -> None:
        super().__init__(
            "the gazetteer",
            known=(*DIFFICULTIES["standard"], *TOTALS),
            families=config.families or DIFFICULTIES[config.difficulty],
            sampled=("tasks",),
            fixed=("fixed",),
        )
        n = config.countries
        names = sorted({first + second.lower() for first in FIRST for second in SECOND if first != second})
        if not 20 <= n <= len(names) // 3:
            raise RecipeError(
                f"countries = {n} cannot be made",
                code="setting-range",
                cause=f"each needs three of {len(names)} names, and every split needs names that no other has",
                fix=f"set `countries` between 20 and {len(names) // 3}",
            )
        rng = random.Random(derive_seed("gazetteer", config.seed))
        rng.shuffle(names)
        self.countries, self.capitals, self.rivers = names[:n], names[n : 2 * n], names[2 * n : 3 * n]
        self.facts: dict[tuple[str, str], str] = {}
        for country, capital, river in zip(self.countries, self.capitals, self.rivers, strict=True):
            self.facts[country, "capital"], self.facts[country, "river"] = capital, river
            self.facts[river, "length"] = str(rng.randint(SMALLEST, LARGEST))
            for place in (country, capital):
                for attribute in PLACE_ATTRIBUTES:
                    self.facts[place, attribute] = str(rng.randint(SMALLEST, LARGEST))
        train, validation = int(n * 0.67), int(n * 0.80)
        self.splits = {"train": range(train), "validation": range(train, validation), "test": range(validation, n)}

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every fact, in a fixed order."""
        for number, ((entity, attribute), value) in enumerate(self.facts.items()):
            yield f"fact-{number}", f"{entity} {attribute} {value}"

    def play(self, role: str, skill: float, context: Context) -> Callable[[Sequence[Message], int], str]:
        """The program that plays the reflector."""
        return reflector.reply

    def vocabulary(self, context: Context) -> Vocabulary:
        """Every word of the world and of the agent that acts in it."""
        words = {*question_words(), *compact.WORDS, *scripted.action_words(), *context.tool_names}
        bare = [*compact.BARE, *context.tool_names]  # they begin the lines of a prompt
        if context.warm_lessons:
            words |= lesson_words()
            bare.append("-")
        if context.template is not None:
            words.add(scripted.ANSWER)
            bare = scripted.stream_marks(context.template, context.tool_names)
        return Vocabulary(words=words, names=self.names(), bare=bare)

    def readable(self, question: str) -> str:
        """Put a space before the question mark, and refuse words of which the planner knows none.

        To the planner, each of them would be the same unknown token, and it would answer as if it had understood.
        """
        question = re.sub(r"\s*\?\s*$", " ?", question)
        known = {*question_words(), *self.names()}
        words = [word for word in question.split() if word not in known and not word.isdecimal()]
        if not words:
            return question
        examples = [self.make("test", family, random.Random(0), "").question for family in ("lookup", "arith")]
        raise UsageError(
            f"the planner does not know {', '.join(map(repr, words))}",
            code="question-unknown",
            cause="it is tiny, and knows its made-up world alone: the names of its places, their facts, and numbers",
            fix=f'ask "{examples[0]}" or "{examples[1]}"; a question about the real world needs a real model: '
            f'midstream solve "{question}" --provider ollama --model qwen2.5:7b',
        )

    def names(self, split: str | None = None) -> list[str]:
        """Names of all places, or those of one split."""
        check_known("split", [split] if split else [], self.splits, self.what, SPLIT_FIX)
        indices = self.splits[split] if split else range(len(self.countries))
        return [name for names in (self.countries, self.capitals, self.rivers) for i in indices for name in (names[i],)]

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons for the prompts of `share` of some tasks (`gazetteer.lessons`)."""
        return draw_lessons(task_ids, share, seed)

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Refuse validation tasks of which none names a place, unless any copy rate will do."""
        if least and set(self.names()).isdisjoint(word for task in tasks for word in task.question.split()):
            raise RecipeError(
                "no question of evaluation.validation names a place of the offline world",
                code="setting-conflict",
                cause="they are of another source, or of families that ask about none; the copy gate asks them",
                fix="give it questions of the world that name places, or set warm_start.min_copy_rate = 0",
            )

    async def warm_rate(self, environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[float, str]:
        """Of the first actions that look something up, the share that names a place of the question asked.

        A planner that cannot copy a name that it was never trained on cannot be rewarded for looking it up.
        """
        names = set(self.names())
        asked = [task for task in tasks if names & set(task.question.split())]
        looked_up = copied = 0
        groups = await rollout(environment, asked, group_size=GazetteerConfig.gate_samples, seed=seed)
        require_within_budget([trajectory for group in groups for trajectory in group.trajectories])
        for group in groups:
            places = names & set(group.task.question.split())
            for trajectory in group.trajectories:
                action = trajectory.turns[0].action if trajectory.turns else None
                if action and action.tool == "local_search":
                    looked_up += 1
                    copied += bool(places & set(action.context.split()))
        return copied / max(1, looked_up), "copy rate of validation names"

    def make(self, split: str, family: str, draws: random.Random, task_id: str) -> Task:
        """Draw one question, with an answer computed from the facts."""
        question, answer = self._question(split, family, draws)
        return Task(id=task_id, question=f"{question} ?", answer=str(answer), family=family)

    def _question(self, split: str, family: str, rng: random.Random) -> tuple[str, int | str]:
        """Draw a question of a family; return its text and answer."""
        indices = self.splits[split]
        if family == "arith":
            # Operands are split too: no test sum is ever trained on.
            remainders = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}[split]
            word = rng.choice(tuple(OPERATORS))
            while True:
                x = rng.randint(SMALLEST, LARGEST)
                y = rng.randint(2, 9) if word == "times" else rng.randint(SMALLEST, LARGEST)
                if (31 * x + y) % 10 in remainders:
                    return f"What is {x} {word} {y}", _apply(word, x, y)
        if family in TOTALS:
            attribute, pool = rng.choice(PLACE_ATTRIBUTES), rng.choice((self.countries, self.capitals))
            places = [pool[i] for i in rng.sample(indices, min(TOTALS[family], len(indices)))]
            total = sum(int(self.facts[place, attribute]) for place in places)
            return f"What is the total {attribute} of {' and '.join(places)}", total
        i, j = rng.sample(indices, 2)
        attribute = rng.choice((*PLACE_ATTRIBUTES, *(("length",) if family in ("lookup", "hop") else ())))
        if family == "hop":
            relation = "river" if attribute == "length" else "capital"
            target = self.facts[self.countries[i], relation]
            text = rng.choice(ASK[attribute]).format(f"the {relation} of {self.countries[i]}")
            return text, int(self.facts[target, attribute])
        pool = self.rivers if attribute == "length" else rng.choice((self.countries, self.capitals))
        first, second = pool[i], pool[j]
        a, b = int(self.facts[first, attribute]), int(self.facts.get((second, attribute), "0"))
        if family == "lookup":
            return rng.choice(ASK[attribute]).format(first), a
        if family == "scale":
            word, k = rng.choice(tuple(OPERATORS)), rng.randint(2, 9)
            return f"What is the {attribute} of {first} {word} {k}", _apply(word, a, k)
        if family == "sum":
            return rng.choice(SUM[attribute]).format(first, second), a + b
        if family == "diff":
            larger, smaller = (first, second) if a >= b else (second, first)
            return rng.choice(DIFF[attribute]).format(larger, smaller), abs(a - b)
        return rng.choice(COMPARE[attribute]).format(first, second), "yes" if a > b else "no"


def _apply(word: str, x: int, y: int) -> int:
    return {"plus": x + y, "minus": x - y, "times": x * y}[word]
