"""What the rounds of a strategy did in an evaluation: probabilities, accuracies, advice (`midstream study refine RUN`).

Every answer of every chain and round is scored with the evaluation's own rewards; `evaluation/refinement.py` estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pydantic_core import to_json

from midstream.agents.strategy import parse_strategy
from midstream.core.component import RewardConfig
from midstream.core.errors import RunError, UnsupportedError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.protocols import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation import result_name
from midstream.evaluation.refinement import Attempt, RefinementStudy, study_of
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.check import set_reward
from midstream.recipe.overrides import run_recipe
from midstream.report.study import Panel, StudyRow, panels
from midstream.rewards.votes import answer_key
from midstream.rollout import run_concurrently
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write, storage_errors


def study_refinement(
    run: RunDirectory | str | Path, *, budget: int | None = None, out: str | Path | None = None
) -> list[RefinementStudy]:
    """Estimate, for each set of a finished evaluation with a strategy, what refinement does, and advise.

    Args:
        run: the evaluation, or its path.
        budget: the agent runs of a task that K and T may take; by default those of the evaluation's strategy.
        out: the directory for refinement.json and a figure of each set, refinement-SET.svg, which needs matplotlib.

    Raises:
        RunError: the run is no finished evaluation with a strategy, or its tasks have changed.
        RewardError: a judge or scorer failed.
    """
    run = run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))
    recipe, asked = run_recipe(run), run.info().evaluation
    if asked is None or recipe.evaluation.strategy is None:
        raise RunError(
            f"{run.root} is not an evaluation with a strategy",
            code="wrong-kind-of-run",
            fix="midstream eval ... --strategy dser:K=8,T=4,early_stop=no --out RUN, then midstream study refine RUN",
        )
    if budget is not None and budget < 1:
        raise UsageError(f"--budget {budget}", code="setting-range", fix="give the agent runs of a task: 1 or more")
    results = run.evaluations.read()
    if not results:
        raise RunError(f"{run.root} has no results yet", code="no-results", fix=f"midstream resume {run.root}")
    strategy, build = parse_strategy(recipe.evaluation.strategy), Build(recipe, unsafe=asked.unsafe)
    studies: list[RefinementStudy] = []
    with event_loop(build) as run_coroutine:
        for result in results:
            [chosen] = [
                each for each in recipe.evaluation.sets if each.name == result.set_name.removesuffix("-learned")
            ]
            component = set_reward(recipe, chosen)
            if isinstance(component.config, RewardConfig) and component.config.of_stream:
                raise UnsupportedError(
                    f"set {chosen.name!r} is scored by {component.type!r}, which reads whole streams",
                    code="reward-does-not-fit",
                    cause="the answer of one round has no stream of its own",
                    fix="evaluate with a reward of answers, e.g. --reward exact_match",
                )
            tasks, reward = {task.id: task for task in build.set_tasks(chosen)}, build.reward(component)
            segment = run.trajectories.open(result_name(result.set_name, result.sampling))
            attempts, agent_runs, left_out = list[list[Attempt]](), list[int](), 0
            for task_id, group in groupby(segment, key=lambda trajectory: trajectory.task_id):
                ended = list(group)
                usable = [trajectory for trajectory in ended if trajectory.status == "ok" and trajectory.refinement]
                left_out += len(ended) - len(usable)
                if usable:
                    task = _same_task(run, tasks.get(task_id), usable[0])
                    attempts.append(run_coroutine(_attempts(task, usable, reward)))
                    agent_runs += [each.refinement.agent_runs for each in usable if each.refinement]
            if not attempts:
                raise RunError(
                    f"no attempt at set {result.set_name!r} has a result",
                    code="no-results",
                    fix=f"midstream resume {run.root} --retry-errors",
                )
            study = study_of(
                attempts, strategy, budget=budget or strategy.agent_runs, runs=sum(agent_runs) / len(agent_runs)
            )
            about = {"set_name": result.set_name, "sampling": result.sampling, "metric": result.metric}
            studies.append(study.model_copy(update={**about, "left_out": left_out}))
    if out is not None:
        _write(Path(out), studies, results)
    return studies


def _same_task(run: RunDirectory, task: Task | None, trajectory: Trajectory) -> Task:
    """The task that a trajectory was of. Raises `RunError` if the set no longer has it."""
    if task is None or (task.question, task.answer) != (trajectory.question, trajectory.gold):
        raise RunError(
            f"task {trajectory.task_id!r} has changed since {run.root} ended",
            code="inputs-changed",
            fix="restore it, or evaluate again with another --out",
        )
    return task


async def _attempts(task: Task, trajectories: Sequence[Trajectory], reward: Reward) -> list[Attempt]:
    """The chains of a task's trajectories; each distinct answer is scored once, and is right if its score is 1."""
    chains = {trajectory.id: trajectory.refinement.answers for trajectory in trajectories if trajectory.refinement}
    distinct = dict.fromkeys(answer for each in chains.values() for chain in each for answer in chain if answer)

    async def is_right(answer: str) -> bool:
        # Of an agent run inside, only the answer is known: the rest stands for all of its trajectory.
        given = trajectories[0].model_copy(update={"answer": answer, "final": answer, "reward": None})
        return (await reward.score(task, given)).value >= 1

    scores = await run_concurrently(is_right(answer) for answer in distinct)
    right = dict(zip(distinct, scores, strict=True))
    return [
        [[(answer_key(task.question, answer), right.get(answer or "", False)) for answer in chain] for chain in each]
        for each in chains.values()
    ]


def _write(out: Path, studies: Sequence[RefinementStudy], results: Sequence[EvaluationResult]) -> None:
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "refinement.json", to_json(studies, indent=2) + b"\n")
    for study, result in zip(studies, results, strict=True):
        chart = Panel(
            title=f"{study.set_name} {study.sampling}, {study.strategy}",
            x_label="round",
            lines={"average": "Avg@K", "expected": "Avg@K, closed form", "consensus": "Cons@K"},
        )
        rows = [
            StudyRow(name=str(each.number), metric=metric, values=(value,), interval=interval)
            for each in study.rounds
            for metric, value, interval in (
                ("average", each.average, each.interval),
                ("expected", each.expected, None),
                ("consensus", each.consensus, each.consensus_interval),
            )
        ]
        panels(out / f"refinement-{result_name(result.set_name, result.sampling)}.svg", [chart], rows)
