"""A library as Markdown that a person reads and edits: a heading a module, a bullet a lesson.

    ## planner

    - [L1] Look numbers up before you calculate.
    - [L4 pinned] Write names as the question writes them.
    - a new lesson, which has no id yet

`parse(to_markdown(library)) == entries(library)`. What else a library holds (origins, counts, effects) stays where it
is: an edit says only what a person changed.


A library read from a file or a directory, and written as JSON. Its Markdown is `markdown.py`'s."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from midstream.core.errors import UsageError
from midstream.core.lessons import digest
from midstream.practice.library import (
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
from midstream.practice.operations import Operation, Outcome, Rules, applied, screened

_HEAD = """# Lessons

One bullet a lesson. Change its words, take it out, or add a bullet of your own, without brackets. In the brackets,
`pinned` keeps a lesson from being changed by learning, `vetoed` keeps it, and new ones like it, out of all prompts.
"""
_BULLET = re.compile(r"[-*+](?:\s+|$)")
_MARK = re.compile(r"\[(?P<id>L[0-9]+)?[ ,]*(?P<state>pinned|vetoed)?\](?:\s+|$)")
_LIKE_A_MARK = re.compile(r"\[\s*(?:L[0-9]+\b|pinned\b|vetoed\b)[^\]]*\]", re.IGNORECASE)
_PERSON = Origin(source="person")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One bullet: "" for what it does not say. `line` is where it begins, from 1."""

    id: str = ""
    state: State = "active"
    module: str = ""
    text: str = ""
    line: int = field(default=0, compare=False)


def entries(library: Library) -> list[Entry]:
    """A library's bullets: module by module, inside each in the library's order."""
    found = [Entry(id=one.id, state=one.state, module=one.module, text=one.text) for one in library.lessons]
    modules = list(dict.fromkeys(one.module for one in library.lessons))
    return sorted(found, key=lambda one: modules.index(one.module))


def to_markdown(library: Library) -> str:
    """The library as Markdown."""
    lines, module = [_HEAD], None
    for one in entries(library):
        if one.module != module:
            module = one.module
            lines.append(f"## {module}\n" if len(lines) == 1 else f"\n## {module}\n")
        mark = one.id if one.state == "active" else f"{one.id} {one.state}"
        lines.append(f"- [{mark}] {one.text}".rstrip())
    return "\n".join(lines) + ("\n" if module is not None else "")


def parse(text: str) -> list[Entry]:
    """The bullets of a Markdown text; a line that follows a bullet's belongs to it. Text above them all is let be.

    Raises:
        UsageError: a mark that is none, or a line that belongs to nothing; says which.
    """
    found: list[Entry] = []
    module, bullet = None, False  # whether a line may go on what stands above it
    for place, line in enumerate(text.splitlines(), start=1):
        if line == "##" or line.startswith("## "):
            module, bullet = one_line(line[2:]), False
        elif start := _BULLET.match(line):
            found.append(_entry(line[start.end() :], module or "", place))
            bullet = True
        elif bullet and line.strip() and not line.startswith("##"):
            found[-1] = replace(found[-1], text=one_line(f"{found[-1].text} {line}"))
        else:
            bullet = False
            if line.strip() and (found or module is not None):
                raise _wrong(place, f"{line.strip()[:60]!r} belongs to no lesson", 'begin it with "- ", or take it out')
    return found


def edited(library: Library, text: str, rules: Rules) -> tuple[Library, list[Outcome]]:
    """What a person made of a library's Markdown: the new library, and what became of each change.

    A bullet without an id is a new lesson, a lesson without a bullet is deleted. What `rules` refuse stays as it was.

    Raises:
        UsageError: the text is not such Markdown, holds no lesson, or names one twice or one that is not there.
    """
    wanted = parse(text)
    if library.lessons and not wanted:
        raise UsageError(
            "no lesson is left",
            cause="the text is empty, or no library as `export` writes it",
            fix="midstream library edit RUN --delete ID takes the last ones out",
        )
    _check_ids(wanted, library)
    by_id = {one.id: one for one in wanted if one.id}
    changes = [Operation(kind="delete", id=one.id, origin=_PERSON) for one in library.lessons if one.id not in by_id]
    for one in library.lessons:
        new = by_id.get(one.id)
        if new and (new.text, new.module or one.module) != (one.text, one.module):
            changes.append(Operation(kind="modify", id=one.id, text=new.text, module=new.module, origin=_PERSON))
    added = [one for one in wanted if not one.id]
    changes += [Operation(kind="add", text=one.text, module=one.module, origin=_PERSON) for one in added]
    screened_library, outcomes = screened(library, changes, replace(rules, subsets=False))
    states = {one.id: one.state for one in by_id.values()}
    for one, outcome in zip(added, outcomes[len(outcomes) - len(added) :], strict=True):
        states[outcome.operation.id] = one.state
    changed = applied(screened_library, [one.operation for one in outcomes if not one.refused])
    marked = [one.model_copy(update={"state": states.get(one.id, one.state)}) for one in changed.lessons]
    return with_lessons(changed, marked), outcomes


def _entry(text: str, module: str, number: int) -> Entry:
    mark = _MARK.match(text)
    if mark is None or not (mark["id"] or mark["state"]):
        if wrong := _LIKE_A_MARK.match(text):
            raise _wrong(number, f"{wrong[0]} is no mark of a lesson", "write [L1], [L1 pinned] or [L1 vetoed]")
        return Entry(module=module, text=one_line(text), line=number)
    if mark["id"] and not ID.fullmatch(mark["id"]):
        raise _wrong(number, f"{mark['id'][:40]} is no id of a lesson", "restore the id, or take the brackets out")
    state: State = "pinned" if mark["state"] == "pinned" else "vetoed" if mark["state"] else "active"
    return Entry(id=mark["id"] or "", state=state, module=module, text=one_line(text[mark.end() :]), line=number)


def _check_ids(wanted: list[Entry], library: Library) -> None:
    seen: set[str] = set()
    for one in wanted:
        if one.id in seen:
            raise _wrong(one.line, f"{one.id} stands here a second time", "take one of the two out, or its brackets")
        if one.id and library.find(one.id) is None:
            raise _wrong(one.line, f"the library has no {one.id}", "take the brackets out: it becomes a new lesson")
        seen |= {one.id} if one.id else set()


def _wrong(line: int, what: str, fix: str) -> UsageError:
    return UsageError(f"line {line}: {what}", cause="the text was changed where it should not be", fix=fix)


def to_json(library: Library) -> str:
    """The whole library: `from_json(to_json(library)) == library`."""
    return f"{library.model_dump_json(indent=2)}\n"


def from_json(text: str) -> Library:
    """The library that `to_json` wrote, or a person after it: with other words than those that were proven, unproven.

    Raises:
        UsageError: it is no library; says what is wrong where.
    """
    try:
        library = Library.model_validate_json(text)
    except ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        place = ".".join(str(one) for one in first["loc"]) or "the file"
        raise UsageError(
            f"{place}: {first['msg']}",
            cause="it is no library as midstream writes it",
            fix="midstream library export RUN FILE.json shows the form",
        ) from failure
    library = library.model_copy(update={"next_number": next_number(library)})
    return library if library.proven_lessons == digest(render_modules(library)) else proven(library, "")


def from_markdown(text: str) -> Library:
    """A library of the lessons in a Markdown text, imported: with their ids, and new ids where they have none.

    Raises:
        UsageError: the text is not such Markdown, or has an id twice.
    """
    entries, origin = parse(text), Origin(source="imported")
    free = 1 + max((number(one.id) for one in entries if one.id), default=0)
    lessons: dict[str, Lesson] = {}
    for one in entries:
        if one.id in lessons:
            raise UsageError(f"line {one.line}: {one.id} stands here a second time", fix="give each lesson its own id")
        name = one.id or f"L{free}"
        free += not one.id
        module = one.module or "planner"
        lessons[name] = Lesson(id=name, text=one.text, module=module, state=one.state, origin=origin)
    return Library(lessons=tuple(lessons.values()), next_number=free)
