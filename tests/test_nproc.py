"""`midstream train --nproc`: real processes under torchrun, one of them killed, resumed on other numbers of them."""

from __future__ import annotations

import copy
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from midstream.core.errors import TrainingError, UnsupportedError
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.torchrun import joined, launch
from midstream.training.learner import LocalLearner
from midstream.training.ranks import RankedLearner
from midstream.training.settings import LearnerConfig
from support.errors import coded
from support.exact import LOSS, model_of, ragged_rows

RECIPE = [
    "text-tiny", "--set", "training.steps=3", "--set", "training.checkpoint_every=1", "--set", "evaluation.at=none",
    "--set", "training.tasks_per_step=3", "--set", "training.group_size=4", "--set", "training.minibatches=1",
    "--set", "warm_start.steps=2", "--set", "warm_start.transcripts=8", "--set", "learner.threads=1",
]  # fmt: skip


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "midstream", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(*words: str) -> tuple[int, str]:
    process = start(*words)
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def rank_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("RANK", "")
    except psutil.Error:
        return ""


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# --- the parts, in this process -----------------------------------------------------------------------------------


@pytest.fixture
def handlers():
    """The signal handlers of this process, which torchrun replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    earlier = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.fixture
def torchrun(monkeypatch, handlers):
    """As torchrun starts one rank of one, which has left the others afterwards."""
    group = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {**group, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_float32_masters_are_divided_and_no_rank_has_a_whole_reference(torchrun):
    dist.init_process_group("gloo")
    config = LearnerConfig(attention="dense")
    start = model_of("llama", dtype=torch.bfloat16, double_norm=False)
    learner = RankedLearner(copy.deepcopy(start), config, sampled=False)
    assert {parameter.dtype for parameter in learner.parameters} == {torch.float32}
    one = LocalLearner(start, config)
    losses = [each.forward_backward(ragged_rows(1)[:3], LOSS).loss for each in (learner, one)]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
    assert learner.optimizer_step(1e-3) == pytest.approx(one.optimizer_step(1e-3), rel=0.05)
    refused = pytest.raises(UnsupportedError, check=coded("setting-conflict", "reference policy"))
    with refused, learner.reference_policy():
        pass


@pytest.mark.parametrize(("offload", "named"), [(True, "learner.offload"), (False, "engine type tiny")])
def test_what_cannot_be_divided_among_ranks_is_refused(torchrun, offload, named):
    dist.init_process_group("gloo")
    model: Any = model_of("llama", dtype=torch.float32, double_norm=False)
    if not offload:
        model.before_step = lambda seed: None
    with pytest.raises(UnsupportedError, check=coded("setting-conflict", named, fix="--nproc")):
        RankedLearner(model, LearnerConfig(offload=offload), sampled=False)


def test_a_recipe_without_weights_is_refused_by_rank_0_and_left_by_the_others(torchrun, monkeypatch):
    with Build(load_recipe("lessons-simulated")) as build:
        with pytest.raises(UnsupportedError, check=coded("option-without-effect", fix="--nproc")), joined(build):
            pass
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(SystemExit, check=lambda ended: ended.code == 0), joined(build):
            pass


@pytest.fixture
def each_rank(tmp_path, monkeypatch, handlers):
    """`each_rank(SCRIPT)` has every rank run it in place of Python."""
    # For its log, the launcher reads the source of every frame, which under pytest takes a CPU-second.
    monkeypatch.setattr(inspect, "stack", lambda *_: [])

    def replace(script: str) -> None:
        (tmp_path / "rank").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/$RANK.pid\n{script}\n")
        (tmp_path / "rank").chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "rank"))

    yield replace
    for file in tmp_path.glob("*.pid"):
        assert not psutil.pid_exists(int(file.read_text()))


def test_rank_0_has_said_why_it_fails(each_rank):
    each_rank("exit 2")
    assert launch(1, []) == 2


@pytest.mark.slow
def test_a_rank_is_a_process_of_midstream(capfd, handlers):
    assert launch(1, ["--nowhere"]) == 2
    assert "usage: midstream" in capfd.readouterr().err


@pytest.mark.parametrize("end", ["kill -9 $$", pytest.param("exit 3", marks=pytest.mark.slow)])
def test_a_rank_that_ends_stops_the_others(each_rank, tmp_path, end):
    wait = f"while [ ! -s {tmp_path}/0.pid ]; do sleep 0.01; done"
    each_rank(f'if [ "$RANK" = 1 ]; then {wait}; {end}; fi; exec sleep 600')
    with pytest.raises(TrainingError, check=coded("rank-lost", "rank 1 of 2")):
        launch(2, [])


def test_ctrl_c_stops_the_ranks(each_rank, tmp_path, monkeypatch):
    watch = LocalElasticAgent._monitor_workers

    def interrupted(*given: object) -> object:
        while not (tmp_path / "0.pid").exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        return watch(*given)

    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", interrupted)
    each_rank("exec sleep 600")
    assert launch(1, []) == 130


# --- whole runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    out = tmp_path_factory.mktemp("one") / "run"
    code, output = finish("train", *RECIPE, "--out", str(out))
    assert code == 0, output
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of two processes, of which rank 1 was killed after the first step: its directory, exit code and output."""
    out = tmp_path_factory.mktemp("killed") / "run"
    process = start("train", *RECIPE, "--nproc", "2", "--out", str(out))
    try:
        while not (out / "checkpoints" / "step-000001").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        [rank_1] = [child for child in psutil.Process(process.pid).children(recursive=True) if rank_of(child) == "1"]
        rank_1.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return out, process.returncode, output


@pytest.mark.slow
def test_one_rank_killed_stops_the_run_with_a_clear_error(killed):
    out, code, output = killed
    assert code == 1
    assert "error[rank-lost]" in output
    assert "rank 1 of 2" in output
    assert "SIGKILL" in output
    assert "Traceback" not in output
    assert RunDirectory.open(out).status().state in ("interrupted", "failed")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_it_resumes_on_any_number_and_ends_as_one_process(killed, one_process, processes, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    code, output = finish("resume", str(run), "--nproc", str(processes))
    assert code == 0, output
    assert losses(run) == pytest.approx(losses(one_process), abs=1e-5)
    resumed, expected = (load_file(each / "policy" / "model.safetensors") for each in (run, one_process))
    assert resumed.keys() == expected.keys()
    assert max((resumed[name] - expected[name]).abs().max().item() for name in expected) < 2e-4


@pytest.mark.slow
def test_rank_0_alone_speaks_and_says_why_it_stops(tmp_path):
    code, output = finish("train", "flow-grpo-tiny", "--nproc", "2", "--out", str(tmp_path / "run"))
    assert code == 2
    assert output.count("error[") == 1
    assert "error[setting-conflict]" in output
    assert "leave out --nproc" in output


@pytest.mark.slow
def test_an_error_that_every_rank_meets_is_reported_once(tmp_path):
    for words in (("train", "nowhere"), ("resume", str(tmp_path))):
        code, output = finish(*words, "--nproc", "2")
        assert (code, output.count("error[")) == (2, 1), output
        assert "rank-lost" not in output


@pytest.mark.slow
def test_what_is_finished_is_reported_once(one_process):
    code, output = finish("resume", str(one_process), "--nproc", "2")
    assert (code, output.count("Report:")) == (0, 1), output


@pytest.mark.slow
@pytest.mark.parametrize(("number", "says"), [(signal.SIGINT, "stopped; resume with"), (signal.SIGKILL, "")])
def test_ranks_end_with_their_launcher(killed, tmp_path, number, says):
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    process = start("resume", str(run), "--nproc", "2")
    while not (run / "checkpoints" / "step-000002").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert psutil.wait_procs(ranks, timeout=20)[1] == []
    assert says in output
    assert "Traceback" not in output
    assert "death signal" not in output
    assert RunDirectory.open(run).status().state in ("interrupted", "finished")


@pytest.mark.slow
@pytest.mark.matrix(1)
@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_number_of_processes_is_at_least_one(number):
    code, output = finish("train", "text-tiny", f"--nproc={number}")
    assert code == 2
    assert "is not a whole number" in output


@pytest.mark.slow
def test_a_recipe_that_trains_no_weights_needs_one_process(tmp_path):
    code, output = finish("train", "lessons-simulated", "--nproc", "2", "--out", str(tmp_path / "run"))
    assert code == 2
    assert output.count("error[option-without-effect]") == 1
