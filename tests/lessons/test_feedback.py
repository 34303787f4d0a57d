"""Feedback on lessons that an installed package counts: what is said without one (its own tests have votes)."""

from __future__ import annotations

import pytest

from midstream.core.errors import RecipeError
from midstream.lessons import feedback
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from support.errors import coded


def test_feedback_without_a_package_that_counts_it_is_refused(monkeypatch):
    recipe = load_recipe("lessons-simulated", ["lessons.feedback=votes.sqlite"])
    monkeypatch.setattr(feedback, "entry_points", lambda **names: ())
    with pytest.raises(RecipeError, check=coded("unknown-type", "lessons.feedback")):
        resolve(recipe)
