"""`midstream study FILE`: arms times seeds, trained, evaluated and compared with intervals."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal


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
    shared.add(parser, "--set", "--dry-run", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Run what is missing, write `study.json`, print it or a table; or list studies, or what a study would run."""
    from midstream.report.evaluation_tables import plain_table
    from midstream.report.numbers import counted
    from midstream.report.study_tables import study_tables
    from midstream.runs.files import atomic_write
    from midstream.study import plan, read_study, rows, run_arms, shipped_studies

    if options.list:
        shipped = shipped_studies()
        if options.json:
            print(json.dumps([study.model_dump(mode="json", include={"name", "title", "arms"}) for study in shipped]))
            return 0
        table = plain_table(left=["study", "what it compares", "arms"])
        for study in shipped:
            table.add_row(*map(Text, (study.name, study.title, ", ".join(arm.name for arm in study.arms))))
        Terminal().print(table)
        return 0
    if options.file is None:
        raise UsageError("no study is named", code="missing-option", fix="midstream study --list, or the file of yours")
    study, progress = read_study(options.file), Terminal(stderr=True)
    root = Path(options.out or f"runs/study-{study.name}")
    seeds = study.seeds if options.seeds is None else options.seeds
    planned = plan(study, root, seeds=seeds, only=options.only, overrides=options.overrides)
    if options.dry_run:
        if options.json:
            print(json.dumps([arm_run.summary() for arm_run in planned]))
            return 0
        console = Terminal()
        console.print(f"{counted(len(planned), 'run')} in {root}", highlight=False)
        table = plain_table(left=["arm", "recipe", "changes", "runs"])
        for arm in dict.fromkeys(arm_run.arm for arm_run in planned):
            states = Counter(arm_run.state for arm_run in planned if arm_run.arm == arm)
            changes = "\n".join([*arm.overrides, *options.overrides])
            found = ", ".join(f"{count} {state}" for state, count in states.items())
            table.add_row(*map(Text, (arm.name, arm.recipe, changes, found)))
        console.print(table)
        return 0
    found = run_arms(planned, report=lambda text: None if options.quiet else progress.print(text, highlight=False))
    compared = rows(study, found)
    record = [
        {"name": row.name, "metric": row.metric, "values": row.values, "interval": row.interval} for row in compared
    ]
    root.mkdir(parents=True, exist_ok=True)
    atomic_write(root / "study.json", (json.dumps(record, indent=1) + "\n").encode())
    if options.json:
        print(json.dumps(record))
        return 0
    for place, table in enumerate(study_tables(compared, "arm", study.title or study.name)):
        table.title = table.title if place == 0 else None
        Terminal().print(table)
    return 0
