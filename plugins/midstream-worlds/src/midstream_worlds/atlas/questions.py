"""Questions about the atlas: what is asked (`Asked`), and its wording from the parts of `wordings.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import Any

PLACE_ATTRIBUTES = ("population", "area", "height")
ATTRIBUTES = (*PLACE_ATTRIBUTES, "length", "capital", "river")
UNKNOWN = "I do not know."  # the right answer about a place that no document names
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_CLAUSE = re.compile(r"(how|what|at|by) ")
Slot = Mapping[str, Sequence[str]]  # parts that are "seen" and "held_out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a question asks for.

    `attribute` is that of each of `places`, or with a `relation` that of the place in this relation to the one place.
    `sign` joins two values, or a value and a number of the question, or its two `numbers`.
    """

    family: str
    places: tuple[str, ...] = ()
    attribute: str = ""
    relation: str = ""
    sign: str = ""
    numbers: tuple[int, ...] = ()


@cache
def _table() -> Mapping[str, Any]:
    file = resources.files("midstream_worlds.atlas") / "wordings.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def wordings() -> Mapping[str, Mapping[str, Slot]]:
    """Slots by kind and name: `wordings()["nouns"]["height"]["seen"]`."""
    return {kind: slots for kind, slots in _table().items() if kind != "documents"}


def documents() -> Mapping[str, Sequence[str]]:
    """Wordings of the document that states an attribute of a place."""
    return _table()["documents"]


def wording(asked: Asked, draws: Random, *, held_out: bool) -> str:
    """Draw the text of a question; with `held_out`, every part of it is a held-out one."""
    return _Wording(draws, held_out).question(asked)


class _Wording:
    def __init__(self, draws: Random, held_out: bool) -> None:
        self._draws, self._which = draws, "held_out" if held_out else "seen"

    def question(self, asked: Asked) -> str:
        """A whole question or request, which begins with a capital letter."""
        text = self._sentence(asked)
        return text[0].upper() + text[1:]

    def _sentence(self, asked: Asked) -> str:
        attribute, places, numbers = asked.attribute, asked.places, asked.numbers
        if asked.family == "compare":
            return self._part("compares", attribute).format(*places)
        if asked.family in ("sum", "diff"):
            kind = f"{asked.family}s"
            if self._draws.random() < 0.5:
                return self._framed(self._part(kind, attribute), places)
            nouns = self._part("nouns", attribute), self._part("nouns", attribute)
            phrases = [noun.format(place) for noun, place in zip(nouns, places, strict=True)]
            return self._framed(self._part(kind, "phrases"), phrases)
        if asked.sign:
            word = next(word for word, sign in SIGNS.items() if sign == asked.sign)
            terms = [self._part("nouns", attribute).format(places[0])] if places else []
            return self._framed(self._part("operators", word), [*terms, *numbers])
        place = self._part("relations", asked.relation).format(*places) if asked.relation else places[0]
        form = self._draws.choice(("direct", "nouns", "clauses"))
        part = self._part(form, attribute)
        return part.format(place) if form == "direct" else self._framed(part, [place])

    def _framed(self, phrase: str, things: Sequence[str | int]) -> str:
        """A phrase in a frame that can take it."""
        frame = "any" if _CLAUSE.match(phrase) else self._draws.choice(("any", "noun"))
        return self._part("frames", frame).format(phrase.format(*things))

    def _part(self, kind: str, name: str) -> str:
        return self._draws.choice(_table()[kind][name][self._which])
