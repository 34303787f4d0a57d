"""A run in context space from the empty library to the last evaluation: the one path to read.

    evaluate "no lessons"
    -> per update: batch -> rollouts -> semantic advantage -> operations -> gate -> library, record, version
    -> evaluate "with lessons"

Everything random derives from (seed, purpose, update), and everything that was paid for is in the ledger until its
update is recorded, so a run that was killed and resumed ends with the same library as one that was not, and makes no
rollout and no request again but those that were under way. The model's weights are never touched.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from midstream.core.errors import BudgetError
from midstream.core.lessons import NO_LESSONS
from midstream.core.protocols import Engine, Request
from midstream.core.trajectory import Call
from midstream.practice.evaluating import Evaluator
from midstream.practice.finishing import Done, Finishing
from midstream.practice.library import render_modules
from midstream.practice.parts import Parts
from midstream.practice.progress import PracticeDisplay
from midstream.practice.records import UpdateRecord, read_updates
from midstream.practice.update import Practice
from midstream.runs import RunDirectory

WITHOUT, WITH = "no lessons", "with lessons"


class Session:
    """One practice run in one run directory. It closes meter and cache; whoever made the parts closes the rest."""

    def __init__(self, parts: Parts, run: RunDirectory, display: PracticeDisplay) -> None:
        self.parts, self.run_directory, self.display, self.meter = parts, run, display, parts.meter
        self.finishing = Finishing(run, cache=parts.cache, report=display.note)
        self.ledger, self.history = self.finishing.ledger, self.finishing.history
        self.replies = 0
        self.evaluator = Evaluator(parts, run, self.ledger, display, self._report)
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
            spent=self.meter.spent,
            begin=self._begin,
            report=self._report,
        )

    async def run(self) -> str:
        """Learn to the end, from where the directory is; whoever made the parts closes them.

        Returns:
            Why the run ended before its last update, "" where it did not.
        """
        self.meter.open(self.run_directory.ledger_dir / "spent.jsonl")
        try:
            return await self._run()
        finally:
            self.ledger.close()
            self.meter.close()
            if self.parts.cache is not None:
                self.parts.cache.close()

    async def _run(self) -> str:
        self.finishing.recover()
        if self.history.current() is None:
            self.history.add(self.parts.start, by="start")
        updates, budget = read_updates(self.run_directory), self.parts.practice.budget
        planned = self.parts.practice.updates
        last = planned if budget.updates is None else min(planned, budget.updates)
        self.display.start(
            self.run_directory.info().recipe_name, last, len(updates) + 1, str(self.run_directory.root), budget
        )
        for record in updates:
            self.display.update(record)
        if self.parts.prepare is not None:
            await self.parts.prepare(self.run_directory, self.display.phase)
        ended = await self._within_budget(self._learn(updates, last))
        self.meter.release()
        if len(updates):
            ended = await self._within_budget(self._evaluate(WITH, len(updates))) or ended
        self.display.finish()
        return ended

    async def _within_budget(self, work: Awaitable[str]) -> str:
        """Do it; what a limit kept from being done is said, and is no error."""
        try:
            return await work
        except BudgetError as error:
            self.display.note(str(error))
            return error.what

    async def _learn(self, updates: list[UpdateRecord], last: int) -> str:
        """Evaluate, then make every update that is left; returns why there were fewer."""
        await self._evaluate(WITHOUT, 0)
        self.meter.hold_back(_phase(0))
        for step in range(len(updates) + 1, last + 1):
            if reason := self._idle(updates):
                self.display.note(reason)
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
        self.display.update(made.record)
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
        self.meter.phase, self.replies = phase, 0

    def _replied(self) -> None:
        self.replies += 1
        self._report(f"reflector: replies {self.replies}")

    def _report(self, text: str) -> None:
        self.display.phase(text)
        self.display.spent(self.meter.spent())


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


def _phase(step: int) -> str:
    return f"evaluation {step}"
