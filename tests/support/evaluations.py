"""Evaluations on disk, made from scores: what `midstream compare` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.core.metrics import EvaluationResult
from midstream.core.task import Task
from midstream.core.trajectory import Action, Observation, Score, Trajectory, Turn
from midstream.evaluation.run import SetEvaluation, Summary, summary_of
from midstream.rollout import Group, rollout
from midstream.runs import RunDirectory
from midstream.runs.info import EvaluationInfo, collect_info
from midstream.runs.segments import result_name

Trials = Sequence[float | None]  # each trial's score; None: an infrastructure error


def groups(scores: Mapping[str, Trials], *, gold: str = "Paris", tools: Sequence[str] = ()) -> list[Group]:
    """One task a name; the right answer is `gold`, a wrong one says so."""
    made = []
    for name, trials in scores.items():
        task = Task(id=name, question=f"question {name}?", answer=gold)
        made.append(Group(task=task, trajectories=tuple(_trial(task, i, one, tools) for i, one in enumerate(trials))))
    return made


def summarize(groups: Iterable[Group], **identity: Any) -> EvaluationResult:
    """The numbers of groups, each all trials of one task."""
    summary = Summary(**identity)
    for group in groups:
        summary.add(group)
    return summary.result()


async def evaluate(work: SetEvaluation) -> tuple[EvaluationResult, list[Trajectory]]:
    """Run every task `trials` times and count; the trajectories are in the order of the tasks."""
    summary = summary_of(work)
    groups = await rollout(work.environment, work.tasks, group_size=work.trials, seed=work.seed)
    for group in groups:
        summary.add(group)
    return summary.result(), [trajectory for group in groups for trajectory in group.trajectories]


def evaluated(
    scores: Mapping[str, Trials], *, gold: str = "Paris", tools: Sequence[str] = (), **about: Any
) -> tuple[EvaluationResult, list[Trajectory]]:
    """The numbers and trajectories of an evaluation of the set "held-out"; every trial uses `tools`, a turn each."""
    made = groups(scores, gold=gold, tools=tools)
    whole = {"policy": "agent", "set_name": "held-out", "split": "test", "sampling": "T=1", "seed": 0, "step": None}
    result = summarize(made, **(whole | {"metric": "exact match", "judged": False} | about))
    return result, [one for group in made for one in group.trajectories]


def write(
    root: Path,
    scores: Mapping[str, Trials],
    *,
    trained: bool = False,
    resolved: Mapping[str, Any] | None = None,
    run_seed: int = 0,
    **about: Any,
) -> Path:
    """Add an evaluation to a directory of evaluations, or of a training run; it is made if need be."""
    run = RunDirectory(root)
    if not root.exists():
        what = None if trained else EvaluationInfo()
        run = RunDirectory.create(root, collect_info("mine", run_seed, resolved or {}, what), "")
    result, trajectories = evaluated(scores, **about)
    name = result_name(result.set_name, result.sampling, result.step if trained else None)
    run.trajectories.write(name, trajectories)
    run.evaluations.append(result)
    run.set_status("finished")
    return root


def _trial(task: Task, index: int, score: float | None, tools: Sequence[str]) -> Trajectory:
    lost = score is None
    return Trajectory(
        id=f"{task.id}#{index}",
        task_id=task.id,
        question=task.question,
        gold=task.answer,
        rollout_index=index,
        turns=tuple(
            Turn(index=i, action=Action(tool=tool), observation=Observation(status="ok", text=""))
            for i, tool in enumerate(tools, 1)
        ),
        answer=None if lost else task.answer if score else "not known",
        reward=None if lost else Score(value=score),
        status="error" if lost else "ok",
        stop_reason="error" if lost else "verified",
    )
