"""`midstream train RECIPE`: train weights, or practice a library of lessons."""

from __future__ import annotations

import argparse

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_result_and_report
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.report.progress import progress
from midstream.trackers import trackers_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`."""
    parser.add_argument("recipe", help="name of a recipe that comes with midstream, or a .toml file")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--library", "--tasks", "--reward")
    shared.add_recording(parser)
    shared.add(parser, "--track", "--budget", "--no-eval", "--engine", "--nproc")
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Train, then show the results."""
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    if options.dry_run:
        trackers_of(options.track)  # refuses a wrong name
        return shared.dry_run(recipe, options, "train")
    with progress(quiet=options.quiet) as listener:
        run = api.train(
            recipe, options.out, record=options.record, replay=options.replay, track=options.track, listener=listener
        )
    show_result_and_report(run, as_json=options.json)
    return 0
