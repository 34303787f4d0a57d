"""The answer is the gold number, however it is written."""

from __future__ import annotations

import re
from fractions import Fraction

from pydantic import Field

from midstream.core.answers import numbers
from midstream.core.component import RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule

_READABLE = re.compile(
    r"-?(?:(?P<above>[0-9]{1,200})/(?P<below>[0-9]{1,200})"
    r"|(?P<decimal>[0-9]{0,200}(?:\.[0-9]{1,200})?)(?:e(?P<power>[-+]?[0-9]{1,3}))?)"
)
_GLUED = re.compile(r"\b[^\W\d_]+[-_]?[0-9]\w*")  # the digits of "CO2", "x_1" and "covid-19" are no numbers
_TIMES_TEN = re.compile(r"(?<=[0-9])\s*(?:×|x|\*|\\times)\s*10\s*\^\s*\{?([-+−]?[0-9]{1,4})\}?")
_SCALED = re.compile(r"(?<=[0-9])\s*(thousand|million|billion|trillion)s?\b", re.IGNORECASE)
_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_EXPRESSION = re.compile(r"[0-9)]\s+[-+*/×÷^]\s+[(0-9]")
_BOUND = re.compile(r"[<>≤≥≠±]|!=")
_SEGMENTS = re.compile(r"[;\n]|,\s|\b(?:and|or)\b")
_CLOSING = re.compile(r"[=≈]|\banswer\s*(?:is\b|:)", re.IGNORECASE)


class Numeric(Rule):
    """1 if the one number that the answer states lies within the tolerance of an accepted one, else 0.

    Read: "1,000", "$5", "42%", "1/2", "-0.5", "3.5e4", "3.5 × 10^4", "3 million", a unit after it. Units and percent
    signs are neither compared nor converted: "42%" is 42 and not 0.42, "5 miles" is 5.

    Counted as wrong: several different numbers or a sum not worked out, unless the answer ends in one equation or
    one "the answer is" whose last part has one number ("6 * 7 = 42"); bounds (<, ≥, ±); decimal commas ("3,14"), white
    space between digits ("1 000", "1 1/2"), times of day, dates; numbers as words; digits other than 0 to 9; LaTeX
    (`math` reads it); more than 200 digits, powers above 999. Compared exactly, as fractions.
    """

    name = "numeric match"

    def __init__(self, config: NumericConfig | None = None) -> None:
        self.config = config or NumericConfig()

    def check(self, task: Task) -> None:
        """Refuse a task without an accepted answer that is a number."""
        _accepted(task)

    async def value(self, task: Task, answer: str) -> float:
        """Compare with every accepted answer that is a number."""
        found = read(answer)
        relative, absolute = Fraction(self.config.relative_tolerance), Fraction(self.config.absolute_tolerance)
        return float(
            any(
                found is not None and abs(found - accepted) <= max(relative * abs(accepted), absolute)
                for accepted in _accepted(task)
            )
        )


class NumericConfig(RewardConfig):
    """How far the answer may be from the gold number; the larger tolerance counts.

    Attributes:
        relative_tolerance: a share of the gold number
        absolute_tolerance: a difference
    """

    rule_based = True
    component = Numeric

    relative_tolerance: float = Field(default=0.0, ge=0)
    absolute_tolerance: float = Field(default=0.0, ge=0)


def _accepted(task: Task) -> list[Fraction]:
    accepted = [number for number in map(read, task.answers) if number is not None]
    if not accepted:
        raise RecipeError(
            f"the answer of task {task.id!r} is not a number: {task.answer[:80]!r}",
            code="task-unfit",
            fix="correct the answer, or score the set by exact_match",
        )
    return accepted


def read(text: str) -> Fraction | None:
    """The single number that a text states, or None."""
    text = _TIMES_TEN.sub(r"e\1", text)
    text = _SCALED.sub(lambda found: f"e{_POWERS[found[1].lower()]}", text)
    text = re.sub("([=≈])", r" \1 ", _GLUED.sub(" ", text))
    if _BOUND.search(text):
        return None
    stated = _distinct(text)
    if len(stated) > 1:
        # Several numbers: the text after the last "=" or "the answer is" counts, if a single segment has such a mark
        # and no segment with numbers follows.
        segments = [segment for segment in _SEGMENTS.split(text) if numbers(segment)]
        closing = [segment for segment in segments if _CLOSING.search(segment)]
        last = _CLOSING.split(closing[0])[-1] if len(closing) == 1 and closing[0] is segments[-1] else ""
        stated = _distinct(last)
    return stated.pop() if len(stated) == 1 else None


def _distinct(text: str) -> set[Fraction | None]:
    """The different numbers of a text, and None if something in it cannot be read as a number."""
    unread: set[Fraction | None] = {None} if _EXPRESSION.search(text) else set()
    return unread | {_fraction(number) for number in numbers(text)}


def _fraction(text: str) -> Fraction | None:
    """A number as `core.answers.numbers` writes it; None if it is unreadable or has the denominator 0."""
    found = _READABLE.fullmatch(text)
    if found is None:
        return None
    if found["above"]:
        below = int(found["below"])
        value = Fraction(int(found["above"]), below) if below else None
    else:
        value = Fraction(found["decimal"]) * Fraction(10) ** int(found["power"] or 0)
    return -value if value is not None and text.startswith("-") else value
