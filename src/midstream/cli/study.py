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
from midstream.report import blocks
from midstream.report.draw import show
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
    from midstream.study import shipped_studies

    shipped = shipped_studies()
    if as_json:
        print(json.dumps([study.model_dump(mode="json", include={"name", "title", "arms"}) for study in shipped]))
        return 0
    rows = [[study.name, study.title, ", ".join(arm.name for arm in study.arms)] for study in shipped]
    show([blocks.table("", ("study", "what it compares", "arms"), rows, left=3)])
    return 0


def _show_plan(planned: Plan, *, as_json: bool) -> int:
    """Print each arm's runs, their states and what one of them does at most."""
    from midstream.recipe.estimate import counts
    from midstream.report.numbers import counted

    most = {name: counts(run.recipe, training=run.trained) for name, run in planned.firsts.items()}
    if as_json:
        print(json.dumps([{**run.summary(), "at most": most[run.arm.name]} for run in planned.runs]))
        return 0
    left, rows, changes = Counter[str](), list[list[blocks.Cell]](), list[str]()
    for name, first in planned.firsts.items():
        states = Counter(run.state for run in planned.runs if run.arm.name == name)
        found = ", ".join(f"{count} {state}" for state, count in states.items())
        rows.append([name, found, *(f"{count:,}" for count in most[name].values())])
        changes.append("  ".join([f"{name}: {first.arm.recipe}", *first.arm.overrides]))
        for head, count in most[name].items():
            left[head] += count * (states.total() - states["finished"])
    heads = ("arm", "runs", *most[planned.runs[0].arm.name])
    sums = ", ".join(f"{count:,} {head}" for head, count in left.items())
    show(
        [
            blocks.text(f"{counted(len(planned.runs), 'run')} in {planned.root}; each does at most:"),
            blocks.table("", heads, rows, left=2),
            blocks.code("\n".join(changes)),
            blocks.text(f"\nLeft, at most: {sums}"),
        ]
    )
    return 0


def _show_result(planned: Plan, result: StudyResult) -> None:
    from midstream.report.study import study_blocks

    title = planned.study.title or planned.study.name
    found = study_blocks(result.rows, "arm", title)
    if any(run.seed for run in planned.runs):
        found += study_blocks(result.differences, "arm", f"Difference from {result.first!r}, paired by seed")
    show([*found, *(blocks.code(f"Figure: {path}") for path in result.figures)])
