"""What is wired for a practice run: the objects that its session needs, made by whoever reads the recipe.

The evaluations of a practice run, before and after: each trajectory kept as it ends, each result written once.

A run in context space from the empty library to the last evaluation: the one path to read.

    evaluate "no lessons"
    -> per update: batch -> rollouts -> semantic advantage -> operations -> gate -> library, record, version
    -> evaluate "with lessons"

Everything random derives from (seed, purpose, update), and everything that was paid for is in the ledger until its
update is recorded, so a run that was killed and resumed ends with the same library as one that was not, and makes no
rollout and no request again but those that were under way. The model's weights are never touched.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from midstream import evaluation
from midstream.core.errors import BudgetError, InfrastructureError
from midstream.core.events import (
    BudgetSpent,
    EvaluationFinished,
    Listener,
    Note,
    Phase,
    RunFinished,
    RunStarted,
    UpdateFinished,
)
from midstream.core.lessons import NO_LESSONS, Lessons
from midstream.core.metrics import EvaluationResult
from midstream.core.protocols import Engine, Request
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.practice.budget import Budget
from midstream.practice.commit import Committer, Done, UpdateRecord, fates, left_out, proposed, read_updates
from midstream.practice.ledger import Cache, Ledger
from midstream.practice.library import Library, render_modules
from midstream.practice.runner import Report, Work, require_within_budget
from midstream.practice.settings import PracticeConfig
from midstream.practice.update import Practice
from midstream.rollout import Environment
from midstream.runs import RunDirectory

Prepare = Callable[[RunDirectory, Callable[[str], None]], Awaitable[None]]
WITHOUT, WITH = "no lessons", "with lessons"


class MakeEnvironment(Protocol):
    """Builds an environment with some settings changed; its engines and its agent go through the budget."""

    def __call__(self, *, temperature: float | None = None, chosen: evaluation.SetConfig | None = None) -> Environment:
        """None leaves the recipe's own; `chosen` is the set that is evaluated."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is wired for a run.

    `validation` are the tasks of `validation_set`, which the gate tests on. `engines` go by the reflector's roles.
    `start` is the library to begin with, `identity` names the agent. `prepare` makes the planner's weights what they
    were at the run's start, where they are made in process.
    """

    seed: int
    tasks: Sequence[Task]
    validation: Sequence[Task]
    validation_set: evaluation.SetConfig
    set_tasks: Callable[[evaluation.SetConfig], list[Task]]
    make_environment: MakeEnvironment
    engines: Mapping[str, Engine]
    start: Library
    identity: str
    budget: Budget
    cache: Cache | None
    prepare: Prepare | None
    practice: PracticeConfig
    evaluation: evaluation.Config


class Evaluator:
    """Evaluates the agent of `parts` on the recipe's sets. `report` gets its phase."""

    def __init__(self, parts: Parts, run: RunDirectory, ledger: Ledger, listener: Listener, report: Report) -> None:
        self.parts, self.run, self.ledger, self.listener, self.report = parts, run, ledger, listener, report

    async def sets(self, policy: str, step: int, lessons: Lessons) -> None:
        """Evaluate every set at every temperature.

        Raises:
            BudgetError: a run could not be paid for; what has ended is in the ledger.
            InfrastructureError: no run of a set has a result.
        """
        for chosen in self.parts.evaluation.sets:
            for temperature in self.parts.evaluation.temperatures:
                await self._one(chosen, temperature, policy, step, lessons)

    async def _one(
        self, chosen: evaluation.SetConfig, temperature: float, policy: str, step: int, lessons: Lessons
    ) -> None:
        """Evaluate and write down, unless this very evaluation was written before.

        Where no lesson was learned the agent is the one of the first evaluation, whose numbers hold: nothing is asked.
        """
        sampling, run = evaluation.sampling_name(temperature), self.run
        mine = [one for one in run.evaluations.read() if (one.set_name, one.sampling) == (chosen.name, sampling)]
        written = {one.step: one for one in mine}
        name = evaluation.result_name(chosen.name, sampling, step)
        if step in written:
            self.ledger.forget(_scope(name))  # what a crash between the two left
            return
        if not lessons and 0 in written:
            trajectories = run.trajectories.read_evaluation(evaluation.result_name(chosen.name, sampling, 0))
            result = written[0].model_copy(update={"policy": policy, "step": step})
        else:
            result, trajectories = await self._evaluated(chosen, temperature, policy, step, lessons)
        run.trajectories.write_evaluation(name, trajectories)
        run.evaluations.append(result)
        self.ledger.forget(_scope(name))
        self.listener(EvaluationFinished(result))

    async def _evaluated(
        self, chosen: evaluation.SetConfig, temperature: float, policy: str, step: int, lessons: Lessons
    ) -> tuple[EvaluationResult, list[Trajectory]]:
        parts, sampling = self.parts, evaluation.sampling_name(temperature)
        tasks, trials = parts.set_tasks(chosen), parts.evaluation.trials
        work = Work(
            scope=_scope(evaluation.result_name(chosen.name, sampling, step)),
            purpose=f"evaluation {sampling} {chosen.model_dump_json()}",
            tasks=tasks,
            group_size=trials,
            seed=derive_seed(parts.seed, "evaluation", chosen.name),
            lessons=dict.fromkeys((task.id for task in tasks), lessons),
        )
        kept = work.kept(self.ledger, parts.cache)
        done = len(kept)

        def on_done(ended: Sequence[Trajectory]) -> None:
            nonlocal done
            done += len(ended)
            work.keep(ended, self.ledger, parts.cache)
            self.report(f"evaluating {chosen.name}, {sampling}: {done}/{len(tasks) * trials}")

        self.report(f"evaluating {chosen.name}, {sampling}")
        result, trajectories = await evaluation.evaluate(
            replace(parts.make_environment(temperature=temperature, chosen=chosen), lessons=lessons),
            tasks,
            policy=policy,
            chosen=chosen,
            temperature=temperature,
            seed=work.seed,
            step=step,
            trials=trials,
            kept=kept,
            on_done=on_done,
        )
        require_within_budget(trajectories)
        errors = [one.error for one in trajectories if one.error]
        if errors and len(errors) == len(trajectories):
            raise InfrastructureError(
                f"all {len(errors)} runs on {chosen.name} ended without a result; the first:\n{errors[0].message}",
                fix=f"see to that, then: midstream resume {self.run.root}",
            )
        return result, trajectories


def _scope(name: str) -> str:
    return f"evaluation-{name}"


class Session:
    """One practice run in one run directory. It closes budget and cache; whoever made the parts closes the rest."""

    def __init__(self, parts: Parts, run: RunDirectory, listener: Listener) -> None:
        self.parts, self.run_directory, self.listener, self.budget = parts, run, listener, parts.budget
        self.finishing = Committer(run, cache=parts.cache, report=lambda text: listener(Note(text)))
        self.ledger, self.history = self.finishing.ledger, self.finishing.history
        self.replies = 0
        self.evaluator = Evaluator(parts, run, self.ledger, listener, self._report)
        self.practice = Practice(
            config=parts.practice,
            tasks=parts.tasks,
            validation=parts.validation,
            environment=parts.make_environment(),
            trial=parts.make_environment(chosen=parts.validation_set),
            engines={role: Told(engine, self._replied) for role, engine in parts.engines.items()},
            ledger=self.ledger,
            seed=parts.seed,
            identity=parts.identity,
            cache=parts.cache,
            spent=self.budget.spent,
            begin=self._begin,
            report=self._report,
        )

    async def run(self) -> str:
        """Learn to the end, from where the directory is; whoever made the parts closes them.

        Returns:
            Why the run ended before its last update, "" where it did not.
        """
        self.budget.open(self.run_directory.ledger_dir / "spent.jsonl")
        try:
            return await self._run()
        finally:
            self.ledger.close()
            self.budget.close()
            if self.parts.cache is not None:
                self.parts.cache.close()

    async def _run(self) -> str:
        self.finishing.recover()
        if self.history.current() is None:
            self.history.add(self.parts.start, by="start")
        updates, budget = read_updates(self.run_directory), self.parts.practice.budget
        planned = self.parts.practice.updates
        last = planned if budget.updates is None else min(planned, budget.updates)
        self.listener(
            RunStarted(
                recipe=self.run_directory.info().recipe_name,
                directory=str(self.run_directory.root),
                total=last,
                done=len(updates),
                limits=budget.limits,
            )
        )
        for record in updates:
            self.listener(_finished(record))
        if self.parts.prepare is not None:
            await self.parts.prepare(self.run_directory, lambda text: self.listener(Phase(text)))
        ended = await self._within_budget(self._learn(updates, last))
        self.budget.release()
        if len(updates):
            ended = await self._within_budget(self._evaluate(WITH, len(updates))) or ended
        self.listener(RunFinished())
        return ended

    async def _within_budget(self, work: Awaitable[str]) -> str:
        """Do it; what a limit kept from being done is said, and is no error."""
        try:
            return await work
        except BudgetError as error:
            self.listener(Note(str(error)))
            return error.what

    async def _learn(self, updates: list[UpdateRecord], last: int) -> str:
        """Evaluate, then make every update that is left; returns why there were fewer."""
        await self._evaluate(WITHOUT, 0)
        self.budget.hold_back(_phase(0))
        for step in range(len(updates) + 1, last + 1):
            if reason := self._idle(updates):
                self.listener(Note(reason))
                return reason
            updates.append(await self._update(step, updates))
        planned = self.parts.practice.updates
        return "" if last == planned else f"{last} of {planned} updates were to be made (practice.budget.updates)"

    async def _update(self, step: int, updates: Sequence[UpdateRecord]) -> UpdateRecord:
        """One update, from the newest library, to the disk."""
        began, before = time.monotonic(), self.finishing.newest()
        pending = [one.operation for one in updates[-1].changes if one.fate == "pending"] if updates else []
        made = await self.practice.update(step, before.library, pending, before.number + 1)
        done = Done(
            before=before.number,
            library=made.library,
            operations=made.accepted,
            record=made.record,
            duration_s=time.monotonic() - began,
        )
        self.finishing.finish(done)
        self.listener(_finished(made.record))
        return made.record

    async def _evaluate(self, policy: str, step: int) -> str:
        """Evaluate without lessons, or with the newest library."""
        self._begin(_phase(step))
        lessons = render_modules(self.finishing.newest().library) if policy == WITH else NO_LESSONS
        await self.evaluator.sets(policy, step, lessons)
        return ""

    def _idle(self, updates: Sequence[UpdateRecord]) -> str:
        """Whether patience is at its end."""
        patience = self.parts.practice.patience
        latest = updates[-patience:] if patience else ()
        accepted = [one for record in latest for one in record.changes if one.fate == "accepted"]
        if not patience or len(latest) < patience or accepted:
            return ""
        return f"no change was accepted in the last {patience} updates (practice.patience)"

    def _begin(self, phase: str) -> None:
        self.budget.phase, self.replies = phase, 0

    def _replied(self) -> None:
        self.replies += 1
        self._report(f"reflector: replies {self.replies}")

    def _report(self, text: str) -> None:
        self.listener(Phase(text))
        self.listener(BudgetSpent(self.budget.spent()))


class Told:
    """An engine of the reflector that tells of each reply."""

    def __init__(self, engine: Engine, replied: Callable[[], None]) -> None:
        self.engine, self.replied = engine, replied
        self.name, self.token_exact = engine.name, engine.token_exact

    async def sample(self, request: Request) -> Call:
        """The engine's answer."""
        call = await self.engine.sample(request)
        self.replied()
        return call

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()


def _finished(record: UpdateRecord) -> UpdateFinished:
    return UpdateFinished(
        update=record.step,
        reward_mean=record.mean_reward,
        proposed=proposed(record),
        fates=fates(record),
        left_out=left_out(record),
        lessons=record.lessons,
        spent=record.spent,
    )


def _phase(step: int) -> str:
    return f"evaluation {step}"
