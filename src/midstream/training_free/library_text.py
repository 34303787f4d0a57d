"""A library as Markdown that a person reads and edits, and as JSON. Markdown has a heading a module, a bullet a lesson.

    ## planner

    - [L1] Look numbers up before you calculate.
    - [L4 pinned] Write names as the question writes them.
    - a new lesson, which has no id yet

`parse(to_markdown(library)) == entries(library)`. Everything else in a library (origins, counts, effects) is not in the
text, and an edit leaves it unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from midstream.core.data import problems_of
from midstream.core.errors import UsageError
from midstream.core.lessons import digest
from midstream.training_free.library import (
    ID,
    Lesson,
    Library,
    Origin,
    State,
    next_number,
    number,
    one_line,
    proven,
    render_modules,
    with_lessons,
)
from midstream.training_free.operations import Operation, Outcome, Rules, applied, screened

_HEAD = """# Lessons

One bullet a lesson. Change its words, take it out, or add a bullet of your own, without brackets. In the brackets,
`pinned` keeps a lesson from being changed by learning, `vetoed` keeps it, and new ones like it, out of all prompts.
"""
_BULLET = re.compile(r"[-*+](?:\s+|$)")
_MARK = re.compile(r"\[(?P<id>L[0-9]+)?[ ,]*(?P<state>pinned|vetoed)?\](?:\s+|$)")
_LIKE_A_MARK = re.compile(r"\[\s*(?:L[0-9]+\b|pinned\b|vetoed\b)[^\]]*\]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One bullet; "" for what it does not contain. `line` is the number of its first line, from 1."""

    id: str = ""
    state: State = "active"
    module: str = ""
    text: str = ""
    line: int = field(default=0, compare=False)


def entries(library: Library) -> list[Entry]:
    """A library's bullets: module by module, inside each in the library's order."""
    modules = list(dict.fromkeys(lesson.module for lesson in library.lessons))
    lessons = sorted(library.lessons, key=lambda lesson: modules.index(lesson.module))
    return [Entry(id=lesson.id, state=lesson.state, module=lesson.module, text=lesson.text) for lesson in lessons]


def to_markdown(library: Library) -> str:
    """Write the library as Markdown."""
    lines, module = [_HEAD], None
    for entry in entries(library):
        if entry.module != module:
            module = entry.module
            lines.append(f"## {module}\n" if len(lines) == 1 else f"\n## {module}\n")
        mark = entry.id if entry.state == "active" else f"{entry.id} {entry.state}"
        lines.append(f"- [{mark}] {entry.text}".rstrip())
    return "\n".join(lines) + ("\n" if module is not None else "")


def parse(text: str) -> list[Entry]:
    """Read the bullets of a Markdown text; a line after a bullet continues it. Text above the first one is ignored.

    Raises `UsageError` if a mark is invalid, an id occurs twice, or a line belongs to no lesson.
    """
    found: list[Entry] = []
    module, bullet = None, False  # whether a line may continue the bullet above it
    for place, line in enumerate(text.splitlines(), start=1):
        if line == "##" or line.startswith("## "):
            module, bullet = one_line(line[2:]), False
        elif start := _BULLET.match(line):
            entry, bullet = _entry(line[start.end() :], module or "", place), True
            if entry.id and any(entry.id == other.id for other in found):
                raise _wrong(place, f"{entry.id} occurs twice", "take one of the two out, or its brackets")
            found.append(entry)
        elif bullet and line.strip() and not line.startswith("##"):
            found[-1] = replace(found[-1], text=one_line(f"{found[-1].text} {line}"))
        else:
            bullet = False
            if line.strip() and (found or module is not None):
                raise _wrong(place, f"{line.strip()[:60]!r} belongs to no lesson", 'begin it with "- ", or take it out')
    return found


def _entry(text: str, module: str, place: int) -> Entry:
    mark = _MARK.match(text)
    if mark is None or not (mark["id"] or mark["state"]):
        if wrong := _LIKE_A_MARK.match(text):
            raise _wrong(place, f"{wrong[0]} is no mark of a lesson", "write [L1], [L1 pinned] or [L1 vetoed]")
        return Entry(module=module, text=one_line(text), line=place)
    if mark["id"] and not ID.fullmatch(mark["id"]):
        raise _wrong(place, f"{mark['id'][:40]} is no id of a lesson", "restore the id, or take the brackets out")
    state: State = "pinned" if mark["state"] == "pinned" else "vetoed" if mark["state"] else "active"
    return Entry(id=mark["id"] or "", state=state, module=module, text=one_line(text[mark.end() :]), line=place)


def edited(library: Library, text: str, rules: Rules) -> tuple[Library, list[Outcome]]:
    """Apply a person's edit of a library's Markdown; returns the new library, and the outcome of each change.

    A bullet without an id is a new lesson, a lesson without a bullet is deleted. What `rules` refuse is not applied.
    Raises `UsageError` if the text is not such Markdown, holds no lesson, or names one twice or one that is not there.
    """
    wanted = parse(text)
    if library.lessons and not wanted:
        raise UsageError(
            "no lesson is left: the text is empty, or no library as midstream writes it",
            code="library-text-invalid",
            fix="keep a lesson; to keep all of them out of prompts, mark each: [L1 vetoed]",
        )
    by_id = {entry.id: entry for entry in wanted if entry.id}
    for entry in by_id.values():
        if library.find(entry.id) is None:
            raise _wrong(entry.line, f"the library has no {entry.id}", "take the brackets out: it becomes a new lesson")

    person = Origin(source="person")
    changes = [
        Operation(kind="delete", id=lesson.id, origin=person) for lesson in library.lessons if lesson.id not in by_id
    ]
    for lesson in library.lessons:
        entry = by_id.get(lesson.id)
        if entry and (entry.text, entry.module or lesson.module) != (lesson.text, lesson.module):
            changes.append(Operation(kind="modify", id=lesson.id, text=entry.text, module=entry.module, origin=person))
    added = [entry for entry in wanted if not entry.id]
    changes += [Operation(kind="add", text=entry.text, module=entry.module, origin=person) for entry in added]
    numbered, outcomes = screened(library, changes, replace(rules, subsets=False))
    states = {entry.id: entry.state for entry in by_id.values()}
    for entry, outcome in zip(added, outcomes[len(outcomes) - len(added) :], strict=True):
        states[outcome.operation.id] = entry.state
    changed = applied(numbered, [outcome.operation for outcome in outcomes if not outcome.refused])
    marked = [lesson.model_copy(update={"state": states.get(lesson.id, lesson.state)}) for lesson in changed.lessons]
    return with_lessons(changed, marked), outcomes


def to_json(library: Library) -> str:
    """Write the whole library as JSON: `from_json(to_json(library)) == library`."""
    return f"{library.model_dump_json(indent=2)}\n"


def from_json(text: str) -> Library:
    """Read a library from JSON, unproven if its lessons were edited since. Raises `UsageError` if it is not one."""
    try:
        library = Library.model_validate_json(text)
    except ValidationError as failure:
        raise UsageError(
            problems_of(failure)[0],
            code="library-text-invalid",
            cause="it is no library as midstream writes it",
            fix="midstream library show RUN --json shows the format",
        ) from failure
    library = library.model_copy(update={"next_number": next_number(library)})
    return library if library.proven_lessons == digest(render_modules(library)) else proven(library, "")


def from_markdown(text: str) -> Library:
    """Read a library from Markdown, with origin "imported"; lessons without an id get new ones.

    Raises `UsageError` if the text is not such Markdown, or has an id twice.
    """
    bullets, origin = parse(text), Origin(source="imported")
    free = 1 + max((number(entry.id) for entry in bullets if entry.id), default=0)
    lessons: list[Lesson] = []
    for entry in bullets:
        name, module = entry.id or f"L{free}", entry.module or "planner"
        free += not entry.id
        lessons.append(Lesson(id=name, text=entry.text, module=module, state=entry.state, origin=origin))
    return Library(lessons=tuple(lessons), next_number=free)


def _wrong(line: int, what: str, fix: str) -> UsageError:
    return UsageError(f"line {line}: {what}", code="library-text-invalid", fix=fix)
