"""`midstream report RUN`: write the report of a run again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.report.run_results import write_report
from midstream.runs import RunDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    parser.add_argument("run", help="run directory of a training or practice run")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the file to write (default: RUN/report.html)")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Write the report, and print its path."""
    run = RunDirectory.open(Path(options.run))
    if run.info().kind == "evaluation":
        raise UsageError(
            f"{run.root} holds an evaluation, which has no report",
            code="wrong-kind-of-run",
            fix=f"midstream show {run.root}, or midstream compare {run.root} OTHER",
        )
    path = options.out or run.report_path
    if path.is_file() and path != run.report_path and not path.read_bytes().startswith(b"<!doctype html>"):
        raise UsageError(f"{path} is there already and is not a report", code="file-exists", fix="give another --out")
    write_report(run, path)
    if options.json:
        print(json.dumps({"report": str(path)}))
    else:
        Terminal().print(f"Report: {path}", soft_wrap=True)
    return 0
