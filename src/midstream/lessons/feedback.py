"""Feedback on lessons, which an installed package counts: midstream-extra has votes.

A package offers a class (`LessonFeedback`) as an entry point:

    [project.entry-points."midstream.lessons"]
    feedback = "midstream_extra.votes:Votes"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from midstream.core.errors import RecipeError
from midstream.lessons.commit import UpdateRecord
from midstream.lessons.lesson_set import Lesson
from midstream.lessons.similarity import Guard
from midstream.runs import RunDirectory


class LessonFeedback(Protocol):
    """The feedback in the file `path`, for a lesson run with `lessons.feedback = path`."""

    def __init__(self, path: Path, run: RunDirectory) -> None: ...

    def guard(self) -> Guard:
        """What refuses texts in the update under way; the same until it is committed, also if the run is killed."""
        ...

    def committed(self, record: UpdateRecord) -> None:
        """Take an update that is on disk. It comes again if the run was killed meanwhile."""

    @staticmethod
    def judged(run: RunDirectory, lesson: Lesson, thumb: str) -> None:
        """Take a person's thumb on a lesson of a run: "up", "down", or "" for one that is taken back."""


def installed() -> type[LessonFeedback] | None:
    """The class of an installed package, None without one."""
    return next((point.load() for point in entry_points(group="midstream.lessons", name="feedback")), None)


def required() -> type[LessonFeedback]:
    """The class of an installed package. Raises `RecipeError` without one."""
    if (found := installed()) is None:
        what, fix = "no installed package counts lessons.feedback", "pip install ./plugins/midstream-extra"
        raise RecipeError(what, code="unknown-type", fix=f"{fix}, from midstream's repository; or leave it out")
    return found
