"""A run that learns lessons, from the empty lesson set to the last evaluation: start reading here.

    evaluate "no lessons"
    -> per update: batch -> rollouts -> semantic advantage -> operations -> gate -> lesson set, record, version
    -> evaluate "with lessons"

Everything random derives from (seed, purpose, update), and everything that was paid for is in the ledger until its
update is recorded. So a run that was killed and resumed ends with the same lesson set as one that was not, and repeats
only the rollouts and requests that were under way. Its updates never change a model's weights (a tiny planner may be
warm-started before them).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from midstream.core.engine import Engine
from midstream.core.errors import BudgetError
from midstream.core.events import BudgetSpent, EvaluationFinished, Listener, Phase, RunStarted, TrajectoriesFinished
from midstream.core.metrics import malformed_example
from midstream.core.task import Task
from midstream.core.texts import NO_LESSONS, TEXTS, Text
from midstream.evaluation.leakage import record_learned
from midstream.evaluation.run import MakeEnvironment, every_set
from midstream.evaluation.session import JournalStore, Session, evaluate_set
from midstream.evaluation.settings import EvaluationConfig, SetConfig, sampling_name
from midstream.lessons.approval import apply, read_approvals
from midstream.lessons.commit import Committer, UpdateRecord, read_updates
from midstream.lessons.feedback import required
from midstream.lessons.lesson_set import LessonSet, render_modules
from midstream.lessons.proposer import Proposer
from midstream.lessons.runner import counter
from midstream.lessons.settings import LessonsConfig
from midstream.lessons.update import LessonLearner
from midstream.runs import RunDirectory
from midstream.runs.budget import HELD_BACK, Budget

WITHOUT, WITH = "no lessons", "with lessons"
Prepare = Callable[[RunDirectory, Callable[[str], None]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class LessonsParts:
    """Parts that a session needs, as built from a recipe.

    `validation` are the tasks of `validation_set`, which the gate tests on. `engines` are keyed by the reflector's
    roles. `start` is the first lesson set, `identity` names the agent. `prepare` restores the planner's weights at the
    run's start, where they are made in process.
    """

    seed: int
    tasks: Sequence[Task]
    validation: Sequence[Task]
    validation_set: SetConfig
    set_tasks: Callable[[SetConfig], list[Task]]
    make_environment: MakeEnvironment
    engines: Mapping[str, Engine]
    proposers: Mapping[str, Proposer]
    start: LessonSet
    identity: str
    budget: Budget
    prepare: Prepare | None
    lessons: LessonsConfig
    evaluation: EvaluationConfig


class LessonsSession(Session):
    """One lesson run in one run directory. The caller closes the parts."""

    def __init__(self, parts: LessonsParts, run: RunDirectory, listener: Listener, *, retests: bool = False) -> None:
        self.parts, self.run_directory, self.listener, self.budget = parts, run, listener, parts.budget
        feedback = required()(parts.lessons.feedback, run) if parts.lessons.feedback else None
        self.committer = Committer(run, report=self.note, committed=feedback.committed if feedback else None)
        self.store = JournalStore(run.results_path, report=self.note)
        self.updates: list[UpdateRecord] = []
        self.most_updates = parts.lessons.most_updates(parts.budget.limits)
        self.lessons = LessonLearner(
            config=parts.lessons,
            tasks=parts.tasks,
            validation=parts.validation,
            environment=parts.make_environment(),
            gate_environment=parts.make_environment(chosen=parts.validation_set),
            engines=parts.engines,
            proposers=parts.proposers,
            ledger=self.committer.ledger,
            feedback=feedback,
            seed=parts.seed,
            identity=parts.identity,
            budget=self.budget,
            report=self._report,
            retests=retests,
        )
        for runner in (self.lessons.runner, self.lessons.gate_runner):
            runner.on_done = lambda scope, ended: listener(TrajectoriesFinished(ended, scope))

    def close(self) -> None:
        """Close ledger and journal."""
        self.committer.ledger.close()
        self.store.close()

    def restore(self) -> None:
        """Complete what a crash left half done, and read the updates."""
        self.committer.recover()
        record_learned(self.run_directory, "lessons", self.parts.tasks)
        record_learned(self.run_directory, "gate", self.parts.validation)
        if self.committer.history.current() is None:
            self.committer.history.add(self.parts.start, by="start")
        self.updates = read_updates(self.run_directory)

    async def begin(self) -> range:
        """Restore the run, and evaluate without lessons; returns the updates that are left."""
        run = self.run_directory
        self.restore()
        self.store.retain(lambda name, failed: not failed)
        recipe, done, limits = run.info().recipe_name, len(self.updates), self.budget.limits.limits
        self.listener(
            RunStarted(recipe=recipe, directory=str(run.root), total=self.most_updates, done=done, limits=limits)
        )
        for record in self.updates:
            self.listener(record.event)
        self._warn_of_limit()
        if self.parts.prepare is not None:
            await self.parts.prepare(run, lambda text: self.listener(Phase(text)))
        if self.parts.evaluation.at == "both":
            await self._evaluate(WITHOUT, 0)
            # The last evaluation must fit into the budget, too.
            self.budget.hold_back("evaluation 0")
        return range(len(self.updates) + 1, self.most_updates + 1)

    def at_limit(self, error: BudgetError) -> str:
        """Finish with what was learned, and say how the run continues."""
        fix = f"midstream resume {shlex.quote(str(self.run_directory.root))} {error.fix}"
        return super().at_limit(BudgetError(error.what, code=error.code, fix=fix))

    def _warn_of_limit(self) -> None:
        """Warn where the limit on rollouts has no room for the first update: the run would learn nothing."""
        lessons, evaluation, limit = self.parts.lessons, self.parts.evaluation, self.budget.limits.rollouts
        if limit is None or self.updates or lessons.lessons_from != "rollouts":
            return
        evaluated = 0
        if evaluation.at == "both":
            tasks = sum(len(self.parts.set_tasks(chosen)) for chosen in evaluation.sets)
            evaluated = tasks * len(evaluation.temperatures) * evaluation.trials
        held_back = math.ceil(evaluated * HELD_BACK)
        update = min(lessons.batch_size, lessons.tasks) * lessons.group_size
        update += lessons.search_rollouts * lessons.searching
        if (needed := evaluated + update + held_back) > limit:
            self.note(
                f"a budget of {limit:,} rollouts has no room for the first update: the evaluations take "
                f"{evaluated:,} and up to {held_back:,}, the update {update:,} and what its gate takes; "
                f'--budget "{needed} rollouts" has'
            )

    def reason_to_stop(self) -> str:
        """Return why no further update is made: the limit on updates."""
        planned = self.parts.lessons.updates
        if len(self.updates) < self.most_updates or self.most_updates == planned:
            return ""
        return f"{self.most_updates} of {planned} updates are allowed (budget.updates)"

    async def step(self, step: int) -> None:
        """Make one update of the newest lesson set, and commit it."""
        # An interrupted update keeps the lessons that its rollouts had.
        if self.committer.ledger.empty:
            apply(self.run_directory)
        before, said = self.committer.history.get(), read_approvals(self.run_directory)
        pending, fresh = self.updates[-1].pending if self.updates else (), self.committer.ledger.empty
        made = await self.lessons.update(step, before.lesson_set, pending, before.number + 1, said)
        self.committer.commit(made)
        # An evaluation that was interrupted after an earlier update is not continued.
        self.store.retain(lambda name, failed: False)
        self.listener(made.record.event)
        self.updates.append(made.record)
        marked = [Text.marked.get(place.removeprefix(TEXTS)) for place in self.parts.lessons.modules]
        for unread in (each for each in marked if fresh and each is not None and not each.read):
            self.note(f"no run has read the text {unread.name!r}: read it inside the agent's function, in its thread")
        if (why := made.record.no_contrast) and (step == 1 or made.record.tool_use.unreadable):
            example = malformed_example(made.trajectories, self.run_directory.root)
            self.note(f"update {step} has nothing to learn from: {why}.{example}")

    async def finish(self) -> None:
        """Evaluate with the newest lesson set, unless there was no update."""
        self.budget.release()
        self.take_approvals()
        if self.updates and self.parts.evaluation.at != "none":
            await self._evaluate(WITH, len(self.updates))
        # What was approved meanwhile.
        apply(self.run_directory)

    def take_approvals(self) -> None:
        """Apply what was approved, and say what waits."""
        apply(self.run_directory)
        if count := len(read_approvals(self.run_directory).waiting):
            words = "1 change waits" if count == 1 else f"{count} changes wait"
            self.note(f"{words} for a person: midstream lessons waiting {shlex.quote(str(self.run_directory.root))}")

    async def _evaluate(self, policy: str, step: int) -> None:
        """Evaluate every set at every temperature, without lessons or with the newest lesson set."""
        parts, run = self.parts, self.run_directory
        self.budget.phase = f"evaluation {step}"
        lessons = render_modules(self.committer.history.get().lesson_set) if policy == WITH else NO_LESSONS
        for work in every_set(
            parts.evaluation, parts.set_tasks, parts.make_environment, policy=policy, seed=parts.seed, step=step
        ):
            work = replace(work, environment=replace(work.environment, lessons=lessons))
            found = {(result.set_name, result.sampling, result.step): result for result in run.evaluations.read()}
            first = found.get((*work.key[:2], 0))
            if not lessons and first is not None and work.key not in found:
                # Nothing was learned, so this is the agent of the first evaluation, whose numbers hold.
                run.trajectories.write(work.name, run.trajectories.open(replace(work, step=0).name))
                result = first.model_copy(update={"policy": policy, "step": step})
                run.evaluations.append(result)
                self.listener(EvaluationFinished(result))
                continue
            what = f"evaluating {work.chosen.name}, {sampling_name(work.temperature)}:"
            count = counter(self._report, what, len(self.store.done(work)), len(work.tasks) * work.trials)
            await evaluate_set(run, work, self.store, self.listener, on_done=count)

    def _report(self, text: str) -> None:
        self.listener(Phase(text))
        self.listener(BudgetSpent(self.budget.spent()))
