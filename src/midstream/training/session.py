"""A training run from its first transcript to its last evaluation: the one path from recipe to result.

    warm start -> copy gate -> evaluate "warm start" -> checkpoint 0
    -> per step: algorithm.step, journal, every so often validate and checkpoint
    -> export weights -> evaluate "trained"

Everything random derives from (seed, purpose, step), and a checkpoint holds all state, so a run that was killed and
resumed writes the same metrics and weights, bit for bit on CPU, as one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream import evaluation
from midstream.core.component import Component
from midstream.core.errors import CheckpointError
from midstream.core.events import EvaluationFinished, Listener, Note, Phase, RunFinished, RunStarted, StepFinished
from midstream.core.metrics import StepMetrics
from midstream.core.protocols import TaskSource
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.engines.local.engine import TransformersLocal
from midstream.runs import RunDirectory
from midstream.training.flow_grpo import FlowGRPO
from midstream.training.learner import LocalLearner
from midstream.training.outcome import StepOutcome
from midstream.training.settings import TrainingConfig, WarmStartConfig
from midstream.training.sharing import sharing_warning
from midstream.training.supervised import MakeEnvironment, SupervisedTraining, warm_start

WARM, TRAINED = "warm start", "trained"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What recipe/build.py wires for a run.

    `student` is the in-process engine whose weights are trained and `role` the module that asks it. `teacher` is the
    table of the module that is imitated where the settings name no other, None where the tasks bring none.
    """

    seed: int
    source: TaskSource
    families: Sequence[str]
    set_tasks: Callable[[evaluation.SetConfig], list[Task]]
    student: TransformersLocal
    learner: LocalLearner
    make_environment: MakeEnvironment
    teacher: Component | None
    publish: Callable[[int], Awaitable[None]]
    warm_start: WarmStartConfig | None
    training: TrainingConfig
    evaluation: evaluation.Config
    role: str = "planner"

    @property
    def tokenizer(self) -> Any:
        """The trained model's."""
        return self.student.tokenizer


class Session:
    """One training run in one run directory; `listener` receives its events."""

    def __init__(self, parts: Parts, run: RunDirectory, listener: Listener) -> None:
        self.parts, self.run_directory, self.listener = parts, run, listener
        self.environment = parts.make_environment()
        self.algorithm = self._algorithm()
        self._warned = False  # of rows that share too little, once a run

    async def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one; whoever made the parts closes them."""
        first = await self._begin()
        steps = self.parts.training.steps
        self.listener(
            RunStarted(
                recipe=self.run_directory.info().recipe_name,
                directory=str(self.run_directory.root),
                total=steps,
                done=first - 1,
            )
        )
        if self.parts.learner.unshared and self.parts.training.algorithm == "flow_grpo":
            reason = self.parts.learner.unshared
            self.listener(Note(f"rows that begin alike are computed whole, each for itself: {reason}"))
        for step in range(first, steps + 1):
            self._record(await self.algorithm.step(step))
            if step % self.parts.training.validate_every == 0 or step == steps:
                await self.parts.publish(step)  # or a served planner would be validated one update late
                await self._evaluate(self.parts.evaluation.validation, 0.0, TRAINED, step)
            if step % self.parts.training.checkpoint_every == 0 or step == steps:
                self._save(step)
        await self._finish(steps)

    def _algorithm(self) -> FlowGRPO | SupervisedTraining:
        parts = self.parts
        if parts.training.algorithm == "supervised":
            return SupervisedTraining(
                config=parts.training,
                learner=parts.learner,
                environment=parts.make_environment(planner=parts.training.supervised.planner or parts.teacher),
                source=parts.source,
                student=parts.student,
                seed=parts.seed,
                report=self._phase,
            )
        return FlowGRPO(
            config=parts.training,
            learner=parts.learner,
            environment=self.environment,
            source=parts.source,
            families=parts.families,
            publish=parts.publish,
            seed=parts.seed,
            role=parts.role,
        )

    async def _begin(self) -> int:
        """Restore the newest good checkpoint, or warm-start; returns the first step to make."""
        loaded = self.run_directory.checkpoints.load_latest(self._load, report=lambda text: self.listener(Note(text)))
        if loaded is not None:
            step, _ = loaded
            self.run_directory.rewind(step)
            self._warned = any(one.warnings for one in self.run_directory.metrics.read())
            return step + 1
        self.run_directory.rewind(-1)
        await self._warm_start()
        await self.parts.publish(0)
        await self._evaluate_sets(WARM, 0)
        await self._evaluate(self.parts.evaluation.validation, 0.0, WARM, 0)
        self._save(0)
        return 1

    async def _warm_start(self) -> None:
        parts, config = self.parts, self.parts.warm_start
        if config is not None:
            await warm_start(
                config,
                learner=parts.learner,
                student=parts.student,
                source=parts.source,
                make_environment=parts.make_environment,
                teacher=parts.teacher,
                validation=parts.set_tasks(parts.evaluation.validation),
                seed=parts.seed if config.seed is None else config.seed,
                report=self._phase,
            )

    def _record(self, outcome: StepOutcome) -> None:
        metrics = self._with_warning(outcome)
        self.run_directory.trajectories.write(metrics.step, outcome.trajectories)
        self.run_directory.metrics.append(metrics)
        self.run_directory.timings.append(outcome.timing)
        self.listener(StepFinished(metrics, outcome.timing))

    def _with_warning(self, outcome: StepOutcome) -> StepMetrics:
        """The step's metrics; the first whose rows share too little says so, on screen too."""
        metrics, parts = outcome.metrics, self.parts
        if self._warned:
            return metrics
        text = sharing_warning(metrics, outcome.trajectories, parts.role, parts.student.codec.decode)
        if text is None:
            return metrics
        self._warned = True
        self.listener(Note(text))
        return metrics.model_copy(update={"warnings": (text,)})

    async def _finish(self, steps: int) -> None:
        self._phase("exporting weights, evaluating")
        self.parts.learner.export_weights(self.run_directory.policy_dir)
        self.parts.tokenizer.save_pretrained(self.run_directory.policy_dir)
        await self.parts.publish(steps)
        await self._evaluate_sets(TRAINED, steps)
        self.listener(RunFinished())

    async def _evaluate_sets(self, policy: str, step: int) -> None:
        for chosen in self.parts.evaluation.sets:
            for temperature in self.parts.evaluation.temperatures:
                await self._evaluate(chosen, temperature, policy, step)

    async def _evaluate(self, chosen: evaluation.SetConfig, temperature: float, policy: str, step: int) -> None:
        """Evaluate and write down, unless this very evaluation was written before a kill."""
        done = {(one.set_name, one.sampling, one.step) for one in self.run_directory.evaluations.read()}
        if (chosen.name, evaluation.sampling_name(temperature), step) in done:
            return
        parts = self.parts
        self._phase(f"evaluating {chosen.name}, {evaluation.sampling_name(temperature)}")
        result, trajectories = await evaluation.evaluate(
            parts.make_environment(temperature=temperature, chosen=chosen),
            parts.set_tasks(chosen),
            policy=policy,
            chosen=chosen,
            temperature=temperature,
            seed=derive_seed(parts.seed, "evaluation", chosen.name),
            step=step,
            trials=1 if chosen == parts.evaluation.validation else parts.evaluation.trials,
        )
        name = evaluation.result_name(chosen.name, evaluation.sampling_name(temperature), step)
        self.run_directory.trajectories.write_evaluation(name, trajectories)
        self.run_directory.evaluations.append(result)
        self.listener(EvaluationFinished(result))

    def _phase(self, text: str) -> None:
        self.listener(Phase(text))

    def _save(self, step: int) -> None:
        self.run_directory.checkpoints.save(step, self._write)

    def _write(self, directory: Path) -> None:
        self.parts.learner.save(directory)
        (directory / "algorithm.json").write_text(json.dumps(self.algorithm.state()), encoding="utf-8")

    def _load(self, directory: Path) -> None:
        self.parts.learner.load(directory)
        self.algorithm.restore(json.loads((directory / "algorithm.json").read_text(encoding="utf-8")))


def load_policy(
    learner: LocalLearner, run: RunDirectory, report: Callable[[str], None], max_step: int | None = None
) -> int:
    """Put the weights of a run's newest good checkpoint, of `max_step` at most, into `learner`; returns its step."""
    loaded = run.checkpoints.load_latest(learner.load, max_step=max_step, report=report)
    if loaded is None:
        raise CheckpointError(
            f"{run.root} has no checkpoint",
            cause="it was stopped before its warm start was done",
            fix=f"midstream resume {run.root}",
        )
    return loaded[0]
