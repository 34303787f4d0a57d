"""A run that grows while it is watched, and a server that is started again in between."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty

import pytest

from midstream.core.trajectory import Score, Trajectory
from midstream.runs import Journal, RunDirectory, results
from midstream.runs.lock import exclusive_lock
from support.viewing import Client, viewing


@pytest.fixture
def growing(runs: Path, tmp_path: Path) -> Path:
    """A training run that has made 3 of its steps, and the rest of its steps next to it."""
    root = tmp_path / "all" / "run"
    shutil.copytree(runs / "training", root)
    run = RunDirectory(root)
    (tmp_path / "rest").mkdir()
    for step in range(4, 11):
        run.trajectories.path(step).rename(tmp_path / "rest" / str(step))
    lines = run.metrics.path.read_bytes().splitlines(keepends=True)
    (tmp_path / "metrics").write_bytes(b"".join(lines[3:]))
    run.metrics.path.write_bytes(b"".join(lines[:3]))
    return root


def grow(root: Path, step: int) -> None:
    """Add a step, as the session writes it."""
    run, rest = RunDirectory(root), root.parent.parent
    (rest / "rest" / str(step)).rename(run.trajectories.path(step))
    line = (rest / "metrics").read_bytes().splitlines(keepends=True)[step - 4]
    with run.metrics.path.open("ab") as file:
        file.write(line)


def steps(client: Client) -> list[int]:
    return [part["step"] for part in client.get("run/run")["parts"] if part["kind"] == "step"]


def test_a_new_step_is_announced_within_a_second(growing: Path) -> None:
    with viewing(growing.parent) as client:
        assert steps(client) == [1, 2, 3]
        with client.events() as changes:
            took = []
            for step in (4, 5):
                began = time.monotonic()
                grow(growing, step)
                assert changes.get(timeout=5) == ["run"]
                took.append(time.monotonic() - began)
                time.sleep(0.6)  # two files changed: both may have been seen at once, or one after the other
                while not changes.empty():
                    changes.get()
                assert steps(client) == list(range(1, step + 1))
                assert client.get("runs")["runs"][0]["step"] == step
            assert min(took) < 1  # a busy machine may be late once


def test_a_connection_hears_what_changes_and_nothing_else(growing: Path) -> None:
    with viewing(growing.parent) as client, client.events() as changes:
        with pytest.raises(Empty):
            changes.get(timeout=1)
        grow(growing, 4)
        assert changes.get(timeout=5) == ["run"]


def test_an_evaluation_under_way_is_read_as_it_grows(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "evaluation", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")

    def end(*numbers: int) -> None:
        with Journal(run.results_path) as journal:
            results.append(
                journal,
                "late-T1",
                [
                    Trajectory(id=f"t{at}#0", task_id=f"t{at}", question=f"é {at}", reward=Score(value=at % 2))
                    for at in numbers
                ],
            )

    with viewing(tmp_path) as client:
        end(0, 1, 2)
        [part] = [part for part in client.get("run/run")["parts"] if part["kind"] == "unfinished"]
        assert (part["name"], part["count"], part["mean"]) == ("unfinished-late-T1", 3, 1 / 3)
        end(3, 4)
        with run.results_path.open("ab") as file:
            file.write(b'{"set":"late-T1","trajectory":{"id":"torn"')
        listed = client.get("run/run/part/unfinished-late-T1?reward=1")
        assert [(entry["place"], entry["id"], entry["question"]) for entry in listed["entries"]] == [
            (1, "t1#0", "é 1"), (3, "t3#0", "é 3"),
        ]  # fmt: skip
        assert client.get("run/run/part/unfinished-late-T1/trajectory/4")["id"] == "t4#0"
        end(5)  # the torn line is cut off
        assert client.get("run/run/part/unfinished-late-T1")["part"]["count"] == 6
        results.keep(run.results_path, lambda name, failed: False)
        assert client.get("run/run/part/unfinished-late-T1", status=404)


def test_a_process_that_ends_without_a_word_is_news(growing: Path) -> None:
    run = RunDirectory(growing)
    run.set_status("running")
    code = (
        "import sys; from pathlib import Path; from midstream.runs.lock import exclusive_lock\n"
        "with exclusive_lock(Path(sys.argv[1])): input()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run.lock_path)], stdin=subprocess.PIPE)
    try:
        with viewing(growing.parent) as client:
            until = time.monotonic() + 20
            while client.get("runs")["runs"][0]["state"] != "running":
                assert time.monotonic() < until
                time.sleep(0.1)
            with client.events() as changes:
                process.kill()
                process.wait()
                assert changes.get(timeout=5) == ["run"]
                assert client.get("runs")["runs"][0]["state"] == "interrupted"
    finally:
        process.kill()
        process.communicate()


def test_feedback_does_not_need_the_lock_of_a_run_at_work(growing: Path) -> None:
    with exclusive_lock(RunDirectory(growing).lock_path), viewing(growing.parent) as client:
        entry = client.get("run/run/part/step-000001?limit=1")["entries"][0]
        client.post("run/run/feedback", {"part": "step-000001", "id": entry["id"], "vote": "up", "note": ""})
        assert client.get("run/run/part/step-000001/trajectory/0")["vote"] == {"vote": "up", "note": ""}
