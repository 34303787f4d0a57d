"""Start verl's `main_ppo` for a run, wait for it, and take over the weights that it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from midstream.core import errors
from midstream.core.errors import MidstreamError, RunError, TrainingError, UnsupportedError
from midstream.core.events import EvaluationFinished, Listener, Note, Phase, RunFinished, RunStarted, StepFinished
from midstream.recipe.build import Build
from midstream.recipe.sessions import check_work
from midstream.runs import RunDirectory
from midstream.runs.files import storage_errors
from midstream.runs.lock import is_locked
from midstream_verl import DRIVER_LOCK, RUN
from midstream_verl.verl_config import command_of, refuse

_POLL_S = 0.5
_ENDING_S = 60.0  # until verl and Ray have ended after an interrupt


def require_verl() -> None:
    """Raise `UnsupportedError` where verl is not installed."""
    missing = [name for name in ("verl", "ray", "transfer_queue") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"--learner verl needs {' and '.join(missing)}, not installed here",
            code="missing-extra",
            fix="in an environment of its own: pip install -e . -e 'plugins/midstream-verl[verl]', and vllm or sglang",
        )


def session_of(build: Build) -> Callable[[RunDirectory, Listener], VerlRun]:
    """Check a recipe for verl, and return a function that starts or continues its training in a run directory.

    Raises `UnsupportedError` or `RecipeError` if verl cannot train it, or is not installed.
    """
    refuse(build.recipe)
    for option, given in (("--record", build.record), ("--replay", build.replay)):
        if given is not None:
            raise UnsupportedError(
                f"{option} on verl",
                code="cluster-unsupported",
                cause="the tools run in verl's driver",
                fix=f"leave out {option}",
            )
    require_verl()
    check_work(build, "train")
    return partial(VerlRun, build)


class VerlRun:
    """One training run with verl; the caller holds the run's lock, and verl's driver writes its records."""

    def __init__(self, build: Build, run: RunDirectory, listener: Listener) -> None:
        self.build, self.run_directory, self.listener = build, run, listener
        self.own = run.root.absolute() / "verl"
        self._shown = [len(run.metrics.read()), len(run.evaluations.read())]

    async def run(self) -> str:
        """Train to the end, from verl's newest checkpoint if there is one, and export the weights; returns "".

        Raises `TrainingError` if verl ends early, or the error that midstream raised inside verl.
        """
        recipe, run, listener = self.build.recipe, self.run_directory, self.listener
        training = refuse(recipe)
        if is_locked(self.own / DRIVER_LOCK):  # the process that started it was killed
            raise RunError(
                f"verl still trains in {run.root}",
                code="run-in-use",
                fix="wait for it, or stop its Ray (ray stop, on each of its nodes)",
            )
        with storage_errors(self.own):
            self.own.mkdir(exist_ok=True)
        (self.own / "error.json").unlink(missing_ok=True)
        listener(RunStarted(recipe=recipe.name, directory=str(run.root), total=training.steps, done=self._shown[0]))
        listener(Note(f"verl's own output: {run.root / 'verl' / 'verl.log'}"))
        listener(Phase("verl starts Ray, its workers and its servers"))
        _write_model(self.build, self.own / "model")
        await self._verl([sys.executable, "-m", "verl.trainer.main_ppo", *command_of(recipe, run.root)])
        listener(Phase("exporting weights"))
        export(run, training.steps)
        listener(RunFinished())
        return ""

    async def _verl(self, command: Sequence[str]) -> None:
        """Run verl in a process session of its own, and emit what it writes down, until it ends."""
        log = self.own / "verl.log"
        with log.open("ab") as output:
            verl = subprocess.Popen(
                command,
                env={**os.environ, RUN: str(self.run_directory.root.absolute())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                while verl.poll() is None:
                    await asyncio.sleep(_POLL_S)
                    self._emit()
            finally:
                _end(verl, self.own / DRIVER_LOCK)
        self._emit()
        if verl.returncode != 0:
            raise _failure(self.run_directory, log, verl.returncode)

    def _emit(self) -> None:
        """Emit the steps and evaluations that verl's driver has written since the last call."""
        run, shown = self.run_directory, self._shown
        timings = {timing.step: timing for timing in run.timings.read()}
        for step in run.metrics.read()[shown[0] :]:
            if step.step not in timings:  # written in a moment
                break
            self.listener(StepFinished(step, timings[step.step]))
            shown[0] += 1
        for result in run.evaluations.read()[shown[1] :]:
            self.listener(EvaluationFinished(result))
            shown[1] += 1


def _write_model(build: Build, directory: Path) -> None:
    """Write the weights that a small model of midstream's begins with, once a run; others are in a directory."""
    name = build.recipe.modules[build.recipe.trained].engine or ""
    if hasattr(build.recipe.engines[name].config, "model") or directory.exists():
        return
    engine: Any = build.engine(name, counted=False)
    writing = directory.with_suffix(".tmp")
    with storage_errors(directory):
        shutil.rmtree(writing, ignore_errors=True)
        engine.model.save_pretrained(writing)
        engine.tokenizer.save_pretrained(writing)
        writing.rename(directory)


def _end(verl: subprocess.Popen[bytes], lock: Path) -> None:
    """End verl if it still runs: first as Ctrl-C does, so that Ray ends its own processes.

    Its driver, which holds `lock`, is one of them, and may write records until it has ended.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if verl.poll() is not None:
            break
        os.killpg(verl.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            verl.wait(_ENDING_S)
    deadline = time.monotonic() + _ENDING_S
    while is_locked(lock) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _failure(run: RunDirectory, log: Path, code: int) -> MidstreamError:
    """The error of midstream in verl's driver, or that verl itself failed."""
    written = log.with_name("error.json")
    if written.exists():
        record = json.loads(written.read_text(encoding="utf-8"))
        kind = getattr(errors, record.pop("kind"), TrainingError)
        return kind(record.pop("what"), **record)
    how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
    return TrainingError(
        f"verl ended {how}",
        code="verl-failed",
        cause=f"the last lines of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-5:]),
        fix=f"midstream resume {run.root}, which continues from verl's last checkpoint, once that is repaired",
    )


def export(run: RunDirectory, step: int) -> None:
    """Copy the weights of verl's checkpoint of `step` to `policy/` and into a checkpoint of midstream's.

    They are in Hugging Face's format; the checkpoint is what `midstream eval` and `solve` load.
    """
    source = run.root / "verl" / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    if not source.is_dir():
        raise TrainingError(
            f"verl left no weights in {source}",
            code="verl-failed",
            fix="keep the run directory on a file system that all nodes share, and hf_model in save_contents",
        )
    with storage_errors(run.policy_dir):
        shutil.rmtree(run.policy_dir, ignore_errors=True)
        shutil.copytree(source, run.policy_dir)

    def write(directory: Path) -> None:
        shutil.copytree(source, directory, dirs_exist_ok=True)

    run.checkpoints.save(step, write)
