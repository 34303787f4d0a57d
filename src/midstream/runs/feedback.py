"""Feedback of people on a run: thumbs and notes on trajectories and lessons, and choices between two answers.

All are in `feedback.jsonl` of the run. The journal is appended to while the run is at work: it has its own lock, and no
record of the run depends on it. The last entry for a target counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from midstream.core.data import Frozen
from midstream.runs.info import utc_now
from midstream.runs.journal import Records, appending, skip_damage

NAME = "feedback.jsonl"
_OPPOSITE = {"up": "down", "down": "up"}


class Feedback(Frozen):
    """One entry, on a trajectory of a part of the run, on the lesson of that id, or on two answers to a question.

    `vote` is "" without a thumb, or for one that was taken back. Of a trajectory, `task`, `question` and `answer` are
    kept too, so that the vote is of use without its part. With `against`, another run's answer, it is a choice: "up"
    where `answer` is better. `at` is the time in UTC (ISO 8601).
    """

    part: str = ""
    id: str = ""
    lesson: str = ""
    vote: Literal["up", "down", "equal", ""] = ""
    note: str = ""
    task: str = ""
    question: str = ""
    answer: str | None = None
    against: str | None = None
    at: str = Field(default_factory=utc_now)

    @property
    def target(self) -> tuple[str, str, str]:
        """The subject of the entry: part and id of a trajectory, the id of a lesson, or a question and two answers."""
        if self.against is not None:
            return self.question, self.answer or "", self.against
        return self.part, self.id, self.lesson


def read_feedback(root: Path) -> dict[tuple[str, str, str], Feedback]:
    """The entries of a run that count, by their targets; damaged ones are left out."""
    path = root / NAME
    entries = Records(path, Feedback).read(skip_damage) if path.is_file() else []
    return {entry.target: entry for entry in entries}


def read_choices(*roots: Path) -> dict[tuple[str, str, str], str]:
    """The choices that are kept in these runs: the vote on an answer by question, this answer and the other one.

    Each is there both ways. It is one between texts: a run that is moved keeps it, an answer that changes has none.
    """
    kept = [entry for root in roots for entry in read_feedback(root).values() if entry.against is not None]
    found: dict[tuple[str, str, str], str] = {}
    for entry in sorted(kept, key=lambda entry: entry.at):
        question, answer, against = entry.target
        found[question, answer, against] = entry.vote
        found[question, against, answer] = _OPPOSITE.get(entry.vote, entry.vote)
    return found


def add_feedback(root: Path, said: Mapping[str, str | None]) -> Feedback:
    """Add an entry, safe on disk on return; a vote or note that it leaves out stays as it was.

    Several processes may add at once. Raises `StorageError`.
    """
    path, entry = root / NAME, Feedback.model_validate(said)
    # A vote keeps what the entry before it said, so nobody adds one in between.
    with appending(path):
        if before := read_feedback(root).get(entry.target):
            entry = entry.model_copy(update={key: getattr(before, key) for key in ("vote", "note") if key not in said})
        Records(path, Feedback).append(entry)
    return entry
