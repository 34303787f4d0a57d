"""A study of a user's own recipe, two arms with three seeds each: killed by signal 9 in the middle, then resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream_extra.study import plan, read_study
from support.errors import printed
from support.killed_training import differences
from support.question_server import QuestionServer

ANSWERS = {f"How much is {i} plus {i} ?": str(2 * i) for i in range(4)}
OWN = """
extends = "direct"
name = "own"
engines.model = {{ base_url = "{url}", model = "scripted" }}
tasks = {{ type = "file", path = "{questions}" }}
evaluation.sets = [{{ name = "sums" }}]
"""
TINY = """
extends = "flow-grpo-tiny"
name = "own"
tasks.countries = 40
engines.policy = { hidden_size = 32, layers = 1 }
warm_start = { transcripts = 60, steps = 3, min_copy_rate = 0 }
training = { steps = 6, tasks_per_step = 2, group_size = 4, validate_every = 2, checkpoint_every = 1 }
[evaluation]
validation = { name = "validation", split = "validation", per_family = 1 }
sets = [{ name = "test", per_family = 1 }]
"""
STUDY = """
name = "mine"
seeds = 3
[[arms]]
name = "as it is"
recipe = "own.toml"
[[arms]]
name = "changed"
recipe = "own.toml"
set = { CHANGE }
"""


def kill_when(reached: Callable[[], bool], *arguments: object) -> None:
    """Start the `midstream` command, and end it with signal 9 as soon as `reached`."""
    command = [sys.executable, "-m", "midstream", *map(str, arguments), "--quiet"]
    process, began = subprocess.Popen(command, stdout=subprocess.DEVNULL), time.monotonic()
    try:
        while not reached():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() - began < 120
            time.sleep(0.002)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


def states(study: Path, root: Path) -> list[str]:
    return [run.state for run in plan(read_study(study), root).runs]


def written(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_evaluated_study_asks_for_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, root = tmp_path / "study.toml", tmp_path / "killed"
    study.write_text(STUDY.replace("CHANGE", "evaluation.trials = 2"), encoding="utf-8")
    rows = [json.dumps({"question": question, "answer": answer}) for question, answer in ANSWERS.items()]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    wrong = dict.fromkeys(list(ANSWERS)[:1], "no idea")
    with QuestionServer(ANSWERS | wrong, slow_s=0.01) as server:
        text = OWN.format(url=server.base_url, questions=tmp_path / "questions.jsonl")
        (tmp_path / "own.toml").write_text(text, encoding="utf-8")
        kill_when(lambda: server.asked.total() >= 6, "study", study, "--out", root)  # in the second of six runs
        before = states(study, root)
        assert before[0] == "finished"
        assert before[-1] == "missing"
        kept, asked = written(root / "own-s0"), server.asked.total()
        assert main(["study", str(study), "--out", str(root), "--json", "--quiet"]) == 0
        # Three runs with one trial, three with two: only what was under way at the kill is asked for again.
        assert asked <= server.asked.total() <= 3 * 4 + 3 * 8 + 4
        assert states(study, root) == ["finished"] * 6
        assert written(root / "own-s0") == kept
    found = json.loads(capsys.readouterr().out)
    assert [row["values"] for row in found["rows"] if row["metric"].startswith("sums")] == [[0.75] * 3] * 2
    assert [row["values"] for row in found["differences"] if row["metric"].startswith("sums")] == [[0.0] * 3]

    study.write_text(STUDY.replace("CHANGE", "evaluation.trials = 3"), encoding="utf-8")
    assert main(["study", str(study), "--out", str(root), "--quiet"]) == 2
    error = printed(capsys.readouterr().err)
    assert error.code == "run-exists"
    assert "arm 'changed'" in error.what
    assert "evaluation.trials: 2 | 3" in error.what


@pytest.mark.slow
def test_a_trained_study_ends_bit_for_bit_as_if_nobody_had_killed_it(tmp_path: Path) -> None:
    study, whole, root = tmp_path / "study.toml", tmp_path / "whole", tmp_path / "killed"
    study.write_text(STUDY.replace("CHANGE", "training.shuffle_rewards = true"), encoding="utf-8")
    (tmp_path / "own.toml").write_text(TINY, encoding="utf-8")
    os.environ["OMP_NUM_THREADS"] = "1"

    def steps() -> int:
        return sum(path.read_bytes().count(b"\n") for path in root.glob("*/metrics.jsonl"))

    for moment in (3, 15, 28):  # in the first run, in the third, in the fifth
        kill_when(lambda moment=moment: steps() >= moment, "study", study, "--out", root)
        assert set(states(study, root)) >= {"interrupted", "missing"}
    for place in (root, whole):
        assert main(["study", str(study), "--out", str(place), "--quiet"]) == 0
    assert (root / "study.json").read_bytes() == (whole / "study.json").read_bytes()
    for run in plan(read_study(study), whole).runs:
        assert differences(run.out, root / run.out.name) == []
