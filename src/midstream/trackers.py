"""Experiment trackers: Weights & Biases, MLflow, or one of your own.

`tracked` wraps a run's listener: it turns events into flat metrics (`metrics_of`), whose names are the same for all
trackers. Each tracker has its own thread and queue, because it may wait for a network. A tracker that fails, or does
not keep up, is switched off with a `Note`, and the run continues.
"""

from __future__ import annotations

import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from midstream.components.component import ComponentConfig, Context, Kind
from midstream.components.own_settings import class_settings, object_settings
from midstream.components.tables import parse_component
from midstream.core.errors import BudgetError, UsageError
from midstream.core.events import (
    BudgetSpent,
    EvaluationFinished,
    Listener,
    Note,
    RunEvent,
    StepFinished,
    UpdateFinished,
)
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run, as an experiment tracker does; see docs/tracking.md.

    Its methods are called in one thread, in this order: `start`, any number of `log`, `finish`. One that raises is off
    from then on, and the run continues.
    """

    def start(self, run: Mapping[str, Any]) -> str | None:
        """Begin: `run` has `name`, `directory`, `kind`, `recipe`, `seed`, `settings` (every setting) and `id`.

        What it returns is kept in the run directory and is the `id` when the run is resumed; before, `id` is None.
        """
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics, by name, of a training step or an update; 0 is the evaluation before the first."""
        ...

    def finish(self, status: str) -> None:
        """End, with "finished", "interrupted" or "failed"."""
        ...


Track = str | Tracker | type[Tracker] | Sequence[str | Tracker | type[Tracker]]
_WAITING = 1000  # logs that a slow tracker may be behind
_FINISH_S = 60.0  # to send what is waiting when the run ends
_UNFIT = re.compile(r"[^\w.-]+")  # MLflow takes these characters, the others more
_SHOWN = ("directory", "kind", "recipe", "seed", "settings")  # of a run, in its tracker
_MLFLOW_TEXT, _MLFLOW_BATCH = 500, 100  # the longest parameter that every store takes, and most in one request


# --- from events to metrics -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Logged:
    """Metrics by name, all of one `group` (the beginning of their names), at a step or update."""

    group: str
    step: int
    values: Mapping[str, float]


def metrics_of(event: RunEvent, spent: Mapping[str, Any] | None = None) -> Logged | None:
    """The metrics of an event, None for one without any; `spent` is what a lesson run has used so far.

    Names are those of the run's own records: `train/reward_mean`, `train/reward_by_family/NAME`, `time/update_s`,
    `lessons/lessons`, `spent/cost_usd`, `eval/SET/success` (greedy) and `eval/SET/T0.7/success`.
    """
    match event:
        case StepFinished(metrics, timing):
            values = flat("train", metrics.model_dump(exclude={"step", "policy_version"}))
            return Logged("train", metrics.step, values | flat("time", timing.model_dump(exclude={"step"})))
        case UpdateFinished():
            names = ("reward_mean", "proposed", "fates", "left_out", "lessons")
            values = flat("lessons", {name: getattr(event, name) for name in names})
            return Logged("lessons", event.update, values | flat("spent", event.spent.model_dump()))
        case EvaluationFinished(result):
            parts = ["eval", fit(result.set_name), *([] if result.sampling == "greedy" else [fit(result.sampling)])]
            table = result.model_dump(exclude={"step", "seed", "interval"})
            low, high = result.interval or (None, None)
            values = flat("/".join(parts), table | {"interval_low": low, "interval_high": high})
            return Logged("/".join(parts), result.step or 0, values | flat("spent", spent or {}))
    return None


def flat(prefix: str, table: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers of nested tables, by their path; other values are left out."""
    numbers = (pair for pair in leaves(prefix, table) if type(pair[1]) in (int, float))
    return {name: float(value) for name, value in numbers}


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested tables with their path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from leaves(f"{path}/{fit(str(key))}", inner)


def fit(text: str) -> str:
    """`text` as a part of a metric's name: "T=0.7" becomes "T0.7"."""
    return _UNFIT.sub("_", text.replace("=", "")).strip(".") or "_"


# --- a run with trackers ----------------------------------------------------------------------------------------------


def trackers_of(track: Track) -> list[tuple[str, Tracker]]:
    """The trackers and their names. `track` is or holds names, references such as "my_tracker.py:Tracker", and objects.

    Raises `UsageError` for an unknown name, and for an object that is not a tracker.
    """
    found: dict[str, Tracker] = {}
    if isinstance(track, str):
        track = [name.strip() for name in track.split(",")]
    for named in track if isinstance(track, Sequence) else [track]:
        tracker: Any = named() if isinstance(named, type) else named
        if isinstance(named, str):
            config = parse_component("tracker", {"type": named}, "track").config
            tracker = config.build(cast(Context, None))  # trackers use no other component
        name = type(tracker).__name__.lower()
        found[f"{name}-{len(found) + 1}" if name in found else name] = _checked(tracker)
    return list(found.items())


def own_tracker(kind: Kind, reference: str, value: Any) -> type[ComponentConfig]:
    """The settings of a tracker of your own, a class or an object: the parameters of its class."""
    tracker = _checked(value, reference)
    if isinstance(value, type):
        return class_settings(ComponentConfig, reference, tracker, lambda made, _: made)
    return object_settings(ComponentConfig, reference, tracker)


def _checked(tracker: Any, shown: str = "") -> Any:
    if lacking := [name for name in ("start", "log", "finish") if not callable(getattr(tracker, name, None))]:
        raise UsageError(
            f"{shown or repr(tracker)} is not a tracker: it has no method {' and '.join(lacking)}",
            code="component-invalid",
            fix="add it: docs/tracking.md",
        )
    return tracker


@contextmanager
def tracked(run: RunDirectory, trackers: Sequence[tuple[str, Tracker]], listener: Listener) -> Iterator[Listener]:
    """Yield a listener that feeds the trackers and `listener`; the trackers finish with the context."""
    info = run.info()
    about = {
        "name": run.root.resolve().name,
        "directory": str(run.root),
        "kind": info.kind,
        "recipe": info.recipe_name,
        "seed": info.seed,
        "settings": info.resolved,
    }
    feeds = [_Feed(name, tracker, about, run.root / "trackers" / f"{name}.json") for name, tracker in trackers]
    spent: dict[str, Any] = {}

    def note_failures() -> None:
        for feed in [feed for feed in feeds if feed.failure]:
            feeds.remove(feed)
            listener(Note(f"tracker {feed.name} is off, the run continues without it: {feed.failure}"))

    def listen(event: RunEvent) -> None:
        listener(event)
        if isinstance(event, BudgetSpent):
            spent.update(event.spent.model_dump())
        if logged := metrics_of(event, spent):
            for feed in feeds:
                feed.put(logged)
        note_failures()

    for feed in feeds:
        feed.start()
    status = "failed"
    try:
        yield listen
        status = "finished"
    except (KeyboardInterrupt, BudgetError):
        status = "interrupted"
        raise
    finally:
        until = time.monotonic() + _FINISH_S
        for feed in feeds:
            feed.put(status)
        for feed in feeds:
            feed.join(max(0.0, until - time.monotonic()))
            if feed.is_alive():
                feed.failure = feed.failure or f"it did not finish within {_FINISH_S:.0f} s"
        note_failures()


class _Feed(threading.Thread):
    """A tracker with its own thread.

    `kept` holds the id of the tracker's run and the last step of each group that it has, so that a resumed run
    continues it and does not log a step again.
    """

    def __init__(self, name: str, tracker: Tracker, about: Mapping[str, Any], kept: Path) -> None:
        super().__init__(name=name, daemon=True)  # a tracker that hangs must not keep the process from ending
        self.tracker, self.about, self.kept = tracker, about, kept
        self.failure = ""  # why it is off
        self._waiting: queue.Queue[Logged | str] = queue.Queue(_WAITING)

    def put(self, what: Logged | str) -> None:
        """Log this, or finish with this status."""
        try:
            self._waiting.put_nowait(what)
        except queue.Full:
            self.failure = self.failure or f"it is {_WAITING:,} logs behind"

    def run(self) -> None:
        """Log what waits until the status comes."""
        try:
            before: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                before = json.loads(self.kept.read_text(encoding="utf-8"))
            steps: dict[str, int] = before.get("steps", {})
            found = self.tracker.start({**self.about, "id": before.get("id")})
            self._keep(found, steps)
            while isinstance(logged := self._waiting.get(), Logged):
                if self.failure:
                    return
                if logged.step and logged.step <= steps.get(logged.group, 0):
                    continue  # a resumed run repeats the steps after its checkpoint
                self.tracker.log(logged.values, logged.step)
                steps[logged.group] = logged.step
                self._keep(found, steps)
            self.tracker.finish(logged)
        except BaseException as error:  # noqa: BLE001 - a tracker may raise anything, SystemExit too
            self.failure = self.failure or _reason(self.name, error)

    def _keep(self, found: str | None, steps: Mapping[str, int]) -> None:
        self.kept.parent.mkdir(exist_ok=True)
        atomic_write(self.kept, json.dumps({"id": found, "steps": steps}).encode() + b"\n")


def _reason(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:  # a tracker has the name of its package
        return f"it is not installed: pip install 'midstream[{name}]'"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


# --- the trackers that come with midstream ----------------------------------------------------------------------------


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
        settings = {"recipe": run["recipe"], "seed": run["seed"], **dict(leaves("settings", run["settings"]))}
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


class WandbConfig(ComponentConfig):
    """Weights & Biases; its own environment variables are its settings."""

    component = Wandb
    extra, packages = "wandb", ("wandb",)


class MlflowConfig(ComponentConfig):
    """MLflow; its own environment variables are its settings."""

    component = Mlflow
    extra, packages = "mlflow", ("mlflow",)
