"""A desk: an object with public state, and functions that read and change it.

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
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any, Self, TypeVar, get_type_hints

from pydantic import JsonValue, TypeAdapter

from midstream.core.data import whole
from midstream.sources.functions import FunctionSpec

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
