"""The feedback filter: what people and the gate voted against is held back when it is proposed or written again.

A vote is for or against a text: a lesson, or an agent's answer. People vote with `midstream vote` and with thumbs in
the viewer. The gate votes on a lesson whose effect it measured apart from its batch: against one that it rejects and
that harmed, for one that it accepts and that helped (`gate_votes`). All votes of a project are in one file, which its
runs share, so that what one run has tested at the price of rollouts is not tested by the next.

A text is near a vote if their similarity is `NEAR` or more. It is held back if it is near three distinct votes against,
unless it is also near three distinct votes for it and these are as near or nearer: the means of the three greatest
similarities of each side are compared. Anything else passes: one rejection may be an error of the gate.

Distinct votes are on different items. An item is one lesson of one run or file, with its text, or a text alone. The
last vote on an item counts: a repeated vote adds nothing, and a person overrides the gate. The gate does not
vote on an item that has a vote. The same sentence as a lesson of three runs is three items: three tests.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import closing
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.sqlite_file import SqliteFile
from midstream.core.text import shorten
from midstream.lessons.access import find_lesson
from midstream.lessons.commit import UpdateRecord
from midstream.lessons.lesson_set import Lesson, Line, split
from midstream.lessons.settings import NEAR
from midstream.lessons.similarity import Guard, ngram_similarity
from midstream.runs import RunDirectory
from midstream.runs.feedback import add_feedback
from midstream.runs.info import utc_now
from midstream.runs.journal import Records

VOTES = Path(".midstream/votes.sqlite")
"""The file of the project's votes where no recipe names one."""
# Distinct votes that hold a text back: one rejection may be an error of the gate.
NEAREST = 3
HELD_BACK = "near three votes against"  # of a refusal, before the votes
_SHOWN = 60  # characters of a vote in a reason
_VALUES: dict[str, Literal["for", "against", "none"]] = {"up": "for", "down": "against", "": "none"}
_THUMBS = {value: thumb for thumb, value in _VALUES.items()}


class Vote(Frozen):
    """One vote on a text.

    `run` and `lesson` name the lesson: the absolute path of its run or file, and its id; both are "" for a text alone.
    `update` is the run's update whose gate voted, from 1, else 0; `at` the time in UTC (ISO 8601). "none" is a person's
    vote that was taken back: it does not count, and the gate does not vote on the item.
    """

    text: Annotated[Line, Field(min_length=1)]
    value: Literal["for", "against", "none"]
    by: Literal["person", "gate"] = "person"
    run: str = ""
    lesson: str = ""
    update: int = 0
    at: str = Field(default_factory=utc_now)

    @property
    def item(self) -> str:
        """The item that is voted on; votes with the same item are not distinct."""
        return json.dumps([self.run, self.lesson, self.text.casefold()])


class VoteFile(SqliteFile):
    """The votes of a project, in the order they were given; nothing is deleted. Several processes may add at once.

    With `write` the file is created if it is missing. Raises as `SqliteFile`.
    """

    def __init__(self, path: Path, *, write: bool = True) -> None:
        super().__init__(
            path,
            application=0x6D736676,  # "msfv"
            version=1,
            schema=(
                "CREATE TABLE votes (number INTEGER PRIMARY KEY, item TEXT, vote TEXT)",
                "CREATE INDEX items ON votes (item)",
            ),
            what="file of votes",
            setting="the path of the votes",
            write=write,
        )

    def add(self, votes: Iterable[Vote]) -> None:
        """Add votes, all or none; the gate's only on items without a vote, so that none is given twice."""
        with self.access(write=True) as connection:
            connection.executemany(
                "INSERT INTO votes (item, vote) SELECT ?1, ?2 "
                "WHERE ?3 OR NOT EXISTS (SELECT * FROM votes WHERE item = ?1)",
                [(vote.item, vote.model_dump_json(), vote.by == "person") for vote in votes],
            )

    def counted(self) -> tuple[Vote, ...]:
        """The votes that count: the last one on each item, the oldest first. Raises `StorageError`."""
        with self.access() as connection:
            found = connection.execute(
                "SELECT vote FROM votes WHERE number IN (SELECT max(number) FROM votes GROUP BY item) ORDER BY number"
            ).fetchall()
        try:
            votes = [Vote.model_validate_json(text) for (text,) in found]
        except ValidationError as error:
            raise self.unusable(error) from error
        return tuple(vote for vote in votes if vote.value != "none")


def read_votes(path: Path) -> tuple[Vote, ...]:
    """The votes in a file that count; raises as `VoteFile`, and `UsageError` for a missing file."""
    if not path.exists():
        fix = "correct the path, or vote: midstream vote against TEXT"
        raise UsageError(f"there are no votes in {str(path)!r}", code="file-not-found", fix=fix)
    with closing(VoteFile(path, write=False)) as file:
        return file.counted()


def vote_guard(votes: Sequence[Vote], near: float = NEAR) -> Guard:
    """Make a function that returns why a text is held back, or None: the three nearest votes against it, nearest first.

    The decision depends on neither the order of the votes, which are those that count, nor the time. A similarity of
    `near` or more is near.
    """

    def nearest(text: str, value: str) -> list[tuple[float, Vote]]:
        """At most three near votes of one side with their similarities, the nearest first."""
        measured = [(ngram_similarity(text, vote.text), vote) for vote in votes if vote.value == value]
        # The item breaks ties, so that the votes named do not depend on the order in which they were given.
        return nsmallest(
            NEAREST, (found for found in measured if found[0] >= near), key=lambda it: (-it[0], it[1].item)
        )

    def refusal(text: str) -> str | None:
        against, favor = nearest(text, "against"), nearest(text, "for")
        as_near = sum(value for value, _ in favor) >= sum(value for value, _ in against)
        if len(against) < NEAREST or (len(favor) == NEAREST and as_near):
            return None
        shown = ", ".join(f"{shorten(vote.text, _SHOWN)!r} ({value:.2f})" for value, vote in against)
        return f"{HELD_BACK}: {shown}"

    return refusal


class KeptVotes(Frozen):
    """The votes with which a piece of work began."""

    votes: tuple[Vote, ...]


# --- lesson runs ------------------------------------------------------------------------------------------------------


class Votes:
    """The votes in the file of `lessons.feedback`, in a lesson run (`midstream.lessons.feedback.LessonFeedback`).

    An update is decided by the votes that it began with, which a file in the run's ledger keeps until it is committed.
    Raises as `VoteFile`.
    """

    def __init__(self, path: Path, run: RunDirectory) -> None:
        self.path, self.run = path, run
        self._kept = Records(run.ledger_dir / "votes.jsonl", KeptVotes)
        VoteFile(path).close()

    def guard(self) -> Guard:
        """The filter of the update under way, also if it is made again; raises `RunError` where its file is damaged."""
        if not (kept := self._kept.read()):
            kept = [KeptVotes(votes=read_votes(self.path))]
            self._kept.append(kept[0])
        return vote_guard(kept[0].votes)

    def committed(self, record: UpdateRecord) -> None:
        """Add the votes of an update's gate."""
        _add(self.path, gate_votes(record, os.path.abspath(self.run.root)))
        self._kept.path.unlink(missing_ok=True)

    @staticmethod
    def judged(run: RunDirectory, lesson: Lesson, thumb: str) -> None:
        """Make a thumb a vote of the run's project."""
        root = str(run.root)
        given = Vote(text=lesson.text, value=_VALUES[thumb], run=os.path.abspath(root), lesson=lesson.id)
        _add(votes_path(root, None), [given])


def gate_votes(record: UpdateRecord, run: str) -> list[Vote]:
    """The votes of an update's gate: for each accepted lesson that helped, against each rejected one that harmed.

    Only an effect that was measured apart from the batch counts: a batch that is rejected as a whole says nothing about
    its single lessons. Where nothing is tested, there are no votes.
    """
    votes: list[Vote] = []
    for change in record.changes:
        effect, operation = change.effect, change.operation
        if effect is None or not effect.alone or operation.kind not in ("add", "modify"):
            continue
        helped, harmed = change.fate == "accepted" and effect.mean > 0, change.fate == "rejected" and effect.mean < 0
        if helped or harmed:
            value = "for" if helped else "against"
            votes.append(
                Vote(text=operation.text, value=value, by="gate", run=run, lesson=operation.id, update=record.step)
            )
    return votes


# --- people -----------------------------------------------------------------------------------------------------------


def cast_vote(
    named: str, lesson: str, value: Literal["for", "against", "none"], project: Path | None = None
) -> tuple[Vote, Path]:
    """Vote on a lesson of the set `named`, or, with `lesson` "", on the text `named` itself; "none" takes it back.

    A vote on a lesson of a run also is its thumb in the viewer. Returns the vote and its file: `project`, by default
    that of the set's run, else that of the working directory. Raises `RunError` without the lesson set, `UsageError`
    without the lesson or for an empty text.
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
    _add(place, [given])
    if lesson and (Path(where) / "run.json").exists():
        add_feedback(Path(where), {"lesson": lesson, "vote": _THUMBS[value]})
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


def _add(path: Path, votes: Iterable[Vote]) -> None:
    with closing(VoteFile(path)) as file:
        file.add(votes)
