"""`midstream resume RUN`: resume a training run, a lesson run or an evaluation."""

from __future__ import annotations

import argparse

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.process import RunOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `resume`."""
    parser.add_argument("run", help="run directory")
    shared.add_list(parser, "--set", "overrides", "budget.LIMIT=VALUE", "another limit, as with --budget")
    shared.add(parser, "--budget", "--retry-errors")
    shared.add_recording(parser)
    shared.add(parser, "--track", "--nproc", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Resume, then show the results."""
    given = shared.changes(RunOptions, options)
    chosen = {"overrides": options.overrides, "retry_errors": options.retry_errors, "budget": options.budget}
    run = api.resume(options.run, **chosen, **given).directory
    show_done(run, as_json=options.json)
    return 0
