"""Registration of components; what recipes say of them is tested in tests/recipe."""

from __future__ import annotations

import pytest

from midstream.components import component, kinds, tables
from midstream.core.errors import RecipeError
from support.errors import coded


def test_settings_of_another_kind_are_refused(monkeypatch: pytest.MonkeyPatch):
    class Longest(component.ComponentConfig):
        """Settings that are of no kind."""

    monkeypatch.setattr(kinds, "_REGISTRY", {})
    kinds.register("planner", "longest", Longest)
    kinds.register("reward", "longest", Longest)
    assert kinds.config_class("planner", "longest") is Longest
    with pytest.raises(RecipeError, check=coded("component-invalid", "Longest", "RewardConfig")):
        tables.parse_component("reward", {"type": "longest"}, "reward")
