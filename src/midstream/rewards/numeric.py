"""The answer is the gold number, however it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from pydantic import Field

from midstream.components.component import RewardConfig
from midstream.core.task import Task
from midstream.rewards.rule import Rule, unfit_task
from midstream.rewards.statement import state

_UNIT = (
    r"(?:min|sec|\^\s*\{?\\circ\}?\s*[CFK]?|[mgslLhAVWNJKCF](?:\s*\^\s*\{?[23]\}?)?(?:/[smhL](?:\s*\^\s*\{?2\}?)?)?)"
)
_SIZE = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9])|[0-9]{1,200})(?:\.[0-9]{0,200})?|\.[0-9]{1,200}"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>[0-9]{{1,200}})\s+(?=[0-9]+/))?(?P<above>{_SIZE})(?:\s*/\s*(?P<below>[0-9]{{1,200}}))?"
    r"(?:[eE](?P<e>[-+]?[0-9]{1,3})|\^\s*\{?\(?(?P<power>-?[0-9]{1,3})\)?\}?)?"
    r"(?P<tens>(?:\s*(?:\\times|\\cdot|\*|[xX])\s*10\s*\^\s*\{?\(?[-+]?[0-9]{1,3}\)?\}?)*)"
    rf"\s*(?:(?P<percent>%)|{_UNIT})?"
)
_PERCENT = re.compile(r"%|\bper ?cent", re.IGNORECASE)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|pm|in)(?![a-z])")
_TENS = re.compile(r"(?<=\d)_\{?10\}?(?!\d)")  # decimal digits, as said of any
_EQUALS = re.compile(r"=|\\equiv|\\implies")
_LIST = re.compile(r"(?:;|,(?![0-9]{3}(?![0-9])))(?![^()]*\))")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])([0-9]+),([0-9]{1,2}|[0-9]{4,})(?![\d.,])")
_COMPUTED = re.compile(r"(?:[-+*/^().,{}\s0-9]|\\(?:times|cdot|div|frac))+=.*")
_FRACTION = re.compile(r"\\frac\{([0-9.]+)\}\{([0-9.]+)\}")
_BRACKETS = re.compile(r"\s*(?:\((.*)\)|\[(.*)\]|\\?\{(.*?)\\?\})\s*")


class Numeric(Rule):
    """1 if the one number that the answer states lies within the tolerance of an accepted one, else 0.

    `statement.state` finds it: in bold, a box, LaTeX, a sentence, after "answer is", with a unit. Read: "1,000", "$5",
    "1/2", "5½", "12²", "3.5 × 10^4", "3.5M", "twelve", "6 * 7 = 42". "42%" is 42 where the gold answer has a percent
    sign or the question asks for percent, else 0.42; 0.42 is 42% where the gold answer has the sign and the question
    does not ask for percent. Units are neither compared nor converted: "5 miles" is 5.

    Counted as wrong: several different numbers; a sum not worked out; what a word makes another number ("half of 5",
    "not 5", "5 dozen"); bounds (<, ≥, ±); decimal commas ("3,14"); times of day, dates; functions, roots, constants and
    variables ("5π", "5!"; `math` compares them); digits other than 0 to 9; more than 200 digits, powers above 999.
    Compared exactly, as fractions.
    """

    name = "numeric match"

    def __init__(self, config: NumericConfig | None = None) -> None:
        self.config = config or NumericConfig()

    def check(self, task: Task) -> None:
        """Refuse a task without an accepted answer that is a number."""
        _accepted_numbers(task)

    async def value(self, task: Task, answer: str) -> float:
        """Compare with every accepted answer that is a number."""
        stated = state(answer, " ".join((task.question, *task.answers)))
        found = number_of(with_point(stated.formula))
        if found is None:
            return 0.0
        in_percent = bool(_PERCENT.search(task.question))
        relative, absolute = Fraction(self.config.relative_tolerance), Fraction(self.config.absolute_tolerance)
        for gold in _accepted_numbers(task):
            values = [found.value if gold.percent or in_percent else found.share]
            # A share without a sign may be meant: 0.42 of a gold answer of 42%.
            values += [100 * found.value] if gold.percent and not (found.percent or in_percent) else []
            if any(abs(value - gold.value) <= max(relative * abs(gold.value), absolute) for value in values):
                return 1.0
        return 0.0


class NumericConfig(RewardConfig):
    """1 if the one number that the answer states is near enough to an accepted one, else 0.

    The larger tolerance counts.

    Attributes:
        relative_tolerance: a share of the gold number
        absolute_tolerance: a difference
    """

    rule_based = True
    component = Numeric

    relative_tolerance: float = Field(default=0.0, ge=0)
    absolute_tolerance: float = Field(default=0.0, ge=0)


def _accepted_numbers(task: Task) -> list[Number]:
    golds = [number_of(with_point(state(gold, gold).formula)) for gold in task.answers]
    accepted = [number for number in golds if number is not None]
    if not accepted:
        what, fix = "has an answer that is not a number", "correct the answer, or score the set by exact_match"
        raise unfit_task(task, f"{what}: {task.answer[:80]!r}", fix)
    return accepted


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    value: Fraction
    percent: bool
    exact: bool  # written without a decimal point

    @property
    def share(self) -> Fraction:
        """The value, of a percentage a hundredth of it."""
        return self.value / 100 if self.percent else self.value


def with_point(formula: str) -> str:
    """A formula with points for decimal commas, which have no three digits after them."""
    return _DECIMAL_COMMA.sub(r"\1.\2", formula)


def number_of(formula: str) -> Number | None:
    """The number that a formula is or ends in ("6 * 7 = 42"), or None.

    Of several it is the last of computations ("3 * 4 = 12, 12 - 7 = 5"), or the one that all state ("0.25, 25%").
    """
    formula = _TENS.sub("", formula)
    if _RELATION.search(formula):
        return None
    *before, last = _LIST.split(formula)
    if not all(map(_COMPUTED.fullmatch, before)):
        numbers = [number_of(part) for part in (*before, last)]
        # "5,5" may be 5.5.
        one = len({number and number.share for number in numbers}) == 1 and last not in before
        return numbers[-1] if one else None
    exactly, *about = _EQUALS.split(last)[-1].split(r"\approx")
    text = _FRACTION.sub(r" \1/\2", exactly if re.search(r"[0-9]", exactly) else "".join(about))
    while (inner := _BRACKETS.fullmatch(text)) is not None:
        text = "".join(filter(None, inner.groups()))
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    below = int(found["below"] or 1)
    value = Fraction(re.sub("[, ]", "", found["above"]))
    if below == 0 or (value == 0 and "-" in (found["power"] or "")):
        return None
    if found["power"]:
        value **= int(found["power"])
    value = value / below + int(found["whole"] or 0)
    for power in (found["e"] or "0", *re.findall(r"10\s*\^\D*?([-+]?[0-9]+)", found["tens"])):
        value *= Fraction(10) ** int(power)
    return Number(-value if found["sign"] == "-" else value, bool(found["percent"]), "." not in found["above"])
