"""What a run came to, whatever its kind of agent."""

from __future__ import annotations

from midstream.cli.results import _limits
from midstream.recipe.schema import load_recipe


def test_a_tiny_run_says_what_its_kind_of_agent_cannot_show() -> None:
    assert _limits(load_recipe("flow-grpo-tiny")).startswith("The planner has half a million parameters")
    assert _limits(load_recipe("artist-tiny")).startswith("The policy has half a million parameters")
    assert _limits(load_recipe("agentflow-prompted")) == ""
