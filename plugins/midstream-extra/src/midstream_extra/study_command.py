"""`midstream study FILE`: arms times seeds, trained, evaluated, compared."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.report import blocks
from midstream.report.draw import show
from midstream.report.progress import progress

if TYPE_CHECKING:
    from midstream_extra.study import Plan

HELP = "recipes and changes of them over several seeds, compared"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `study`."""
    parser.add_argument("file", nargs="?", help="a .toml file that names arms, or the name of an installed study")
    parser.add_argument("--list", action="store_true", help="list the installed studies")
    parser.add_argument("--seeds", type=int, default=None, help="seeds of each arm (default: as the file has it)")
    parser.add_argument(
        "--out", default=None, help="directory (default: runs/study-NAME); what is in it is not repeated"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM", help="some of the arms")
    shared.add(parser, "--set", "--trust", "--dry-run", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Run what is missing and print the numbers; or list studies, or what a study would run."""
    from midstream_extra.study import plan, read_study, run_study, shipped_studies
    from midstream_extra.study_tables import study_blocks

    if options.list:
        print("\n".join(f"{name}: {read_study(name).title}" for name in shipped_studies()))
        return 0
    if options.file is None:
        raise UsageError("no study is named", code="missing-option", fix="midstream study --list, or the file of yours")
    study, console = read_study(options.file), Terminal(stderr=True)
    root = Path(options.out or f"runs/study-{study.name}")
    planned = plan(study, root, seeds=options.seeds, only=options.only, overrides=options.overrides)
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
        return 0
    found = study_blocks(result.rows, "arm", study.title or study.name)
    show([*found, *study_blocks(result.differences, "arm", f"Difference from {planned.runs[0].arm.name!r}, by seed")])
    return 0


def _show_plan(planned: Plan, *, as_json: bool) -> int:
    """Print each arm's runs, their states and what one of them does at most."""
    from midstream.recipe.build import Build
    from midstream.recipe.estimate import counts

    most = {}
    for run in planned.runs:
        if run.arm.name not in most:
            with Build(run.recipe) as build:
                most[run.arm.name] = counts(build, training=run.trained)
    if as_json:
        runs = [
            {
                "arm": run.arm.name,
                "recipe": run.arm.recipe,
                "seed": run.seed,
                "changes": run.changes,
                "directory": str(run.out),
                "state": run.state,
                "at most": most[run.arm.name],
            }
            for run in planned.runs
        ]
        print(json.dumps(runs))
        return 0
    rows = []
    for name, numbers in most.items():
        states = Counter(run.state for run in planned.runs if run.arm.name == name)
        found = ", ".join(f"{count} {state}" for state, count in states.items())
        rows.append([name, found, *(f"{number:,}" for number in numbers.values())])
    heads = ("arm", "runs", *most[planned.runs[0].arm.name])
    title = f"Runs in {planned.root}, and what each does at most"
    show([blocks.table(title, heads, rows, left=2)])
    return 0
