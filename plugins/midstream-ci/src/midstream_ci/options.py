"""The options `--require`, `--junit` and `--summary`, and what they do when the command has its result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from midstream.core.errors import UsageError
from midstream_ci.requirements import Decision, Requirement, exit_code


def add_arguments(parser: argparse.ArgumentParser, parse: Callable[[str], Requirement], example: str) -> None:
    """Add the options; `parse` reads a requirement, such as `example`."""

    def parsed(text: str) -> Requirement:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(f"{error.what}: {error.fix}") from error

    text = f"exit with 3 if this fails, 4 if it is undecided, e.g. {example!r} (again for several)"
    parser.add_argument("--require", dest="requirements", action="append", default=[], type=parsed, help=text)
    files = {"--junit": "write a JUnit file, with a case for each task", "--summary": "write a summary in Markdown"}
    for name, help in files.items():
        parser.add_argument(name, type=Path, action=_Written, metavar="FILE", help=help)


class _Written(argparse.Action):
    """A file to write, which is refused before the work where it could not be written, or would be written twice."""

    def __call__(self, parser: argparse.ArgumentParser, options: argparse.Namespace, path: Any, _: Any = None) -> None:
        if path.is_dir():
            raise argparse.ArgumentError(self, f"{path} is a directory: name a file in it")
        others = {name: getattr(options, name) for name in ("junit", "summary") if name != self.dest}
        for name, other in others.items():
            if other is not None and other.resolve() == path.resolve():
                raise argparse.ArgumentError(self, f"{path} is the file of --{name}: name another")
        setattr(options, self.dest, path)


def finish(
    options: argparse.Namespace,
    decisions: Sequence[Decision],
    junit: Callable[[], str],
    summary: Callable[[], str],
) -> int:
    """Print the decisions on standard error, write the files, and return the exit code."""
    # The decisions come first: writing a file can fail.
    for decision in decisions:
        sys.stderr.write(f"{decision}\n")
    for path, text in ((options.junit, junit), (options.summary, summary)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
    return exit_code(decisions)
