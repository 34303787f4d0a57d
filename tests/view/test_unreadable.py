"""Files that this user may not read, and records of another form: one of them hides no other run."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from midstream.core.errors import MidstreamError
from midstream.view.documents import Documents
from midstream.view.entries import Filter
from support.errors import raises


@pytest.fixture
def two(runs: Path, tmp_path: Path) -> Path:
    """A directory of two runs, `good` and `bad`."""
    for name in ("good", "bad"):
        shutil.copytree(runs / "training", tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "evaluations.jsonl", "status.json"])
def test_a_directory_in_the_place_of_a_file_is_named(two: Path, name: str) -> None:
    (two / "bad" / name).unlink()
    (two / "bad" / name).mkdir()
    documents = Documents([two])
    listed = {run["run"]: run for run in documents.list_runs()["runs"]}
    assert listed["good"]["damage"] == []
    assert any(name in said for said in listed["bad"]["damage"])
    assert documents.run("bad")["warnings"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["", "run.json", "metrics.jsonl"])
def test_what_may_not_be_read_is_named_or_left_out(two: Path, name: str) -> None:
    (two / "bad" / name).chmod(0)
    try:
        listed = {run["run"]: run for run in Documents([two]).list_runs()["runs"]}
    finally:
        (two / "bad" / name).chmod(0o700)
    assert listed["good"]["damage"] == []
    assert not name or listed["bad"]["damage"]


def test_a_pipe_in_the_place_of_a_step_is_named(two: Path) -> None:
    os.mkfifo(two / "bad" / "trajectories" / "step-000099.jsonl.gz")
    document = Documents([two]).run("bad")
    assert 99 not in [part["step"] for part in document["parts"]]
    assert any("step 99" in said for said in document["warnings"])


def test_a_record_of_another_form_stops_no_list(two: Path) -> None:
    path = two / "bad" / "trajectories" / "step-000001.jsonl.gz"
    record = {"id": 1, "task_id": [2], "question": 4, "answer": {}, "turns": [1, 2], "reward": "x"}
    path.write_bytes(gzip.compress(json.dumps(record).encode() + b"\n"))
    documents = Documents([two])
    for wanted in (Filter(), Filter(tool="python"), Filter(error="x"), Filter(text="4")):
        assert documents.part("bad", "step-000001", wanted=wanted)["part"]["name"] == "step-000001"
    with pytest.raises(MidstreamError):
        documents.group("bad", "step-000001", "none")


def test_a_call_of_a_damaged_record_is_an_error_that_names_the_file(two: Path) -> None:
    line = b'{"id":"a","task_id":"t","turns":[{"index":1,"calls":[{"role":"planner"}]}],"duration_s":0.4x}\n'
    (two / "bad" / "trajectories" / "step-000001.jsonl.gz").write_bytes(gzip.compress(line))
    documents = Documents([two])
    for ask in (documents.call, documents.tokens):
        with raises("file-damaged", "step-000001"):
            ask("bad", "step-000001", 0, 0)
