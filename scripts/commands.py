"""Write the options of every command into docs/commands.md: `python scripts/commands.py [--check]`.

Options that three or more commands share are in one table; the commands name them. With `--check` nothing is written,
and a difference exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from midstream.cli.main import COMMANDS

DOCUMENT = Path(__file__).parent.parent / "docs" / "commands.md"
MARK = "`python scripts/commands.py` writes the rest of this page from the commands themselves.\n"
HEAD = ("| argument or option | meaning |", "|---|---|")
SHARED = 3  # commands with the same option, from which on it is in the common table


def parts_of(parser: argparse.ArgumentParser) -> tuple[dict[str, str], dict[str, argparse.ArgumentParser]]:
    """Return the rows of a command's table by their option or argument, and its subcommands by name."""
    below: dict[str, argparse.ArgumentParser] = {}
    rows = {}
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
            rows[names] = f"| `{written.replace('|', ' or ')}` | {meaning.replace('|', ' or ')} |"
    return rows, below


def lines_of(parser: argparse.ArgumentParser, shared: set[str]) -> Iterator[str]:
    """Return the lines of a command's part: a table, its shared options, and a part for each of its subcommands."""
    rows, below = parts_of(parser)
    if own := [row for row in rows.values() if row not in shared]:
        yield from (*HEAD, *own, "")
    if common := [f"`{name}`" for name, row in rows.items() if row in shared]:
        yield from (f"Shared: {', '.join(common)}", "")
    for name, subcommand in below.items():
        yield from (f"### `{parser.prog} {name}`", "", *lines_of(subcommand, shared))


def all_rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the rows of a command and of its subcommands."""
    rows, below = parts_of(parser)
    yield from rows.values()
    for subcommand in below.values():
        yield from all_rows(subcommand)


def page(document: str) -> str:
    """Return the page with its generated part as it should be."""
    parsers = {name: argparse.ArgumentParser(prog=f"midstream {name}") for name in COMMANDS}
    for name, parser in parsers.items():
        import_module(f"midstream.cli.{name}").add_arguments(parser)
    counts = Counter(row for parser in parsers.values() for row in all_rows(parser))
    shared = [row for row, count in counts.items() if count >= SHARED and row.startswith("| `--")]
    lines = [document.partition(MARK)[0] + MARK, "## Shared options", "", *HEAD, *shared, ""]
    for name, parser in parsers.items():
        meaning = COMMANDS[name]
        lines += [f"## `{parser.prog}`", "", f"{meaning[0].upper()}{meaning[1:].rstrip('.')}.".replace("?.", "?"), ""]
        lines += lines_of(parser, set(shared))
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
