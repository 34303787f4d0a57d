"""Which answers are the same in a vote: the option that they choose, the number that they state, or their words."""

from __future__ import annotations

import re
from collections.abc import Hashable

from midstream.core.answers import LONGEST, extract
from midstream.rewards.multiple_choice import find_choice
from midstream.rewards.numeric import number_of
from midstream.rewards.statement import answer_value, state

# "the 7" is the number.
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
_OPTION = re.compile(r"^([A-Z])\. (.+)$", re.MULTILINE)


def answer_key(question: str, answer: str | None) -> Hashable | None:
    """A value that is equal for answers that are the same; None without an answer, which has no vote.

    The question decides the kind of task, since no agent knows which reward will score it. With options below it, as
    `sources.questions` writes them ("A. Oral ulcers"), it is the option chosen. Otherwise, of an answer that is nothing
    but a number or a formula, it is the number ("1/2" and "0.5" are the same; a percentage keeps its sign) or the
    formula without spaces; of any other answer, its words and numbers.
    """
    if answer is None or not (said := answer_value(answer := answer[-LONGEST:])):
        return None
    options = dict(_OPTION.findall(question))
    if len(options) > 1 and "".join(options) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(options)]:
        choice = find_choice(answer, options)
        return ("option", *sorted(choice)) if choice else ("text", said)
    stated = state(_ARTICLE.sub("", extract(answer)))
    if not stated.bare or not stated.formula:
        return "text", said
    number = number_of(stated.formula)
    return ("formula", "".join(stated.formula.split())) if number is None else ("number", number.value, number.percent)
