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
from collections.abc import Iterator
from typing import Literal

from midstream.components.component import Context
from midstream.core.errors import RecipeError
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream_worlds.gazetteer.questions import (
    ASK,
    COMPARE,
    DIFF,
    OPERATORS,
    PLACE_ATTRIBUTES,
    SUM,
    question_words,
)
from midstream_worlds.planning.words import PLACES
from midstream_worlds.planning.world import PlannedConfig, PlannedWorld

EASY = ("lookup", "arith", "hop", "scale")
STANDARD = (*EASY, "sum", "diff", "compare")
DIFFICULTIES = {"easy": EASY, "standard": STANDARD, "deep": (*STANDARD, "total3", "total4", "total5")}
TOTALS = {f"total{places}": places for places in range(3, 8)}  # a look-up each, and a sum for each but the first
SMALLEST, LARGEST = 11, 199


class GazetteerConfig(PlannedConfig):
    """Endless questions about a made-up gazetteer, of one to thirteen turns.

    Attributes:
        difficulty: `easy`: lookup, arith, hop, scale; `standard`: also sum, diff, compare; `deep`: also total3, total4
            and total5, of five, seven and nine turns
        families: replaces the families of `difficulty`
        countries: each makes nine facts; the splits take 67, 13 and 20 %
        seed: the world's seed: the same world for every run seed
    """

    difficulty: Literal["easy", "standard", "deep"] = "standard"
    families: tuple[str, ...] = ()
    countries: int = 300
    seed: Seed = 0

    def build(self, context: Context) -> Gazetteer:
        """Build it."""
        return Gazetteer(self)


class Gazetteer(PlannedWorld):
    """Facts, documents and questions. Immutable after construction; a `training.protocols.TrainableWorld`."""

    def __init__(self, config: GazetteerConfig) -> None:
        super().__init__(
            "the gazetteer",
            topics=(PLACES,),
            known=(*STANDARD, *TOTALS),
            families=config.families or DIFFICULTIES[config.difficulty],
            sampled=("tasks",),
            fixed=("fixed",),
        )
        rng = random.Random(derive_seed("gazetteer", config.seed))
        self.draw_names(rng, config.countries, 3, "countries")
        self.countries, self.capitals, self.rivers = self.lists
        self.facts: dict[tuple[str, str], str] = {}
        for country, capital, river in zip(self.countries, self.capitals, self.rivers, strict=True):
            self.facts[country, "capital"], self.facts[country, "river"] = capital, river
            self.facts[river, "length"] = str(rng.randint(SMALLEST, LARGEST))
            for place in (country, capital):
                for attribute in PLACE_ATTRIBUTES:
                    self.facts[place, attribute] = str(rng.randint(SMALLEST, LARGEST))

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every fact, in a fixed order."""
        for number, ((entity, attribute), value) in enumerate(self.facts.items()):
            yield f"fact-{number}", f"{entity} {attribute} {value}"

    def words(self) -> set[str]:
        """Every word of questions and facts."""
        return question_words()

    def make(self, split: str, family: str, draws: random.Random, task_id: str) -> Task:
        """Draw one question, with an answer computed from the facts."""
        question, answer = self._question(split, family, draws)
        return Task(id=task_id, question=f"{question} ?", answer=str(answer), family=family)

    def _question(self, split: str, family: str, rng: random.Random) -> tuple[str, int | str]:
        """Draw a question of a family; return its text and answer."""
        indices = self.indices(split)
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
            if len(indices) < TOTALS[family]:
                raise RecipeError(
                    f"{family} asks about {TOTALS[family]} places, and the {split} split has {len(indices)}",
                    code="setting-range",
                    fix=f"set countries to {8 * TOTALS[family]} or more",
                )
            places = [pool[i] for i in rng.sample(indices, TOTALS[family])]
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
