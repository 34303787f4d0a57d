"""Runs as objects: what they measured, their trajectories, their agent."""

from __future__ import annotations

from typing import Any

from midstream.core.metrics import EvaluationResult
from midstream.core.trajectory import Trajectory
from midstream.interface.names import data_frame, shown_table
from midstream.report.run_results import evaluated_trajectories
from midstream.runs import RunDirectory


class Run:
    """A run or an evaluation on disk."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    @property
    def agent(self) -> Run:
        """The agent as the run left it, with its weights or lessons; give it to `evaluate` or `solve`."""
        return self

    @property
    def evaluations(self) -> list[EvaluationResult]:
        """Every evaluation, in the order of the run."""
        return self.directory.evaluations.read()

    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all evaluations."""
        return [found for result in self.evaluations for found in evaluated_trajectories(self.directory, result)]

    def frame(self) -> Any:
        """The trajectories of all evaluations as a pandas data frame, one row each."""
        return data_frame([_row(trajectory) for trajectory in self.trajectories()])

    def __repr__(self) -> str:
        return f"<run {self.directory.root}>"

    def _repr_html_(self) -> str:
        return shown_table(
            [{"set": result.set_name, "success": f"{result.success:.1%}"} for result in self.evaluations]
        )


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "task": trajectory.task_id,
        "question": trajectory.question,
        "answer": trajectory.answer,
        "gold": trajectory.gold,
        "reward": trajectory.reward.value if trajectory.reward else None,
        "turns": len(trajectory.turns),
        "status": trajectory.status,
    }
