"""The feedback filter: what people and the gate voted against is held back when it is proposed or written again.

A vote is for or against a text: a lesson, or an agent's answer. People vote with `midstream lessons vote`. The gate
votes on a lesson whose effect it measured apart from its batch: against one that it rejects and that harmed, for one
that it accepts and that helped (`commit.gate_votes`). All votes of a project are in one file, which its runs share, so
that what one run has tested at the price of rollouts is not tested by the next.

A text is near a vote if their similarity is `NEAR` or more. It is held back if it is near three distinct votes against,
unless it is also near three distinct votes for it and these are as near or nearer: the means of the three greatest
similarities of each side are compared. Anything else passes: one rejection may be an error of the gate.

Distinct votes are on different items. An item is one lesson of one run or file, with its text, or a text alone. The
last vote on an item counts: a repeated vote adds nothing, and a person overrides the gate. The gate does not
vote on an item that has a vote. The same sentence as a lesson of three runs is three items: three tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from hashlib import blake2b
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from midstream.core.agent import Agent, RunContext
from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.sqlite_file import SqliteFile
from midstream.core.task import Task
from midstream.core.text import shorten
from midstream.core.trajectory import Trajectory
from midstream.lessons.lesson_set import Line
from midstream.lessons.settings import NEAR
from midstream.lessons.similarity import Guard, ngram_similarity

# Distinct votes that hold a text back: one rejection may be an error of the gate.
NEAREST = 3
HELD_BACK = "near three votes against"  # of a refusal, before the votes
_SHOWN = 60  # characters of a vote in a reason


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
    at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

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
        fix = "correct the path, or vote: midstream lessons vote TEXT against"
        raise UsageError(f"there are no votes in {str(path)!r}", code="file-not-found", fix=fix)
    with closing(VoteFile(path, write=False)) as file:
        return file.counted()


def digest(votes: Iterable[Vote]) -> str:
    """A short hash of items and values, equal for votes that decide alike, in any order."""
    text = json.dumps(sorted((vote.item, vote.value) for vote in votes))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


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


class FilteredAgent:
    """An agent whose answers pass the filter (`agent.filter`), compared by shared words.

    An answer that is held back becomes None, as if the agent had given none, with `stop_reason="filtered"` and the
    reason in `Trajectory.held_back`; `Trajectory.final` keeps what was written, and a reward that the agent gave is
    dropped. Votes are read when this object is made. Raises as `read_votes`.
    """

    def __init__(self, agent: Agent, votes: Path) -> None:
        self.agent, self.name = agent, agent.name
        self._refusal = vote_guard(read_votes(votes))

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run once and filter the answer."""
        found = await self.agent.run(task, context)
        if found.status != "ok" or not found.answer or not (reason := self._refusal(found.answer)):
            return found
        final = found.final or found.answer
        refused = {"answer": None, "final": final, "held_back": reason, "stop_reason": "filtered", "reward": None}
        return found.model_copy(update=refused)

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()
