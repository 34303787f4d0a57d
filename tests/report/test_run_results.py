"""Results of a run, for every kind of agent."""

from __future__ import annotations

from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from midstream.report.run_results import run_limits


def test_a_tiny_run_says_what_its_kind_of_agent_cannot_show() -> None:
    assert run_limits(check(load_recipe("flow-grpo-tiny"))).startswith("The planner has half a million parameters")
    assert run_limits(check(load_recipe("artist-tiny"))).startswith("The policy has half a million parameters")
    assert "made-up desks" in run_limits(check(load_recipe("function-calling-tiny")))
    assert run_limits(check(load_recipe("agentflow-prompted"))) == ""
