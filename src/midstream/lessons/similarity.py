"""Two checks of a lesson's text: does it repeat another lesson, and does it leak the answer of a task?

**Similarity** is a number from 0 to 1. A missed repetition costs a line of the prompt. Two lessons wrongly taken for
one cost a lesson, and where the lesson set already holds a wrong one ("turn it left"), it would keep the right one out
("turn it right"). So texts that make different claims are never similar, however many words they share.

**The leak guard** refuses a lesson that holds the answer of a task instead of a way to find one. Such a lesson raises
the reward of the tasks it was learned from and helps with no other. Texts are compared as `core.answers.words` returns
them: without case, punctuation and articles, numbers by their value. Caught, for any of the tasks given:

- a revealing answer, anywhere in the lesson: three words or more, two or more that begin with a capital ("Marie
  Curie"), or a number of four significant digits or more;
- any other answer ("yes", "4", "24", "Paris"), which general advice may hold by chance, together with 0.6 of the
  question's words, and of its rare ones (all of its words, if none is rare);
- the question itself: 0.8 of its words, of which four or more are rare.

A word is rare if it stands in the questions of at most one task in twenty (or one, if there are few), so that wording
shared by all questions counts as no evidence. Little words ("the", "what") do not count.

Not caught: an answer in other words or another form ("a dozen", "1/2" for "0.5", "Curie" for "Marie Curie"), a short
answer alone or with fewer of the question's words, an answer that is only an article ("A"), and hints that lead to an
answer without naming it. The gate is the second guard: its tasks are others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from midstream.core.answers import numbers, words
from midstream.core.task import Task
from midstream.lessons.lesson_set import one_line

_DIFFERENT = 0.5  # factor for the similarity of two texts that make different claims
# Chinese, Japanese and Korean write no spaces: there each character is a word.
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:['’][^\W{_CJK}]+)*")
# No word with a counterpart of another meaning: "on" and "off", "and" and "or", "from" and "to".
_STOP_WORDS = frozenset(
    "a an are as at be been being by do does for had has have is it its of please should so that the their them then "
    "they this to was were will with would you your".split()
)
_NEGATIONS = frozenset("not no never none neither nor without avoid cannot unless except skip ignore instead".split())
_ENDING = re.compile(r"(?<=\w{3})(?:ing|ied|ies|es|ed|s|e|y)$")

RARE = 0.05  # of the tasks
WITH_ANSWER = 0.6  # of the question's words
QUOTED = 0.8
FEWEST_RARE = 4
REVEALING_WORDS = 3
REVEALING_NAMES = 2
REVEALING_DIGITS = 4
_LITTLE_WORDS = frozenset(
    "and are as at be been by did do does for from had has have how i if in into is it its many me much my of on or "
    "that their then there these they this those to was we were what when where which who whose why will with would "
    "whom you your answer find give question".split()  # words: allow
)
_DIGIT = re.compile(r"\d")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")

Key = tuple[str, tuple[str, ...]]
Guard = Callable[[str], str | None]  # the reason why a text is refused, or None


# --- repetitions ------------------------------------------------------------------------------------------------------


def ngram_similarity(one: str, other: str) -> float:
    """The cosine of two texts' counts of word stems and of pairs of adjacent stems.

    Case, punctuation, little words ("the", "you") and common English endings do not count. The value is halved where
    the texts make different claims: they hold other numbers, one says "not" where the other does not, or each has a
    word that the other lacks ("left", "right"). So one thought in two different wordings is not found.
    """
    first, second = _features(one_line(one)), _features(one_line(other))
    if first.text == second.text:
        return 1.0
    different = first.claim != second.claim or bool(first.stems - second.stems and second.stems - first.stems)
    shared = (value * second.ngrams[gram] for gram, value in first.ngrams.items() if gram in second.ngrams)
    cosine = min(1.0, sum(shared))
    return cosine * _DIFFERENT if different else cosine


@dataclass(frozen=True, slots=True)
class _Features:
    """Features of a text that count: `claim` is its numbers and how often it says "not"; `ngrams` has length 1."""

    text: str
    stems: frozenset[str]
    ngrams: Mapping[str, float]
    claim: tuple[tuple[str, ...], int]


@lru_cache(maxsize=4096)
def _features(text: str) -> _Features:
    stems, negations = [], 0
    for place, match in enumerate(_WORD.finditer(text)):
        # "set it to A" names something, "A lesson" does not.
        word = match[0] if place and match[0] == "A" else match[0].lower()
        if word in _NEGATIONS or word.endswith(("n't", "n’t")):
            negations += 1
        elif word not in _STOP_WORDS:
            stems.append(_ENDING.sub("", word))
    counts = Counter((*stems, *map(" ".join, pairwise(stems))))
    length = math.hypot(*counts.values()) or 1.0
    ngrams = {gram: count / length for gram, count in counts.items()}
    return _Features(text, frozenset(stems), ngrams, (tuple(sorted(numbers(text))), negations))


# --- leaks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Secrets:
    """Parts of a task that a lesson may not hold: answers, each revealing or not, and words of the question."""

    task_id: str
    answers: tuple[tuple[tuple[Key, ...], bool], ...]
    content: frozenset[Key]
    rare: frozenset[Key]

    def found(self, keys: Sequence[Key], content: frozenset[Key]) -> str | None:
        """The reason why a text with these words (`content`: without the little ones) leaks, or None."""
        for answer, revealing in self.answers:
            length = len(answer)
            if not any(tuple(keys[start : start + length]) == answer for start in range(len(keys) - length + 1)):
                continue
            # The answer's own words are no evidence that the question stands with it.
            wording, rare = self.content - frozenset(answer), self.rare - frozenset(answer)
            if rare:
                near = min(_share(wording, content), _share(rare, content)) >= WITH_ANSWER
            else:
                near = bool(wording) and wording <= content
            if revealing or near:
                return f"it holds the answer of task {self.task_id!r}"
        if _share(self.content, content) >= QUOTED and len(self.rare & content) >= FEWEST_RARE:
            return f"it repeats the question of task {self.task_id!r}"
        return None


def leak_guard(tasks: Iterable[Task]) -> Guard:
    """Read the tasks, and make a function that returns why a lesson's text may not stand in a lesson set, or None."""
    tasks = list(tasks)
    contents = [_content(_keys(task.question)) for task in tasks]
    spread = Counter(key for content in contents for key in content)
    most = max(1, int(RARE * len(tasks)))
    known = [
        _Secrets(
            task_id=task.id,
            answers=tuple((keys, _reveals(answer, keys)) for answer in task.answers if (keys := _keys(answer))),
            content=content,
            rare=frozenset(key for key in content if spread[key] <= most),
        )
        for task, content in zip(tasks, contents, strict=True)
    ]

    def reason(text: str) -> str | None:
        keys = _keys(text)
        content = _content(keys)
        return next((found for secrets in known if (found := secrets.found(keys, content))), None)

    return reason


def _reveals(answer: str, keys: Sequence[Key]) -> bool:
    """Return whether general advice is very unlikely to hold these words by chance."""
    names = [word for word in answer.split() if word[:1].isupper() and len(word) > 1]
    content = [key for key in keys if key[0] not in _LITTLE_WORDS]
    # Of the significant digits: zeros at either end do not count.
    digits = ["".join(_DIGIT.findall(number)).strip("0") for _, numbers in keys for number in numbers]
    revealing = len(content) >= REVEALING_WORDS or len(names) >= REVEALING_NAMES
    return revealing or any(len(significant) >= REVEALING_DIGITS for significant in digits)


def _share(wanted: frozenset[Key], there: frozenset[Key]) -> float:
    return len(wanted & there) / len(wanted) if wanted else 0.0


def _content(keys: Iterable[Key]) -> frozenset[Key]:
    return frozenset(key for key in keys if key[0] not in _LITTLE_WORDS)


def _keys(text: str) -> tuple[Key, ...]:
    """The words of a text, "Curie's" as "Curie"; one with a number by its value and its letters, in any notation."""
    found = words(_POSSESSIVE.sub("", text))
    return tuple((_DIGIT.sub("", word) if numbers else word, numbers) for word, numbers in found)
