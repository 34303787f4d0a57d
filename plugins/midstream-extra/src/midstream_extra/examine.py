"""`midstream examine`: can this model play the agent's roles?"""

from __future__ import annotations

import argparse
import asyncio

from midstream.cli import options as shared
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, changed_recipe
from midstream.report.draw import show
from midstream_extra.examination.report import role_blocks
from midstream_extra.examination.roles import examine

HELP = "can this model play the agent's roles?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `examine`."""
    parser.add_argument("--recipe", default=None, help="examine the models of this recipe")
    shared.add(parser, *shared.SERVER, "--set", "--seed", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Examine the model and print the result; returns 1 where it cannot play a role."""
    recipe = changed_recipe(options.recipe or RECIPE, **shared.changes(AgentChanges, options))
    with shared.spinner("asking the model", silent=options.json or options.quiet) as status:

        def report(done: int, cases: int) -> None:
            if status is not None:
                status.update(f"{done} of {cases} cases")

        # No program runs: an executor that writes them is not examined.
        found = asyncio.run(examine(Build(recipe, unsafe=True), report))
    if options.json:
        print(found.model_dump_json())
    else:
        show(role_blocks(found))
    return 0 if found.works else 1
