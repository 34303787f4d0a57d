"""`midstream eval RUN|RECIPE`: evaluate an agent on sets of tasks, in a directory that `resume` continues."""

from __future__ import annotations

import argparse

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.recipe.overrides import EvaluationChanges, evaluation_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`."""
    parser.add_argument("target", help="run directory (RUN@STEP: that checkpoint) or recipe")
    shared.add_list(parser, "--benchmark", "benchmarks", "NAME[=FILE]", "on this one (again for several)")
    shared.add_list(parser, "--tasks", "task_files", "FILE", "on your own questions, or those of FILE.py:FUNCTION")
    parser.add_argument("--count", type=int, metavar="N", help="N tasks of each set, drawn at random")
    parser.add_argument("--trials", type=int, metavar="K", help="try each task K times")
    shared.add(parser, "--reward")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    shared.add(
        parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--strategy", "--retry-errors", "--unsafe"
    )
    shared.add_recording(parser)
    shared.add(parser, "--cache", "--track", "--budget")
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Start an evaluation, or continue the one in `--out`; then show it."""
    changes = shared.changes(EvaluationChanges, options)
    recipe = evaluation_recipe(api.opened(options.target, changes)[0], **changes)
    for package in shared.extensions("eval"):
        package.check(options, recipe)
    if options.dry_run:
        return shared.dry_run(recipe, options, "eval")
    run = api.evaluate(
        options.target,
        out=options.out,
        retry_errors=options.retry_errors,
        unsafe=options.unsafe,
        **shared.changes(api.EvaluateOptions, options),
    )
    show_done(run.directory, as_json=options.json)
    return shared.finish(options, run)
