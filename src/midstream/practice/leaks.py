"""The leak guard: does a lesson hold the answer of a task instead of a way to find one?

Such a lesson lifts the reward of the tasks it was learned from and helps with no other. It is looked for in the words
alone, compared as `core.answers.words` has them: without case, punctuation and articles, numbers by their value.

Caught, for any of the tasks given:
- a telling answer, anywhere in the lesson: three words or more, two or more that begin with a capital ("Marie Curie"),
  or a number of four significant digits or more;
- any other answer ("yes", "4", "24", "Paris"), which general advice may hold by chance, beside 0.6 of the question's
  words, and of its rare ones (all of its words, if none is rare);
- the question itself: 0.8 of its words, of which four or more are rare.
Rare is a word that stands in the questions of no more than one task in twenty (or one, if there are few), so that the
wording that all questions share tells nothing. Little words ("the", "what") do not count.

Not caught: an answer in other words or another form ("a dozen", "1/2" for "0.5", "Curie" for "Marie Curie"), a short
answer that stands alone or beside fewer of the question's words, an answer that is nothing but an article ("A"), and
hints that lead to one answer without naming it. The gate is the second guard: its tasks are others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from midstream.core.answers import words
from midstream.core.task import Task

RARE = 0.05  # of the tasks
BESIDE_ANSWER = 0.6  # of the question's words
QUOTED = 0.8
FEWEST_RARE = 4
TELLING_WORDS = 3
TELLING_NAMES = 2
TELLING_DIGITS = 4
_LITTLE_WORDS = frozenset(
    "and are as at be been by did do does for from had has have how i if in into is it its many me much my of on or "
    "that their then there these they this those to was we were what when where which who whom whose why will with "
    "would you your answer find give question".split()
)
_DIGIT = re.compile(r"\d")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")

Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What of a task a lesson may not hold: its answers, each with whether it is telling, and its question's words."""

    task_id: str
    answers: tuple[tuple[tuple[Key, ...], bool], ...]
    content: frozenset[Key]
    rare: frozenset[Key]


def leak_guard(tasks: Iterable[Task]) -> Callable[[str], str | None]:
    """A function that gives the reason why a lesson's text may not stand in a library, or None.

    Tasks are read once; whoever asks for many texts keeps the function.
    """
    tasks = list(tasks)
    contents = [_content(_keys(task.question)) for task in tasks]
    spread = Counter(key for content in contents for key in content)
    most = max(1, int(RARE * len(tasks)))
    known = [
        _Known(
            task_id=task.id,
            answers=tuple((keys, _tells(answer, keys)) for answer in task.answers if (keys := _keys(answer))),
            content=content,
            rare=frozenset(key for key in content if spread[key] <= most),
        )
        for task, content in zip(tasks, contents, strict=True)
    ]

    def reason(text: str) -> str | None:
        keys = _keys(text)
        content = _content(keys)
        return next((found for one in known if (found := _found(one, keys, content))), None)

    return reason


def _found(task: _Known, keys: Sequence[Key], content: frozenset[Key]) -> str | None:
    for answer, telling in task.answers:
        if (telling or _near(task, frozenset(answer), content)) and _holds(keys, answer):
            return f"it holds the answer of task {task.task_id!r}"
    quoted = _share(task.content, content) >= QUOTED and len(task.rare & content) >= FEWEST_RARE
    return f"it repeats the question of task {task.task_id!r}" if quoted else None


def _near(task: _Known, answer: frozenset[Key], content: frozenset[Key]) -> bool:
    """Whether enough of the question stands there beside the answer, whose own words count for nothing."""
    wording, rare = task.content - answer, task.rare - answer
    if not rare:
        return bool(wording) and wording <= content
    return min(_share(wording, content), _share(rare, content)) >= BESIDE_ANSWER


def _share(wanted: frozenset[Key], there: frozenset[Key]) -> float:
    return len(wanted & there) / len(wanted) if wanted else 0.0


def _holds(keys: Sequence[Key], answer: Sequence[Key]) -> bool:
    """Whether the answer's words stand in the text in a row."""
    starts = (place for place, key in enumerate(keys) if key == answer[0])
    return any(tuple(keys[start : start + len(answer)]) == tuple(answer) for start in starts)


def _tells(answer: str, keys: Sequence[Key]) -> bool:
    """Whether general advice would hold these words only by a strange chance."""
    digits = (len(_significant(one)) for _, numbers in keys for one in numbers)
    names = sum(1 for word in answer.split() if word[:1].isupper() and len(word) > 1)
    said = [key for key in keys if key[0] not in _LITTLE_WORDS]
    return len(said) >= TELLING_WORDS or names >= TELLING_NAMES or any(one >= TELLING_DIGITS for one in digits)


def _significant(number: str) -> str:
    """The digits of a number without zeros at either end."""
    return "".join(_DIGIT.findall(number)).strip("0")


def _content(keys: Iterable[Key]) -> frozenset[Key]:
    return frozenset(key for key in keys if key[0] not in _LITTLE_WORDS)


def _keys(text: str) -> tuple[Key, ...]:
    """The words of a text, "Curie's" as "Curie"; one with a number by that and its letters, however it is written."""
    said = words(_POSSESSIVE.sub("", text))
    return tuple((_DIGIT.sub("", word) if numbers else word, numbers) for word, numbers in said)
