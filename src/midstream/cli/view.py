"""`midstream view [RUN...]`: look at runs in the browser, while they run and afterwards."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.gateway.http import LOOPBACK
from midstream.view.bundle import write_bundle
from midstream.view.server import Viewer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `view`."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs, or directories of runs (default: ./runs)")
    text = (
        f"the address to listen at (default: {LOOPBACK[0]}); elsewhere, anyone with the printed address reads the runs"
    )
    parser.add_argument("--host", default=LOOPBACK[0], help=text)
    parser.add_argument("--port", type=int, default=0, help="the port (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address alone")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="write a static site that opens from disk, and end")
    shared.add(parser, "--max-mb")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    places = [Path(name) for name in options.runs or ["runs"]]
    for place in places:
        if not place.is_dir():
            raise UsageError(
                f"there is no directory {place}",
                code="file-not-found",
                fix="name a run, or a directory of runs" if options.runs else "name one: midstream view RUN",
            )
    if options.bundle:
        write_bundle(places, options.bundle, max_mb=options.max_mb)
        print(options.bundle / "index.html")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in a shell's background
        signal.signal(number, signal.default_int_handler)

    def ready(address: str) -> None:
        print(address, flush=True)
        if sys.stdout.isatty() and not options.no_browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        Viewer(places, host=options.host, port=options.port).run(ready)
    return 0
