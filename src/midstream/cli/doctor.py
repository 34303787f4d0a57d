"""`midstream doctor`: what works on this machine, and does the model's server answer?"""

from __future__ import annotations

import argparse
import asyncio
import json

from midstream.cli import options as shared
from midstream.doctor.checks import check_machine
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, changed_recipe
from midstream.report.blocks import text
from midstream.report.doctor import machine_blocks
from midstream.report.draw import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument("--recipe", default=None, help="check the servers of this recipe")
    shared.add(parser, *shared.SERVER, "--set", "--seed", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Check the machine and print the result; returns 1 where something failed."""
    build = Build(changed_recipe(options.recipe or RECIPE, **shared.changes(AgentChanges, options)), unsafe=True)
    given = (options.model, options.base_url, options.provider, options.recipe)
    named = any(value is not None for value in given)
    with shared.spinner("looking at this machine", silent=options.json or options.quiet):
        machine = asyncio.run(check_machine(build, named=named))
    works = all(check.status != "failed" for check in machine)
    if options.json:
        print(json.dumps({"machine": [check.model_dump() for check in machine], "works": works}))
    else:
        show(machine_blocks(machine))
        if not named:
            show([text("Check a model's server: midstream doctor --model NAME --base-url URL")])
    return 0 if works else 1
