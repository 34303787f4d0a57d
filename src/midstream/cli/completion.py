"""`midstream completion SHELL`: print the shell's completion of commands, options, recipes and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from midstream.cli.main import parser
from midstream.recipe.files import shipped_recipes

# Arguments that take a recipe, or a recipe or run, by command, besides those that are named so.
_RECIPES = (("eval", "target"), ("list", "name"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='bash: eval "$(midstream completion bash)"')


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    root = parser()
    names = shtab.cmd(f"echo {' '.join(shipped_recipes())} *.toml runs/*")
    for command, action in _arguments(root, ""):
        if action.dest == "recipe" or (command, action.dest) in _RECIPES:
            action.complete = names  # type: ignore[attr-defined]
        elif action.choices is None and action.nargs != 0 and action.dest != "help":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(root, options.shell))
    return 0


def _arguments(parser: argparse.ArgumentParser, command: str) -> Iterator[tuple[str, argparse.Action]]:
    """Each argument with its command, those of subcommands included."""
    for action in parser._actions:
        yield command, action
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _arguments(below, name)
