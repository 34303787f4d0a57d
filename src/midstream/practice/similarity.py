"""How alike two lessons are, from 0 to 1, to find those that say the same thing twice.

A repetition that is missed costs a line of the prompt. Two lessons wrongly taken for one cost a lesson, and where a
wrong one is in the library already ("turn it left"), it would keep the right one out ("turn it right"). So texts that
differ in what they claim are never alike, however many words they share.


The leak guard: does a lesson hold the answer of a task instead of a way to find one?

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

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeGuard

from midstream.core.answers import numbers, words
from midstream.core.errors import EngineError, ToolServerError
from midstream.core.http import TransientError
from midstream.core.task import Task
from midstream.practice.library import one_line
from midstream.practice.settings import EmbeddingConfig
from midstream.tools.web import api

_DIFFERENT = 0.5  # what the likeness of two texts that claim different things is multiplied with
_BATCH = 64  # texts a request
_LARGEST = 1e30  # of a vector's values
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


def ngram_similarity(one: str, other: str) -> float:
    """The cosine of the two texts' word stems and pairs of neighbouring stems, each counted in a hashed place.

    Case, punctuation, little words ("the", "you") and common English endings do not count. The value is halved where
    the texts claim different things: they hold other numbers, one says "not" where the other does not, or each has a
    word that the other lacks ("left", "right"). So two wordings of one thought with other words are not found; an
    embedding engine finds them.
    """
    first, second = _reading(one_line(one)), _reading(one_line(other))
    if first.text == second.text:
        return 1.0
    different = first.claim != second.claim or bool(first.stems - second.stems and second.stems - first.stems)
    cosine = _cosine(first.ngrams, second.ngrams)
    return cosine * _DIFFERENT if different else cosine


async def embedding_similarity(config: EmbeddingConfig, texts: Sequence[str]) -> Callable[[str, str], float]:
    """The cosine of a model's vectors for two of these texts, negative ones as 0; each is asked for once, here.

    Empty texts are like nothing. The value is halved where numbers differ or only one text says "not". Other
    contradictions ("left", "right") lie close together for most models, so the threshold should be high.

    Raises:
        EngineError: the server refused, or every attempt failed.
        KeyError: (by the function) a text that is not among these.
    """
    wanted = list(dict.fromkeys(said for text in texts if (said := one_line(text))))  # servers refuse empty ones
    vectors: dict[str, dict[int, float]] = {"": {}}
    key = api.Key(header="Authorization", env=config.api_key_env, scheme="Bearer") if config.api_key_env else None
    address = f"{config.base_url.rstrip('/')}/embeddings"
    service = api.Service("the embedding model", address, api.Config(timeout_s=config.timeout_s), key=key)
    try:
        for start in range(0, len(wanted), _BATCH):
            asked = wanted[start : start + _BATCH]
            found = await _asked(service, config.model, asked)
            vectors.update((text, _unit(dict(enumerate(one)))) for text, one in zip(asked, found, strict=True))
    except ToolServerError as failure:
        fix = "check `practice.library.embedding`, or leave it out: near-duplicates are then found by shared words"
        raise EngineError(failure.what, cause=failure.cause, fix=fix) from failure
    finally:
        await service.close()

    def likeness(one: str, other: str) -> float:
        one, other = one_line(one), one_line(other)
        cosine = max(0.0, _cosine(vectors[one], vectors[other]))
        return cosine * _DIFFERENT if _reading(one).claim != _reading(other).claim else cosine

    return likeness


async def _asked(service: api.Service, model: str, texts: Sequence[str]) -> list[list[float]]:
    """One vector a text, in order, whatever order the server gives them in."""

    def check(answer: Any, pause_s: float) -> None:
        if _vectors(answer, len(texts)) is None:
            raise TransientError(f"the answer does not hold {len(texts)} vectors", pause_s)

    answer = await service.post({"model": model, "input": list(texts)}, check)
    return _vectors(answer, len(texts)) or []


def _vectors(answer: Any, count: int) -> list[list[float]] | None:
    """The vectors of an answer, None where it is not one that can be used."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        return None
    places = [one.get("index", place) for place, one in enumerate(data)]
    found = {str(place): one.get("embedding") for place, one in zip(places, data, strict=True)}
    vectors = [one for place in range(count) if _is_vector(one := found.get(str(place)))]
    return vectors if len(vectors) == len(data) == count and len({len(one) for one in vectors}) == 1 else None


def _is_vector(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and -_LARGEST < value < _LARGEST  # neither is "not a number"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What counts of a text: `claim` is its numbers and how often it says "not"; `ngrams` has length 1."""

    text: str
    stems: frozenset[str]
    ngrams: Mapping[int, float]
    claim: tuple[tuple[str, ...], int]


@lru_cache(maxsize=4096)
def _reading(text: str) -> _Reading:
    words = list(_words(text))
    negations = sum(_negates(word) for word in words)
    stems = [_ENDING.sub("", word) for word in words if word not in _STOP_WORDS and not _negates(word)]
    counts = Counter(map(_place, (*stems, *map(" ".join, pairwise(stems)))))
    claim = (tuple(sorted(numbers(text))), negations)
    return _Reading(text, frozenset(stems), _unit(counts), claim)


def _words(text: str) -> Iterator[str]:
    for place, found in enumerate(_WORD.finditer(text)):
        word = found[0]
        yield word if place and word == "A" else word.lower()  # "set it to A" says something, "A lesson" does not


def _negates(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "n’t"))


def _place(gram: str) -> int:
    return int.from_bytes(blake2b(gram.encode(), digest_size=4).digest())


def _unit(vector: Mapping[int, float]) -> dict[int, float]:
    """The vector with length 1; without any direction it stays so."""
    length = math.hypot(*vector.values()) or 1.0
    return {place: value / length for place, value in vector.items()}


def _cosine(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Of vectors of length 1."""
    return min(1.0, sum(value * other[place] for place, value in one.items() if place in other))


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
