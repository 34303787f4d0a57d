"""A desk: an object with public state, functions that read and change it, and what users want there.

    @dataclass
    class Lamp(Desk):
        \"\"\"A lamp.\"\"\"

        bright: int = 0

        @function(to="0 (dark) to 9")
        def dim(self, to: int) -> Result:
            \"\"\"Turns the lamp up or down.\"\"\"
            if not 0 <= to <= 9:
                return refusal(f"a lamp has 0 to 9, not {to}")
            self.bright = to
            return {"bright": to}

Fields are the public state, all of it JSON, so that a state can be stored, compared and loaded. A function's JSON
schema is made from its type hints and the descriptions in its decorator. A refusal is a result too, {"error": ...}, and
changes nothing. Desks are deterministic: the same calls from the same state give the same results and the same state.

A goal is what a user can want at a desk, in words and as calls:

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

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Any, Self, TypeVar, get_type_hints

from pydantic import JsonValue, TypeAdapter

from midstream.core.data import whole
from midstream_worlds.functions import FunctionSpec

Result = dict[str, Any]  # JSON
State = dict[str, JsonValue]
F = TypeVar("F", bound=Callable[..., Result])

LARGEST = 10**12  # of a call's numbers: a number of thousands of digits cannot be written down
_DESCRIPTIONS = "desk_words"  # attribute in which `function` stores its parameters' descriptions


class Function(FunctionSpec):
    """A desk's function."""

    def complete(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Add the defaults of missing arguments and write 5.0 as 5, so that equivalent calls are equal."""
        properties = self.parameters["properties"]
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        return {name: whole(value) for name, value in {**defaults, **arguments}.items()}


def function(**parameters: str) -> Callable[[F], F]:
    """Make a method a function of its desk, described by its docstring and by a text for each parameter."""

    def mark(method: F) -> F:
        setattr(method, _DESCRIPTIONS, parameters)
        return method

    return mark


def refusal(reason: str) -> Result:
    """The result of a call that changes nothing."""
    return {"error": reason}


class Desk:
    """Base of all desks, which are dataclasses with JSON in their fields."""

    @classmethod
    def stocked(cls, draws: Random) -> Self:
        """Make a desk as it is at the beginning of a task."""
        raise NotImplementedError

    @classmethod
    def load(cls, state: Mapping[str, JsonValue]) -> Self:
        """Make a desk from a copy of that state."""
        return cls(**copy.deepcopy(dict(state)))

    @classmethod
    @cache
    def functions(cls) -> Mapping[str, Function]:
        """Its functions by name, in the order of their definition."""
        found: dict[str, Function] = {}
        for name, method in vars(cls).items():
            if not hasattr(method, _DESCRIPTIONS):
                continue
            descriptions, hints = getattr(method, _DESCRIPTIONS), get_type_hints(method)
            taken = list(inspect.signature(method).parameters.values())[1:]  # without self
            properties: dict[str, Any] = {}
            for parameter in taken:
                schema = TypeAdapter(hints[parameter.name]).json_schema()
                default = {} if parameter.default is parameter.empty else {"default": parameter.default}
                properties[parameter.name] = {**schema, "description": descriptions[parameter.name], **default}
            parameters = {
                "type": "object",
                "properties": properties,
                "required": [parameter.name for parameter in taken if parameter.default is parameter.empty],
                "additionalProperties": False,
            }
            found[name] = Function(name=name, description=inspect.cleandoc(method.__doc__ or ""), parameters=parameters)
        return found

    def state(self) -> State:
        """Its public state: the fields themselves, which the caller must not change."""
        fields: Any = self  # every desk is a dataclass
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(fields)}

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """Call one of its functions with arguments that satisfy its schema; 5.0 is taken as 5."""
        given = {key: whole(value) for key, value in arguments.items()}
        if any(isinstance(value, int | float) and abs(value) > LARGEST for value in given.values()):
            return refusal(f"no desk counts beyond {LARGEST}")
        return getattr(self, name)(**given)


Values = dict[str, JsonValue]
_PLACE = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_SAID = r"\d+(?:\.\d+)?(?!\.?\d)|[A-Za-z][^'.:?!\n]*?"  # a number, or words without a full stop


@dataclass(frozen=True)
class Step:
    """One call of a goal."""

    function: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)

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
