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

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from midstream.core.agent import Agent, RunContext
from midstream.core.data import Frozen
from midstream.core.errors import EngineError, UsageError
from midstream.core.sqlite_file import SqliteFile
from midstream.core.task import Task
from midstream.core.text import shorten
from midstream.core.trajectory import ErrorInfo, Trajectory
from midstream.lessons.lesson_set import Line
from midstream.lessons.settings import NEAR, FeedbackConfig
from midstream.lessons.similarity import NO_VECTORS, embedding_similarity, ngram_similarity

NEAREST = 3  # distinct votes that hold a text back
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


_VOTE = TypeAdapter(Vote)


class VoteFile(SqliteFile):
    """The votes of a project, in the order they were given; nothing is deleted. Several processes may add at once.

    With `write` the file is created if it is missing. Raises as `SqliteFile`, and `UsageError` for a missing file that
    is only read.
    """

    def __init__(self, path: Path, *, write: bool = True) -> None:
        if not write and not path.exists():
            raise UsageError(
                f"there are no votes in {str(path)!r}",
                code="file-not-found",
                fix="correct the path, or vote: midstream lessons vote TEXT against",
            )
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
            votes = [_VOTE.validate_json(text) for (text,) in found]
        except ValidationError as error:
            raise self.unusable(error) from error
        return tuple(vote for vote in votes if vote.value != "none")


def read_votes(path: Path) -> tuple[Vote, ...]:
    """The votes in a file that count; raises as `VoteFile`."""
    with closing(VoteFile(path, write=False)) as file:
        return file.counted()


def digest(votes: Iterable[Vote]) -> str:
    """A short hash of items and values, equal for votes that decide alike, in any order."""
    text = json.dumps(sorted((vote.item, vote.value) for vote in votes))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class VoteDecision:
    """The decision about a text, from votes that count and a symmetric `similarity` in [0, 1]; `NEAR` or more is near.

    It depends on neither the order of the votes nor the time.
    """

    votes: Sequence[Vote]
    similarity: Callable[[str, str], float]
    near: float = NEAR

    def refusal(self, text: str) -> str | None:
        """Return why a text is held back: the three nearest votes against it, nearest first; None where it passes."""
        against, favor = self._nearest(text, "against"), self._nearest(text, "for")
        if len(against) < NEAREST or (len(favor) == NEAREST and _total(favor) >= _total(against)):
            return None
        shown = ", ".join(f"{shorten(vote.text, _SHOWN)!r} ({value:.2f})" for value, vote in against)
        return f"{HELD_BACK}: {shown}"

    def _nearest(self, text: str, value: str) -> list[tuple[float, Vote]]:
        """At most three near votes of one side with their similarities, the nearest first."""
        measured = [(self.similarity(text, vote.text), vote) for vote in self.votes if vote.value == value]
        near = [(similarity, vote) for similarity, vote in measured if similarity >= self.near]
        return nsmallest(NEAREST, near, key=lambda found: (-found[0], found[1].item))


def _total(nearest: Sequence[tuple[float, Vote]]) -> float:
    return sum(similarity for similarity, _ in nearest)


class FilteredAgent:
    """An agent whose answers pass the filter (`agent.filter`).

    An answer that is held back becomes None, as if the agent had given none, with `stop_reason="filtered"` and the
    reason in `Trajectory.held_back`; `Trajectory.final` keeps what was written, and a reward that the agent gave is
    dropped. Votes are read when this object is made. Raises as `read_votes`.
    """

    def __init__(self, agent: Agent, config: FeedbackConfig) -> None:
        self.agent, self.config, self.name = agent, config, agent.name
        self.votes = read_votes(config.votes)
        self._vectors = NO_VECTORS  # of the votes
        self._making_vectors = asyncio.Lock()

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run once and filter the answer; where its embedding fails, the run ended in an error."""
        found = await self.agent.run(task, context)
        if found.status != "ok" or not found.answer or not self.votes:
            return found
        similarity: Callable[[str, str], float] = ngram_similarity
        if self.config.embedding is not None:
            try:
                # The vectors are made once, however many runs are under way.
                async with self._making_vectors:
                    votes = [vote.text for vote in self.votes]
                    self._vectors = (await embedding_similarity(self.config.embedding, votes, self._vectors)).vectors
                similarity = await embedding_similarity(self.config.embedding, [found.answer], self._vectors)
            except EngineError as failure:
                error = ErrorInfo(type=type(failure).__name__, message=str(failure), retryable=failure.retryable)
                return found.model_copy(update={"status": "error", "stop_reason": "error", "error": error})
        reason = VoteDecision(votes=self.votes, similarity=similarity).refusal(found.answer)
        if reason is None:
            return found
        final = found.final or found.answer
        refused = {"answer": None, "final": final, "held_back": reason, "stop_reason": "filtered", "reward": None}
        return found.model_copy(update=refused)

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()
