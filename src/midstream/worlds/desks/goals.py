"""Goals: what a user can want at a desk, in words and as calls.

    Goal(
        texts=("Fill up {litres} litres of fuel.", "Please put {litres} litres into the tank."),
        steps=(Step("fill_tank", {"litres": "{litres}"}),),
        draw=lambda car, draws: {"litres": draws.randint(5, 20)},
        vague=(("The tank needs some fuel.", "Make it {litres} litres."),),
        hold="fill_tank",
    )

A step's argument is a value, "{place}" for what the user says there, or "$key" for the newest result's value of that
key: "$order" is the order that was placed last. So a text that was made from a goal can be read back into its calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from pydantic import JsonValue

Values = dict[str, JsonValue]
_PLACE = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_SAID = r"\d+(?:\.\d+)?(?!\.?\d)|[A-Za-z][^'.:?!\n]*?"


@dataclass(frozen=True)
class Step:
    """One call of a goal."""

    function: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def needs(self) -> list[str]:
        """The keys of earlier results that its arguments come from."""
        return [one[1:] for one in self.arguments.values() if isinstance(one, str) and one.startswith("$")]

    def filled(self, values: Mapping[str, JsonValue], seen: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Its arguments. Raises `KeyError` where no result has had a key that it needs."""
        return {name: self._value(one, values, seen) for name, one in self.arguments.items()}

    def _value(self, one: JsonValue, values: Mapping[str, JsonValue], seen: Mapping[str, JsonValue]) -> JsonValue:
        if not isinstance(one, str):
            return one
        if one.startswith("$"):
            return seen[one[1:]]
        place = _PLACE.fullmatch(one)
        return values[place[1]] if place else one


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a user wants at one desk: `texts` say it in full, each with all places.

    `draw` gives values that the desk as it stands can serve, or None where there are none. `after` are keys that an
    earlier result must have had: "cancel that order". Each of `vague` is a text that leaves one needed value out, and
    what the user says when asked; the goal changes nothing before that value is known. `hold` is the one function that
    changes anything, where there is one and nothing else does its work: it may be missing at first.
    """

    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    draw: Callable[[Any, Random], Values | None] = lambda desk, draws: {}
    after: tuple[str, ...] = ()
    vague: tuple[tuple[str, str], ...] = ()
    hold: str = ""

    @cached_property
    def wordings(self) -> tuple[Wording, ...]:
        """Every text that asks for it, vague ones too."""
        return (*map(Wording, self.texts), *(Wording(text, then) for text, then in self.vague))


class Wording:
    """One text of a goal, to be written and to be found again; `then` completes it where it is vague."""

    def __init__(self, text: str, then: str = "") -> None:
        self.text, self.then = text, then
        self._pattern, self._then = _pattern(text), _pattern(then)

    def find(self, text: str) -> list[tuple[int, Values]]:
        """Where it stands in a text, with its values."""
        return [(found.start(), _values(found)) for found in self._pattern.finditer(text)]

    def complete(self, text: str) -> Values | None:
        """The values that a text adds to a vague one, or None."""
        found = self._then.search(text) if self.then else None
        return _values(found) if found else None


def _pattern(text: str) -> re.Pattern[str]:
    """A text with places, as what matches it with a number in them, or words without a full stop."""
    parts = _PLACE.split(text)
    return re.compile("".join(rf"(?P<{one}>{_SAID})" if i % 2 else re.escape(one) for i, one in enumerate(parts)))


def _values(found: re.Match[str]) -> Values:
    return {name: _value(text) for name, text in found.groupdict().items()}


def _value(text: str) -> JsonValue:
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
