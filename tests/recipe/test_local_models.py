"""`--model local/NAME`: which engines of a recipe become the model in this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from midstream.engines.local.catalog import cache_directory
from midstream.interface.agents import AgentFlow
from midstream.recipe import overrides
from midstream.recipe.files import read_table
from midstream.recipe.overrides import agent_recipe, changed_recipe, evaluation_recipe, local_engine
from support.errors import raises


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def engines(recipe):
    return {name: (engine.type, engine.config) for name, engine in recipe.engines.items()}


def test_the_model_of_a_recipe_is_loaded_into_this_process():
    found = engines(agent_recipe("agentflow-prompted", model="local/some/model", overrides=()))
    assert found["model"][0] == "transformers_local"
    assert found["model"][1].model == "some/model"


def test_a_trained_policy_keeps_its_settings_and_others_ask_its_reference():
    recipe = changed_recipe("agentflow-7b", model="local/some/model", tools="wikipedia")
    found = engines(recipe)
    assert (found["policy"][0], found["policy"][1].model) == ("transformers_local", "some/model")
    assert (found["policy"][1].device, found["policy"][1].max_batch) == ("cuda", 32)
    assert (found["model"][0], recipe.engines["model"].engine) == ("reference", "policy")
    assert found["judge"][0] == "openai_compatible"


def test_commands_and_python_take_the_same_names(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    expected = {"type": "transformers_local", "model": str(path)}
    assert local_engine(f"local/{path}") == expected
    assert AgentFlow(model=f"local/{path}", tools=["python"]).table()["engines"]["model"] == expected
    assert engines(evaluation_recipe("direct", model=f"local/{path}"))["model"][1].model == str(path)
    assert local_engine("local/smollm2")["model"] == "smollm2"
    assert local_engine("ollama/local/x") == local_engine("local") == {}


@pytest.mark.parametrize("name", ["smollm", "", "./x", "x.gguf", "/nowhere/at/all"])
def test_a_name_that_is_nowhere_is_refused(name):
    with raises("unknown-name", f"'local/{name}'", "smollm2", ".gguf"):
        local_engine(f"local/{name}")


def test_options_of_servers_are_refused():
    with raises("setting-conflict", "--provider"):
        agent_recipe("direct", model="local/smollm2", provider="ollama")
    with raises("option-without-effect", "--serve-with"):
        agent_recipe("direct", model="local/smollm2", serve_with="vllm")
    with raises("option-without-effect", "--model"):
        changed_recipe("flow-grpo-tiny", model="local/smollm2")


@pytest.mark.parametrize("training", ["", "lora", "whole"])
def test_bfloat16_is_for_large_models_where_the_cpu_has_it(training, monkeypatch):
    directory = cache_directory() / "smollm2"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, '
        '"num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true}'
    )
    table = read_table("flow-grpo-lora" if training else "direct")
    [engine] = table["engines"]
    table["engines"][engine].pop("dtype", None)
    if training == "whole":
        del table["learner"]["lora"]

    def dtype(*settings):
        return engines(changed_recipe(table, model="local/smollm2", overrides=settings))[engine][1].dtype

    monkeypatch.setattr(overrides, "re", SimpleNamespace(search=lambda pattern, text: True))
    assert dtype() == ("float32" if training == "whole" else "bfloat16")
    assert dtype(f"engines.{engine}.dtype=float32") == "float32"
    monkeypatch.setattr(overrides, "re", SimpleNamespace(search=lambda pattern, text: None))
    assert dtype() == "float32"
