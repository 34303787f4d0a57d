"""The evaluations of a practice run, before and after: each trajectory kept as it ends, each result written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from midstream import evaluation
from midstream.core.errors import InfrastructureError
from midstream.core.lessons import Lessons
from midstream.core.metrics import EvaluationResult
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Trajectory
from midstream.practice.ledger import Ledger
from midstream.practice.parts import Parts
from midstream.practice.playing import Report, Work, require_within_budget
from midstream.practice.progress import PracticeDisplay
from midstream.runs import RunDirectory


class Evaluator:
    """Evaluates the agent of `parts` on the recipe's sets. `report` is told how far it is."""

    def __init__(
        self, parts: Parts, run: RunDirectory, ledger: Ledger, display: PracticeDisplay, report: Report
    ) -> None:
        self.parts, self.run, self.ledger, self.display, self.report = parts, run, ledger, display, report

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
        mine = [one for one in run.read_evaluations() if (one.set_name, one.sampling) == (chosen.name, sampling)]
        written = {one.step: one for one in mine}
        name = evaluation.result_name(chosen.name, sampling, step)
        if step in written:
            self.ledger.forget(_scope(name))  # what a crash between the two left
            return
        if not lessons and 0 in written:
            trajectories = run.read_evaluation_trajectories(evaluation.result_name(chosen.name, sampling, 0))
            result = written[0].model_copy(update={"policy": policy, "step": step})
        else:
            result, trajectories = await self._evaluated(chosen, temperature, policy, step, lessons)
        run.write_evaluation_trajectories(name, trajectories)
        run.append_evaluation(result)
        self.ledger.forget(_scope(name))
        self.display.evaluation(result)

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
