"""How alike two lessons are, from 0 to 1, to find those that say the same thing twice.

A repetition that is missed costs a line of the prompt. Two lessons wrongly taken for one cost a lesson, and where a
wrong one is in the library already ("turn it left"), it would keep the right one out ("turn it right"). So texts that
differ in what they claim are never alike, however many words they share.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeGuard

from midstream.core.answers import numbers
from midstream.core.errors import EngineError, ToolServerError
from midstream.core.http import TransientError
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


def ngram_likeness(one: str, other: str) -> float:
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


async def embedding_likeness(config: EmbeddingConfig, texts: Sequence[str]) -> Callable[[str, str], float]:
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
