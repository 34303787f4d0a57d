"""The study of a lesson set: arms, turns by epoch, transfer between domains; nothing is learned twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies.lesson_study import LessonStudy, main

from midstream.lessons.commit import History
from midstream.runs import RunDirectory

SMALL = (
    'tasks.domains=["press", "kiln"]', "tasks.train=40", "tasks.validation=30",
    "tasks.test=30", "tasks.rules=6", "tasks.help=0.12", "lessons.tasks=8", "lessons.batch_size=8",
    "lessons.epochs=2", "lessons.group_size=3", "lessons.gate.tasks=20", "lessons.gate.test_pairs=32",
    "lessons.gate.bisect_pairs=32", "evaluation.trials=1",
)  # fmt: skip


def study(root: Path, *more: str) -> list[str]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    return ["--seeds", "1", "--out", str(root), "--quiet", *overrides, *more]


@pytest.mark.slow
def test_an_analysis_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = study(tmp_path, "--only", "tools")
    assert main([*arguments, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out).values()
    assert [(row["name"], row["metric"]) for row in found] == [
        (epoch, metric) for epoch in ("1", "2") for metric in ("reward", "turns")
    ]
    [path] = tmp_path.glob("*/updates.jsonl")
    written = path.stat().st_mtime_ns
    assert main(arguments) == 0
    assert path.stat().st_mtime_ns == written
    assert "While it learns" in capsys.readouterr().out
    analysis = LessonStudy(root=tmp_path, named="lessons-domains", overrides=(), seeds=1, report=print)
    run = RunDirectory.open(path.parent)
    worth, press, kiln = (analysis.worth(run, domain) for domain in ("", "press", "kiln"))
    assert worth is not None
    assert press is not None
    assert kiln is not None
    assert worth[0] == pytest.approx((press[0] + kiln[0]) / 2)
    assert worth[0] <= worth[1] <= (press[1] + kiln[1]) / 2, "lessons of one domain clutter the other's orders"
    lessons = History(run.lessons_dir).get().lesson_set.rendered
    assert bool(lessons) == (worth[0] != 0), "an empty lesson set is worth nothing, any other something"


@pytest.mark.slow
def test_every_analysis_and_nothing_learned_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*study(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    arms = {row["name"] for row in found["arms"]}
    assert {"the recipe", "without the gate", "majority, no answers", "no grades, no answers"} < arms
    rollouts = {row["name"]: row["values"] for row in found["arms"] if row["metric"] == "rollouts"}
    assert rollouts["lessons without rollouts"] < rollouts["the recipe"]
    assert [row["name"] for row in found["tools"]] == ["1", "1", "2", "2"]
    assert {(row["name"], row["metric"]) for row in found["transfer"]} == {
        (f"learned on {source}", f"{kind}gain on {domain}")
        for source in ("press", "kiln", "all domains")
        for domain in ("press", "kiln")
        for kind in ("", "exact ")
    }
    elsewhere = {row["name"]: row["values"] for row in found["transfer"] if row["metric"] == "exact gain on kiln"}
    assert elsewhere["learned on press"][0] <= 0, "lessons of another domain only clutter"
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/updates.jsonl")}
    assert len(written) == 10  # the recipe serves three analyses
    assert main(study(tmp_path)) == 0
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert "From one domain to another" in capsys.readouterr().out


def test_a_recipe_that_learns_no_lesson_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "flow-grpo-tiny", "--out", str(tmp_path), "--quiet"]) == 1
    assert "error[wrong-kind-of-recipe]" in capsys.readouterr().err


def test_transfer_needs_several_domains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*study(tmp_path, "--only", "transfer"), "--set", 'tasks.domains=["press"]']
    assert main(command) == 1
    assert "error[setting-conflict]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--only", "transfer", "--set", "evaluation.sets=[{name='one', families=['press']}]"], "setting-conflict"),
        (["--only", "arms", "--set", "evaluation.at=end"], "setting-conflict"),
        (["--only", "arms", "--set", "evaluation.at=none"], "setting-conflict"),
    ],
)
def test_what_is_not_measured_is_refused_before_any_work(
    more: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*study(tmp_path), *more]) == 1
    assert f"error[{code}]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
