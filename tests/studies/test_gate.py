"""The study of the gate: exact gains next to the method without it, controls, and nothing run twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from studies.gate import gate_table, main

from midstream.core.terminal import Terminal
from studies import gate, lesson_study

SMALL = (
    "tasks.rules=6", "tasks.help=0.12", "lessons.tasks=16", "lessons.batch_size=16", "lessons.epochs=1",
    "lessons.group_size=3", "lessons.gate.test_pairs=48", "lessons.gate.bisect_pairs=32",
)  # fmt: skip


def study(root: Path, *more: str, seeds: int = 2) -> list[str]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    return ["--seeds", str(seeds), "--out", str(root), "--quiet", *overrides, *more]


@pytest.fixture(scope="module", autouse=True)
def _two_harms() -> Iterator[None]:
    """Half of the runs show as much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "HARMS", (0.0, 0.25))
        yield


@pytest.fixture(scope="module")
def harms(tmp_path_factory: pytest.TempPathFactory, _two_harms: None) -> Path:
    root = tmp_path_factory.mktemp("gate")
    assert main([*study(root), "--only", "gate", "--json"]) == 0
    return root


@pytest.mark.slow
def test_a_row_a_harm_and_an_arm(harms: Path) -> None:
    record = json.loads((harms / "gate-lessons-simulated.json").read_text())
    assert [(row["harm"], row["arm"]) for row in record["gate"]] == [
        (harm, arm) for harm in (0.0, 0.25) for arm in ("no gate", "gate")
    ]
    assert all(len(row["gains"]) == 2 for row in record["gate"])
    assert all(row["rollouts"] == 1 for row in record["gate"] if row["arm"] == "no gate")
    free, _, harmful, _ = record["gate"]
    assert all(one > two for one, two in zip(free["gains"], harmful["gains"], strict=True))  # harm alone differs


@pytest.mark.slow
def test_nothing_is_run_twice_and_the_table_is_shown(harms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in harms.glob("*.json") if "simulated" not in path.name}
    assert len(before) == 8
    assert main([*study(harms), "--only", "gate"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "Exact gain on the test orders" in capsys.readouterr().out


@pytest.mark.slow
def test_controls_count_the_runs_that_accepted_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*study(tmp_path, "--only", "controls", "--json", seeds=1)]) == 0
    rows = json.loads(capsys.readouterr().out)["controls"]
    assert [(row["control"], row["runs"]) for row in rows] == [(name, 1) for name in gate.CONTROLS]


def test_where_nothing_can_be_gained_there_is_no_share_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"harm": 0.0, "arm": "gate", "gains": [0.0, -0.01], "possible": 0.0, "lessons": 0.5, "rollouts": 7.0}
    Terminal(width=80).print(gate_table([row]))
    shown = capsys.readouterr().out
    assert "1/2         -" in shown
    assert "-0.5 ± 6.4" in shown


@pytest.mark.parametrize("study", [gate, lesson_study])
def test_without_a_set_to_measure_on_nothing_is_learned(
    study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(["--out", str(tmp_path), "--quiet", "--set", "evaluation.sets=[]"]) == 1
    assert "error[missing-key]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_only_the_workshop_knows_what_a_lesson_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "flow-grpo-tiny", "--out", str(tmp_path)]) == 1
    assert "error[wrong-kind-of-recipe]" in capsys.readouterr().err
