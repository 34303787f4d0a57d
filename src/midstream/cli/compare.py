"""`midstream compare A B [C ...]`: which of several evaluations of the same tasks is better, and how sure that is.

`midstream compare --group a=runs/a-* b=runs/b-*` compares groups of runs, such as the seeds of two recipes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from rich.text import Text

from midstream import api
from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.interface.comparison import compare, setting_notes
from midstream.report.numbers import counted
from midstream.report.tables import VERDICT_COLORS, group_table, sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="evaluation or run directories, RUN@STEP for a step other than the last"
    )
    parser.add_argument(
        "--group", nargs="+", action="extend", default=[], metavar="NAME=RUNS", help="groups of runs, e.g. 'a=runs/a-*'"
    )
    parser.add_argument("--tasks", action="store_true", help="list the tasks that differ, with the answers")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Compare every later evaluation, or group, with the first, on each set and sampling that both have."""
    names = options.runs
    if (len(names) < 2 and not options.group) or (names and options.group):
        raise UsageError(
            f"{counted(len(names), 'run')} and {counted(len(options.group), 'group')} to compare",
            code="missing-option",
            fix="midstream compare RUN RUN, or midstream compare --group 'a=runs/a-*' 'b=runs/b-*'",
        )
    if options.group:
        return _compare_groups(options.group, as_json=options.json)
    comparison = compare(*names)
    if options.json:
        records = [
            {
                **paired.model_dump(exclude=None if options.tasks else {"differing"}),
                "said": sentence(comparison.letters, paired),
            }
            for paired in comparison.found
        ]
        print(json.dumps({"compared": records, "notes": comparison.notes}))
        return 0
    Terminal().print(comparison.screen(tasks=options.tasks))
    return 0


def _compare_groups(words: Sequence[str], *, as_json: bool) -> int:
    groups: dict[str, list[str]] = {}
    for word in words:
        name, _, pattern = word.partition("=")
        path, at, step = pattern.rpartition("@")
        path, step = (path, at + step) if step.isdecimal() and not Path(pattern).exists() else (pattern, "")
        found = sorted(run + step for run in glob(path) if Path(run, "run.json").exists())
        if not name or not pattern or (has_magic(path) and not found):
            raise UsageError(
                f"--group {word!r} names no run",
                code="file-not-found",
                fix="give a name and run directories, e.g. --group 'small=runs/small-s*' 'large=runs/large-s*'",
            )
        groups.setdefault(name, []).extend(found or [pattern])
    comparison, notes = api.compare_groups(groups), list[str]()
    heads = [runs[0] for runs in comparison.groups.values()]
    for name, runs in comparison.groups.items():
        steps = {result.step: None for compared in runs for result in compared.results.values()}
        if len(steps) > 1:
            notes.append(f"{name} holds runs at several steps: {', '.join(map(str, steps))}")
        for compared in runs:
            if (state := compared.run.status().state) != "finished":
                notes.append(f"{compared.name} is {state}: its results so far are compared")
            if errors := sum(result.errors for result in compared.results.values()):
                notes.append(
                    f"{compared.name}: {counted(errors, 'trial')} lost to infrastructure errors count as wrong"
                )
            notes += setting_notes(runs[0], compared, f"{name} holds runs with other settings: {compared.name}")
    names = list(comparison.groups)
    for name, head in zip(names[1:], heads[1:], strict=True):
        notes += setting_notes(heads[0], head, f"settings that differ ({names[0]} | {name}):")
    letters = {name: name for name in names}
    if as_json:
        records = [{**pair.model_dump(), "said": sentence(letters, pair)} for pair in comparison.found]
        print(json.dumps({"compared": records, "notes": notes}))
        return 0
    console = Terminal()
    for key in dict.fromkeys((pair.set_name, pair.sampling) for pair in comparison.found):
        several = [pair for pair in comparison.found if (pair.set_name, pair.sampling) == key]
        console.print(group_table(several))
        for pair in several:
            console.print(
                Text(f"{sentence(letters, pair)}\n  {pair.method}", VERDICT_COLORS.get(pair.verdict or "", ""))
            )
        console.print()
    if notes:
        console.print(Text("\n".join(notes), "yellow"))
    return 0
