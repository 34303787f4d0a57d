"""`midstream study FILE`: arms times seeds, trained, evaluated, compared."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.report.progress import progress

if TYPE_CHECKING:
    from midstream.study import Plan, StudyResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `study`."""
    parser.add_argument(
        "file", nargs="?", help="a .toml file that names arms and numbers, or a study that comes with midstream"
    )
    parser.add_argument("--list", action="store_true", help="list the studies that come with midstream")
    parser.add_argument("--seeds", type=int, default=None, help="seeds of each arm (default: as the file has it)")
    parser.add_argument(
        "--out", default=None, help="directory (default: runs/study-NAME); what is in it is not repeated"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM", help="some of the arms")
    shared.add(parser, "--set", "--trust", "--dry-run", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Run what is missing and print the numbers; or list studies, or what a study would run."""
    from midstream.study import plan, read_study, run_study

    if options.list:
        return _list(as_json=options.json)
    if options.file is None:
        raise UsageError("no study is named", code="missing-option", fix="midstream study --list, or the file of yours")
    study, console = read_study(options.file), Terminal(stderr=True)
    root = Path(options.out or f"runs/study-{study.name}")
    planned = plan(study, root, seeds=options.seeds, only=options.only, overrides=options.overrides)
    for note in planned.notes:
        console.print(Text(f"warning: {note}", "bold yellow"), soft_wrap=True)
    if options.dry_run:
        return _show_plan(planned, as_json=options.json)
    try:
        result = run_study(
            planned,
            report=lambda text: None if options.quiet else console.print(text, highlight=False),
            progress=lambda: progress(quiet=options.quiet),
        )
    except KeyboardInterrupt as error:
        error.add_note("the same command resumes the study")
        raise
    if options.json:
        print((root / "study.json").read_text(encoding="utf-8"), end="")
    else:
        _show_result(planned, result)
    return 0


def _list(*, as_json: bool) -> int:
    from midstream.report.evaluation_tables import plain_table
    from midstream.study import shipped_studies

    shipped = shipped_studies()
    if as_json:
        print(json.dumps([study.model_dump(mode="json", include={"name", "title", "arms"}) for study in shipped]))
        return 0
    table = plain_table(left=["study", "what it compares", "arms"])
    for study in shipped:
        table.add_row(*map(Text, (study.name, study.title, ", ".join(arm.name for arm in study.arms))))
    Terminal().print(table)
    return 0


def _show_plan(planned: Plan, *, as_json: bool) -> int:
    """Print each arm's runs, their states and what one of them does at most."""
    from midstream.recipe.build import Build
    from midstream.recipe.estimate import counts
    from midstream.report.evaluation_tables import plain_table
    from midstream.report.numbers import counted

    most = {}
    for name, run in planned.firsts.items():
        with Build(run.recipe) as build:
            most[name] = counts(build, training=run.trained)
    if as_json:
        print(json.dumps([{**run.summary(), "at most": most[run.arm.name]} for run in planned.runs]))
        return 0
    console, left = Terminal(), Counter[str]()
    console.print(f"{counted(len(planned.runs), 'run')} in {planned.root}; each does at most:", highlight=False)
    table, changes = plain_table(left=["arm", "runs"]), list[str]()
    for head in most[planned.runs[0].arm.name]:
        table.add_column(head.replace("optimizer ", "optimizer\n"), justify="right")
    for name, first in planned.firsts.items():
        states = Counter(run.state for run in planned.runs if run.arm.name == name)
        found = "\n".join(f"{count} {state}" for state, count in states.items())
        table.add_row(Text(name), found, *(f"{count:,}" for count in most[name].values()))
        changes.append("  ".join([f"{name}: {first.arm.recipe}", *first.arm.overrides]))
        for head, count in most[name].items():
            left[head] += count * (states.total() - states["finished"])
    console.print(table)
    console.print(Text("\n".join(changes)), soft_wrap=True)
    sums = ", ".join(f"{count:,} {head}" for head, count in left.items())
    console.print(f"\nLeft, at most: {sums}", highlight=False)
    return 0


def _show_result(planned: Plan, result: StudyResult) -> None:
    from midstream.report.study import study_tables

    console = Terminal()
    title = planned.study.title or planned.study.name
    groups = {title: result.rows}
    if any(run.seed for run in planned.runs):
        groups[f"Difference from {result.first!r}, paired by seed"] = result.differences
    for title, rows in groups.items():
        for place, table in enumerate(study_tables(rows, "arm", title)):
            table.title = table.title if place == 0 else None
            console.print(table)
    for path in result.figures:
        console.print(f"Figure: {path}", soft_wrap=True, highlight=False)
