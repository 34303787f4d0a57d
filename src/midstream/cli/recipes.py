"""`midstream recipes`: those that come with midstream, by what they learn; with a name, its whole text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.terminal import Terminal
from midstream.recipe.summary import RecipeSummary, summaries, summary

_HEADINGS = {
    "nothing": 'Run an agent: midstream solve "..." --recipe NAME, midstream eval NAME',
    "lessons": "Learn lessons for a frozen model: midstream train NAME",
    "weights": "Train weights: midstream train NAME",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `recipes`."""
    parser.add_argument("name", nargs="?", help="a recipe, by name or file")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the recipes, or print one."""
    found = [summary(options.name)] if options.name is not None else summaries()
    texts = [Path(recipe.path).read_text(encoding="utf-8") for recipe in found] if options.name is not None else []
    if options.json:
        records = [recipe.model_dump(mode="json") for recipe in found]
        print(json.dumps({**records[0], "text": texts[0]} if texts else records))
    elif options.quiet:
        print("\n".join(recipe.name for recipe in found))
    elif texts:
        print(f"# {_about(found[0])}\n{texts[0]}", end="")
    else:
        _print_list(found)
    return 0


def _about(recipe: RecipeSummary) -> str:
    return f"{recipe.name}: learns {recipe.learns}; agent {recipe.agent}; needs {_needs(recipe)}"


def _needs(recipe: RecipeSummary) -> str:
    return ", ".join(recipe.needs) or "nothing"


def _print_list(found: list[RecipeSummary]) -> None:
    for learns, heading in _HEADINGS.items():
        rows = Table(box=None, pad_edge=False, show_header=False)
        for recipe in sorted((recipe for recipe in found if recipe.learns == learns), key=lambda recipe: recipe.needs):
            about = Text(recipe.description).append(f"\nagent {recipe.agent}; needs {_needs(recipe)}", "dim")
            rows.add_row(Text(recipe.name, "cyan"), about)
        Terminal().print(Text(heading, "bold"), Padding(rows, (0, 0, 1, 2)))
    print("midstream recipes NAME prints one, with the reason of each value")
