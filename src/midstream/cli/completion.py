"""The completion of commands, options, recipes and files that `midstream --print-completion SHELL` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shtab

from midstream.recipe.files import shipped_recipes

if TYPE_CHECKING:
    from midstream.cli.main import Parser


def script(root: Parser, shell: str) -> str:
    """The script for "bash", "zsh" or "fish"."""
    names = shtab.cmd(f"echo {' '.join(shipped_recipes())} *.toml runs/*")
    for action in root.arguments():
        if action.dest in ("recipe", "target", "item"):
            action.complete = names  # type: ignore[attr-defined]
        elif action.choices is None and action.nargs != 0 and action.dest != "help":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(root, shell)
