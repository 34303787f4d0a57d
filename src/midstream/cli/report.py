"""`midstream report RUN [TRAJECTORY]` and `midstream report RUN RUN`: a run, a trajectory or a comparison as a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from midstream.cli import options as shared
from midstream.cli.compare import add_compared, comparison_of
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.report.comparison import split_step
from midstream.runs import RunDirectory
from midstream.view.bundle import BEGINNING, write_comparison, write_report, write_trajectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    add_compared(parser, "a run, with a trajectory of it by its id or the start of one; or runs to compare")
    parser.add_argument(
        "--out", metavar="FILE", type=Path,
        help="the file to write (default: RUN/report.html, trajectory.html or comparison.html)",
    )  # fmt: skip
    shared.add(parser, "--max-mb", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    if not options.runs and not options.group:
        raise UsageError("no run to report", code="missing-option", fix="midstream report RUN")
    name, *more = options.runs or [""]
    of_trajectory = len(more) == 1 and not Path(split_step(more[0])[0]).is_dir()
    if options.group or (more and not of_trajectory):
        comparison = comparison_of(options)
        path = _free(options.out or Path("comparison.html"))
        write_comparison(comparison, path, max_mb=options.max_mb)
    elif more:
        path = _free(options.out or Path("trajectory.html"))
        write_trajectory(RunDirectory.open(Path(name)), more[0], path, max_mb=options.max_mb)
    else:
        directory = RunDirectory.open(Path(name))
        path = _free(options.out) if options.out else directory.report_path
        write_report(directory, path, max_mb=options.max_mb)
    if options.json:
        print(json.dumps({"report": str(path)}))
    else:
        Terminal().print(f"Report: {path}", soft_wrap=True)
    return 0


def _free(path: Path) -> Path:
    """The path, unless a file is there that is no page."""
    if path.is_file() and not path.read_bytes().startswith(BEGINNING):
        raise UsageError(f"{path} is there already and is not a report", code="file-exists", fix="give another --out")
    return path
