"""Rules: what the values of an atlas mean, as a lesson in the prompt says: "Height counts 3 times in this atlas."

A rule changes how a policy has to use every value of an attribute. Documents and questions do not show it, so a policy
can only follow it by reading. One rule in five, by its hash, is never shown in a warm start, and neither are the
held-out wordings of `rules.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random

from midstream.core.seeds import derive_seed
from midstream.core.stream import POLICY
from midstream.core.texts import Lessons
from midstream_worlds.atlas.questions import PLACE_ATTRIBUTES, SIGNS
from midstream_worlds.planning.lessons import lines

RULED = (*PLACE_ATTRIBUTES, "length")
NUMBERS = {"times": range(2, 10), "plus": range(2, 100), "minus": range(2, 10)}  # no value falls below 0
PATTERN = "^((times|minus) [2-9]|plus ([2-9]|[1-9][0-9]))$"
_HELD_OUT = 5  # one rule in five


@dataclass(frozen=True, slots=True)
class Rule:
    """Use `attribute` as `word` (times, plus or minus) `number`."""

    attribute: str
    word: str
    number: int

    @property
    def held_out(self) -> bool:
        """Whether a warm start may never show it."""
        return derive_seed("atlas rule", self.attribute, self.word, self.number) % _HELD_OUT == 0

    def value(self, value: int) -> int:
        """What a value that was found counts as."""
        return {"times": value * self.number, "plus": value + self.number, "minus": value - self.number}[self.word]

    def code(self, value: str) -> str:
        """The calculation, in Python."""
        return f"{value} {SIGNS[self.word]} {self.number}"

    def statement(self, part: str) -> str:
        """The rule in the words of a part of `rules.toml`."""
        return part.format(self.attribute.capitalize(), self.number)

    def lesson(self, draws: Random, *, held_out: bool) -> str:
        """Draw the text of a lesson that states the rule."""
        which = "held_out" if held_out else "seen"
        statement, end = (draws.choice(wordings()[kind][which]) for kind in (self.word, "ends"))
        return f"{self.statement(statement)}{end}."


@cache
def wordings() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Parts that are "seen" and "held_out", by the word of a rule, and `ends`."""
    return tomllib.loads((resources.files("midstream_worlds.atlas") / "rules.toml").read_text(encoding="utf-8"))


@cache
def _known() -> Mapping[str, Rule]:
    """Every statement, and the rule that it states."""
    return {
        rule.statement(part): rule
        for attribute in RULED
        for word, numbers in NUMBERS.items()
        for part in (*wordings()[word]["seen"], *wordings()[word]["held_out"])
        for rule in (Rule(attribute, word, number) for number in numbers)
    }


def rules_in(lessons: str) -> dict[str, tuple[Rule, str]]:
    """Map attributes to the rules that rendered lessons state, each with its statement, without the end of the lesson.

    The later of two lessons counts, other lessons are ignored.
    """
    found: dict[str, tuple[Rule, str]] = {}
    for line in lessons.splitlines():
        text = line.removeprefix("- ").removesuffix(".")
        for end in (*wordings()["ends"]["seen"], *wordings()["ends"]["held_out"]):
            statement = text.removesuffix(end)
            if rule := _known().get(statement):
                found[rule.attribute] = (rule, statement)
    return found


def draw_rule(attribute: str, draws: Random, *, held_out: bool) -> Rule:
    """Draw a rule about an attribute, of those that are held out of warm starts or of the others."""
    while True:
        word = draws.choice(tuple(NUMBERS))
        rule = Rule(attribute, word, draws.choice(NUMBERS[word]))
        if rule.held_out == held_out:
            return rule


def draw_lessons(attributes: Iterable[str], draws: Random, *, held_out: bool) -> tuple[dict[str, Rule], Lessons]:
    """Draw a rule for each attribute; return them and the lessons that state them."""
    rules = {attribute: draw_rule(attribute, draws, held_out=held_out) for attribute in attributes}
    return rules, {POLICY: lines(rule.lesson(draws, held_out=held_out) for rule in rules.values())}


def warm_lessons(task_ids: Sequence[str], share: float, seed: int) -> dict[str, Lessons]:
    """Lessons for the prompts of a `share` of some tasks, on one attribute to all, in any order."""
    found: dict[str, Lessons] = {}
    for task_id in task_ids:
        draws = Random(derive_seed(seed, "atlas lessons", task_id))
        shown = draws.random() < share
        attributes = draws.sample(RULED, draws.randint(1, len(RULED)))
        found[task_id] = draw_lessons(attributes, draws, held_out=False)[1] if shown else {}
    return found
