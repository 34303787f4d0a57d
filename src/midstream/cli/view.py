"""`midstream view [RUN...]`: look at runs in the browser, while they run and afterwards; or write a page of them."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from midstream.cli import options as shared
from midstream.cli.compare import add_compared, comparison_of
from midstream.core.errors import UsageError
from midstream.gateway.http import LOOPBACK
from midstream.report.comparison import split_step
from midstream.runs import RunDirectory
from midstream.view.bundle import BEGINNING, write_comparison, write_runs, write_trajectory
from midstream.view.documents import Documents
from midstream.view.server import Viewer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `view`."""
    add_compared(parser, "runs, or directories of runs (default: ./runs)")
    text = (
        f"the address to listen at (default: {LOOPBACK[0]}); elsewhere, anyone with the printed address reads the runs"
    )
    parser.add_argument("--host", default=LOOPBACK[0], help=text)
    parser.add_argument("--port", type=int, default=0, help="the port (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address alone")
    text = (
        "write one page that opens from disk, and end: of a run (default: RUN/report.html), of a directory of runs, "
        "of a trajectory (RUN ID, or the start of its id), or of the comparison of runs or groups"
    )
    parser.add_argument("--file", nargs="?", const="", metavar="PATH", help=text)
    shared.add(parser, "--max-mb")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or write what the options name and print its path."""
    if options.file is not None:
        print(_write_page(options))
        return 0
    if options.group:
        fix = "midstream view --group 'a=runs/a-*' 'b=runs/b-*' --file"
        raise UsageError("--group without --file", code="option-without-effect", fix=fix)
    places = [Path(name) for name in options.runs or ["runs"]]
    for place in places:
        if not place.is_dir():
            raise UsageError(
                f"there is no directory {place}",
                code="file-not-found",
                fix="name a run, or a directory of runs" if options.runs else "name one: midstream view RUN",
            )
    shared.allow_interrupts()

    def ready(address: str) -> None:
        print(address, flush=True)
        if sys.stdout.isatty() and not options.no_browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        Viewer(places, host=options.host, port=options.port).run(ready)
    return 0


def _write_page(options: argparse.Namespace) -> Path:
    """Write a run, a trajectory of it or a comparison as one file; returns its path."""
    if not options.runs and not options.group:
        raise UsageError("no run to write", code="missing-option", fix="midstream view RUN --file")
    name, *more = options.runs or [""]
    of_trajectory = len(more) == 1 and not Path(split_step(more[0])[0]).is_dir()
    if options.group or (more and not of_trajectory):
        comparison = comparison_of(options)
        path = _free(options.file or "comparison.html")
        write_comparison(comparison, path, max_mb=options.max_mb)
    elif more:
        path = _free(options.file or "trajectory.html")
        write_trajectory(RunDirectory.open(Path(name)), more[0], path, max_mb=options.max_mb)
    elif Path(name, "run.json").exists() or not Documents([Path(name)]).runs.find():
        # Raises without a run.
        run = RunDirectory.open(Path(name))
        path = _free(options.file) if options.file else run.report_path
        write_runs([run.root], path, max_mb=options.max_mb)
    else:
        path = _free(options.file or "runs.html")
        write_runs([Path(name)], path, max_mb=options.max_mb)
    return path


def _free(name: str) -> Path:
    """The path, unless a file is there that is no page."""
    path = Path(name)
    if path.is_file() and not path.read_bytes().startswith(BEGINNING):
        raise UsageError(f"{path} is there already and is not a report", code="file-exists", fix="give another --file")
    return path
