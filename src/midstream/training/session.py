"""A training run from its first transcript to its last evaluation: the one path from recipe to result.

    warm start -> check of the warm start -> evaluate "warm start" -> checkpoint 0
    -> per step: algorithm.step, journal, every so often validate and checkpoint
    -> export weights -> evaluate "trained"

Everything random derives from (seed, purpose, step), and a checkpoint holds all state, so a run that was killed and
resumed writes the same metrics and weights, bit for bit on CPU, as one that was not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from midstream.components.component import Component
from midstream.core.errors import BudgetError, CheckpointError
from midstream.core.events import Listener, Phase, RunStarted, StepFinished, TrajectoriesFinished
from midstream.core.metrics import StepTiming, malformed_example, waits_of
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.engines.adapters import adapters_in
from midstream.evaluation.leakage import record_learned
from midstream.evaluation.run import MakeEnvironment, every_set
from midstream.evaluation.session import JournalStore, Session, evaluate_set
from midstream.evaluation.settings import EvaluationConfig, SetConfig, sampling_name
from midstream.runs import RunDirectory
from midstream.runs.files import storage_errors
from midstream.runs.segments import result_name
from midstream.training.flow_grpo import FlowGRPO
from midstream.training.protocols import Learner, Student
from midstream.training.settings import TrainingConfig, WarmStartConfig
from midstream.training.supervised import SupervisedTraining, warm_start

WARM, BEFORE, TRAINED = "warm start", "before training", "trained"  # policies of evaluations
WARN_BELOW = 1.5  # tokens of an update's rows for each unique one
_SAVE_AFTER_S = 600.0  # of steps without a checkpoint


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The objects that a training session needs; `recipe.sessions` makes them from a recipe.

    `student` is the engine whose weights are trained and `role` the module that asks it. `teacher` is the
    table of the module that is imitated where the settings name no other, None where the tasks bring none.
    """

    seed: int
    source: TaskSource
    set_tasks: Callable[[SetConfig], list[Task]]
    student: Student
    learner: Learner
    make_environment: MakeEnvironment
    teacher: Component | None
    publish: Callable[[int], Awaitable[None]]
    warm_start: WarmStartConfig | None
    training: TrainingConfig
    evaluation: EvaluationConfig
    role: str = "planner"
    algorithm: Callable[..., FlowGRPO] = FlowGRPO

    def flow_grpo(self, config: TrainingConfig) -> FlowGRPO:
        """Flow-GRPO on these parts."""
        return self.algorithm(
            config=config,
            learner=self.learner,
            environment=self.make_environment(),
            source=self.source,
            publish=self.publish,
            seed=self.seed,
            role=self.role,
        )


class TrainingSession(Session):
    """One training run in one run directory; `listener` receives its events. The caller closes the parts.

    `clock` gives the seconds between checkpoints.
    """

    def __init__(
        self, parts: Parts, run: RunDirectory, listener: Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.parts, self.run_directory, self.listener, self.clock = parts, run, listener, clock
        self._saved_at = clock()
        self.store = JournalStore(run.results_path, report=self.note)
        self.algorithm: FlowGRPO | SupervisedTraining
        if parts.training.algorithm == "supervised":
            self.algorithm = SupervisedTraining(
                config=parts.training,
                learner=parts.learner,
                environment=parts.make_environment(planner=parts.training.supervised.planner or parts.teacher),
                source=parts.source,
                student=parts.student,
                seed=parts.seed,
                report=self._phase,
                learned=partial(record_learned, run, "training"),
            )
        else:
            self.algorithm = parts.flow_grpo(parts.training)
            self.algorithm.on_done = lambda ended: listener(TrajectoriesFinished(ended, f"step-{self.done + 1}"))
        # During training, the validation set alone is evaluated: greedily, once a task.
        once = {"sets": (parts.evaluation.validation,), "temperatures": (0.0,), "trials": 1}
        self.validation = parts.evaluation.model_copy(update=once)
        self.done = -1  # the last step whose update is made; -1 before the weights to begin with
        self._warned = False  # of rows that share too little, once a run

    def interrupted(self) -> None:
        """Save a checkpoint of the last step. Of several ranks, the others are ended, too."""
        if getattr(self.parts.learner, "ranks", 1) == 1:
            self.save_last()

    def close(self) -> None:
        """Close the journal of trajectories."""
        self.store.close()

    async def begin(self) -> range:
        """Restore the newest good checkpoint, or warm-start and evaluate; returns the steps that are left."""
        parts, run = self.parts, self.run_directory

        def load(directory: Path) -> None:
            parts.learner.load(directory)
            if isinstance(self.algorithm, FlowGRPO):
                self.algorithm.load(directory)

        loaded = run.checkpoints.load_latest(load)
        if loaded is None and run.metrics.read():
            raise CheckpointError(
                f"{run.root} has records of training and no checkpoint: to resume would remove them",
                code="no-checkpoint",
                fix="restore a checkpoint from a copy, or start over with another --out",
            )
        done = -1 if loaded is None else loaded[0]
        run.rewind(done)
        # Of an evaluation that was interrupted, what this very policy did still counts.
        names = {
            result_name(chosen.name, sampling_name(temperature), done)
            for config in (parts.evaluation, self.validation)
            for chosen, temperature in product(config.sets, config.temperatures)
        }
        self.store.retain(lambda name, failed: name in names and not failed)
        if loaded is None:
            if parts.evaluation.at != "none":
                record_learned(run, "validation", parts.set_tasks(parts.evaluation.validation))
            if (warm := parts.warm_start) is not None:
                await warm_start(
                    warm,
                    learner=parts.learner,
                    student=parts.student,
                    source=parts.source,
                    make_environment=parts.make_environment,
                    teacher=parts.teacher,
                    validation=parts.set_tasks(parts.evaluation.validation),
                    seed=parts.seed if warm.seed is None else warm.seed,
                    report=lambda text: self._phase(f"warm start: {text}"),
                    learned=partial(record_learned, run, "warm start"),
                )
        self.done, steps = max(0, done), parts.training.steps
        # A limit may have ended the last step in the middle of its evaluations.
        await self._evaluate_due()
        if loaded is None:
            self._save()
        self._warned = any(metrics.warnings for metrics in run.metrics.read())
        self.listener(RunStarted(recipe=run.info().recipe_name, directory=str(run.root), total=steps, done=self.done))
        if parts.learner.why_unshared and parts.training.algorithm == "flow_grpo":
            self.note(f"rows that begin alike are computed whole, each for itself: {parts.learner.why_unshared}")
        families = len(self.algorithm.success) if isinstance(self.algorithm, FlowGRPO) else 0
        if parts.training.family_sampling == "balanced" and parts.training.tasks_per_step < families:
            fix = f"set training.tasks_per_step to {families} or more"
            self.note(f"not every step can have a task of each of {families} families: {fix}")
        return range(self.done + 1, steps + 1)

    async def step(self, step: int) -> None:
        """Make one step and write it down; every so often, and after the last, validate and save a checkpoint."""
        parts, run = self.parts, self.run_directory
        started, cpu = time.perf_counter(), time.process_time()
        outcome = await self.algorithm.step(step)
        metrics, seconds = outcome.metrics, time.perf_counter() - started
        timing = StepTiming(
            step=step,
            duration_s=seconds,
            rollout_s=outcome.rollout_s,
            update_s=seconds - outcome.rollout_s,
            cpu_s=time.process_time() - cpu,
            **waits_of(outcome.trajectories),
            tokens_per_s=(metrics.prompt_tokens + metrics.completion_tokens) / seconds,
        )
        if (why := metrics.no_contrast) and (step == 1 or metrics.tool_use.unreadable):
            example = malformed_example(outcome.trajectories, run.root)
            self.note(f"step {step} has nothing to learn from: {why}.{example}")
        if not self._warned and metrics.sharing is not None and metrics.sharing < WARN_BELOW:
            self._warned = True
            warning = (
                f"step {step}: the rows of the update hold only {metrics.sharing:.2f} tokens for each unique one. "
                "What is fixed in a prompt (instructions, tools) belongs before what differs (docs/policy-update.md)."
            )
            self.note(warning)
            metrics = metrics.model_copy(update={"warnings": (warning,)})
        record_learned(run, "training", outcome.trajectories)
        run.trajectories.write(step, outcome.trajectories)
        run.metrics.append(metrics)
        run.timings.append(timing)
        self.listener(StepFinished(metrics, timing))
        self.done = step
        await self._evaluate_due()
        late = self.clock() - self._saved_at >= _SAVE_AFTER_S
        if late or step % parts.training.checkpoint_every == 0 or step == parts.training.steps:
            self._save()

    def at_limit(self, error: BudgetError) -> str:
        """Save a checkpoint of the last step that was made, from which a resumed run continues, and raise `error`."""
        self.save_last()
        raise error

    async def finish(self) -> None:
        """Export the weights and evaluate them."""
        steps, policy = self.parts.training.steps, self.run_directory.policy_dir
        self._phase("exporting weights")
        with storage_errors(policy):
            # Next to it, then renamed: a crash leaves no half of it.
            partial = policy.with_name("policy.partial")
            self.parts.learner.export_weights(partial)
            self.parts.student.tokenizer.save_pretrained(partial)
            shutil.rmtree(policy, ignore_errors=True)
            os.replace(partial, policy)
        await self.parts.publish(steps)
        if self.parts.evaluation.at != "none":
            await self._evaluate(self.parts.evaluation, TRAINED, steps)
        # In place of the empty form that peft writes.
        if adapters_in(policy):
            card = model_card(self.run_directory, self.parts.student.name)
            with storage_errors(policy):
                (policy / "README.md").write_text(card, encoding="utf-8")

    async def _evaluate_due(self) -> None:
        """Evaluate what is due after the last step."""
        evaluation, training, step = self.parts.evaluation, self.parts.training, self.done
        if step == 0:
            await self.parts.publish(0)
            if evaluation.at == "both":
                policy = BEFORE if self.parts.warm_start is None else WARM
                await self._evaluate(evaluation, policy, 0)
                await self._evaluate(self.validation, policy, 0)
        elif evaluation.at != "none" and (step % training.validate_every == 0 or step == training.steps):
            # Without this a served planner would be validated one update late.
            await self.parts.publish(step)
            await self._evaluate(self.validation, TRAINED, step)

    async def _evaluate(self, config: EvaluationConfig, policy: str, step: int) -> None:
        """Evaluate every set and write it down, unless this very evaluation was written before a kill."""
        parts = self.parts
        when = "before training" if step == 0 else f"at step {step}" if config is self.validation else "after training"
        for evaluation in every_set(
            config, parts.set_tasks, parts.make_environment, policy=policy, seed=parts.seed, step=step
        ):
            name, sampling = evaluation.chosen.name, sampling_name(evaluation.temperature)
            self._phase(f"evaluation {when}: {name}, {sampling}")
            await evaluate_set(self.run_directory, evaluation, self.store, self.listener)

    def _phase(self, text: str) -> None:
        self.listener(Phase(text))

    def save_last(self) -> None:
        """Save a checkpoint of the last step that was made, unless there is one."""
        if self.done >= 0 and self.done not in self.run_directory.checkpoints.steps():
            self._phase(f"saving a checkpoint of step {self.done}")
            self._save()

    def _save(self) -> None:
        def write(directory: Path) -> None:
            self.parts.learner.save(directory)
            if isinstance(self.algorithm, FlowGRPO):
                self.algorithm.save(directory)

        self.run_directory.checkpoints.save(self.done, write)
        self._saved_at = self.clock()


def model_card(run: RunDirectory, engine: str) -> str:
    """The Markdown of `policy/README.md`; `engine` is the table of the model that the adapter belongs to."""
    info = run.info()
    resolved: Any = info.resolved
    results = [
        f"| {found.set_name} | {found.sampling} | {found.policy} | {found.success:.1%} of {found.tasks} |\n"
        for found in run.evaluations.read()
    ]
    card = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    names = {"default": info.recipe_name}
    served = [f"{names.get(name, name)}={path.resolve()}" for name, path in adapters_in(run.policy_dir).items()]
    return card.format(
        model=resolved["engines"][engine].get("model", engine),
        recipe=info.recipe_name,
        version=info.midstream,
        seed=info.seed,
        tasks=resolved["tasks"]["type"],
        reward=resolved["reward"]["type"],
        results="".join(results),
        adapters=" ".join(served),
    )


def load_policy(learner: Learner, run: RunDirectory, max_step: int | None = None) -> int:
    """Put the weights of a run's newest checkpoint, of `max_step` at most, into `learner`; returns its step."""
    loaded = run.checkpoints.load_latest(learner.load, max_step=max_step)
    if loaded is None:
        raise CheckpointError(
            f"{run.root} has no checkpoint",
            code="no-checkpoint",
            cause="it was stopped before its warm start was done",
            fix=f"midstream resume {run.root}",
        )
    return loaded[0]
