"""A desk: an object with public state, and functions that read and change it.

    @dataclass
    class Lamp(Desk):
        \"\"\"A lamp.\"\"\"

        bright: int = 0

        @function(to="0 (dark) to 9")
        def dim(self, to: int) -> Result:
            \"\"\"Turns the lamp up or down.\"\"\"
            if not 0 <= to <= 9:
                return refused(f"a lamp has 0 to 9, not {to}")
            self.bright = to
            return {"bright": to}

Fields are the public state, JSON all of it, so a state can be kept, compared and loaded. A function's JSON schema comes
from its type hints and the words beside it. What it refuses is a result too, {"error": ...}, and changes nothing. All
is deterministic: the same calls from the same state give the same results and the same state.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self, TypeVar, get_type_hints

from pydantic import JsonValue, TypeAdapter

Result = dict[str, Any]  # JSON
State = dict[str, JsonValue]
F = TypeVar("F", bound=Callable[..., Result])

LARGEST = 10**12  # of a call's numbers: what has thousands of digits cannot be written down
_WORDS = "desk_words"  # where a method keeps what `function` says of it


@dataclass(frozen=True, slots=True)
class Function:
    """What agents are told of a desk's function: `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def complete(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The arguments with the defaults of those left out, 5.0 as 5: equal calls are then equal."""
        there = {name: one["default"] for name, one in self.parameters["properties"].items() if "default" in one}
        return {name: whole(value) for name, value in {**there, **arguments}.items()}


def function(**parameters: str) -> Callable[[F], F]:
    """Make a method one of its desk's functions. Its docstring is for agents; `parameters` says what each is."""

    def mark(method: F) -> F:
        setattr(method, _WORDS, parameters)
        return method

    return mark


def refused(reason: str) -> Result:
    """The result of a call that changes nothing."""
    return {"error": reason}


class Desk:
    """The base of all desks, which are dataclasses with JSON in their fields."""

    @classmethod
    def stocked(cls, draws: Random) -> Self:
        """A desk at the beginning of a task."""
        raise NotImplementedError

    @classmethod
    def load(cls, state: Mapping[str, JsonValue]) -> Self:
        """A desk in that state, which it shares with no other."""
        return cls(**copy.deepcopy(dict(state)))

    @classmethod
    def functions(cls) -> Mapping[str, Function]:
        """Its functions by their names, in the order in which they are written down."""
        return _functions(cls)

    def state(self) -> State:
        """Its public state: the fields themselves, to be looked at alone."""
        fields: Any = self  # every desk is a dataclass
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(fields)}

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """The result of one of its functions, with arguments that satisfy its schema; 5.0 is taken as 5."""
        given = {key: whole(value) for key, value in arguments.items()}
        if any(isinstance(value, int | float) and abs(value) > LARGEST for value in given.values()):
            return refused(f"no desk counts beyond {LARGEST}")
        return getattr(self, name)(**given)


def whole(value: JsonValue) -> JsonValue:
    """The same JSON with 3.0 as 3."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _functions(desk: type[Desk]) -> Mapping[str, Function]:
    methods = {name: method for name, method in vars(desk).items() if hasattr(method, _WORDS)}
    return {name: _function(name, method) for name, method in methods.items()}


def _function(name: str, method: Callable[..., Result]) -> Function:
    words = getattr(method, _WORDS)
    hints = get_type_hints(method)
    taken = list(inspect.signature(method).parameters.values())[1:]  # without self
    properties: dict[str, Any] = {}
    for one in taken:
        schema = TypeAdapter(hints[one.name]).json_schema()
        default = {} if one.default is one.empty else {"default": one.default}
        properties[one.name] = {**schema, "description": words[one.name], **default}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [one.name for one in taken if one.default is one.empty],
        "additionalProperties": False,
    }
    return Function(name=name, description=inspect.cleandoc(method.__doc__ or ""), parameters=parameters)
