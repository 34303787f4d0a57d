"""The agent `stored`: its runs are those of an evaluation, as they were written, so that only rewards are new."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from midstream.components.agent_record import AgentSettings
from midstream.components.component import Context
from midstream.core.agent import Agent, RunContext
from midstream.core.errors import RunError
from midstream.core.task import Task
from midstream.core.trajectory import Sampling, Trajectory
from midstream.evaluation.settings import OWN, sampling_name
from midstream.report.evaluation import evaluated_trajectories
from midstream.runs import RunDirectory

_Key = tuple[str, str, int]


class StoredConfig(AgentSettings):
    """The runs of an evaluation.

    Attributes:
        run: the directory of the evaluation
    """

    asks = "never"
    run: str

    def build(self, context: Context) -> Stored:
        """The agent."""
        return Stored(Path(self.run))


class Stored(Agent):
    """Gives each task the trajectory that the evaluation in `run` has of it, under the same sampling and seed.

    A run that only its reward failed counts as completed. One that an infrastructure error ended stays as it is.
    """

    name = "stored"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def _trajectories(self) -> dict[_Key, Trajectory]:
        run = RunDirectory.open(self._directory)
        return {
            (result.sampling, trajectory.task_id, trajectory.seed): trajectory
            for result in run.evaluations.read()
            for trajectory in evaluated_trajectories(run, result)
        }

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Return the stored run of a task without its reward. Raises `RunError` if the evaluation has none."""
        temperature = context.sampling.temperature if isinstance(context.sampling, Sampling) else context.sampling
        sampling = sampling_name(OWN if temperature is None else temperature)
        trajectory = self._trajectories.get((sampling, task.id, context.seed))
        if trajectory is None:
            raise RunError(
                f"{self._directory} has no run of task {task.id!r} under {sampling}",
                code="inputs-changed",
                cause="its tasks, seed or samplings are not those of this recipe",
                fix="evaluate again: midstream eval",
            )
        # What it cost was spent by the evaluation that ran it.
        changes: dict[str, object] = {"reward": None, "cost_usd": 0.0, "request_failures": 0}
        error = trajectory.error
        if error is not None and error.type == "RewardError" and trajectory.answer is not None:
            changes |= {"status": "ok", "error": None, "stop_reason": "answered"}
        elif error is not None:
            changes["error"] = error.model_copy(update={"retryable": False})
        return trajectory.model_copy(update=changes)

    async def close(self) -> None:
        """Nothing is open."""
