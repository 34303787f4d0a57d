"""What a recipe is for, read from its own tables: what it learns, which agent, what it needs."""

from __future__ import annotations

from typing import Literal

from midstream.core.component import EngineConfig, Table
from midstream.core.data import Frozen
from midstream.core.kinds import config_class
from midstream.recipe.schema import find_recipe, read_table, recipe_names

Learns = Literal["nothing", "lessons", "weights"]


class RecipeSummary(Frozen):
    """A recipe in a list; `needs` is empty for one that runs without a model, and without PyTorch."""

    name: str
    description: str
    learns: Learns
    agent: str
    needs: tuple[str, ...]
    path: str


def summaries() -> list[RecipeSummary]:
    """Of every recipe that comes with midstream."""
    return [summary(name) for name in recipe_names()]


def summary(name: str) -> RecipeSummary:
    """Of a recipe by name or file, with what it extends. Its settings are not validated."""
    table = read_table(name)
    return RecipeSummary(
        name=table.get("name", name),
        description=table.get("description", ""),
        learns="lessons" if "practice" in table else "weights" if "training" in table else "nothing",
        agent=table["agent"].get("type", "agentflow"),
        needs=_needs(table),
        path=str(find_recipe(name)),
    )


def _needs(table: Table) -> tuple[str, ...]:
    needs: set[str] = set()
    for settings in table.get("engines", {}).values():
        config = config_class("engine", settings["type"])
        in_process = issubclass(config, EngineConfig) and config.in_process
        if settings.get("device", "cpu") != "cpu":
            needs.add("a GPU")
        elif in_process:
            needs.add("PyTorch")
        elif settings["type"] == "openai_compatible":
            needs.add("a model server")
    return tuple(need for need in ("PyTorch", "a model server", "a GPU") if need in needs)
