"""`midstream compare A B [C ...]`: which of several evaluations of the same tasks is better, and how sure that is.

`midstream compare --group a=runs/a-* b=runs/b-*` compares groups of runs, such as the seeds of two recipes.
"""

from __future__ import annotations

import argparse
import json
from glob import glob, has_magic
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.report.comparison import (
    Comparison,
    GroupComparison,
    compare,
    compare_groups,
    sentence,
    shown,
    split_step,
)
from midstream.report.draw import show
from midstream.report.numbers import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    add_compared(parser, "evaluation or run directories, RUN@STEP for a step other than the last")
    parser.add_argument("--tasks", action="store_true", help="list the tasks that differ, with the answers")
    shared.add(parser, *shared.OUTPUT)


def add_compared(parser: argparse.ArgumentParser, help: str) -> None:
    """Add what is compared: runs, or groups of them."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help=help)
    parser.add_argument(
        "--group", nargs="+", action="extend", default=[], metavar="NAME=RUNS", help="groups of runs, e.g. 'a=runs/a-*'"
    )


def comparison_of(options: argparse.Namespace) -> Comparison | GroupComparison:
    """Compare every later evaluation, or group, with the first, on each set and sampling that both have."""
    names = options.runs
    if (len(names) < 2 and not options.group) or (names and options.group):
        raise UsageError(
            f"{counted(len(names), 'run')} and {counted(len(options.group), 'group')} to compare",
            code="missing-option",
            fix="midstream compare RUN RUN, or midstream compare --group 'a=runs/a-*' 'b=runs/b-*'",
        )
    if not options.group:
        return compare(*names)
    groups: dict[str, list[str]] = {}
    for word in options.group:
        name, _, pattern = word.partition("=")
        path, step = split_step(pattern)
        found = sorted(f"{run}@{step}" if step else run for run in glob(path) if Path(run, "run.json").exists())
        if not name or not pattern or (has_magic(path) and not found):
            fix = "give a name and run directories, e.g. --group 'small=runs/small-s*' 'large=runs/large-s*'"
            raise UsageError(f"--group {word!r} names no run", code="file-not-found", fix=fix)
        # A path without a run in it is an error of its own, which names it.
        groups.setdefault(name, []).extend(found or [pattern])
    return compare_groups(groups)


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    comparison = comparison_of(options)
    if options.json:
        hidden = None if options.tasks else {"differing"}
        said = [
            {**pair.model_dump(exclude=hidden), "said": sentence(comparison.letters, pair)} for pair in comparison.found
        ]
        print(json.dumps({"compared": said, "notes": comparison.notes}))
    else:
        show(shown(comparison), folds=options.tasks)
    return shared.finish(options, comparison)
