"""Files that this user may not read, and records of another form: one of them hides no other run."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from midstream.cli.main import main
from midstream.core.errors import MidstreamError
from midstream.runs import RunDirectory
from midstream.runs.feedback import add_feedback
from midstream.view.documents import Documents
from midstream.view.entries import Filter
from support.errors import raises


@pytest.fixture
def two(runs: Path, tmp_path: Path) -> Path:
    """A directory of two runs, `good` and `bad`."""
    for name in ("good", "bad"):
        shutil.copytree(runs / "training", tmp_path / name)
    return tmp_path


def pack(path: Path, line: bytes) -> None:
    path.write_bytes(gzip.compress(line))


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


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "evaluations.jsonl", "recipe.toml", "status.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "endless"])
def test_what_is_no_file_is_not_read(name: str, make: Any, two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = two / "bad"
    (run / name).unlink()
    make(run / name)
    if name in ("run.json", "metrics.jsonl", "evaluations.jsonl"):
        assert main(["show", str(run)])
        assert "error[file-damaged]" in capsys.readouterr().err
    assert main(["check", str(run)])
    out, errors = capsys.readouterr()
    assert f"damaged      {name}" in out or "error[file-damaged]" in errors
    documents = Documents([two])
    assert any(name in said for said in documents.run("bad")["warnings"])
    if name in ("metrics.jsonl", "evaluations.jsonl"):
        with raises("file-damaged", name):
            documents.part("bad", "step-000001", Filter())


def test_a_recipe_that_is_a_link_is_in_no_report(two: Path) -> None:
    (two / "secret").write_text("secret = 1")
    (two / "bad" / "recipe.toml").unlink()
    (two / "bad" / "recipe.toml").symlink_to(two / "secret")
    with raises("file-damaged", "recipe.toml"):
        RunDirectory(two / "bad").recipe()
    assert "secret = 1" not in json.dumps(Documents([two]).run("bad"))


def test_a_vote_changes_no_file_that_a_link_names(two: Path) -> None:
    target = two / "target"
    target.write_bytes(b'{"a": 1}\n{"torn')
    (two / "bad" / "feedback.jsonl").symlink_to(target)
    with raises("file-damaged", "feedback.jsonl"):
        add_feedback(two / "bad", {"part": "step-000001", "id": "a", "vote": "up"})
    assert target.read_bytes() == b'{"a": 1}\n{"torn'


def test_a_directory_whose_name_is_not_utf_8_is_listed(two: Path) -> None:
    os.rename(two / "bad", os.path.join(os.fsencode(two), b"b\xffd"))
    documents = Documents([two])
    listed = documents.list_runs()
    assert json.dumps(listed, ensure_ascii=False).encode()
    [name] = [run["run"] for run in listed["runs"] if run["run"] != "good"]
    assert json.dumps(documents.run(name), ensure_ascii=False).encode()


def test_a_record_of_another_form_stops_no_list(two: Path) -> None:
    path = two / "bad" / "trajectories" / "step-000001.jsonl.gz"
    record = {"id": 1, "task_id": [2], "question": 4, "answer": {}, "turns": [1, 2], "reward": "x"}
    pack(path, json.dumps(record).encode() + b"\n")
    documents = Documents([two])
    for wanted in (Filter(), Filter(tool="python"), Filter(error="x"), Filter(text="4")):
        assert documents.part("bad", "step-000001", wanted)["part"]["name"] == "step-000001"
    with pytest.raises(MidstreamError):
        documents.group("bad", "step-000001", "none")


def test_a_call_of_a_damaged_record_is_an_error_that_names_the_file(two: Path) -> None:
    line = b'{"id":"a","task_id":"t","turns":[{"index":1,"calls":[{"role":"planner"}]}],"duration_s":0.4x}\n'
    pack(two / "bad" / "trajectories" / "step-000001.jsonl.gz", line)
    documents = Documents([two])
    for more in ((), ("tokens",)):
        with raises("file-damaged", "step-000001"):
            documents.get(("run", "bad", "part", "step-000001", "trajectory", "0", "call", "0", *more), {})
