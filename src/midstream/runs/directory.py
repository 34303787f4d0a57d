"""The run directory: everything that a run leaves behind, and all that `resume` needs.

run.json                        format, versions, git commit, seed, command line, resolved recipe
recipe.toml                     the recipe as text
status.json                     running | interrupted | finished | failed
metrics.jsonl                   one StepMetrics a step: repeatable, byte for byte
timings.jsonl                   one StepTiming a step: the wall-clock side
updates.jsonl                   one record an update of a library, of a run in context space
library/versions.jsonl          every version of its library; library.json and library.md: the newest one
ledger/                         what its update under way has paid for, see `practice/ledger.py`
evaluations.jsonl               one EvaluationResult an evaluation
results.jsonl                   an evaluation's trajectories until their set is done, see `cli/results.py`
trajectories/step-000123.jsonl.gz, eval-<name>.jsonl.gz
checkpoints/step-000123/        see `checkpoint.py`
policy/                         the exported weights
report.html
run.lock                        held while training or evaluating
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from midstream.core.errors import RunError
from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.trajectory import Trajectory
from midstream.runs import results, segments
from midstream.runs.checkpoint import checkpoint_steps, load_latest, remove_checkpoints, save_checkpoint
from midstream.runs.files import atomic_write, fsync_directory, storage_errors
from midstream.runs.info import (
    EvaluationInfo,
    RunInfo,
    RunState,
    RunStatus,
    collect_info,
    parse_info,
    read_status,
    utc_now,
)
from midstream.runs.journal import Journal, Report, filter_records, read_models, warn
from midstream.runs.lock import exclusive_lock, is_locked

T = TypeVar("T")


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. Make it with `create` or `open`; hold `lock` while writing to it.

    Every method that writes may raise `StorageError`.
    """

    root: Path

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        recipe_toml: str,
        recipe_name: str,
        seed: int,
        resolved: Mapping[str, Any],
        evaluation: EvaluationInfo | None = None,
        lessons: str = "",
    ) -> RunDirectory:
        """Make a new run in `root`, which must not exist or be empty.

        Args:
            root: the directory; parents are made too.
            recipe_toml: the resolved recipe as text.
            recipe_name: the recipe's name.
            seed: the run seed.
            resolved: the resolved recipe as JSON-able values.
            evaluation: what is evaluated, where nothing is trained.
            lessons: the digest of what `agent.library` puts into the prompts.

        Raises:
            RunError: `root` is taken.
        """
        run = cls(root)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise _taken(root)
        # It asks git, so before anything is half made.
        info = collect_info(recipe_name, seed, resolved, evaluation, lessons)
        with storage_errors(root):
            run.trajectories_dir.mkdir(parents=True, exist_ok=True)
            if evaluation is None:
                run.checkpoints_dir.mkdir(exist_ok=True)
            try:
                run.lock_path.touch(exist_ok=False)
            except FileExistsError as error:  # another process was faster
                raise _taken(root) from error
        atomic_write(run.recipe_path, recipe_toml.encode())
        # Last, because this file makes the directory a run.
        atomic_write(run.info_path, info.model_dump_json(indent=2).encode() + b"\n")
        return run

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """An existing run. Raises `RunError` if `root` is missing, no run, or of another format version."""
        run = cls(root)
        parse_info(run.info_path)
        return run

    @property
    def info_path(self) -> Path:
        """`run.json`."""
        return self.root / "run.json"

    @property
    def recipe_path(self) -> Path:
        """`recipe.toml`."""
        return self.root / "recipe.toml"

    @property
    def status_path(self) -> Path:
        """`status.json`."""
        return self.root / "status.json"

    @property
    def lock_path(self) -> Path:
        """`run.lock`."""
        return self.root / "run.lock"

    @property
    def metrics_path(self) -> Path:
        """`metrics.jsonl`."""
        return self.root / "metrics.jsonl"

    @property
    def timings_path(self) -> Path:
        """`timings.jsonl`."""
        return self.root / "timings.jsonl"

    @property
    def evaluations_path(self) -> Path:
        """`evaluations.jsonl`."""
        return self.root / "evaluations.jsonl"

    @property
    def results_path(self) -> Path:
        """`results.jsonl`."""
        return self.root / "results.jsonl"

    @property
    def updates_path(self) -> Path:
        """`updates.jsonl`."""
        return self.root / "updates.jsonl"

    @property
    def ledger_dir(self) -> Path:
        """`ledger/`."""
        return self.root / "ledger"

    @property
    def library_dir(self) -> Path:
        """`library/`."""
        return self.root / "library"

    @property
    def trajectories_dir(self) -> Path:
        """`trajectories/`."""
        return self.root / "trajectories"

    @property
    def checkpoints_dir(self) -> Path:
        """`checkpoints/`."""
        return self.root / "checkpoints"

    @property
    def policy_dir(self) -> Path:
        """`policy/`, made by whoever exports weights into it."""
        return self.root / "policy"

    @property
    def report_path(self) -> Path:
        """`report.html`."""
        return self.root / "report.html"

    def info(self) -> RunInfo:
        """What the run was started with."""
        return parse_info(self.info_path)

    def recipe(self) -> str:
        """The text of `recipe.toml`. Raises `RunError` if it is missing or no text."""
        try:
            return self.recipe_path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise damaged_recipe(self.recipe_path, error) from error

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while training in it; the system releases it if this process dies. Raises `RunError`."""
        return exclusive_lock(self.lock_path)

    def set_status(self, state: RunState, message: str = "", *, step: int | None = None) -> None:
        """Replace the status."""
        status = RunStatus(state=state, message=message, step=step, updated_at=utc_now())
        atomic_write(self.status_path, status.model_dump_json().encode() + b"\n")

    def status(self) -> RunStatus:
        """How the run stands; one that says "running" with no live process behind it is "interrupted"."""
        status = read_status(self.status_path)
        if status.state == "running" and not is_locked(self.lock_path):
            update = {"state": "interrupted", "message": "the process ended without a word"}
            return status.model_copy(update=update)
        return status

    def append_metrics(self, metrics: StepMetrics) -> None:
        """Add a step's metrics, safe on disk on return."""
        _append(self.metrics_path, metrics)

    def append_timing(self, timing: StepTiming) -> None:
        """Add a step's timing, safe on disk on return."""
        _append(self.timings_path, timing)

    def append_evaluation(self, result: EvaluationResult) -> None:
        """Add an evaluation's result, safe on disk on return."""
        _append(self.evaluations_path, result)

    def remove_evaluations(self, gone: Callable[[Mapping[str, Any]], bool]) -> None:
        """Take out the results for which `gone` is true, all at once."""
        filter_records(self.evaluations_path, lambda record: not gone(record))

    def read_metrics(self) -> list[StepMetrics]:
        """All metrics in order; empty if there are none yet. Raises `RunError` if damaged."""
        return read_models(self.metrics_path, StepMetrics)

    def read_timings(self) -> list[StepTiming]:
        """All timings in order; as `read_metrics`."""
        return read_models(self.timings_path, StepTiming)

    def read_evaluations(self) -> list[EvaluationResult]:
        """All evaluations in order; as `read_metrics`."""
        return read_models(self.evaluations_path, EvaluationResult)

    def write_trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write a step's trajectories as one segment, replacing an earlier one."""
        self._write_segment(segments.step_segment(self.trajectories_dir, step), trajectories)

    def write_evaluation_trajectories(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Write an evaluation's trajectories as one segment, replacing an earlier one of this name."""
        self._write_segment(segments.evaluation_segment(self.trajectories_dir, name), trajectories)

    def read_trajectories(self, step: int) -> list[Trajectory]:
        """A step's trajectories. Raises `RunError` if the segment is missing or damaged."""
        return segments.read_segment(segments.step_segment(self.trajectories_dir, step))

    def read_evaluation_trajectories(self, name: str) -> list[Trajectory]:
        """An evaluation's trajectories; as `read_trajectories`."""
        return segments.read_segment(segments.evaluation_segment(self.trajectories_dir, name))

    def trajectory_steps(self) -> list[int]:
        """The steps that have trajectories, ascending."""
        return segments.segment_steps(self.trajectories_dir)

    def find_trajectory(self, id_or_prefix: str) -> Trajectory:
        """The one trajectory, of a step or an evaluation, whose id is this or starts so, or `<segment>/<id>`.

        Raises:
            RunError: there is none, or more than one.
        """
        paths = sorted(self.trajectories_dir.glob("*" + segments.SUFFIX))
        journals = (self.results_path, self.ledger_dir / "rollouts.jsonl")
        begun = [one for path in journals for one in results.read(path)]
        unfinished = [(segments.evaluation_name(one.set), one.trajectory) for one in begun]
        return segments.find_in_segments(
            [path for path in paths if not path.name.startswith(".")], id_or_prefix, unfinished
        )

    def save_checkpoint(self, step: int, write: Callable[[Path], None], keep: int = 2) -> Path:
        """`checkpoint.save_checkpoint` in `checkpoints/`. Write the step's records first: resume counts on them."""
        return save_checkpoint(self.checkpoints_dir, step, write, keep)

    def load_latest(
        self, read: Callable[[Path], T], *, max_step: int | None = None, report: Report = warn
    ) -> tuple[int, T] | None:
        """`checkpoint.load_latest` from `checkpoints/`; call `rewind` with the step before training on."""
        return load_latest(self.checkpoints_dir, read, max_step=max_step, report=report)

    def rewind(self, step: int) -> None:
        """Remove all that came after `step`: metrics, timings, evaluations, trajectories, checkpoints.

        A run resumed from the checkpoint of `step` makes them again. Evaluations without a step and their
        trajectories stay. Interrupted by a crash, it is finished by the rewind of the next resume.
        """
        # Newest checkpoint first and before any record: at no moment is there a checkpoint without its records.
        later = [saved for saved in checkpoint_steps(self.checkpoints_dir) if saved > step]
        remove_checkpoints(self.checkpoints_dir, later[::-1])
        for path in (self.metrics_path, self.timings_path, self.evaluations_path):
            filter_records(path, lambda record: record.get("step") is None or record["step"] <= step)
        if not self.trajectories_dir.is_dir():
            return
        with storage_errors(self.trajectories_dir):
            for made in self.trajectory_steps():
                if made > step:
                    segments.step_segment(self.trajectories_dir, made).unlink()
            for leftover in self.trajectories_dir.glob(".*.tmp"):
                leftover.unlink()
            fsync_directory(self.trajectories_dir)

    def _write_segment(self, path: Path, trajectories: Sequence[Trajectory]) -> None:
        with storage_errors(path):
            path.parent.mkdir(exist_ok=True)
        segments.write_segment(path, trajectories)


def damaged_recipe(path: Path, error: Exception) -> RunError:
    """The `RunError` of a `recipe.toml` that cannot be read."""
    missing = isinstance(error, FileNotFoundError)
    return RunError(
        f"{path} is missing" if missing else f"{path} is damaged: {error}",
        cause="the file was edited or removed, or the disk or a copy lost data",
        fix=f"restore it from a copy; {path.with_name('run.json')} holds its values under `resolved`",
    )


def _append(path: Path, record: BaseModel) -> None:
    with Journal(path) as journal:
        journal.append(record)


def _taken(root: Path) -> RunError:
    return RunError(
        f"{root} already exists and is not empty",
        cause="an earlier run, or other files, are in it",
        fix=f"give another --out, or go on with that run: `midstream resume {root}`",
    )
