"""Weights & Biases and MLflow as trackers (`midstream --track wandb,mlflow`)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from midstream.trackers import fit

_SHOWN = ("directory", "kind", "recipe", "seed", "settings")  # of a run, in its tracker
_MLFLOW_TEXT, _MLFLOW_BATCH = 500, 100  # the longest parameter that every store takes, and most in one request


class Wandb:
    """Weights & Biases, project `WANDB_PROJECT`. Without a key it stays on disk, as with `WANDB_MODE=offline`."""

    def start(self, run: Mapping[str, Any]) -> str:
        """Start or continue the run with this id, which midstream chooses."""
        wandb = import_module("wandb")
        offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "midstream"),
            id=run["id"] or secrets.token_hex(4),
            name=run["name"],
            config={name: run[name] for name in _SHOWN},
            resume="allow",
            settings=wandb.Settings(console="off"),  # the terminal is the run's
            **({"mode": "offline"} if offline else {}),
        )
        return self._run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log under the step."""
        self._run.log(dict(values), step=step)

    def finish(self, status: str) -> None:
        """Send what is waiting."""
        self._run.finish(exit_code=int(status != "finished"))


class Mlflow:
    """MLflow at `MLFLOW_TRACKING_URI` (by default a file in this directory), experiment `MLFLOW_EXPERIMENT_NAME`."""

    def start(self, run: Mapping[str, Any]) -> str:
        """Start or continue a run; the recipe's settings are its parameters."""
        self._mlflow = mlflow = import_module("mlflow")
        self._client = client = mlflow.MlflowClient()  # not `mlflow.start_run`, whose active run is the user's
        if run["id"] is not None:
            self._id = run["id"]
            client.update_run(self._id, status="RUNNING")
            return self._id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "midstream")
        experiment = client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
        tags = {f"midstream.{key}": str(run[key]) for key in ("directory", "kind")}
        self._id = client.create_run(experiment_id, run_name=run["name"], tags=tags).info.run_id
        settings = {"recipe": run["recipe"], "seed": run["seed"], **dict(_leaves("settings", run["settings"]))}
        parameters = [mlflow.entities.Param(key, str(value)[:_MLFLOW_TEXT]) for key, value in settings.items()]
        for start in range(0, len(parameters), _MLFLOW_BATCH):
            client.log_batch(self._id, params=parameters[start : start + _MLFLOW_BATCH])
        return self._id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log under the step."""
        now = int(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, status: str) -> None:
        """Set the run's status."""
        statuses = {"finished": "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._id, statuses.get(status, "FAILED"))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested tables with their path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}/{fit(str(key))}", inner)
