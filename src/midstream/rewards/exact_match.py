"""Exact match of the answer with any accepted answer, in SQuAD's normal form."""

from __future__ import annotations

from typing import Literal

from midstream.core.answers import CLOSE, OPEN, numbers, words
from midstream.core.component import Context, RewardConfig
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import Rule

MANY_TAGS = 10


class Config(RewardConfig):
    """Settings of exact match: `match` asks for the whole answer, or for one that contains an accepted answer."""

    rule_based = True

    match: Literal["exact", "contains"] = "exact"

    def build(self, context: Context) -> ExactMatch:
        """Build it."""
        return ExactMatch(self)


class ExactMatch(Rule):
    """1 if the answer is an accepted one, else 0; no answer and a blank one are 0.

    Normalised (`core.answers.normalise`): case, ASCII punctuation, the articles a, an, the, white space. Numbers must
    be equal all the same: "-5" is not "5", "3.14" not "314"; "1,000" is "1000". Not normalised: "1,000.0" is not
    "1000", nor "one" "1", nor "29 March" "March 29"; other punctuation and accents; units. A percent or dollar sign is
    punctuation: "10 %" is "10".

    With `match = "contains"` an accepted answer's letters stand somewhere in the answer, also inside a word, and its
    numbers are all among the answer's.

    An answer in more than `MANY_TAGS` pairs of answer tags counts a quarter, as in Search-R1's reward (verl,
    `search_r1_like_qa_em.py`), or a policy would learn to list guesses.
    """

    name = "exact match"

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        if self.config.match == "contains":
            self.name = "answer contained"

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The value of the text inside the last answer tags, or of all of it."""
        score = await super().score(task, trajectory)
        text = trajectory.answer or ""
        many = max(text.count(OPEN), text.count(CLOSE)) > MANY_TAGS
        return Score(value=score.value / 4) if many else score

    async def value(self, task: Task, answer: str) -> float:
        """Compare with every accepted answer."""
        match = _contains if self.config.match == "contains" else same
        return float(any(match(answer, accepted) for accepted in task.answers))


def same(answer: str, accepted: str) -> bool:
    """Whether two texts are the same words with the same numbers.

    Of texts without a word (an article is none) articles are all alike and punctuation is compared as it is.
    """
    ours, theirs = words(answer), words(accepted)
    if ours or theirs:
        return ours == theirs
    alike = _articles(answer) and _articles(accepted)
    return bool(answer.strip()) and (alike or answer.split() == accepted.split())


def _contains(answer: str, accepted: str) -> bool:
    ours, theirs = words(answer), words(accepted)
    if not theirs:
        return same(answer, accepted)
    inside = " ".join(word for word, _ in theirs) in " ".join(word for word, _ in ours)
    return inside and set(numbers(accepted)) <= set(numbers(answer))


def _articles(text: str) -> bool:
    return any(map(str.isalpha, text))
