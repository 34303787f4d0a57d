"""What a lesson run would do at most."""

from __future__ import annotations

import pytest

from midstream.cli.main import main
from midstream.lessons.settings import LessonsConfig
from midstream.runs.budget import BudgetConfig

NO_LIMIT = BudgetConfig()


def config(**more):
    return LessonsConfig.model_validate(
        {"tasks": 10, "batch_size": 4, "epochs": 2, "group_size": 3, "reflector": {"engine": "m"}, **more}
    )


@pytest.mark.parametrize(
    ("limit", "made", "seen"), [(None, 6, 20), (9, 6, 20), (6, 6, 20), (5, 5, 18), (3, 3, 10), (1, 1, 4), (0, 0, 0)]
)
def test_updates_and_their_tasks(limit, made, seen):
    one, limits = config(), BudgetConfig(updates=limit)
    assert (one.most_updates(limits), one.most_tasks(limits)) == (made, seen)


def test_rollouts_and_requests():
    one = config(gate={"test_pairs": 30, "bisect_pairs": 40}, critic={"engine": "k"})
    assert list(one.most_rollouts(NO_LIMIT).values()) == [60, 6 * 2 * (30 + 30 + 40)]
    margin = config(gate={"test_pairs": 30, "bisect_pairs": 40, "margin": 0.1})
    assert list(margin.most_rollouts(NO_LIMIT).values()) == [60, 6 * 2 * (30 + 30 + 30 + 40)]
    assert one.most_requests(NO_LIMIT) == {("summariser", "m"): 180, ("critic", "k"): 60, ("merger", "m"): 18}


def test_without_rollouts_and_without_a_gate():
    one = config(lessons_from="model", gate={"enabled": False})
    assert one.most_rollouts(NO_LIMIT) == {"learning, without rollouts": 0}
    assert [role for role, _ in one.most_requests(NO_LIMIT)] == ["critic", "merger"]


def test_the_dry_run_says_it(capsys):
    changes = ["lessons.gate.enabled=false", "budget.tokens=5000", "engines.reflector.price_completion_usd=2"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", "lessons-simulated", "--dry-run", *words]) == 0
    said = capsys.readouterr().out
    assert "1,500  of 3 turns: learning, 300 tasks x 5" in said
    assert "400 tasks x 2" in said
    assert "4,500  of summariser: reflector (simulated)" in said
    assert "Limits of the whole run: tokens = 5,000" in said
