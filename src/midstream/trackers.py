"""Experiment trackers: those of installed packages, by name, or your own.

A tracker (`Tracker`) receives flat metrics (`metrics_of`), whose names are the same for all. A package
offers one as an entry point:

    [project.entry-points."midstream.trackers"]
    mine = "my_package.trackers:Mine"
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from midstream.components.own import is_reference, load
from midstream.core.errors import BudgetError, UsageError, did_you_mean
from midstream.core.events import (
    BudgetSpent,
    EvaluationFinished,
    Listener,
    Note,
    RunEvent,
    StepFinished,
    TrajectoriesFinished,
    UpdateFinished,
)
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run, as an experiment tracker does; see docs/tracking.md.

    Its methods are called in one thread, in this order: `start`, any number of `log`, `finish`. One that raises is off
    from then on, and the run continues. A tracker may also have `trajectories(ended, part)`, which receives
    trajectories as they end, and the part of the run that they belong to (`TrajectoriesFinished`).
    """

    def start(self, run: Mapping[str, Any]) -> str | None:
        """Begin: `run` has `name`, `directory`, `kind`, `recipe`, `seed`, `settings` (every setting) and `id`.

        What it returns is kept in the run directory and is the `id` when the run is resumed; before, `id` is None.
        """
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics, by name, of a training step or an update; 0 is the evaluation before the first."""
        ...

    def finish(self, status: str) -> str | None:
        """End, with "finished", "interrupted" or "failed"; what it returns is a warning: "lost 3 of 9 traces"."""
        ...


Track = str | Tracker | type[Tracker] | Sequence[str | Tracker | type[Tracker]]
_FINISH_S = 60.0  # to send what is waiting when the run ends
# Sets of trajectories for a tracker that hangs, which they would otherwise fill the memory of.
_MOST_WAITING = 1000
_OFF = "is off, the run continues without it:"
# MLflow takes these characters, the others more.
_UNFIT = re.compile(r"[^\w.-]+")


class Logged(NamedTuple):
    """Metrics by name, all of one `group` (the beginning of their names), at a step or update."""

    group: str
    step: int
    values: Mapping[str, float]


def metrics_of(event: RunEvent, spent: Mapping[str, object] | None = None) -> Logged | None:
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
            group = "/".join(["eval", fit(result.set_name), *[fit(result.sampling)] * (result.sampling != "greedy")])
            table = result.model_dump(exclude={"step", "seed", "interval"})
            low, high = result.interval or (None, None)
            values = flat(group, table | {"interval_low": low, "interval_high": high})
            return Logged(group, result.step or 0, values | flat("spent", spent or {}))
    return None


def flat(prefix: str, table: Mapping[str, object]) -> dict[str, float]:
    """The numbers of nested tables, by their path; other values are left out."""
    found: dict[str, float] = {}
    for key, value in table.items():
        path = f"{prefix}/{fit(str(key))}"
        if isinstance(value, Mapping):
            found |= flat(path, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[path] = float(value)
    return found


def fit(text: str) -> str:
    """`text` as a part of a metric's name: "T=0.7" becomes "T0.7"."""
    return _UNFIT.sub("_", text.replace("=", "")).strip(".") or "_"


def trackers_of(track: Track) -> list[tuple[str, Tracker]]:
    """The trackers and their names. `track` is or holds names, references such as "my_tracker.py:Tracker", and objects.

    Raises `UsageError` for an unknown name, and for an object that is not a tracker.
    """
    found: dict[str, Tracker] = {}
    points = {point.name: point for point in entry_points(group="midstream.trackers")}
    if isinstance(track, str):
        track = [name.strip() for name in track.split(",")]
    for named in track if isinstance(track, Sequence) else [track]:
        made: Any = named
        if isinstance(named, str) and named in points:
            made = points[named].load()
        elif isinstance(named, str):
            if not is_reference(named):
                known = f"{did_you_mean(named, points)}installed are: {', '.join(points) or 'none'}"
                raise UsageError(
                    f"no installed package has a tracker {named!r}",
                    code="unknown-type",
                    fix=f"{known}; or write one: docs/tracking.md",
                )
            made = load(named)
        try:
            made = made() if isinstance(made, type) else made
        except TypeError as error:
            what, fix = f"{named} cannot be made: {error}", "give its parameters defaults"
            raise UsageError(what, code="component-invalid", fix=fix) from error
        if lacking := [name for name in ("start", "log", "finish") if not callable(getattr(made, name, None))]:
            what = f"{named} is not a tracker: it has no method {' and '.join(lacking)}"
            raise UsageError(what, code="component-invalid", fix="add it: docs/tracking.md")
        name = type(made).__name__.lower()
        found[f"{name}-{len(found) + 1}" if name in found else name] = made
    return list(found.items())


@contextmanager
def tracked(run: RunDirectory, trackers: Sequence[tuple[str, Tracker]], listener: Listener) -> Iterator[Listener]:
    """Yield a listener that feeds the trackers and `listener`; the trackers finish with the context.

    A tracker that fails is switched off with a `Note`, and the run continues.
    """
    info = run.info()
    about = {"name": run.root.resolve().name, "directory": str(run.root), "kind": info.kind}
    about |= {"recipe": info.recipe_name, "seed": info.seed, "settings": info.resolved}
    feeds = [_Feed(name, tracker, about, run.root / "trackers" / f"{name}.json") for name, tracker in trackers]
    spent: dict[str, object] = {}

    def note_failures() -> None:
        for feed in [feed for feed in feeds if feed.failure]:
            feeds.remove(feed)
            listener(Note(f"tracker {feed.name} {feed.failure}"))

    def listen(event: RunEvent) -> None:
        listener(event)
        if isinstance(event, BudgetSpent):
            spent.update(event.spent.model_dump())
        if isinstance(event, TrajectoriesFinished) and not event.earlier:
            for feed in feeds:
                if hasattr(feed.tracker, "trajectories") and feed.waiting.qsize() < _MOST_WAITING:
                    feed.waiting.put(event)
                elif hasattr(feed.tracker, "trajectories"):
                    feed.dropped += len(event.trajectories)
        if logged := metrics_of(event, spent):
            for feed in feeds:
                feed.waiting.put(logged)
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
            feed.waiting.put(status)
        for feed in feeds:
            feed.join(max(0.0, until - time.monotonic()))
            if feed.is_alive():
                feed.failure = f"{_OFF} it did not finish within {_FINISH_S:.0f} s"
        note_failures()


class _Feed(threading.Thread):
    """A tracker with its own thread and queue, because it may wait for a network.

    `kept` holds the id of the tracker's run and the last step of each group that it has, so that a resumed run
    continues it and does not log a step again.
    """

    def __init__(self, name: str, tracker: Tracker, about: Mapping[str, object], kept: Path) -> None:
        # A tracker that hangs must not keep the process from ending.
        super().__init__(name=name, daemon=True)
        self.tracker, self.about, self.kept = tracker, about, kept
        self.failure = ""  # why it is off, or what it lost
        self.dropped = 0  # trajectories for which it had no room
        # What to log, then the run's status.
        self.waiting: queue.SimpleQueue[Logged | TrajectoriesFinished | str] = queue.SimpleQueue()

    def run(self) -> None:
        """Log what waits until the status comes."""
        try:
            before = json.loads(self.kept.read_text(encoding="utf-8")) if self.kept.exists() else {}
            steps: dict[str, int] = before.get("steps", {})
            self.kept.parent.mkdir(exist_ok=True)
            record = {"id": self.tracker.start({**self.about, "id": before.get("id")}), "steps": steps}
            atomic_write(self.kept, json.dumps(record).encode())
            while not isinstance(logged := self.waiting.get(), str):
                if not isinstance(logged, Logged):
                    cast("Any", self.tracker).trajectories(logged.trajectories, logged.part)
                    continue
                # A resumed run repeats the steps after its checkpoint.
                if logged.step and logged.step <= steps.get(logged.group, 0):
                    continue
                self.tracker.log(logged.values, logged.step)
                steps[logged.group] = logged.step
                atomic_write(self.kept, json.dumps(record).encode())
            lost = f"had no time for {self.dropped:,} trajectories" if self.dropped else ""
            said = self.tracker.finish(logged)
            self.failure = said if isinstance(said, str) else lost
        except BaseException as error:  # noqa: BLE001 - a tracker may raise anything, SystemExit too
            self.failure = " ".join(f"{_OFF} {type(error).__name__}: {error}".split())
