"""Runs on screen and as pages, read from their directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.cli import main as cli
from midstream.report.lessons import read_lesson_run
from midstream.report.run import run_page
from midstream.runs import RunDirectory
from midstream.runs.budget import BudgetConfig
from midstream.runs.info import collect_info
from midstream.runs.segments import result_name
from support import evaluations
from support.lesson_runs import MadeUp, made_up, write_run
from support.pages import found, keys, texts


def test_a_run_is_read_as_it_was_written(tmp_path):
    made = made_up(3)
    run = write_run(tmp_path / "run", made)
    data = read_lesson_run(run)
    assert list(data.updates) == made.updates
    assert data.lesson_set == made.lesson_set
    (paired,) = data.compared
    assert (paired.first_success, paired.other_success, paired.tasks) == (0.4, 0.6, 40)
    assert (data.spent.rollouts, data.spent.calls, data.spent.tokens) == (1050, 1860, 1_230_000)
    assert data.costs["learning", "critic"].tokens == 1000


def test_the_page_is_made_from_the_directory(tmp_path):
    made = made_up(2)
    page = run_page(write_run(tmp_path / "run", made))
    (tiles,) = found(page, "tiles")
    assert (tiles["tiles"][0]["before"], tiles["tiles"][0]["value"]) == ("40.0%", "60.0%")
    assert tiles["tiles"][1]["value"] == "+20.0"
    origin = made.lesson_set.lessons[0].origin
    assert f"step-{origin.update:06d}/{origin.trajectories[0]}" in texts(page)
    assert keys(page)[-4:] == ["runs", "how", "limits", "next"]
    (runs,) = found(page, "runs")
    assert [run["label"] for run in runs["runs"]] == ["no lessons, step 0", "with lessons, step 2"]


def test_show_prints_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run = write_run(tmp_path / "run", made_up(2))
    assert cli.main(["show", str(run.root)]) == 0
    out = capsys.readouterr().out
    for part in (
        "Updates of the lesson set",
        "Tests of the gate",
        "Lessons",
        "with lessons is better than no lessons",
        "finished",
    ):
        assert part in out, part


def test_show_prints_a_rollout_that_a_lesson_came_from(tmp_path, capsys):
    run = write_run(tmp_path / "run", made_up(2))
    assert cli.main(["show", str(run.root), "step-000001/t0#0"]) == 0
    assert "How many towns of district t0" in capsys.readouterr().out


def test_show_gives_json(tmp_path, capsys):
    made = made_up(2)
    run = write_run(tmp_path / "run", made)
    assert cli.main(["show", str(run.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["updates"]) == 2
    assert found["lessons"]["next_number"] == made.lesson_set.next_number
    assert found["compared"][0]["verdict"] == "better"


def test_an_interrupted_run_names_the_command_that_resumes_it(tmp_path, capsys):
    run = write_run(tmp_path / "run", made_up(1), finished=False)
    run.set_status("interrupted", "stopped by Ctrl-C")
    assert cli.main(["show", str(run.root)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "stopped by Ctrl-C" in out
    assert "resume with: midstream resume" in out


def test_a_run_at_its_very_beginning_can_be_shown(tmp_path, capsys):
    run = write_run(tmp_path / "run", MadeUp(), finished=False)
    assert cli.main(["show", str(run.root)]) == 0
    assert "The lesson set is empty." in capsys.readouterr().out
    assert "No update" in run_page(run)["lead"]


def test_a_limit_that_was_passed_was_raised(tmp_path):
    made = made_up(2)  # 700 rollouts
    budget = BudgetConfig(rollouts=500, tokens=10_000_000)
    data = read_lesson_run(write_run(tmp_path / "run", made, budget=budget))
    assert (data.budget.rollouts, data.budget.tokens) == (None, 10_000_000)


def test_a_set_without_any_pair_is_named(tmp_path):
    run = write_run(tmp_path / "run", made_up(1), finished=False)
    for step, score in ((0, 1.0), (1, None)):
        result, trajectories = evaluations.evaluated({"q1": [score]}, step=step)
        run.trajectories.write(result_name("held-out", "T=1", step), trajectories)
        run.evaluations.append(result)
    data = read_lesson_run(run)
    assert data.compared == []
    assert data.notes[0].startswith("held-out T=1 is not compared: no task")


@pytest.mark.parametrize(("engine", "said"), [("simulated", True), ("openai", False)])
def test_a_page_has_what_its_engines_cannot_show(tmp_path, engine, said):
    page = run_page(write_run(tmp_path / "run", made_up(1), engine=engine))
    (limits,) = [section for section in page["sections"] if section["key"] == "limits"]
    assert "An interval shows how far the choice of tasks could move a result" in texts(limits)
    assert ("is simulated" in texts(limits)) == said


@pytest.mark.parametrize("resolved", [{}, {"lessons": None}])
def test_a_training_run_is_refused(tmp_path: Path, resolved: dict[str, None]):
    made = RunDirectory.create(tmp_path / "run", collect_info("a", 0, resolved), "")
    assert made.info().kind == "training"
