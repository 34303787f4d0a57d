"""`midstream study NAME`: runs over several seeds, compared."""

from __future__ import annotations

import argparse

from midstream.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `study`."""
    parser.add_argument(
        "name",
        choices=["controls", "planner", "agents", "library", "gate"],
        help="the tiny recipe next to its controls; a planner, or a library of lessons, as the papers analyze them; "
        "what the gate keeps and costs",
    )
    parser.add_argument("--recipe", default=None, help="whose (default: a recipe that comes with midstream)")
    parser.add_argument("--seeds", type=int, default=3, help="training seeds of each recipe (default 3)")
    parser.add_argument(
        "--out", default=None, help="directory (default: runs/study-NAME); what is in it is not repeated"
    )
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="some of the controls, or analyses")
    shared.add(parser, "--set", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Run what is not done yet, and compare."""
    from midstream.study import run_study

    return run_study(options)
