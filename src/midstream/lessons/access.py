"""Lesson sets in their places (a lesson run, `RUN@VERSION`, a file): read them, edit them, vote on their lessons."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midstream.core.errors import UsageError
from midstream.lessons.commit import VERSIONS, History, name_damage, read_lessons
from midstream.lessons.editing import to_json
from midstream.lessons.feedback import Vote, VoteFile
from midstream.lessons.lesson_set import Lesson, LessonSet, split
from midstream.lessons.operations import Operation
from midstream.lessons.settings import FeedbackConfig
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write

_DIRECTORY = "lessons"  # of a lesson run's directory: what holds its versions


def read(named: str | Path) -> LessonSet:
    """The lesson set of a run, of a version (`RUN@VERSION`), or in a file. Raises `RunError` if it is missing."""
    path, number = split(named)
    return read_lessons(path) if number is None else history(path).get(number).lesson_set


def history(path: Path) -> History:
    """The versions of a lesson run's lesson set; `path` is the run, or the lesson set's directory in it."""
    name_damage(path)
    own = path / _DIRECTORY
    return History(path if (path / VERSIONS).exists() else own)


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
        if read_lessons(self.path) != self.lesson_set:
            raise UsageError(
                f"nothing is changed: {self.path} was changed by another process",
                code="lessons-changed",
                fix="make the change again",
            )
        if self.path.is_dir():
            version = history(self.path).add(changed, by=by, operations=tuple(operations), note=note)
            return f"{self.path}@{version.number}"
        atomic_write(self.path, to_json(changed).encode())
        return str(self.path)


@contextmanager
def editable_lessons(named: str) -> Iterator[EditableLessons]:
    """Open the lesson set of a lesson run, which stays locked until the context ends, or of a JSON file."""
    path, number = split(named)
    if number is not None or (path.suffix != ".json" and path.is_file()):
        raise UsageError(
            f"{named} cannot be changed",
            code="lessons-read-only",
            fix=f"name the run: {path}" if number is not None else "name a lesson run or a .json file",
        )
    if path.name == "lessons.json" and (path.parent / VERSIONS).exists():  # a copy to read, written from the versions
        path = path.parent
    path = path.parent if (path.parent / "run.json").exists() else path  # its lessons/
    if not (path / "run.json").exists():
        yield EditableLessons(path=path, lesson_set=read_lessons(path))
        return
    run = RunDirectory.open(path)
    with run.lock():
        yield EditableLessons(path=path, lesson_set=read_lessons(path), run=run)


# --- votes ------------------------------------------------------------------------------------------------------------


def find_lesson(named: str, lesson: str) -> Lesson:
    """A lesson of the lesson set `named`. Raises `RunError` without the lesson set, `UsageError` without the lesson."""
    found = read(named).find(lesson)
    if found is None:
        raise UsageError(
            f"{named} has no lesson {lesson!r}",
            code="unknown-name",
            fix=f"midstream lessons show {shlex.quote(named)} lists them; vote on any other text as it is",
        )
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
    file = VoteFile(place)
    try:
        file.add([given])
    finally:
        file.close()
    return given, place


def votes_path(named: str | None, project: Path | None) -> Path:
    """The file of votes: `project`, else what the run of the lessons `named` uses, else that of the working directory.

    A run without `lessons.feedback` uses none.
    """
    path, _ = split(named or "")
    if named is not None and project is None and not (path / "run.json").exists() and not path.is_file():
        raise UsageError(f"{named} is no run", code="file-not-found", fix="name a run, or the file: --project FILE")
    if project is None and named is not None and (path / "run.json").exists():
        resolved: Any = RunDirectory.open(path).info().resolved
        if feedback := (resolved.get("lessons") or {}).get("feedback"):
            return Path(feedback["votes"])
    return project or FeedbackConfig().votes
