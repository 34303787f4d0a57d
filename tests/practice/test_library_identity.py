"""Which agent a library was proven for: what changes it, and what does not."""

from __future__ import annotations

import pytest

from midstream.practice.library import identity
from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from support.practised import write_recipe


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, practice=False)


def test_an_agent_is_the_same_wherever_its_model_is_served(recipe):
    def of(*changes: str) -> str:
        return identity(check(load_recipe(str(recipe), changes)))

    same = (
        "engines.model.base_url=http://127.0.0.1:1/v1",
        "engines.model.timeout_s=3",
        "agent.planner.sampling.temperature=0",
    )
    assert {of(), *(of(one) for one in same)} == {of()}
    others = (
        "engines.model.model=another",
        "engines.model.extra_body.reasoning_effort=low",
        "agent.memory_update=on_continue",
        "agent.planner.memory_style=toon",
        "agent.executor.mode=code",
        "tools.local_search.top_k=5",
        "tools.base_generator.engine=model",
    )
    assert len({of(), *(of(one) for one in others)}) == len(others) + 1


def test_a_prompt_file_counts_by_its_text(recipe, tmp_path):
    def of(text: str, name: str) -> str:
        (tmp_path / name).write_text("{{lessons}}{{tools}}\n<!-- user -->\n{{query}} {{memory}}" + text)
        return identity(check(load_recipe(str(recipe), [f"agent.planner.prompt_file={tmp_path / name}"])))

    assert of("x", "a.md") == of("x", "b.md") != of("y", "a.md")


def test_trained_weights_are_another_agent(recipe):
    resolved = check(load_recipe("flow-grpo-tiny"))
    assert identity(resolved) != identity(resolved, "0123")
    assert identity(resolved) != identity(check(load_recipe("flow-grpo-tiny", ["seed=99"])))
    assert identity(check(load_recipe(str(recipe), ["seed=99"]))) == identity(check(load_recipe(str(recipe))))
