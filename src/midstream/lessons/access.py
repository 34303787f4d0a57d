"""Lesson sets in their places (a lesson run, `RUN@VERSION`, a file): read them, edit them, vote on their lessons."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midstream.core.errors import RunError, UsageError, name_place
from midstream.core.text_file import read_text
from midstream.lessons.commit import VERSIONS, History
from midstream.lessons.editing import from_json, to_json
from midstream.lessons.feedback import Vote, VoteFile
from midstream.lessons.lesson_set import Lesson, LessonSet, split
from midstream.lessons.operations import Operation
from midstream.lessons.settings import VOTES
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


# --- votes ------------------------------------------------------------------------------------------------------------


def find_lesson(named: str, lesson: str) -> Lesson:
    """A lesson of the lesson set `named`. Raises `RunError` without the lesson set, `UsageError` without the lesson."""
    found = read(named).find(lesson)
    if found is None:
        fix = f"midstream lessons show {shlex.quote(named)} lists them; vote on any other text as it is"
        raise UsageError(f"{named} has no lesson {lesson!r}", code="unknown-name", fix=fix)
    return found


def cast_vote(
    named: str, lesson: str, value: Literal["for", "against", "none"], project: Path | None = None
) -> tuple[Vote, Path]:
    """Vote on a lesson of the set `named`, or, with `lesson` "", on the text `named` itself; "none" takes it back.

    Returns the vote and its file: `project`, by default that of the set's run, else that of the working directory.
    Raises `RunError` without the lesson set, `UsageError` without the lesson or for an empty text.
    """
    where, found = "", None
    if lesson:
        path, _ = split(named)
        where, found = os.path.abspath(path), find_lesson(named, lesson)
    elif Path(named).exists():
        what, fix = f"{named} is a lesson set, and no lesson is named", f"midstream lessons show {shlex.quote(named)}"
        raise UsageError(what, code="missing-option", fix=f"{fix} lists its lessons; name one after it")
    text = found.text if found else named
    if not text.strip():
        raise UsageError("the text to vote on is empty", code="empty-value", fix="write what you vote on")
    given = Vote(text=text, value=value, run=where, lesson=lesson)
    place = votes_path(named if lesson else None, project)
    with closing(VoteFile(place)) as file:
        file.add([given])
    return given, place


def votes_path(named: str | None, project: Path | None) -> Path:
    """The file of votes: `project`, else what the run of the lessons `named` uses, else that of the working directory.

    A run without `lessons.feedback` uses none.
    """
    if project is not None or named is None:
        return project or VOTES
    path, _ = split(named)
    if (path / "run.json").exists():
        lessons: Any = RunDirectory.open(path).info().resolved.get("lessons") or {}
        return Path(lessons.get("feedback") or VOTES)
    if not path.is_file():
        raise UsageError(f"{named} is no run", code="file-not-found", fix="name a run, or the file: --project FILE")
    return VOTES
