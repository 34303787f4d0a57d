"""`midstream study FILE`: arms times seeds, trained, evaluated and compared with intervals."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `study`."""
    parser.add_argument("file", help="a .toml file that names arms and numbers, or a study that comes with midstream")
    parser.add_argument("--seeds", type=int, default=None, help="seeds of each arm (default: as the file has it)")
    parser.add_argument(
        "--out", default=None, help="directory (default: runs/study-NAME); what is in it is not repeated"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM", help="some of the arms")
    shared.add(parser, "--set", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Run what is missing, write `study.json`, print it or a table."""
    from midstream.report.study_tables import study_tables
    from midstream.runs.files import atomic_write
    from midstream.study import read_study, rows, run_arms

    study, progress = read_study(options.file), Terminal(stderr=True)
    root = Path(options.out or f"runs/study-{study.name}")
    found = run_arms(
        study,
        root,
        seeds=study.seeds if options.seeds is None else options.seeds,
        only=options.only,
        overrides=options.overrides,
        report=lambda text: None if options.quiet else progress.print(text, highlight=False),
    )
    compared = rows(study, found)
    record = [{"name": row.name, "metric": row.metric, "values": row.values} for row in compared]
    root.mkdir(parents=True, exist_ok=True)
    atomic_write(root / "study.json", (json.dumps(record, indent=1) + "\n").encode())
    if options.json:
        print(json.dumps(record))
        return 0
    for place, table in enumerate(study_tables(compared, "arm", study.title or study.name)):
        table.title = table.title if place == 0 else None
        Terminal().print(table)
    return 0
