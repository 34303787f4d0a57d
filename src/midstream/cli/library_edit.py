"""A person's changes to a library: in an editor, from a file, or by options. All of them are made, or none."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midstream.core.errors import MidstreamError, UsageError
from midstream.practice.history import read_library
from midstream.practice.library import Lesson, Library, Origin, State, marked, next_number
from midstream.practice.library_text import edited as markdown_edited
from midstream.practice.library_text import to_markdown
from midstream.practice.operations import Operation, Outcome, Rules, applied, diff, screened

_PERSON = Origin(source="person")
_MARKS: dict[str, State] = {"pin": "pinned", "veto": "vetoed", "release": "active"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """The library as a person wants it, with the operations that lead there and, in words, the new marks.

    `draft` is the file that an editor had; whoever has kept the library removes it.
    """

    library: Library
    operations: tuple[Operation, ...] = ()
    note: str = ""
    draft: Path | None = None


def edited(library: Library, options: argparse.Namespace, modules: Sequence[str]) -> Edit:
    """The library after the changes that the command line asks for; `modules` may have lessons.

    Raises:
        UsageError: one of them cannot be made; then none is.
    """
    rules = Rules(modules=modules, subsets=False)
    by_options = [options.add, options.modify, options.delete, options.pin, options.veto, options.release]
    if options.source is not None and any(by_options):
        raise UsageError(
            "--from stands beside other changes",
            cause="the file says all that the library is to hold",
            fix="first --from FILE, then the others",
        )
    if options.source is not None:
        return _from_file(library, options.source, rules)
    return _by_options(library, options, rules) if any(by_options) else _in_editor(library, rules)


def _by_options(library: Library, options: argparse.Namespace, rules: Rules) -> Edit:
    module = options.module
    operations = [Operation(kind="delete", id=one, origin=_PERSON) for one in options.delete]
    operations += [
        Operation(kind="modify", id=one, text=text, module=module or "", origin=_PERSON) for one, text in options.modify
    ]
    operations += [Operation(kind="add", text=text, module=module or "planner", origin=_PERSON) for text in options.add]
    numbered, outcomes = screened(library, operations, rules)
    sound = _sound(outcomes)
    changed = applied(numbered, sound)
    named = [lesson for mark in _MARKS for lesson in getattr(options, mark)]
    if twice := [one for place, one in enumerate(named) if one in named[:place]]:
        raise UsageError(f"{twice[0]} is marked twice", cause="a lesson has one mark", fix="name one of them")
    for mark, state in _MARKS.items():
        for lesson in getattr(options, mark):
            if changed.find(lesson) is None:
                raise UsageError(
                    f"--{mark} {lesson}: there is no such lesson",
                    cause="it is misspelt, or deleted",
                    fix="midstream library show lists them",
                )
            changed = marked(changed, lesson, state)
    return _edit(library, changed, sound)


def _sound(outcomes: Sequence[Outcome]) -> list[Operation]:
    for one in outcomes:
        if one.refused:
            operation = one.operation
            raise UsageError(
                f"{operation.kind} {operation.id or repr(operation.text[:60])}: {one.refused}",
                cause="nothing is changed",
                fix="midstream library show lists the lessons",
            )
    return [one.operation for one in outcomes]


def _edit(before: Library, after: Library, operations: Sequence[Operation]) -> Edit:
    words = {"pinned": "pin", "vetoed": "veto", "active": "release"}
    marked = [f"{words[new.state]} {new.id}" for _, new in diff(before, after).marked]
    return Edit(library=after, operations=tuple(operations), note="; ".join(marked))


def _from_file(library: Library, path: Path, rules: Rules) -> Edit:
    if path.suffix == ".json":
        return Edit(library=_replaced(library, read_library(path)), note=f"as in {path}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"{path} cannot be read: {failure}", fix="name a file that export made") from failure
    changed, outcomes = markdown_edited(library, text, rules)
    return _edit(library, changed, _sound(outcomes))


def _replaced(before: Library, after: Library) -> Library:
    """`after` in place of `before`: no id is given twice, and a lesson in other words begins anew."""
    lessons = [_begun_anew(before.find(one.id), one) for one in after.lessons]
    latest = max(next_number(before), next_number(after))
    return after.model_copy(update={"lessons": tuple(lessons), "next_number": latest})


def _begun_anew(before: Lesson | None, after: Lesson) -> Lesson:
    """A person's lesson where only the words of `before` were changed: what was counted and measured spoke of those."""
    if before is None or (before.text, before.module) == (after.text, after.module):
        return after
    new = Lesson(id=after.id, text=after.text, module=after.module, state=after.state, origin=_PERSON)
    past = {"origin", "used", "helped", "harmed", "effect"}
    return new if before.model_dump(include=past) == after.model_dump(include=past) else after


def _in_editor(library: Library, rules: Rules) -> Edit:
    """Open the Markdown in the person's editor; what cannot be used is kept, with what is wrong."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not command:
        raise UsageError(
            "no editor is named",
            cause="neither VISUAL nor EDITOR is set",
            fix="EDITOR=nano midstream library edit RUN, or --add, --modify, --delete, --pin, --veto, or --from FILE",
        )
    with tempfile.NamedTemporaryFile("w", suffix=".md", prefix="lessons-", encoding="utf-8", delete=False) as file:
        file.write(to_markdown(library))
    draft = Path(file.name)
    try:
        done = subprocess.run([*shlex.split(command), str(draft)], check=False)
        if done.returncode:
            raise UsageError(f"the editor {command!r} ended with {done.returncode}", cause="it was left with an error")
        edit = _from_file(library, draft, rules)
    except (MidstreamError, OSError) as failure:
        what = failure.what if isinstance(failure, MidstreamError) else f"{command}: {failure.strerror}"
        raise UsageError(
            f"nothing is changed: {what}",
            cause=failure.cause if isinstance(failure, MidstreamError) else "the editor could not be started",
            fix=f"your text is kept; correct it, then midstream library edit RUN --from {shlex.quote(str(draft))}",
        ) from failure
    return replace(edit, draft=draft)
