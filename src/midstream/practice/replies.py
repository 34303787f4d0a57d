"""The reflector's replies: from any text to a summary or to changes of the library, checked by pydantic.

    {"summary": "Turn 1 searched for ..."}

    {"operations": [{"kind": "add", "text": "When ..., ...", "module": "planner", "why": "..."},
                    {"kind": "modify", "id": "L3", "text": "When ..., ..."},
                    {"kind": "delete", "id": "L5"},
                    {"kind": "keep", "id": "L1"}]}

A model's bad output is data, so nothing here raises. A reply of which a part can be used is used: what is wrong with
each of the others is told (`flaws`), never dropped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midstream.agents.json_replies import json_objects, repaired_objects
from midstream.core.replies import spoken
from midstream.practice.library import Origin
from midstream.practice.operations import Kind, Operation

T = TypeVar("T")

# Every field is required, and may be empty: the strict form of servers that enforce a schema knows no optional ones.
_CHANGE = {
    "kind": {"type": "string", "enum": ["add", "modify", "delete", "keep"]},
    "id": {"type": "string"},
    "text": {"type": "string"},
    "module": {"type": "string"},
    "why": {"type": "string"},
}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _operations(change: Mapping[str, Any]) -> dict[str, Any]:
    return _object({"operations": {"type": "array", "items": _object(change)}})


SUMMARY_SCHEMA = _object({"summary": {"type": "string"}})
OPERATIONS_SCHEMA = _operations(_CHANGE)
MERGE_SCHEMA = _operations({**_CHANGE, "from": {"type": "array", "items": {"type": "integer"}}})


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[T]):
    """What a reply comes to: a value, or what is wrong with all of it; `flaws` are the parts that were left out."""

    value: T | None = None
    problem: str = ""
    flaws: tuple[str, ...] = ()


class Change(BaseModel):
    """One operation as a reply writes it. `sources` ("from") are the numbers of the proposals that it was made of.

    Keys that nobody asked for, and null for a text, are as if they were not there.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Kind
    id: str = ""
    text: str = ""
    module: str = ""
    why: str = ""
    sources: tuple[int, ...] = Field(default=(), alias="from")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value

    @field_validator("sources", mode="before")
    @classmethod
    def _numbers(cls, value: object) -> list[int]:
        """The numbers among what was given: where a change comes from is no reason to lose it."""
        listed = value if isinstance(value, list) else [value]
        return [one for one in listed if isinstance(one, int) and not isinstance(one, bool)]

    @field_validator("id", "text", "module", "why")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        return value.strip()

    @field_validator("kind", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _whole(self) -> Change:
        if self.kind in ("add", "modify") and not self.text:
            raise ValueError(f'"{self.kind}" needs a text')
        if self.kind != "add" and not self.id:
            raise ValueError(f'"{self.kind}" needs the id of a lesson')
        return self

    def operation(self, origin: Origin, modules: Sequence[str]) -> Operation:
        """The change as an operation. A new lesson that names no module is for the first that may have lessons."""
        if self.kind == "add":
            return Operation(kind="add", text=self.text, module=self.module or modules[0], origin=origin)
        lesson = self.id.strip("[] ")
        if self.kind == "modify":
            return Operation(kind="modify", id=lesson, text=self.text, module=self.module, origin=origin)
        return Operation(kind=self.kind, id=lesson, origin=origin)


def read_summary(reply: str, *, repair: bool = False) -> Reading[str]:
    """The summary of a summariser's reply."""
    for found in _objects(reply, repair):
        summary = found.get("summary")
        if isinstance(summary, str) and summary.strip():
            return Reading(value=summary.strip())
    return Reading(problem='it holds no JSON object with a text as "summary"')


def read_operations(reply: str, *, repair: bool = False) -> Reading[tuple[Change, ...]]:
    """The changes of a reply; an empty list is one. A reply of which no change at all is sound cannot be used."""
    for found in _objects(reply, repair):
        listed = found.get("operations")
        if isinstance(listed, list):
            return _changes(listed)
    return Reading(problem='it holds no JSON object with a list as "operations"')


def _changes(listed: list[Any]) -> Reading[tuple[Change, ...]]:
    changes: list[Change] = []
    flaws: list[str] = []
    for number, one in enumerate(listed, 1):
        try:
            changes.append(Change.model_validate(one))
        except ValidationError as invalid:
            flaws.append(f"operation {number}: {_what(invalid)}: {str(one)[:200]}")
    if flaws and not changes:
        return Reading(problem="; ".join(flaws[:3]))
    return Reading(value=tuple(changes), flaws=tuple(flaws))


def _what(invalid: ValidationError) -> str:
    """The first thing that is wrong, in a few words."""
    error = invalid.errors(include_url=False)[0]
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {error['msg']}" if where else error["msg"].removeprefix("Value error, ")


def _objects(reply: str, repair: bool) -> list[dict[str, Any]]:
    """The JSON objects of a reply, the last first: what a model ends with is what it means."""
    text = spoken(reply)
    return list(repaired_objects(text) if repair else json_objects(text))[::-1]
