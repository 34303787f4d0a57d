"""`midstream demo`: train the tiny recipe, then show everything there is to see. An interrupted demo resumes."""

from __future__ import annotations

import argparse

from rich.text import Text

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_result
from midstream.core.terminal import Terminal
from midstream.recipe.overrides import changed_recipe
from midstream.report import tables
from midstream.report.progress import progress
from midstream.report.run_results import next_steps, run_limits, samples
from midstream.report.turn_rows import template_of

RECIPE, RUN = "flow-grpo-tiny", "runs/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)
    parser.add_argument("--no-resume", action="store_true", help="refuse to resume a demo that was interrupted")


def run(options: argparse.Namespace) -> int:
    """Train, then show the results, one question turn by turn, the limits, and what to try next."""
    recipe = changed_recipe(RECIPE, overrides=options.overrides, seed=options.seed)
    if options.dry_run:
        return shared.dry_run(recipe, options, "train")
    with progress(quiet=options.quiet) as listener:
        run = api.train(recipe, options.out or RUN, exist_ok=not options.no_resume, listener=listener)
    show_result(run, as_json=options.json)
    if options.json:
        return 0
    console, resolved = Terminal(), run.info().resolved
    console.print(Text("One held-out question, turn by turn\n", "bold"))
    for _, trajectory in samples(run)[-1:]:
        console.print(tables.trajectory_view(trajectory, template=template_of(resolved)))
    seconds = sum(timing.cpu_s for timing in run.timings.read())
    console.print(f"\nReport: {run.report_path}   (training steps took {seconds:.0f} CPU-seconds)")
    console.print(Text("\nLimits", "bold"))
    console.print(run_limits(resolved))
    console.print(Text("\nNext", "bold"))
    for line in next_steps(run):
        console.print(f"  {line}", soft_wrap=True)
    return 0
