"""The run directory: all output of a run, and all that `resume` needs.

run.json                        format, versions, git commit, seed, command line, resolved recipe
recipe.toml                     the recipe as text
components/                     copies of the files whose components it names, see `components/own.py`
status.json                     running | interrupted | finished | failed
metrics.jsonl                   one StepMetrics a step: repeatable, byte for byte
timings.jsonl                   one StepTiming a step: the wall-clock side
updates.jsonl                   one record an update of a lesson set, of a lesson run
lessons/versions.jsonl          every version of its lesson set; lessons.json: the newest one
ledger/                         what its update under way has paid for, see `lessons/ledger.py`
evaluations.jsonl               one EvaluationResult an evaluation
results.jsonl                   an evaluation's trajectories until their set is done, see `runs/results.py`
approvals.jsonl                 what people decide on changes that wait for them, see `lessons/approval.py`
feedback.jsonl                  what people say of trajectories and lessons, see `runs/feedback.py`
strategy/                       agent runs that a strategy keeps until the evaluation is done
trajectories/step-000123.jsonl.gz, eval-<name>.jsonl.gz
checkpoints/step-000123/        see `checkpoint.py`
policy/                         the exported weights
report.html
trackers/                       of `--track`: how far each tracker is
run.lock                        held while training or evaluating
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from midstream.components.own import file_of
from midstream.core.errors import RunError
from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.trajectory import Trajectory
from midstream.runs import results
from midstream.runs.checkpoint import Checkpoints
from midstream.runs.files import atomic_write, damaged, read_file, storage_errors
from midstream.runs.info import Learned, RunInfo, RunState, RunStatus, parse_info, utc_now
from midstream.runs.journal import Records, Report, filter_records, read_records, warn, warn_of_damage
from midstream.runs.lock import exclusive_lock, is_locked
from midstream.runs.segments import Segments, evaluation_name


class RunDirectory:
    """One run on disk. Make it with `create` or `open`; hold `lock` while writing to it.

    The records lie in `metrics`, `timings` and `evaluations`, the trajectories in `trajectories`, the state of training
    in `checkpoints`. Everything that writes may raise `StorageError`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info_path = root / "run.json"
        self.recipe_path = root / "recipe.toml"
        self.status_path = root / "status.json"
        self.lock_path = root / "run.lock"
        self.results_path = root / "results.jsonl"
        self.updates_path = root / "updates.jsonl"
        self.approvals_path = root / "approvals.jsonl"
        self.report_path = root / "report.html"
        self.own_dir = root / "components"
        self.ledger_dir = root / "ledger"
        self.lessons_dir = root / "lessons"
        self.policy_dir = root / "policy"  # created by the export of the weights
        self.metrics = Records(root / "metrics.jsonl", StepMetrics)
        self.timings = Records(root / "timings.jsonl", StepTiming)
        self.evaluations = Records(root / "evaluations.jsonl", EvaluationResult)
        self.learned = Records(root / "learned.jsonl", Learned)
        self.trajectories = Segments(root / "trajectories")
        self.checkpoints = Checkpoints(root / "checkpoints")
        # Those that are read whole, and that no crash damages.
        self.journals = (
            self.metrics.path, self.timings.path, self.evaluations.path, self.learned.path,
            self.updates_path, self.lessons_dir / "versions.jsonl", self.ledger_dir / "spent.jsonl",
            self.approvals_path,
        )  # fmt: skip

    @classmethod
    def create(cls, root: Path, info: RunInfo, recipe_toml: str) -> RunDirectory:
        """Make a new run in `root`, with its parents, which must not exist, or be empty but for what a crash here left.

        `info` is what `collect_info` returns, `recipe_toml` the resolved recipe as text. Raises `RunError` if `root`
        is taken.
        """
        run = cls(root)
        # What a crash in here leaves: the lock comes first, and `run.json`, which makes the directory a run, last.
        first = (run.lock_path, run.recipe_path, run.own_dir, run.trajectories.root, run.checkpoints.root)
        begun = {path.name for path in first}
        names = {path.name for path in root.iterdir() if path.suffix != ".tmp"} if root.is_dir() else set[str]()
        if (root.exists() and not root.is_dir()) or names - begun or (names and run.lock_path.name not in names):
            raise _taken(root)
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        with run.lock():
            # Another process was faster.
            if run.info_path.exists():
                raise _taken(root)
            with storage_errors(root):
                run.trajectories.root.mkdir(exist_ok=True)
                if info.evaluation is None:
                    run.checkpoints.root.mkdir(exist_ok=True)
            atomic_write(run.recipe_path, recipe_toml.encode())
            write_info(run, info)
        return run

    @classmethod
    def open(cls, root: Path, report: Report = warn) -> RunDirectory:
        """An existing run. Raises `RunError` if `root` is missing, not a run, or of another format version.

        `report` receives a line of text for each damaged journal.
        """
        run = cls(root)
        parse_info(run.info_path)
        for error in run.damage():
            report(f"{error.what}; {error.fix}")
        return run

    def info(self) -> RunInfo:
        """The settings and the environment that the run was started with."""
        return parse_info(self.info_path)

    def recipe(self) -> str:
        """The text of `recipe.toml`. Raises `RunError` if it is missing or no text."""
        try:
            return read_file(self.recipe_path).decode()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise damaged_recipe(self.recipe_path, error) from error

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while training in it; the system releases it if this process dies. Raises `RunError`."""
        return exclusive_lock(self.lock_path)

    def set_status(self, state: RunState, message: str = "", *, step: int | None = None) -> None:
        """Replace the status."""
        status = RunStatus(state=state, message=message, step=step, updated_at=utc_now())
        atomic_write(self.status_path, status.model_dump_json().encode() + b"\n")

    def damage(self) -> list[RunError]:
        """The first unreadable line of each journal that has one."""
        found: list[RunError] = []
        for path in self.journals:
            try:
                for _ in read_records(path):
                    pass
            except RunError as error:
                found.append(error)
        return found

    def require_whole(self) -> None:
        """Raise the `RunError` of a damaged journal: a resumed run would count without its lost records."""
        for error in self.damage():
            raise error

    def status(self) -> RunStatus:
        """The state of the run; "interrupted" without a status file, or if "running" has no live process behind it."""
        try:
            status = RunStatus.model_validate_json(read_file(self.status_path))
        except (FileNotFoundError, ValueError, RunError):
            return RunStatus(state="interrupted", message="the run has left no status")
        if status.state == "running" and not is_locked(self.lock_path):
            update = {"state": "interrupted", "message": "the process ended without a status"}
            return status.model_copy(update=update)
        return status

    def find_trajectory(self, id_or_prefix: str) -> Trajectory:
        """The only trajectory, of a step or an evaluation, with this id or beginning of an id (see `Segments.find`)."""
        unfinished = (
            (evaluation_name(result.set), result.id, lambda result=result: result.trajectory)
            for path in (self.results_path, self.ledger_dir / "rollouts.jsonl")
            for result in results.read(path, warn_of_damage)
        )
        return self.trajectories.find(id_or_prefix, unfinished)

    def rewind(self, step: int) -> None:
        """Remove everything of later steps: metrics, timings, evaluations, trajectories, checkpoints.

        A run resumed from the checkpoint of `step` repeats these steps. Evaluations without a step and their
        trajectories stay. If a crash interrupts this, the rewind of the next resume completes it.
        """
        # Newest checkpoint first and before any record, so that there never is a checkpoint without its records.
        later = [saved for saved in self.checkpoints.steps() if saved > step]
        self.checkpoints.remove(later[::-1])
        for path in (self.metrics.path, self.timings.path, self.evaluations.path):
            filter_records(path, lambda record: record.get("step") is None or record["step"] <= step)
        self.trajectories.remove_after(step)


def damaged_recipe(path: Path, error: Exception) -> RunError:
    """The `RunError` of a `recipe.toml` that cannot be read."""
    problem = "the file is missing" if isinstance(error, FileNotFoundError) else str(error)
    fix = f"restore it from a copy; {path.with_name('run.json')} holds its values under `resolved`"
    return damaged(path, problem, fix=fix)


def _taken(root: Path) -> RunError:
    if not root.is_dir():
        return RunError(f"{root} is not a directory", code="directory-unusable", fix="give another --out")
    return RunError(
        f"{root} already exists and is not empty",
        code="run-exists",
        fix=f"give another --out, or resume the run in it: `midstream resume {root}`",
    )


def write_info(run: RunDirectory, info: RunInfo) -> None:
    """Write what a run began with, and a copy of each file of your own that it used."""
    for component in info.own:
        if (file := file_of(component.reference)) is not None:
            (run.own_dir / component.copy_name).parent.mkdir(parents=True, exist_ok=True)
            atomic_write(run.own_dir / component.copy_name, file.read_bytes())
    atomic_write(run.info_path, info.model_dump_json(indent=2).encode() + b"\n")
