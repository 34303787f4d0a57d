"""The study of the feedback filter: what it counts, and that both arms are the same until something is held back."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies.common import Job
from studies.feedback import FILTER, SMALL, LearnedRuns, Project, compared, feedback_table, learned, main

from midstream.core.terminal import Terminal
from studies import feedback

QUICK = ("tasks.rules=1", "tasks.share_true=0", "tasks.base=0.6", "tasks.harm=0.5", "lessons.epochs=3")


@pytest.mark.slow
def test_a_run_without_anything_held_back_is_the_same_in_both_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "RUNS", 5)
    overrides = (*SMALL, *QUICK, FILTER, "tasks.seed=1")
    runs = learned(Job(recipe="lessons-simulated", overrides=overrides, root=Path("unused"))).runs
    held = [filtered.harmful_held_back + filtered.good_held_back for _, filtered in runs]
    assert sum(held) > 0
    assert held[0] == 0
    assert all(not without.harmful_held_back for without, filtered in runs if without != filtered)
    assert all(without == filtered for (without, filtered), count in zip(runs, held, strict=True) if not count)
    assert all(filtered.harmful for _, filtered in runs)


def made(gains: tuple[float, ...], rollouts: tuple[int, ...], held: int = 0) -> LearnedRuns:
    return LearnedRuns(gains=gains, rollouts=rollouts, harmful=4, harmful_held_back=held, good=2, good_held_back=0)


def test_rollouts_are_compared_at_the_gain_that_both_reach(capsys: pytest.CaptureFixture[str]) -> None:
    pair = (made((0.0, 0.25, 0.5), (100, 200, 300)), made((0.25, 0.25, 0.25), (50, 60, 70), held=1))
    row = compared([Project(runs=(pair, pair))] * 2, slice(0, 2))
    assert (row["to_equal_gain_without"], row["to_equal_gain_with"]) == ([200, 200], [50, 50])
    assert (row["rollouts_without"], row["rollouts_with"]) == ([300, 300], [70, 70])
    assert (row["harmful"], row["harmful_held_back"]) == ([8, 8], [2, 2])
    nothing = made((0.0,), (10,))
    assert compared([Project(runs=((nothing, nothing),))], slice(0, 1))["to_equal_gain_with"] == [0]
    Terminal(width=100).print(feedback_table([row]))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "harmful proposals held back 25.0 ± 0.0" in lines
    assert "to equal gain, saved 150.0 ± 0.0" in lines


def test_only_the_workshop_knows_what_a_lesson_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "flow-grpo-tiny", "--out", str(tmp_path)]) == 1
    assert "error[wrong-kind-of-recipe]" in capsys.readouterr().err
