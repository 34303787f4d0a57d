"""`midstream doctor`: what works on this machine, and can this model play the agent's roles?"""

from __future__ import annotations

import argparse
import asyncio

from midstream.cli import options as shared
from midstream.doctor.checks import check_machine
from midstream.doctor.roles import check_any_role, examine, unreached
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, changed_recipe
from midstream.report.blocks import text
from midstream.report.doctor import Diagnosis, machine_blocks, role_blocks
from midstream.report.draw import show

# Without these no model can be asked.
_REACHED = ("MS501", "MS502")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument("--recipe", default=None, help="examine the models of this recipe")
    shared.add(parser, *shared.SERVER, "--set", "--seed", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Examine machine and model and print the result; returns 1 where something failed."""
    recipe = changed_recipe(options.recipe or RECIPE, **shared.changes(AgentChanges, options))
    # No program runs: an executor that writes them is not examined.
    build = Build(recipe, unsafe=True)
    given = (options.model, options.base_url, options.provider, options.recipe)
    named = any(value is not None for value in given)
    if named:
        check_any_role(build)
    silent = options.json or options.quiet
    with shared.spinner("looking at this machine", silent=silent):
        machine = asyncio.run(check_machine(build, named=named))
    sound = all(check.status != "failed" for check in machine)
    reached = not any(check.code in _REACHED and check.status == "failed" for check in machine)
    if not options.json:
        show(machine_blocks(machine))
    if named and reached:
        with shared.spinner("asking the model", silent=silent) as status:

            def report(done: int, cases: int) -> None:
                if status is not None:
                    status.update(f"{done} of {cases} cases")

            found = asyncio.run(examine(build, report))
        found = found.model_copy(update={"machine": machine, "works": sound and found.works})
    else:
        found = Diagnosis(recipe=recipe.name, machine=machine, roles=unreached(build) if named else (), works=sound)
    if options.json:
        print(found.model_dump_json())
    elif named and reached:
        print()
        show(role_blocks(found))
    else:
        examine_one = "Examine a model: midstream doctor --model NAME --base-url URL"
        show([text("The roles were not examined: a key or a server failed." if named else examine_one)])
    return 0 if found.works else 1
