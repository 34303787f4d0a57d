"""Answers compared by their words, in SQuAD's normal form: exact match, and F1."""

from __future__ import annotations

import re
from collections import Counter

from midstream.components.component import RewardConfig
from midstream.core.answers import words
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import Rule
from midstream.rewards.statement import conclusion, plain

# The difference of "C++" and "C#", of "A+" and "A-".
_SIGNS = re.compile(r"\w([+#-]+)(?!\w)")
_WHOLE = ("yes", "no", "noanswer")


class ExactMatch(Rule):
    """1 if the answer is an accepted one, else 0; no answer and a blank one are 0.

    Normalized (`core.answers.normalize`): case, ASCII punctuation, the articles a, an, the, white space; before that
    mark-up, typographic quotation marks and dashes (`rewards.statement.plain`), and "The answer is" before it. Numbers
    must be equal all the same: "-5" is not "5", "3.14" not "314"; "1,000" is "1000". Not normalized: "1,000.0" is not
    "1000", nor "one" "1", nor "29 March" "March 29"; accents; units. A percent or dollar sign is punctuation: "10 %" is
    "10".
    """

    name = "exact match"

    async def value(self, task: Task, answer: str) -> float:
        """Compare with every accepted answer."""
        said = plain(answer)
        forms = [form for form in (said, conclusion(said)) if form]
        return float(
            any(
                same(answer, accepted) or any(same(form, plain(accepted)) for form in forms)
                for accepted in task.answers
            )
        )


class ExactMatchConfig(RewardConfig):
    """1 if the answer is an accepted one, else 0."""

    rule_based = True
    component = ExactMatch


def same(answer: str, accepted: str) -> bool:
    """Whether two texts are the same words with the same numbers.

    Of texts without a word (an article does not count as one) all articles are equal, and punctuation is compared as it
    is.
    """
    ours, theirs = words(answer), words(accepted)
    if _SIGNS.findall(answer) != _SIGNS.findall(accepted):
        return False
    if ours or theirs:
        return ours == theirs
    articles = any(map(str.isalpha, answer)) and any(map(str.isalpha, accepted))
    return bool(answer.strip()) and (articles or answer.split() == accepted.split())


class F1(Rule):
    """The harmonic mean of precision and recall over words, against the accepted answer with the highest value.

    Words as in SQuAD's normal form, each as often as it occurs, in any order; numbers must be equal as in exact match.
    If one side is "yes", "no" or "noanswer" and the other is not the same: 0 (HotpotQA's rule). Not normalized:
    inflected forms, synonyms, "one" and "1". The part `exact_match` is 1 if the answer is an accepted one.
    """

    name = "F1"

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """F1, with exact match as its part."""
        score, exact = await super().score(task, trajectory), await ExactMatch().score(task, trajectory)
        return Score(value=score.value, parts={"exact_match": exact.value})

    async def value(self, task: Task, answer: str) -> float:
        """The best F1 over accepted answers."""
        return max(f1(plain(answer), plain(accepted)) for accepted in task.answers)


class F1Config(RewardConfig):
    """The harmonic mean of precision and recall over words, against the best accepted answer."""

    rule_based = True
    component = F1


def f1(answer: str, accepted: str) -> float:
    """F1 of two texts' words, 0 if either has none."""
    ours, theirs = words(answer), words(accepted)
    texts = [" ".join(word for word, _ in found) for found in (ours, theirs)]
    if texts[0] != texts[1] and any(text in _WHOLE for text in texts):
        return 0.0
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0
