"""The study of controls trains what is missing, reads what is there, and refuses what it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from midstream.cli.main import main

SMALL = (
    "tasks.countries=40", "engines.policy.hidden_size=32", "engines.policy.layers=1", "warm_start.transcripts=60",
    "warm_start.steps=3", "warm_start.min_copy_rate=0", "training.steps=2", "training.tasks_per_step=2",
    "training.group_size=2", "training.supervised.transcripts=20", "evaluation.validation.per_family=1",
    'evaluation.sets=[{name="test", per_family=1}]',
)  # fmt: skip


def study(root: Path, *recipes: str) -> list[str]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    return ["study", "controls", "--seeds", "2", "--out", str(root), "--quiet", "--only", *recipes, *overrides]


def test_rows_of_every_policy_and_nothing_trained_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*study(tmp_path, "flow-grpo-tiny", "control-random", "control-supervised"), "--json"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    names = {row["name"] for row in json.loads(first)}
    assert len(names) == 4
    assert "warm start only" in names
    assert all(len(row["values"]) == 2 and all(0 <= value <= 1 for value in row["values"]) for row in json.loads(first))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}
    assert len(written) == 4
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}
    ElementTree.fromstring((tmp_path / "study.svg").read_text(encoding="utf-8"))


def test_unknown_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(study(tmp_path, "nonsense")) == 2
    assert "'nonsense' is not part of the study" in capsys.readouterr().err


def test_another_recipe_has_no_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "controls", "--recipe", "flow-grpo-lora", "--out", str(tmp_path)]) == 2
    assert "--recipe flow-grpo-lora has no controls" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_a_study_of_no_seeds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: str) -> None:
    assert main(["study", "controls", "--seeds", seeds, "--out", str(tmp_path)]) == 2
    assert f"--seeds {seeds} trains nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
