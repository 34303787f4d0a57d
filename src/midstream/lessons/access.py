"""Lesson sets in their places (a lesson run, `RUN@VERSION`, a file): read and edit them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from midstream.core.errors import RunError, UsageError, name_place
from midstream.core.text_file import read_text
from midstream.lessons.commit import VERSIONS, History
from midstream.lessons.editing import from_json, to_json
from midstream.lessons.lesson_set import Lesson, LessonSet, split
from midstream.lessons.operations import Operation
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write


def read(named: str | Path) -> LessonSet:
    """The newest lesson set of a run, that of a version (`RUN@VERSION`), or the one in a JSON file.

    Raises `RunError` if it is missing, `UsageError` if the file does not hold one.
    """
    path, number = split(named)
    if path.is_dir():
        return history(path).get(number).lesson_set
    text = read_text(path, error=RunError, fix="name a lesson run, or a .json file with a lesson set")
    with name_place(str(path)):
        return from_json(text)


def find_lesson(named: str, lesson: str) -> Lesson:
    """A lesson of the lesson set `named`. Raises `RunError` without the lesson set, `UsageError` without the lesson."""
    found = read(named).find(lesson)
    if found is None:
        fix = f"midstream lessons show {shlex.quote(named)} lists them"
        raise UsageError(f"{named} has no lesson {lesson!r}", code="unknown-name", fix=fix)
    return found


def history(path: Path) -> History:
    """The versions of the lesson set of the lesson run `path`, of whose damage it warns."""
    return History(RunDirectory.open(path).lessons_dir)


# --- changing a lesson set --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EditableLessons:
    """A lesson set that can be changed, and its place: a run's versions or a JSON file."""

    path: Path
    lesson_set: LessonSet
    run: RunDirectory | None = None

    def save(self, changed: LessonSet, *, by: str, operations: Sequence[Operation] = (), note: str = "") -> str:
        """Save the changed lesson set; returns the name of what was written, `RUN@VERSION` or the file.

        Raises `UsageError` if the lesson set was changed since it was read (only a run is locked while it is edited).
        """
        if read(self.path) != self.lesson_set:
            what = f"nothing is changed: {self.path} was changed by another process"
            raise UsageError(what, code="lessons-changed", fix="make the change again")
        if self.run is not None:
            version = History(self.run.lessons_dir).add(changed, by=by, operations=tuple(operations), note=note)
            return f"{self.path}@{version.number}"
        atomic_write(self.path, to_json(changed).encode())
        return str(self.path)


@contextmanager
def editable_lessons(named: str) -> Iterator[EditableLessons]:
    """Open the lesson set of a lesson run, which stays locked until the context ends, or of a JSON file."""
    path, number = split(named)
    # The file of a run's newest version is for people and programs to read: the next version would overwrite it.
    of_run = path.name == "lessons.json" and (path.parent / VERSIONS).exists()
    if number is not None or of_run or (path.suffix != ".json" and path.is_file()):
        fix = "name the lesson run itself, or a .json file that is in none"
        raise UsageError(f"{named} cannot be changed", code="lessons-read-only", fix=fix)
    if not path.is_dir():
        yield EditableLessons(path=path, lesson_set=read(path))
        return
    run = RunDirectory.open(path)
    with run.lock():
        yield EditableLessons(path=path, lesson_set=read(path), run=run)
