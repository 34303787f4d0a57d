"""A lesson set as TOML that a person edits, and as JSON, which holds all of it.

    [[lessons]]
    id = "L1"
    module = "planner"
    state = "active"
    text = "Look numbers up before you calculate."

Origins, counts and effects are not in the TOML, and an edit leaves them unchanged.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import ValidationError

from midstream.core.agent import lessons_digest
from midstream.core.data import Frozen, problems_of
from midstream.core.errors import UsageError
from midstream.lessons.lesson_set import (
    Id,
    LessonOrigin,
    LessonSet,
    Line,
    State,
    fitted,
    next_number,
    proven,
    render_modules,
    with_lessons,
)
from midstream.lessons.operations import Operation, OperationOutcome, Rules, applied, screened

_Model = TypeVar("_Model", bound=Frozen)
_HEAD = """\
# Change a text, delete a [[lessons]] table, or add one: only `text` is required there.
# state = "pinned": learning does not change the lesson. state = "vetoed": no prompt shows it or a new one like it.
# To delete all lessons, leave: lessons = []
"""


class _Entry(Frozen):
    text: str
    id: Id | Literal[""] = ""
    module: Line = ""
    state: State = "active"


class _Draft(Frozen):
    lessons: tuple[_Entry, ...] = ()


def to_draft(lesson_set: LessonSet) -> str:
    """Write the TOML that a person edits."""
    lines = [_HEAD]
    for lesson in lesson_set.lessons:
        # A JSON string is a TOML string: a text has no control characters but line breaks.
        table = {key: json.dumps(getattr(lesson, key), ensure_ascii=False) for key in ("id", "module", "state", "text")}
        if "\n" in lesson.text:
            lines_of = (json.dumps(part, ensure_ascii=False)[1:-1] for part in lesson.text.split("\n"))
            table["text"] = '"""\n' + "\n".join(lines_of) + '"""'
        lines += ["[[lessons]]", *(f"{key} = {value}" for key, value in table.items()), ""]
    return "\n".join(lines)


def edited(lesson_set: LessonSet, text: str, rules: Rules) -> tuple[LessonSet, list[OperationOutcome]]:
    """Apply a person's edit of a lesson set's TOML; returns the new lesson set, and the outcome of each change.

    A table without an id is a new lesson, a lesson without a table is deleted. What `rules` refuse is not applied.
    Raises `UsageError` if the text is not such TOML, or names a lesson twice.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as failure:
        raise _invalid(str(failure)) from failure
    if lesson_set.lessons and not table:
        raise _invalid("no lesson is left: the text is empty")
    wanted = _validated(_Draft, json.dumps(table, default=str)).lessons
    ids = [entry.id for entry in wanted if entry.id]
    if repeated := [name for place, name in enumerate(ids) if name in ids[:place]]:
        raise _invalid(f"{repeated[0]} occurs twice")

    person = LessonOrigin(source="person")
    deleted = [
        Operation(kind="delete", id=lesson.id, origin=person) for lesson in lesson_set.lessons if lesson.id not in ids
    ]
    states, entries, changes = dict[str, State](), list[_Entry](), list[Operation]()
    for entry in wanted:
        before = lesson_set.find(entry.id)
        states[entry.id] = entry.state
        module = entry.module or (before.module if before else "")
        if before is None or (fitted(module, entry.text), module) != (before.text, before.module):
            entries.append(entry)
            kind = "modify" if entry.id else "add"
            changes.append(Operation(kind=kind, id=entry.id, text=entry.text, module=entry.module, origin=person))
    numbered, outcomes = screened(lesson_set, [*deleted, *changes], replace(rules, subsets=False))
    for entry, outcome in zip(entries, outcomes[len(deleted) :], strict=True):
        states[outcome.operation.id] = entry.state
    changed = applied(numbered, [outcome.operation for outcome in outcomes if not outcome.refused])
    marked = [lesson.model_copy(update={"state": states.get(lesson.id, lesson.state)}) for lesson in changed.lessons]
    return with_lessons(changed, marked), outcomes


def to_json(lesson_set: LessonSet) -> str:
    """Write the whole lesson set as JSON: `from_json(to_json(lesson set)) == lesson set`."""
    return f"{lesson_set.model_dump_json(indent=2)}\n"


def from_json(text: str) -> LessonSet:
    """Read a lesson set from JSON, unproven if its lessons were edited since. Raises `UsageError` if it is not one."""
    lesson_set = _validated(LessonSet, text)
    lesson_set = lesson_set.model_copy(update={"next_number": next_number(lesson_set)})
    unchanged = lesson_set.proven_lessons == lessons_digest(render_modules(lesson_set))
    return lesson_set if unchanged else proven(lesson_set, "")


def _validated(model: type[_Model], text: str) -> _Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as failure:
        raise _invalid(problems_of(failure)[0]) from failure


def _invalid(what: str) -> UsageError:
    fix = "midstream lessons show RUN --json shows a lesson set's format"
    return UsageError(what, code="lessons-text-invalid", fix=fix)
