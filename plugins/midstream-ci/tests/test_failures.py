"""Failures: chosen by cause or expression, and written as tasks that evaluate."""

import json

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.view.documents import Documents


def test_the_chosen_tasks_evaluate(project, evaluation, tmp_path, capsys):
    tasks = tmp_path / "made" / "hard.jsonl"
    assert main(["failures", str(evaluation.path), "--tasks", str(tasks), "--json"]) == 0
    [cause] = json.loads(capsys.readouterr().out)
    assert cause["cause"] == "wrong answer"
    assert len(cause["runs"]) == 11
    rows = [json.loads(line) for line in tasks.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == cause["tasks"]
    # The button of the viewer writes these lines too.
    documents = Documents([evaluation.path])
    part = documents.run(evaluation.path.name)["parts"][0]["name"]
    shown = documents.get(["run", evaluation.path.name, "part", part, "failures"], {})
    assert "".join(f"{line}\n" for line in shown["tasks"].values()) == tasks.read_text(encoding="utf-8")
    again = ms.evaluate(str(project / "offline.toml"), ms.tasks(tasks).test, out=tmp_path / "again", quiet=True)
    assert {run.task_id for run in again.trajectories()} == set(cause["tasks"])


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--eval-set", "other"], "no-evaluation"), (["--where", "other > 1"], "expression-invalid")],
)
def test_what_is_not_there_is_said(evaluation, capsys, words, code):
    assert main(["failures", str(evaluation.path), *words]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_a_file_that_is_there_stays_as_it_is(evaluation, tmp_path, capsys):
    tasks = tmp_path / "mine.jsonl"
    tasks.write_text("mine", encoding="utf-8")
    for place in (tasks, tmp_path):
        assert main(["failures", str(evaluation.path), "--tasks", str(place)]) == 2
        assert "error[file-exists]" in capsys.readouterr().err
    assert tasks.read_text(encoding="utf-8") == "mine"


def test_an_empty_file_is_not_written(evaluation, tmp_path, capsys):
    words = ["--cause", "tool", "--tasks", str(tmp_path / "none.jsonl")]
    assert main(["failures", str(evaluation.path), *words]) == 2
    assert not (tmp_path / "none.jsonl").exists()
