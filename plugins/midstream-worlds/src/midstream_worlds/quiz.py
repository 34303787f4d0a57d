"""Questions that a small language model learns to answer with tools: arithmetic, and facts about real countries.

    expression  What is (34 + 57) * 12 - 80?              python
    words       A shop sells 45 boxes with 24 pens ...    python
    lookup      What is the population of Peru?           a search
    difference  How many more people live in Peru than in Chad?    a search, then python
    sum         How many people live in Peru and Chad together?    a search, then python

Arithmetic on validation and test has other wordings and names than in training; countries differ in all three. Facts
are those of the package countryinfo, and answers are computed from them; `local_search` without an index searches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Literal

from midstream.components.component import TasksConfig
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.sources.finite import SPLITS
from midstream_worlds.endless import Endless

Family = Literal["expression", "words", "lookup", "difference", "sum"]
ARITHMETIC: tuple[Family, ...] = ("expression", "words")
FACTS: tuple[Family, ...] = ("lookup", "difference", "sum")

_ASKED = (("What is {}?", "Compute {}.", "Work out the value of {}."), ("How much is {}?", "Give the result of {}."))
_NAMES = (("Tom", "Ana", "Lee", "Mia"), ("Omar", "Ruth"))
# A story's answer is a * b, plus or minus c.
_STORIES: tuple[tuple[tuple[str, int], ...], ...] = (
    (
        ("A shop sells {a} boxes with {b} pens each and then {c} single pens. How many pens does it sell?", 1),
        ("{n} reads {b} pages a day for {a} days, and then {c} more pages. How many pages does {n} read in all?", 1),
        ("A farm has {a} rows of {b} trees. {c} trees are cut down. How many trees are left?", -1),
        (
            "{n} earns {b} dollars an hour and works {a} hours, then pays {c} dollars of rent. How many dollars are "
            "left?",
            -1,
        ),
    ),
    (
        ("A train has {a} cars with {b} seats each, and {c} seats are taken. How many seats are free?", -1),
        (
            "{n} packs {a} crates with {b} apples each and has {c} apples left over. How many apples are there "
            "altogether?",
            1,
        ),
    ),
)
_FIELDS = ("population", "area")


class Quiz(Endless):
    """A `core.source.World` of arithmetic and of facts about countries."""

    def __init__(self, config: QuizConfig) -> None:
        super().__init__(
            "the quiz",
            known=(*ARITHMETIC, *FACTS),
            families=config.families,
            sampled=("quiz", config.seed),
            fixed=("quiz-fixed", config.seed),
        )
        self._facts = countries() if set(FACTS) & set(config.families) else {}
        names = list(self._facts)
        Random(derive_seed("quiz", "countries", config.seed)).shuffle(names)
        # A country is in one split only, so no fact of a test is learned in training.
        train, validation = int(len(names) * 0.6), int(len(names) * 0.7)
        self.splits = dict(zip(SPLITS, (names[:train], names[train:validation], names[validation:]), strict=True))

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of a country: population, area and capital."""
        for name, fact in self._facts.items():
            numbers = f"population {fact['population']}, area {fact['area']} square kilometers"
            yield name, f"{name}: {numbers}, capital {fact['capital']}."

    def make(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        """Draw one question, with an answer computed from numbers or facts."""
        question, answer = self._question(split, family, draws)
        return Task(id=task_id, question=question, answer=str(answer), family=family)

    def _question(self, split: str, family: str, draws: Random) -> tuple[str, int]:
        words = 0 if split == "train" else 1
        if family == "expression":
            a, b, c, d = (draws.randint(12, 99) for _ in range(4))
            n = draws.randint(120, 999)
            forms = (
                (f"{n} * {b} + {c * 11}", n * b + c * 11),
                (f"({a} + {b}) * {c} - {d}", (a + b) * c - d),
                (f"{n} - {a} * {b} + {d * 37}", n - a * b + d * 37),
                (f"{a} * {b} * {c}", a * b * c),
                (f"{n * 13} - {b * c} + {d}", n * 13 - b * c + d),
            )
            text, value = draws.choice(forms)
            return draws.choice(_ASKED[words]).format(text), value
        if family == "words":
            story, sign = draws.choice(_STORIES[words])
            a, b, c = draws.randint(23, 98), draws.randint(23, 98), draws.randint(101, 500)
            return story.format(a=a, b=b, c=c, n=draws.choice(_NAMES[words])), a * b + sign * c
        field = draws.choice(_FIELDS)
        first, second = draws.sample(list(self.splits[split]), 2)
        x, y = (int(self._facts[name][field]) for name in (first, second))
        of_people = field == "population"
        if family == "lookup":
            ending = "" if of_people else " in square kilometers"
            return f"What is the {field} of {first}{ending}?", x
        if family == "sum":
            if of_people:
                return f"How many people live in {first} and {second} together?", x + y
            return f"What is the area of {first} and {second} together in square kilometers?", x + y
        if x < y:
            first, second, x, y = second, first, y, x
        if of_people:
            return f"How many more people live in {first} than in {second}?", x - y
        return f"How many square kilometers larger is {first} than {second}?", x - y


class QuizConfig(TasksConfig):
    """Arithmetic, and facts about real countries behind a search: for small language models.

    Attributes:
        families: `expression` and `words` (arithmetic), `lookup`, `difference` and `sum` (facts)
        seed: decides the questions, and which countries are in which split
    """

    endless = True
    world = True
    component = Quiz

    families: tuple[Family, ...] = ARITHMETIC
    seed: int = 0


@cache
def countries() -> Mapping[str, Mapping[str, str | int]]:
    """Population, area and capital of countries with a short name, over 1,000 square kilometers and 100,000 people."""
    # Reads 2 MB of files, which questions of arithmetic do not need.
    from countryinfo import all_countries

    found: dict[str, dict[str, str | int]] = {}
    for table in (country.info() for country in all_countries()):
        name, capital = str(table.get("name", "")), table.get("capital")
        people, area = int(table.get("population") or 0), int(float(table.get("area") or 0))
        is_short = re.fullmatch(r"[A-Z][a-z]+( [A-Z][a-z]+)?", name) and isinstance(capital, str)
        if is_short and capital and people >= 100_000 and area >= 1_000:
            found[name] = {"population": people, "area": area, "capital": str(capital)}
    return dict(sorted(found.items()))
