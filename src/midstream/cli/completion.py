"""The completion of commands, options, recipes and files that `midstream --print-completion SHELL` prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from midstream.recipe.files import shipped_recipes


def script(root: argparse.ArgumentParser, shell: str) -> str:
    """The script for "bash", "zsh" or "fish"."""
    names = shtab.cmd(f"echo {' '.join(shipped_recipes())} *.toml runs/*")
    for action in _arguments(root):
        if action.dest in ("recipe", "target", "item"):
            action.complete = names  # type: ignore[attr-defined]
        elif action.choices is None and action.nargs != 0 and action.dest != "help":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(root, shell)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Each argument, those of subcommands included."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _arguments(below)
