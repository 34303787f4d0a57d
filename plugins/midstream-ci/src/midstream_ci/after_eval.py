"""What `midstream eval` can require, and write for a build server."""

from __future__ import annotations

import argparse

import midstream as ms
from midstream.recipe.schema import Recipe
from midstream_ci import options as shared
from midstream_ci.junit import evaluation_junit
from midstream_ci.requirements import decide, parse_requirement, require_decidable, require_priced
from midstream_ci.summary import evaluation_summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    shared.add_arguments(parser, parse_requirement, "success >= 0.8")


def check(options: argparse.Namespace, recipe: Recipe) -> None:
    """Refuse what an evaluation of the recipe cannot decide, before it starts."""
    check_sets(options, recipe)
    require_priced(options.requirements, recipe.engines)


def check_sets(options: argparse.Namespace, recipe: Recipe) -> None:
    """Refuse requirements on sets and trials that the recipe has not."""
    sets = [chosen.name for chosen in recipe.evaluation.sets]
    # Tasks that a run learned from become sets of their own.
    learned = {f"{name}-learned" for name in sets} & {requirement.set_name for requirement in options.requirements}
    require_decidable(options.requirements, [*sets, *map(str, learned)], recipe.evaluation.trials)


def finish(options: argparse.Namespace, run: ms.Run) -> int:
    """Decide the requirements, and write the files; returns the exit code."""
    decisions = decide(run.directory, options.requirements)
    return shared.finish(
        options,
        decisions,
        lambda: evaluation_junit(run.directory, decisions),
        lambda: evaluation_summary(run.directory, decisions),
    )
