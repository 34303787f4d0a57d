"""The reflector's replies: from any text to a summary or to changes of the lesson set, checked by pydantic.

    {"summary": "Turn 1 searched for ..."}

    {"operations": [{"kind": "add", "text": "When ..., ...", "module": "planner", "why": "..."},
                    {"kind": "modify", "id": "L3", "text": "When ..., ..."},
                    {"kind": "delete", "id": "L5"},
                    {"kind": "keep", "id": "L1"}]}

A model's bad output is data, so nothing here raises. If a part of a reply can be used, it is used, and the defects of
the other parts are reported (`flaws`).

`Proposals` are a batch's operations before and after they are merged, with the origins behind each result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midstream.agents.formats import json_objects, repaired_objects
from midstream.core.data import problems_of
from midstream.core.text import spoken, to_json
from midstream.lessons.lesson_set import LessonOrigin
from midstream.lessons.operations import Kind, Operation, OperationOutcome

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedReply(Generic[T]):
    """Result of reading a reply: a value, or the `problem` with all of it; its `flaws` (parts left out) and `model`."""

    value: T | None = None
    problem: str = ""
    flaws: tuple[str, ...] = ()
    model: str = ""


class Change(BaseModel):
    """One operation of a reply; `sources` ("from") number its proposals. Unknown keys and null texts are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_strip_whitespace=True)

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
        """Keep the integers: a change is not lost because its sources are malformed."""
        listed = value if isinstance(value, list) else [value]
        return [item for item in listed if isinstance(item, int) and not isinstance(item, bool)]

    @field_validator("kind", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> Change:
        if self.kind in ("add", "modify") and not self.text:
            raise ValueError(f'"{self.kind}" needs a text')
        if self.kind != "add" and not self.id:
            raise ValueError(f'"{self.kind}" needs the id of a lesson')
        return self

    def operation(self, origin: LessonOrigin, modules: Sequence[str]) -> Operation:
        """The change as an operation. A new lesson without a module is for the first that may have lessons."""
        if self.kind == "add":
            return Operation(kind="add", text=self.text, module=self.module or modules[0], origin=origin)
        lesson = self.id.strip("[] ")
        if self.kind == "modify":
            return Operation(kind="modify", id=lesson, text=self.text, module=self.module, origin=origin)
        return Operation(kind=self.kind, id=lesson, origin=origin)


def read_summary(reply: str, repair: bool = False) -> ParsedReply[str]:
    """Read the summary in a summariser's reply."""
    for found in _objects(reply, repair):
        summary = found.get("summary")
        if isinstance(summary, str) and summary.strip():
            return ParsedReply(value=summary.strip())
    return ParsedReply(problem='it holds no JSON object with a text as "summary"')


def read_operations(reply: str, repair: bool = False) -> ParsedReply[tuple[Change, ...]]:
    """Read the changes in a reply; an empty list is valid, a reply in which every change is invalid cannot be used."""
    for found in _objects(reply, repair):
        listed = found.get("operations")
        if not isinstance(listed, list):
            continue
        changes: list[Change] = []
        flaws: list[str] = []
        for number, item in enumerate(listed, 1):
            try:
                changes.append(Change.model_validate(item))
            except ValidationError as invalid:
                flaws.append(f"operation {number}: {problems_of(invalid)[0]}: {str(item)[:200]}")
        if flaws and not changes:
            return ParsedReply(problem="; ".join(flaws[:3]))
        return ParsedReply(value=tuple(changes), flaws=tuple(flaws))
    return ParsedReply(problem='it holds no JSON object with a list as "operations"')


def _objects(reply: str, repair: bool) -> list[dict[str, Any]]:
    """The JSON objects of a reply, the last first: a model's final object is its answer."""
    text = spoken(reply)
    return list(repaired_objects(text) if repair else json_objects(text))[::-1]


# --- merging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """The batch's merged operations, and the proposals that are not among them unchanged, each with the reason."""

    operations: tuple[Operation, ...]
    left_out: tuple[OperationOutcome, ...] = ()


class Proposals:
    """The groups' operations, numbered from 1; equal ones are one, with all the origins behind it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        by_content: dict[tuple[str, ...], list[Operation]] = {}
        for operation in operations:
            by_content.setdefault(_content(operation), []).append(operation)
        self.operations = tuple(
            equal[0].model_copy(update={"origin": _joined([operation.origin for operation in equal])})
            for equal in by_content.values()
        )

    def shown(self) -> str:
        """One line of JSON a proposal, with the number of groups behind it."""
        lines = []
        for number, proposal in enumerate(self.operations, 1):
            asked = {key: getattr(proposal, key) for key in ("kind", "id", "text", "module")}
            asked["why"] = proposal.origin.why
            given = {key: value for key, value in asked.items() if value}
            lines.append(to_json({"proposal": number, "groups": len(proposal.origin.tasks), **given}))
        return "\n".join(lines)

    def merged(self, changes: Sequence[Change], modules: Sequence[str], model: str) -> Merged:
        """The merger's list, each operation with its proposals' origins; an unchanged proposal keeps its model."""
        operations: list[Operation] = []
        merged_into: dict[int, Operation] = {}
        for change in changes:
            made = change.operation(LessonOrigin(), modules)
            # Its sources are the proposals that it names, or else those on the same lesson or with the same text.
            sources = [number - 1 for number in dict.fromkeys(change.sources) if 0 < number <= len(self.operations)]
            if not sources:
                for place, proposal in enumerate(self.operations):
                    same_lesson = "add" not in (proposal.kind, made.kind) and proposal.id == made.id
                    if same_lesson or _content(proposal) == _content(made):
                        sources.append(place)
            # Without any, it was made of the whole batch, which is what the merger saw.
            behind = [self.operations[place] for place in sources] or list(self.operations)
            origin = _joined([proposal.origin for proposal in behind])
            new = all(_content(proposal) != _content(made) for proposal in behind)
            written = {"why": change.why or origin.why, "model": model if new else origin.model}
            made = made.model_copy(update={"origin": origin.model_copy(update=written)})
            operations.append(made)
            for place in sources:
                merged_into.setdefault(place, made)
        kept = {_content(operation) for operation in operations}
        left_out: list[OperationOutcome] = []
        for place, proposal in enumerate(self.operations):
            if _content(proposal) not in kept:
                reason = "left out by the merger"
                if into := merged_into.get(place):
                    reason = f"merged into: {' '.join(word for word in (into.kind, into.id, into.text) if word)}"
                left_out.append(OperationOutcome(operation=proposal, refused=reason))
        return Merged(operations=tuple(operations), left_out=tuple(left_out))


def _content(operation: Operation) -> tuple[str, ...]:
    """Return the content of an operation, without its origin. An "add" is for its module, other kinds name a lesson."""
    return operation.kind, operation.id, operation.text, operation.module if operation.kind == "add" else ""


def _joined(origins: Sequence[LessonOrigin]) -> LessonOrigin:
    """One origin of several: all their tasks and trajectories, each once, and the first reason that was given."""
    return origins[0].model_copy(
        update={
            "tasks": tuple(dict.fromkeys(task for origin in origins for task in origin.tasks)),
            "trajectories": tuple(dict.fromkeys(name for origin in origins for name in origin.trajectories)),
            "why": next((origin.why for origin in origins if origin.why), ""),
        }
    )
