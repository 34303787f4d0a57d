"""The benchmark of who accepts changes of texts: its world is what it claims, and its measures are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import texts_offline
from texts_offline import GATE, SMALL, behind_gate, gepa_steps, minibatch_rule, outcome, run
from texts_world import EMPTY, SCENARIOS, TASKS, BudgetSpent, World

HELPFUL = SCENARIOS["mostly helpful"].best


def test_a_quick_run_says_that_gepa_was_not_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(texts_offline, "GEPA", False)
    texts_offline.main(["--quick", "--json", str(tmp_path / "texts.json")])
    shown = capsys.readouterr().out
    assert "gepa, gepa + gate: not measured: gepa is not installed" in shown
    found = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    assert list(found) == ["mostly helpful", "shuffled rewards"]
    for runs in found.values():
        assert [list(run["900"]) for run in runs] == [["no gate", "minibatch", "gate", "gate, small"]] * 2
    [free, _] = [run["900"]["no gate"] for run in found["mostly helpful"]]
    assert free["accepted"]["helpful"] > 0
    assert free["accepted"]["harmful"] > 0


def test_changes_have_the_effects_of_their_kind_on_fresh_tasks():
    world = World(0, "mostly helpful", "any", 100)
    start = world.success(EMPTY)
    assert world.success(HELPFUL) > start + 0.3
    assert world.success(frozenset({"harmful 0"})) < start - 0.03
    assert world.success(frozenset({"neutral 0"})) == start
    leak = frozenset({"leaking training-1 training-2 training-3"})
    assert start - 0.01 < world.success(leak) < start
    assert world.chance("training-1", leak) > world.chance("training-1", EMPTY) + 0.3


def test_ways_get_equal_changes_and_a_budget():
    one, two = (World(3, "many leaking", way, 30) for way in ("gate", "gepa"))
    assert [one.study(k, EMPTY)[2] for k in range(10)] == [two.study(k, HELPFUL)[2] for k in range(10)]
    assert one.used == 30
    with pytest.raises(BudgetSpent):
        one.study(10, EMPTY)


def test_shuffled_rewards_do_not_depend_on_the_text():
    with_text, without = (World(0, "shuffled rewards", "any", 500) for _ in range(2))
    assert with_text.rewards([("test-0", HELPFUL)] * 500) == without.rewards([("test-1", EMPTY)] * 500)


def test_regret_is_averaged_over_the_budget():
    world = World(0, "mostly helpful", "any", 1000)
    best = world.success(HELPFUL) - world.success(EMPTY)
    found = outcome(world, [(0, EMPTY), (400, HELPFUL), (1001, frozenset({"harmful 1"}))], 1000)
    assert (found.gain, found.regret, found.mean_regret) == pytest.approx((best, 0.0, 0.4 * best))
    assert (found.rollouts_to_90, found.no_better, found.accepted["harmful"]) == (400, False, 0)
    worse = outcome(world, [(0, EMPTY), (10, frozenset({"leaking training-1"}))], 1000)
    assert (worse.rollouts_to_90, worse.no_better, worse.accepted["leaking"]) == (None, True, 1)


def test_the_gate_accepts_a_good_text_and_not_a_bad_one():
    world = World(0, "mostly helpful", "gepa + gate", 2000)
    [start, (used, text)] = behind_gate(world, [(0, EMPTY), (600, HELPFUL), (1900, EMPTY)], SMALL)
    assert start == (0, EMPTY)
    assert text == HELPFUL
    assert 1600 < used <= 2000
    harmful = frozenset(f"harmful {i}" for i in range(10))
    assert behind_gate(World(0, "mostly helpful", "any", 2000), [(0, EMPTY), (600, harmful)], SMALL) == [(0, EMPTY)]


def test_a_decision_that_the_budget_interrupts_is_not_made():
    world = World(0, "mostly helpful", "gate", 400)
    assert run(world, GATE) == [(0, EMPTY)]
    assert world.used == 400 - (400 - 3 * GATE.batch) % (2 * GATE.config.block)


def test_gepa_and_its_acceptance_are_the_package_s(monkeypatch):
    pytest.importorskip("gepa")
    world = World(0, "mostly helpful", "gepa", 600)
    steps = gepa_steps(world)
    assert 600 <= world.used < 640
    assert steps[0] == (0, EMPTY)
    # Each candidate was validated, before which the seed was.
    assert all(used >= TASKS["gepa"] for used, _ in steps[1:])
    by_package = run(World(0, "many leaking", "minibatch", 300), minibatch_rule)
    monkeypatch.setattr(texts_offline, "GEPA", False)
    assert run(World(0, "many leaking", "minibatch", 300), minibatch_rule) == by_package
