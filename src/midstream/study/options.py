"""What the command line says about a study."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from midstream.core.errors import RecipeError, UsageError
from midstream.recipe.schema import Recipe


def chosen(options: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """What `--only` leaves of `known`; checks `--seeds` too."""
    picked = list(options.only or known)
    unknown = sorted(set(picked) - set(known))
    if unknown:
        raise RecipeError(
            f"{unknown[0]!r} is not part of the study {options.name!r}", fix=f"name some of: {', '.join(known)}"
        )
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds} trains nothing", cause="it is below 1", fix="e.g. --seeds 3")
    return picked


def require_set(recipe: Recipe) -> None:
    """Refuse a recipe without a set to measure on, before anything is learned."""
    if not recipe.evaluation.sets:
        raise RecipeError(
            f"recipe {recipe.name!r} has no evaluation set",
            cause="what was learned is measured on the first one",
            fix="add [[evaluation.sets]], as recipes/training-free-simulated.toml has it",
        )
