"""F1 over words: how much of an accepted answer the answer says, and how much else."""

from __future__ import annotations

from collections import Counter

from midstream.core.answers import words
from midstream.core.component import Context, RewardConfig
from midstream.core.task import Task
from midstream.rewards.rule import Rule

_WHOLE = ("yes", "no", "noanswer")


class Config(RewardConfig):
    """No settings."""

    rule_based = True

    def build(self, context: Context) -> F1:
        """Build it."""
        return F1()


class F1(Rule):
    """The harmonic mean of precision and recall over words, against the accepted answer that it is highest for.

    Words as in SQuAD's normal form, each as often as it stands there, in any order; numbers must be equal as in exact
    match. Where one side is "yes", "no" or "noanswer" and the other is not the same: 0 (HotpotQA's rule). Not
    normalised: inflected forms, synonyms, "one" and "1".
    """

    name = "F1"

    async def value(self, task: Task, answer: str) -> float:
        """The best F1 over accepted answers."""
        return max(f1(answer, accepted) for accepted in task.answers)


def f1(answer: str, accepted: str) -> float:
    """F1 of two texts' words, 0 where either has none."""
    ours, theirs = words(answer), words(accepted)
    texts = [" ".join(word for word, _ in one) for one in (ours, theirs)]
    if texts[0] != texts[1] and any(text in _WHOLE for text in texts):
        return 0.0
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0
