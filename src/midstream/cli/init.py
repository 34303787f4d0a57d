"""`midstream init [DIR] --kind KIND`: write a small working project to start from."""

from __future__ import annotations

import argparse
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError

_FILES = Path(__file__).parents[1] / "init_files"
_COMMON = "common"
KINDS = {
    "solve": "a tool-calling agent",
    "evaluate": "own questions and an own reward",
    "lessons": "lessons for a frozen model",
    "train": "the weights of a small model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument("directory", nargs="?", default=".", metavar="DIR", help="where (default: here)")
    text = ", ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    parser.add_argument("--kind", choices=KINDS, default="solve", help=f"{text} (default: solve)")
    shared.add(parser, "--quiet")


def run(options: argparse.Namespace) -> int:
    """Write the files, none of which may be there."""
    sources = {path.name: path for part in (_COMMON, options.kind) for path in sorted((_FILES / part).iterdir())}
    sources = {name: path for name, path in sources.items() if path.is_file()}
    target = Path(options.directory)
    if taken := [name for name in sources if (target / name).exists()]:
        raise UsageError(
            f"{target / taken[0]} is there already" + (f", and {len(taken) - 1} others" if taken[1:] else ""),
            code="file-exists",
            fix=f"name a new directory: midstream init DIR --kind {options.kind}",
        )
    target.mkdir(parents=True, exist_ok=True)
    for name, path in sources.items():
        (target / name).write_bytes(path.read_bytes())
    if not options.quiet:
        print(f"{target}: {', '.join(sources)}")
        print((target / "README.md").read_text(encoding="utf-8"), end="")
    return 0
