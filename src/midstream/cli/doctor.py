"""`midstream doctor`: what works on this machine, and does the model's server answer?"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from midstream.cli import options as shared
from midstream.doctor.checks import check_machine
from midstream.doctor.servers import Check
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, changed_recipe
from midstream.report.blocks import Block, cell, code, table, text
from midstream.report.draw import show
from midstream.report.numbers import counted

_STATUS_TONES = {"ok": "up", "warning": "warn", "failed": "bad"}


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


def machine_blocks(checks: Sequence[Check]) -> list[Block | None]:
    """One row a check, the fixes to be pasted, the conclusion last."""
    rows = [(cell(check.status, _STATUS_TONES[check.status]), check.code, check.what, check.words) for check in checks]
    found = [table("This machine", ("status", "code", "check", "found"), rows, left=4)]
    for check in checks:
        if check.fix and check.status in ("warning", "failed"):
            found.append(code(f"To fix {check.code}, {check.what}:\n  {check.fix}"))
    failed, warnings = (sum(check.status == status for check in checks) for status in ("failed", "warning"))
    conclusion = f"{failed or 'Nothing'} failed, {counted(warnings, 'warning') if warnings else 'no warnings'}."
    return [*found, text(conclusion)]
