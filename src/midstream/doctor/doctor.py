"""`midstream doctor`: what works on this machine, and can this model play the agent's roles?

The machine is looked at always (`machine/`), the roles where a model is named. Each role's real module, with the
recipe's prompt and settings, is asked the fixed cases of `doctor/cases.toml`; each server is asked two questions about
itself. What the model gets wrong is the result; a server that fails is an error.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.status import Status
from rich.text import Text

from midstream.cli.commands import dry_run
from midstream.doctor.checks import check_machine
from midstream.doctor.roles import check_any_role, examine, unreached
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, set_server
from midstream.recipe.schema import Recipe, parse_recipe, read_table, with_overrides
from midstream.report.doctor import Check, Diagnosis, machine_screen, screen

NOT_REACHED = "The roles were not examined: a key or a server failed."
EXAMINE = "Examine a model: midstream doctor --model NAME --base-url URL"
REACHED = ("MS501", "MS502")  # without these no model can be asked
_NAMES_A_MODEL = ("model", "base_url", "provider", "recipe")


def diagnose(options: argparse.Namespace) -> int:
    """Examine machine and model and print what was found; returns 0, or 1 where something failed."""
    recipe = _recipe(options)
    if options.dry_run:
        return dry_run(recipe)
    build = Build(recipe, unsafe=True)  # no program is run: an executor that writes them is not examined
    named = options.roles or any(getattr(options, one) is not None for one in _NAMES_A_MODEL)
    if named:
        check_any_role(build)
    silent = options.json or options.quiet
    with _spinner(silent, "looking at this machine"):
        machine = asyncio.run(check_machine(build, named=named))
    if not options.json:
        Console().print(machine_screen(machine), crop=False)
    reached = not any(one.code in REACHED and one.status == "failed" for one in machine)
    if named and reached:
        found = _examined(build, machine, silent)
    else:
        roles = unreached(build) if named else ()
        sound = all(one.status != "failed" for one in machine)
        found = Diagnosis(recipe=recipe.name, machine=machine, roles=roles, works=sound)
    if options.json:
        print(found.model_dump_json())
    elif named and reached:
        Console().print(Text(), screen(found))
    else:
        Console().print(NOT_REACHED if named else EXAMINE, markup=False, highlight=False, soft_wrap=True)
    return 0 if found.works else 1


def _examined(build: Build, machine: tuple[Check, ...], silent: bool) -> Diagnosis:
    """Examine the roles, and add the checks of the machine."""
    with _spinner(silent, "asking the model") as status:

        def report(done: int, of: int) -> None:
            if status is not None:
                status.update(f"{done} of {of} cases")

        roles = asyncio.run(examine(build, report))
    sound = all(one.status != "failed" for one in machine)
    return roles.model_copy(update={"machine": machine, "works": sound and roles.works})


def _spinner(silent: bool, words: str) -> AbstractContextManager[Status | None]:
    return nullcontext() if silent else Console(stderr=True).status(words)


def _recipe(options: argparse.Namespace) -> Recipe:
    table = read_table(options.recipe or RECIPE)
    set_server(table, options)
    if options.seed is not None:
        table["seed"] = options.seed
    return parse_recipe(with_overrides(table, options.overrides))
