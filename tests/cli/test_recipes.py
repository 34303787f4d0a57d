"""`midstream recipes`: every recipe, with what it learns and needs as its own tables say; one in full."""

from __future__ import annotations

import json
import tomllib

from midstream.cli.main import main
from midstream.recipe.schema import shipped_recipes
from support.errors import printed


def recipes(capsys, *words):
    assert main(["recipes", *words]) == 0
    return capsys.readouterr().out


def test_every_recipe_is_listed_once_with_a_description(capsys):
    found = json.loads(recipes(capsys, "--json"))
    assert [recipe["name"] for recipe in found] == [*shipped_recipes()]
    assert all(recipe["description"] for recipe in found)
    about = {recipe["name"]: (recipe["learns"], recipe["agent"], recipe["needs"]) for recipe in found}
    assert about["tool-calling"] == ("nothing", "direct", ["a model server"])
    assert about["flow-grpo-tiny"] == ("weights", "agentflow", ["PyTorch"])
    assert about["training-free-simulated"] == ("lessons", "agentflow", [])
    assert about["agentflow-7b"] == ("weights", "agentflow", ["a model server", "a GPU"])
    assert recipes(capsys, "--quiet").split() == [*shipped_recipes()]


def test_one_is_printed_as_a_recipe_that_can_be_saved_and_changed(capsys, tmp_path):
    text = recipes(capsys, "training-free-simulated")
    assert tomllib.loads(text)["tasks"]["type"] == "workshop"
    assert text.startswith("# training-free-simulated: learns lessons; agent agentflow; needs nothing\n")
    (tmp_path / "mine.toml").write_text(recipes(capsys, "tool-calling").replace("name = ", "name = 'mine' # "))
    shown = json.loads(recipes(capsys, str(tmp_path / "mine.toml"), "--json"))
    assert (shown["name"], shown["agent"], "# ours" in shown["text"]) == ("mine", "direct", True)


def test_an_unknown_one_is_refused(capsys):
    assert main(["recipes", "flow-grpo-tinny"]) == 2
    assert printed(capsys.readouterr().err).code == "unknown-recipe"
