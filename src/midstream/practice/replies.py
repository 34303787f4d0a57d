"""The reflector's replies: from any text to a summary or to changes of the library, checked by pydantic.

    {"summary": "Turn 1 searched for ..."}

    {"operations": [{"kind": "add", "text": "When ..., ...", "module": "planner", "why": "..."},
                    {"kind": "modify", "id": "L3", "text": "When ..., ..."},
                    {"kind": "delete", "id": "L5"},
                    {"kind": "keep", "id": "L1"}]}

A model's bad output is data, so nothing here raises. A reply of which a part can be used is used: what is wrong with
each of the others is told (`flaws`), never dropped without a word.


A batch's proposals before and after they are merged: equal ones made one, and where each result came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midstream.agents.formats import json_objects, repaired_objects
from midstream.core.prompt_text import to_json
from midstream.core.replies import spoken
from midstream.practice.library import Origin
from midstream.practice.operations import Kind, Operation, Outcome

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """The batch's operations, and the proposals that are not among them as they were, each with what became of it."""

    operations: tuple[Operation, ...]
    left_out: tuple[Outcome, ...] = ()


class Proposals:
    """The groups' operations, numbered from 1; those that say the same are one, with all the origins behind it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        alike: dict[tuple[str, ...], list[Operation]] = {}
        for one in operations:
            alike.setdefault(_content(one), []).append(one)
        self.operations = tuple(
            same[0].model_copy(update={"origin": _joined([one.origin for one in same])}) for same in alike.values()
        )

    def shown(self) -> str:
        """One line of JSON a proposal, with the number of groups behind it."""
        lines = []
        for number, one in enumerate(self.operations, 1):
            asked = {"kind": one.kind, "id": one.id, "text": one.text, "module": one.module, "why": one.origin.why}
            said = {key: value for key, value in asked.items() if value}
            lines.append(to_json({"proposal": number, "groups": len(one.origin.tasks), **said}))
        return "\n".join(lines)

    def merged(self, changes: Sequence[Change], modules: Sequence[str], model: str) -> Merged:
        """The merger's list, each operation with the origins of the proposals that it was made of.

        Those are the ones that it names; if none, those on the same lesson or with the same text; if there are none
        either, the whole batch, which is what the merger had before it. What is left as it was keeps its model.
        """
        operations: list[Operation] = []
        taken: dict[int, Operation] = {}
        for change in changes:
            made = change.operation(Origin(), modules)
            sources = self._sources(made, change.sources)
            behind = [self.operations[place] for place in sources] or list(self.operations)
            origin = _joined([one.origin for one in behind])
            new = all(_content(one) != _content(made) for one in behind)
            written = {"why": change.why or origin.why, "model": model if new else origin.model}
            made = made.model_copy(update={"origin": origin.model_copy(update=written)})
            operations.append(made)
            for place in sources:
                taken.setdefault(place, made)
        return Merged(operations=tuple(operations), left_out=tuple(self._left_out(operations, taken)))

    def _sources(self, made: Operation, named: Sequence[int]) -> list[int]:
        """Places of the proposals that an operation was made of."""
        places = [number - 1 for number in dict.fromkeys(named) if 0 < number <= len(self.operations)]
        if places:
            return places
        if made.kind == "add":
            return [place for place, one in enumerate(self.operations) if _content(one) == _content(made)]
        return [place for place, one in enumerate(self.operations) if one.kind != "add" and one.id == made.id]

    def _left_out(self, operations: Sequence[Operation], taken: dict[int, Operation]) -> Iterable[Outcome]:
        kept = {_content(one) for one in operations}
        for place, one in enumerate(self.operations):
            if _content(one) in kept:
                continue
            into = taken.get(place)
            words = "left out by the merger" if into is None else f"merged into: {_named(into)}"
            yield Outcome(operation=one, refused=words)


def _content(one: Operation) -> tuple[str, ...]:
    """What an operation asks for, whoever asks. A lesson's text is for the module that it is in."""
    return one.kind, one.id, one.text, one.module if one.kind == "add" else ""


def _named(one: Operation) -> str:
    return " ".join(word for word in (one.kind, one.id, one.text) if word)


def _joined(origins: Sequence[Origin]) -> Origin:
    """One origin of several: all their tasks and trajectories, each once, and the first reason that was given."""
    return origins[0].model_copy(
        update={
            "tasks": tuple(dict.fromkeys(task for one in origins for task in one.tasks)),
            "trajectories": tuple(dict.fromkeys(name for one in origins for name in one.trajectories)),
            "why": next((one.why for one in origins if one.why), ""),
        }
    )


SUMMARY_SCHEMA = _object({"summary": {"type": "string"}})
OPERATIONS_SCHEMA = _operations(_CHANGE)
MERGE_SCHEMA = _operations({**_CHANGE, "from": {"type": "array", "items": {"type": "integer"}}})
