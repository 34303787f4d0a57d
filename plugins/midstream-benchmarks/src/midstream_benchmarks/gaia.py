"""GAIA's own scorer: numbers, lists and texts, depending on the gold answer."""

from __future__ import annotations

import re
import string
from decimal import Decimal

from midstream.components.component import RewardConfig
from midstream.core.task import Task
from midstream.rewards.rule import Rule

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_SEPARATORS = re.compile(r"[,;]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Gaia(Rule):
    """1 or 0, as GAIA's `question_scorer` decides (Hugging Face, leaderboard of gaia-benchmark).

    Gold a number: the answer without $, % and commas is that number, and nothing else stands there ("42%" is 42, "5
    km" is not 5, "1/2" not 0.5). Gold with a comma or semicolon: a list, as long and in the same order, its numbers
    compared as numbers and its texts with their punctuation. Otherwise texts without case, ASCII punctuation and any
    white space: "New York" is "newyork", articles count. Unlike there, numbers are compared exactly (not as floats),
    "nan" and "inf" are words, and a gold of nothing but punctuation is compared as it is.
    """

    name = "GAIA exact match"

    async def value(self, task: Task, answer: str) -> float:
        """Compare with every accepted answer."""
        return float(any(_correct(answer, accepted) for accepted in task.answers))


class GaiaConfig(RewardConfig):
    """1 or 0, as GAIA's `question_scorer` decides."""

    rule_based = True
    component = Gaia


def _correct(answer: str, accepted: str) -> bool:
    if _NUMBER.fullmatch(accepted.strip()):
        return _same_number(answer, accepted)
    if _SEPARATORS.search(accepted):
        ours, theirs = _SEPARATORS.split(answer), _SEPARATORS.split(accepted)
        return len(ours) == len(theirs) and all(
            _same_number(our, their) if _NUMBER.fullmatch(their.strip()) else _join(our) == _join(their)
            for our, their in zip(ours, theirs, strict=True)
        )
    bare = accepted.translate(_PUNCTUATION).strip()
    if not bare:
        return bool(accepted.strip()) and _join(answer) == _join(accepted)
    return _join(answer.translate(_PUNCTUATION)) == _join(bare)


def _same_number(answer: str, accepted: str) -> bool:
    bare = re.sub(r"[$%,]", "", answer).strip()
    return bool(_NUMBER.fullmatch(bare)) and Decimal(bare) == Decimal(accepted.strip())


def _join(text: str) -> str:
    return "".join(text.split()).lower()
