"""Goals: what a user can want at a desk, in words and as calls.

    Goal(
        texts=("Fill up {liters} liters of fuel.", "Please put {liters} liters into the tank."),
        steps=(Step("fill_tank", {"liters": "{liters}"}),),
        draw=lambda car, draws: {"liters": draws.randint(5, 20)},
        vague=(("The tank needs some fuel.", "Make it {liters} liters."),),
        hold="fill_tank",
    )

A step's argument is a value, "{place}" for what the user says there, or "$key" for the newest result's value of that
key: "$file" is the file that was found last. A text that was made from a goal can therefore be read back into its
calls.
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
_SAID = r"\d+(?:\.\d+)?(?!\.?\d)|[A-Za-z][^'.:?!\n]*?"  # a number, or words without a full stop


@dataclass(frozen=True)
class Step:
    """One call of a goal."""

    function: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def needs_result(self) -> bool:
        """Whether an argument is the value of an earlier result."""
        return any(isinstance(value, str) and value.startswith("$") for value in self.arguments.values())

    def fill(self, values: Mapping[str, JsonValue], seen: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Its arguments. Raises `KeyError` where no result has had a key that it needs."""
        found: dict[str, JsonValue] = {}
        for name, value in self.arguments.items():
            if isinstance(value, str) and value.startswith("$"):
                value = seen[value[1:]]
            elif isinstance(value, str) and (place := _PLACE.fullmatch(value)):
                value = values[place[1]]
            found[name] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a user wants at one desk: `texts` say it in full, each with all places.

    `draw` gives values that the desk in its present state can serve, or None where it can serve no values. Each of
    `vague` is a text that leaves one needed value out, and the user's answer to a question; the goal changes nothing
    before that value is known. `hold` is the one function that changes anything, where there is only one and no other
    does its work: it may be missing at first.
    """

    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    draw: Callable[[Any, Random], Values | None] = lambda desk, draws: {}
    vague: tuple[tuple[str, str], ...] = ()
    hold: str = ""

    @cached_property
    def wordings(self) -> tuple[Wording, ...]:
        """Every text that asks for it, vague ones too."""
        return (*map(Wording, self.texts), *(Wording(text, then) for text, then in self.vague))


class Wording:
    """One text of a goal, to be written and to be found in a text; `then` completes it where it is vague."""

    def __init__(self, text: str, then: str = "") -> None:
        self.text, self.then = text, then
        self._pattern, self._then = _pattern(text), _pattern(then)

    def find(self, text: str) -> list[tuple[int, Values]]:
        """Its positions in a text, with its values."""
        return [(found.start(), _values(found)) for found in self._pattern.finditer(text)]

    def complete(self, text: str) -> Values | None:
        """The values that a text adds to a vague one, or None."""
        found = self._then.search(text) if self.then else None
        return _values(found) if found else None


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern that matches the text with a number or words at each place."""
    parts = _PLACE.split(text)
    return re.compile("".join(rf"(?P<{part}>{_SAID})" if i % 2 else re.escape(part) for i, part in enumerate(parts)))


def _values(found: re.Match[str]) -> Values:
    values: Values = dict(found.groupdict())
    for name, text in found.groupdict().items():
        if _NUMBER.fullmatch(text):
            values[name] = float(text) if "." in text else int(text)
    return values
