"""`midstream train RECIPE`: train weights, or learn lessons."""

from __future__ import annotations

import argparse

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.process import RunOptions
from midstream.recipe.overrides import LearningChanges, changed_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`."""
    parser.add_argument("recipe", help="name of a recipe that comes with midstream, or a .toml file")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--tasks", "--reward")
    shared.add_recording(parser)
    shared.add(parser, "--track", "--budget", "--learner", "--nproc")
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Train, then show the results."""
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    if options.dry_run:
        return shared.dry_run(recipe, options, "train")
    run = api.train(recipe, out=options.out, exist_ok=False, **shared.changes(RunOptions, options))
    show_done(run.directory, as_json=options.json)
    return 0
