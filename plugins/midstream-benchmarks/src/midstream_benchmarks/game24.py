"""Game of 24: make 24 of four numbers. Every hand that has a solution, with one solution.

Of the 1,820 hands of four numbers from 1 to 13, 1,362 have a solution. They are split at random into train, validation
and test (67, 13 and 20 %), so no hand of one split occurs in another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement

from midstream.components.component import TasksConfig
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream.sources.finite import SPLITS, Finite

FAMILY = "game24"
TARGET = 24
LARGEST = 13

Hand = tuple[int, ...]
# An expression: its text, and its precedence (0: a sum, 1: a product, 2: a number).
Made = tuple[str, int]

QUESTION = (
    "Make {target} of the numbers {numbers}. Write one arithmetic expression that uses each of these four numbers "
    "exactly once and no other number, with the operators +, -, * and / and with parentheses. Answer with the "
    "expression alone."
)


class GameOf24(Finite):
    """All hands that have a solution, in three splits. A `core.source.TaskSource`."""

    def __init__(self, config: Game24Config) -> None:
        super().__init__("the Game of 24", SPLITS)
        hands = sorted(solutions())
        random.Random(derive_seed("game24", config.seed)).shuffle(hands)
        train, validation = int(len(hands) * 0.67), int(len(hands) * 0.80)
        parts = (hands[:train], hands[train:validation], hands[validation:])
        self._hands: dict[str, list[Hand]] = dict(zip(SPLITS, map(sorted, parts), strict=True))

    def load(self, split: str) -> list[Task]:
        """Make a task of each of the split's hands, in order."""
        tasks: list[Task] = []
        for hand in self._hands[split]:
            first, last = ", ".join(map(str, hand[:-1])), hand[-1]
            tasks.append(
                Task(
                    id=f"{FAMILY}-{'-'.join(map(str, hand))}",
                    question=QUESTION.format(target=TARGET, numbers=f"{first} and {last}"),
                    answer=solutions()[hand],
                    reward="game24",
                    family=FAMILY,
                    metadata={"numbers": list(hand)},
                )
            )
        return tasks


class Game24Config(TasksConfig):
    """The Game of 24: make 24 from four numbers; every hand that has a solution.

    Attributes:
        seed: decides which hand is in which split
    """

    endless = True
    component = GameOf24

    seed: Seed = 0


@cache
def solutions() -> dict[Hand, str]:
    """Map every hand of four numbers from 1 to 13 that has a solution to one. Takes half a second, once."""
    hands = combinations_with_replacement(range(1, LARGEST + 1), 4)
    return {hand: found for hand in hands if (found := solve(hand)) is not None}


def solve(hand: Hand) -> str | None:
    """Find an expression of four sorted numbers, each once, that makes 24; None without one.

    The hand is split in two. For every value of the smaller part, the value that the larger part then needs is looked
    up among its values: exact fractions, and no value of all four numbers is computed except 24.
    """
    target = Fraction(TARGET)
    for few, many in _halves(hand):
        others = values(many)
        for a, made in values(few).items():
            # b is what the other part must be, for: a + b, b - a, a - b, a * b, b / a, a / b
            for sign, b, a_first in (
                ("+", target - a, True),
                ("-", target + a, False),
                ("-", a - target, True),
                ("*", target / a if a else None, True),
                ("/", target * a if a else None, False),
                ("/", a / target if a else None, True),
            ):
                if b is not None and b in others:
                    return _join(made, sign, others[b])[0] if a_first else _join(others[b], sign, made)[0]
    return None


@cache
def values(numbers: Hand) -> dict[Fraction, Made]:
    """Map every value of expressions of these sorted numbers, each once, to one expression."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): (str(numbers[0]), 2)}
    found: dict[Fraction, Made] = {}
    for few, many in _halves(numbers):
        for a, left in values(few).items():
            for b, right in values(many).items():
                found.setdefault(a + b, _join(left, "+", right))
                found.setdefault(a * b, _join(left, "*", right))
                found.setdefault(a - b, _join(left, "-", right))
                found.setdefault(b - a, _join(right, "-", left))
                if b:
                    found.setdefault(a / b, _join(left, "/", right))
                if a:
                    found.setdefault(b / a, _join(right, "/", left))
    return found


def _halves(numbers: Hand) -> Iterator[tuple[Hand, Hand]]:
    """Yield every way to split sorted numbers in two, the smaller part first, without repeats."""
    seen: set[Hand] = set()
    for size in range(1, len(numbers) // 2 + 1):
        for places in combinations(range(len(numbers)), size):
            few = tuple(numbers[place] for place in places)
            if few not in seen:
                seen.add(few)
                yield few, tuple(number for place, number in enumerate(numbers) if place not in places)


def _join(left: Made, sign: str, right: Made) -> Made:
    """The expression with only the parentheses that it needs."""
    level = 0 if sign in "+-" else 1
    first = left[0] if left[1] >= level else f"({left[0]})"
    needs = right[1] < level or (right[1] == level and sign in "-/")
    return f"{first}{sign}{f'({right[0]})' if needs else right[0]}", level
