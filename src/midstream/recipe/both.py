"""A run that learns weights and texts by turns: start reading here.

    T steps of weights, with the lesson set as it is in every prompt -> a checkpoint
    -> one update of the lesson set at these weights, which also tests whether one of its lessons is still needed
    -> again, until steps and updates are spent
    -> evaluate with weights and lessons, and with the lessons taken away

Weights are slow and texts fast: a text that helps the model of today may be in its weights tomorrow. Both sessions are
those of their own runs (`training/session.py`, `lessons/session.py`), in one run directory. A step has the lesson set
that the updates before it left, also where it is repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from midstream.core.errors import BudgetError
from midstream.core.events import Listener
from midstream.core.texts import NO_LESSONS, Lessons
from midstream.evaluation.run import every_set
from midstream.evaluation.session import Session, evaluate_set
from midstream.lessons.lesson_set import render_modules
from midstream.lessons.session import LessonsParts, LessonsSession
from midstream.rollout import Environment
from midstream.runs import RunDirectory
from midstream.training.session import Parts, TrainingSession

TAKEN_AWAY = "lessons taken away"


class BothSession(Session):
    """One run of both; `identify` names the agent with the checkpoint of a digest (`lesson_set.identity`)."""

    def __init__(
        self,
        weights: Parts,
        texts: LessonsParts,
        identify: Callable[[str], str],
        run: RunDirectory,
        listener: Listener,
    ) -> None:
        self.run_directory, self.listener, self.identify = run, listener, identify
        self.finishing = False
        without = texts.evaluation.model_copy(update={"at": "none"})

        def with_lessons(*arguments: Any, **named: Any) -> Environment:
            shown = self.lessons_at(max(1, self.weights.done))
            return replace(weights.make_environment(*arguments, **named), lessons=shown)

        self.texts = LessonsSession(replace(texts, evaluation=without, prepare=None), run, listener, retests=True)
        self.weights = TrainingSession(weights, run, listener)
        self.weights.parts = replace(weights, make_environment=with_lessons)
        self.rounds, steps = self.texts.most_updates, weights.training.steps
        self.per_round = -(-steps // self.rounds)

    async def begin(self) -> range:
        """Restore both, and evaluate for the first time; returns the turns that are left: steps and updates."""
        self.texts.restore()
        await self.weights.begin()
        done, updates = self.weights.done, len(self.texts.updates)
        # An older checkpoint than the newest update's repeats steps, and no update.
        turns = done + min(updates, done // self.per_round)
        return range(turns + 1, self.rounds * (self.per_round + 1) + 1)

    async def step(self, step: int) -> None:
        """Make one turn: a step of weights, or, after `per_round` of them, an update of the lesson set."""
        round_, place = divmod(step - 1, self.per_round + 1)
        if place < self.per_round:
            number = round_ * self.per_round + place + 1
            # The last round may be shorter.
            if number <= self.weights.parts.training.steps:
                algorithm = self.weights.algorithm
                algorithm.environment = replace(algorithm.environment, lessons=self.lessons_at(number))
                await self.weights.step(number)
        elif round_ == len(self.texts.updates):
            self.weights.save_last()
            await self.weights.parts.publish(self.weights.done)
            self.texts.lessons.identity = self.identify(self.run_directory.checkpoints.digest(self.weights.done))
            await self.texts.step(round_ + 1)

    def lessons_at(self, step: int) -> Lessons:
        """The texts that a step of weights has in its prompts: those that the updates of the rounds before it left."""
        history, earlier = self.texts.committer.history, (step - 1) // self.per_round
        version = history.get()
        if not self.finishing and earlier < len(self.texts.updates):
            after = history.get(self.texts.updates[earlier].version)
            made = after.by == "learning" and after.update == earlier + 1
            version = history.get(after.parent) if made else after
        return render_modules(version.lesson_set)

    def at_limit(self, error: BudgetError) -> str:
        """Save a checkpoint, from which a resumed run continues, and raise `error`."""
        return self.weights.at_limit(error)

    def interrupted(self) -> None:
        """Save a checkpoint where one takes no other process."""
        self.weights.interrupted()

    def close(self) -> None:
        """Close the files of both."""
        self.texts.close()
        self.weights.close()

    async def finish(self) -> None:
        """Evaluate the weights without lessons, export them, and evaluate them with the newest lesson set."""
        self.finishing = True
        self.texts.take_approvals()
        parts = self.weights.parts
        if self.lessons_at(1) and parts.evaluation.at != "none":
            await parts.publish(self.weights.done)
            # Without a step, and first: the newest results are those of the agent as it was left.
            for work in every_set(
                parts.evaluation, parts.set_tasks, parts.make_environment, policy=TAKEN_AWAY, seed=parts.seed
            ):
                work = replace(work, environment=replace(work.environment, lessons=NO_LESSONS))
                await evaluate_set(self.run_directory, work, self.weights.store, self.listener)
        await self.weights.finish()
