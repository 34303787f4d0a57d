"""The work of runs that evaluate: evaluate a set once, keep each trajectory as it ends, and the order of a run.

    begin or restore -> step ... step -> finish

Training, lessons and `midstream eval` evaluate through `evaluate_set`; both learners are each a `Session`.
"""

from __future__ import annotations

import asyncio
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from midstream.core.agent import lessons_digest
from midstream.core.errors import BudgetError, InfrastructureError, RefusedError, RepeatedError
from midstream.core.events import (
    EvaluationFinished,
    Listener,
    Note,
    RunFinished,
    RunStarted,
    SetStarted,
    TrajectoriesFinished,
)
from midstream.core.metrics import EvaluationResult, malformed_example
from midstream.core.trajectory import Trajectory
from midstream.evaluation.run import SetEvaluation, summary_of
from midstream.evaluation.settings import sampling_name
from midstream.rollout import Ended, Group, OnDone, Place, run_each
from midstream.runs import Journal, RunDirectory, results
from midstream.runs.budget import ended_by_budget, require_within_budget
from midstream.runs.journal import Report, filter_records, warn
from midstream.runs.segments import evaluation_name


class JournalStore:
    """The trajectories of unfinished evaluations, in a journal, so that a resumed run does not repeat them.

    Memory holds the places (task id and trial) of one evaluation.
    """

    def __init__(self, path: Path, report: Report = warn) -> None:
        self.path, self.report = path, report
        self._journal: Journal | None = None  # open while an evaluation is under way
        self._found: tuple[str, dict[Place, int]] | None = None  # an evaluation, and where its lines begin

    def done(self, evaluation: SetEvaluation) -> Collection[Place]:
        """The places whose trajectory is kept."""
        return self._starts(evaluation.name).keys()

    def keep(self, evaluation: SetEvaluation, trajectories: Sequence[Trajectory]) -> None:
        """Keep trajectories that ended just now; they are on disk on return."""
        if self._journal is None:
            self._journal = Journal(self.path, report=self.report)
        results.append(self._journal, evaluation.name, trajectories)
        self._found = None

    def read(self, evaluation: SetEvaluation, places: Iterable[Place]) -> Iterator[Trajectory]:
        """The kept trajectories at `places`, in this order, read one at a time."""
        starts = self._starts(evaluation.name)
        return results.at(self.path, (starts[place] for place in places)) if starts else iter(())

    def forget(self, evaluation: SetEvaluation) -> None:
        """Drop what is kept: the evaluation is written down."""
        self.retain(lambda name, failed: name != evaluation.name)

    def retain(self, wanted: Callable[[str, bool], bool]) -> None:
        """Remove the records for which `wanted` is false; it gets an evaluation's name and whether the run failed."""
        self.close()
        self._found = None
        results.keep(self.path, wanted, self.report)

    def close(self) -> None:
        """Close the file; it opens again when something is kept."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _starts(self, name: str) -> dict[Place, int]:
        if self._found is None or self._found[0] != name:
            found = {result.place: result.start for result in results.read(self.path) if result.set == name}
            self._found = name, found
        return self._found[1]


async def evaluate_set(
    run: RunDirectory,
    evaluation: SetEvaluation,
    store: JournalStore,
    listener: Listener = lambda event: None,
    *,
    on_done: OnDone = lambda ended: None,
) -> EvaluationResult | None:
    """Evaluate one set and write its trajectories and numbers to `run`; None if the numbers are there already.

    `store` keeps each trajectory as it ends and supplies what an interrupted attempt kept; then `on_done` receives it.
    `listener` receives trajectories as they end, the numbers, and a warning if every action was malformed.
    Memory holds the trajectories under way, not those that have ended. Raises `InfrastructureError` if every run
    failed: the trajectories are written, the numbers are not, so that a resumed run tries the set again. Raises
    `BudgetError` if a limit ended some: the others are kept in `store`.
    """
    if any((result.set_name, result.sampling, result.step) == evaluation.key for result in run.evaluations.read()):
        # A crash between the two writes below left the trajectories.
        store.forget(evaluation)
        return None

    if evaluation.step is not None:
        shown = lessons_digest(evaluation.environment.lessons)
        kept = (result for result in results.read(store.path) if result.set == evaluation.name)
        # A person may have changed the lessons of a run that learns since an interrupted attempt.
        if any(result.trajectory.lessons != shown for result in kept):
            store.forget(evaluation)
    refused: list[Trajectory] = []

    def keep(ended: Sequence[Ended]) -> None:
        refused.extend(trajectory for _, trajectory in ended if ended_by_budget(trajectory))
        trajectories = [trajectory for _, trajectory in ended if not ended_by_budget(trajectory)]
        store.keep(evaluation, trajectories)
        on_done(trajectories)
        listener(TrajectoriesFinished(trajectories, evaluation_name(evaluation.name)))

    summary, tasks, trials = summary_of(evaluation), evaluation.tasks, evaluation.trials
    await run_each(
        evaluation.environment,
        tasks,
        group_size=trials,
        seed=evaluation.seed,
        skip=store.done(evaluation),
        on_ended=keep,
    )
    require_within_budget(refused)
    ordered = store.read(evaluation, ((task.id, trial) for task in tasks for trial in range(trials)))
    with run.trajectories.writing(evaluation.name) as write:
        for task in tasks:
            group = Group(task=task, trajectories=tuple(islice(ordered, trials)))
            for trajectory in group.trajectories:
                write(trajectory)
            summary.add(group)
            # Here Ctrl-C takes effect.
            await asyncio.sleep(0)
    if summary.first_error is not None and summary.errors == summary.trajectories:
        store.forget(evaluation)
        raise InfrastructureError(
            f"all {summary.errors} runs on {evaluation.chosen.name} {sampling_name(evaluation.temperature)} ended "
            f"without a result; the first:\n{summary.first_error.message}",
            code="all-rollouts-failed",
            fix="fix that",
        )
    result = summary.result()
    run.evaluations.append(result)
    store.forget(evaluation)
    if result.tool_use.unreadable and summary.first_malformed is not None:
        example = malformed_example([summary.first_malformed], run.root)
        listener(Note(f"{evaluation.name}: {result.tool_use.unreadable}.{example}"))
    listener(EvaluationFinished(result))
    return result


# --- an evaluation in its own directory -------------------------------------------------------------------------------


def task_digests(evaluations: Sequence[SetEvaluation]) -> dict[str, str]:
    """Return how many tasks each set has, and their digest, by the set's name."""
    digests: dict[str, str] = {}
    for part in evaluations:
        text = "\n".join(task.model_dump_json() for task in part.tasks).encode("utf-8", "surrogatepass")
        digests[part.chosen.name] = f"{len(part.tasks)} tasks {blake2b(text, digest_size=12).hexdigest()}"
    return digests


async def evaluate_sets(
    run: RunDirectory, evaluations: Sequence[SetEvaluation], store: JournalStore, listener: Listener, *, again: bool
) -> None:
    """Run every set that has no numbers yet; one that ends without any result does not keep the others from running.

    With `again`, what ended in an infrastructure error runs again, also in sets that have numbers.
    """
    written = {(result.set_name, result.sampling) for result in run.evaluations.read()}
    if written:
        # A crash may have left trajectories in the journal of sets whose numbers are written.
        names = {part.name for part in evaluations if part.key[:2] in written}
        store.retain(lambda name, failed: name not in names)
    if again:
        written -= reopen(run, evaluations, store)
    sizes = {part.name: len(part.tasks) * part.trials for part in evaluations}
    done = sum(sizes[part.name] for part in evaluations if part.key[:2] in written)
    total, directory = sum(sizes.values()), str(run.root)
    recipe = run.info().recipe_name
    listener(RunStarted(recipe=recipe, directory=directory, total=total, done=done, sets=len(evaluations)))
    lost: list[str] = []
    for place, part in enumerate(evaluations, start=1):
        if part.key[:2] in written:
            continue
        done = store.done(part)
        listener(SetStarted(place=place, name=" ".join(part.key[:2]), total=sizes[part.name], done=len(done)))
        for trajectory in store.read(part, done):
            listener(TrajectoriesFinished([trajectory], evaluation_name(part.name), earlier=True))
            # Here Ctrl-C takes effect.
            await asyncio.sleep(0)
        try:
            await evaluate_set(run, part, store, listener)
        except (RefusedError, BudgetError):
            raise
        except RepeatedError:
            # A resumed run makes them again, with a component that was corrected.
            store.retain(lambda name, failed: not failed)
            raise
        except InfrastructureError as error:
            lost.append(error.what)
            listener(Note(error.what))
    if lost:
        others = f"; the other sets: midstream show {shlex.quote(directory)}" if len(lost) < len(evaluations) else ""
        raise InfrastructureError("\n".join(lost), code="no-results", fix=f"fix that{others}")
    listener(RunFinished())


def has_results(run: RunDirectory) -> bool:
    """Return whether an evaluation has scored an answer."""
    return bool(list(run.evaluations.read())) or any(not result.failed for result in results.read(run.results_path))


def reopen(run: RunDirectory, evaluations: Sequence[SetEvaluation], store: JournalStore) -> set[tuple[str, str]]:
    """Forget what ended in an infrastructure error, also in sets that are done, whose keys are returned.

    What has a result is in the journal before the set's numbers go: a crash in between loses nothing.
    """
    store.retain(lambda name, failed: not failed)
    broken = {(result.set_name, result.sampling) for result in run.evaluations.read() if result.errors}
    for part in evaluations:
        if part.key[:2] in broken:
            for trajectory in run.trajectories.open(part.name):
                if trajectory.status == "ok":
                    store.keep(part, [trajectory])
    filter_records(run.evaluations.path, lambda record: (record["set_name"], record["sampling"]) not in broken)
    return broken


# --- training and lessons ---------------------------------------------------------------------------------------------


class Session(ABC):
    """The order of a run that changes an agent step by step and evaluates it before and after.

    A subclass says what its steps are; everything it does must be safe to repeat after a kill.
    """

    listener: Listener

    @abstractmethod
    async def begin(self) -> range:
        """Restore the run, or prepare it and evaluate for the first time; returns the steps that are left."""

    @abstractmethod
    async def step(self, step: int) -> None:
        """Make one step and write it down."""

    @abstractmethod
    async def finish(self) -> None:
        """Export what was learned and evaluate for the last time."""

    def reason_to_stop(self) -> str:
        """Return why no further step is made, "" to continue; asked before every step and after the last."""
        return ""

    def at_limit(self, error: BudgetError) -> str:
        """Handle a limit: by default it finishes with what it has; returns why it ended."""
        self.note(str(error))
        return error.what

    def interrupted(self) -> None:  # noqa: B027
        """Save what a run that is ended in the middle would lose."""

    @abstractmethod
    def close(self) -> None:
        """Close the session's files."""

    def note(self, text: str) -> None:
        """Emit a `Note`."""
        self.listener(Note(text))

    async def run(self) -> str:
        """Run to the end from where the directory is; returns why it ended before its last step, "" if it did not.

        A spent budget ends the steps, or the last evaluation; `at_limit` says what follows.
        """
        try:
            return await self._to_the_end()
        except asyncio.CancelledError:
            # This is Ctrl-C or SIGTERM.
            self.interrupted()
            raise
        finally:
            self.close()

    async def _to_the_end(self) -> str:
        try:
            ended = ""
            for step in await self.begin():
                if ended := self.reason_to_stop():
                    break
                await self.step(step)
            ended = ended or self.reason_to_stop()
        except BudgetError as error:
            ended = self.at_limit(error)
        try:
            await self.finish()
        except BudgetError as error:
            ended = self.at_limit(error)
        self.listener(RunFinished())
        return ended
