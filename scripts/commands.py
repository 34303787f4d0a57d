"""Write the options of every command into docs/commands.md: `python scripts/commands.py [--check]`.

With `--check` nothing is written, and a difference exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from midstream.cli.main import COMMANDS

DOCUMENT = Path(__file__).parent.parent / "docs" / "commands.md"
MARK = "`python scripts/commands.py` writes the rest of this page from the commands themselves.\n"


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the lines of a command's part: a table, and a part for each of its subcommands."""
    below: dict[str, argparse.ArgumentParser] = {}
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
        elif action.help != argparse.SUPPRESS and action.dest != "help":
            value = str(action.metavar or ("" if action.nargs == 0 else action.dest.upper()))
            if action.choices and action.metavar is None:
                value = "|".join(map(str, action.choices))
            names = ", ".join(action.option_strings) or f"{action.metavar or action.dest}"
            written = f"{names} {value}".strip() if action.option_strings else names
            meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
            rows.append(f"| `{written.replace('|', ' or ')}` | {meaning.replace('|', ' or ')} |")
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|", *rows, "")
    for name, subcommand in below.items():
        yield from (f"### `{parser.prog} {name}`", "", *options_of(subcommand))


def page(document: str) -> str:
    """Return the page with its generated part as it should be."""
    lines = [document.partition(MARK)[0] + MARK]
    for name, meaning in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"midstream {name}")
        import_module(f"midstream.cli.{name}").add_arguments(parser)
        lines += [f"## `{parser.prog}`", "", f"{meaning[0].upper()}{meaning[1:].rstrip('.')}.".replace("?.", "?"), ""]
        lines += options_of(parser)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write, or compare."""
    document = DOCUMENT.read_text(encoding="utf-8")
    written = page(document)
    if "--check" in sys.argv[1:]:
        return int(written != document)
    DOCUMENT.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
