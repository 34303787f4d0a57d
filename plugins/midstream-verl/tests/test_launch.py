"""`midstream train --learner verl` around a `main_ppo` that ends in every way; verl itself: servers/test_verl.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream import api
from midstream.core.errors import TrainingError
from midstream.recipe.overrides import changed_recipe
from midstream.runs import RunDirectory
from midstream.runs.lock import exclusive_lock
from midstream_verl import DRIVER_LOCK
from support.errors import raises

FAKE = Path(__file__).parent / "fake_verl"
SETTINGS = (
    "training.decay_steps=0", "training.steps=2", "evaluation.at=none", "learner.context=1024",
)  # fmt: skip


@pytest.fixture
def verl(monkeypatch):
    """A function that says how `main_ppo` ends."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return lambda how: monkeypatch.setenv("FAKE_VERL", how)


def recipe(*overrides):
    return changed_recipe("text-tiny", learner="verl", overrides=[*SETTINGS, *overrides])


@pytest.mark.slow
def test_the_weights_are_exported_and_evaluated(verl, tmp_path):
    verl("trains")
    run = api.train(recipe(), out=tmp_path / "run").directory
    assert run.status().state == "finished"
    assert (run.policy_dir / "model.safetensors").exists()
    assert run.checkpoints.steps() == [2]
    sets = 'evaluation.sets=[{name = "test", split = "test", families = ["lookup"]}]'
    found = api.evaluate(run, out=tmp_path / "eval", count=2, overrides=[sets]).directory
    assert [result.step for result in found.evaluations.read()] == [2, 2]


def test_an_error_of_midstream_inside_verl_is_raised_here(verl, tmp_path):
    verl("refuses")
    with raises("all-rollouts-failed", "nothing finished", "midstream resume"):
        api.train(recipe(), out=tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").status().state == "failed"


def test_an_error_of_verl_has_the_end_of_its_log(verl, tmp_path):
    verl("fails")
    with raises("verl-failed", "exit code 3", "midstream resume") as failed:
        api.train(recipe(), out=tmp_path / "run")
    assert "verl was here" in failed.value.cause
    verl("trains")
    assert api.resume(tmp_path / "run").directory.status().state == "finished"


@pytest.mark.slow
def test_ctrl_c_ends_verl_and_the_run_resumes(verl, tmp_path):
    verl("waits")
    words = ["--learner", "verl", *(word for setting in SETTINGS for word in ("--set", setting))]
    process = subprocess.Popen(
        [sys.executable, "-m", "midstream", "train", "text-tiny", "--out", str(tmp_path / "run"), *words]
    )
    while not (tmp_path / "run" / "waiting").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert RunDirectory.open(tmp_path / "run").status().state == "interrupted"
    verl("trains")
    assert api.resume(tmp_path / "run").directory.status().state == "finished"


def test_a_run_in_which_verl_still_works_is_left_alone(verl, tmp_path):
    verl("fails")
    with pytest.raises(TrainingError):
        api.train(recipe(), out=tmp_path / "run")
    verl("trains")
    with exclusive_lock(tmp_path / "run" / "verl" / DRIVER_LOCK), raises("run-in-use", "verl"):
        api.resume(tmp_path / "run")


def test_recordings_and_processes_are_refused(verl, tmp_path, monkeypatch):
    with raises("cluster-unsupported", "--record"):
        api.train(recipe(), out=tmp_path / "run", record=tmp_path / "tools")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("RANK", "0")
    with raises("option-without-effect", "--nproc"):
        api.train(recipe(), out=tmp_path / "run")
