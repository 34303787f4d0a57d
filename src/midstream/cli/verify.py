"""`midstream verify RUN`: check every file of a run."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from midstream.cli import options as shared
from midstream.core.terminal import Terminal
from midstream.evaluation.verify import verify
from midstream.report.numbers import counted
from midstream.runs import RunDirectory

_STYLES = {"ok": "green", "damaged": "bold red", "missing": "bold red", "not checked": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `verify`."""
    parser.add_argument("run", help="run directory")
    text = "take the files as they are, without unreadable records, so that the run can resume; FILE.damaged keeps them"
    parser.add_argument("--accept", action="store_true", help=text)
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Check all files; returns 1 if one is damaged or missing."""
    run = RunDirectory.open(Path(options.run), report=lambda line: None)
    if options.accept:
        with run.lock():
            run.accept_damage()
    checks = verify(run)
    counts = Counter(check.state for check in checks)
    if options.json:
        print(json.dumps({"run": str(run.root), "files": [asdict(check) for check in checks]}))
    else:
        console = Terminal()
        for check in checks:
            line = Text(f"{check.state:<13}", _STYLES[check.state]).append(check.file, "not dim")
            console.print(line.append(f": {check.problem}" if check.problem else ""), soft_wrap=True)
            if check.fix:
                console.print(Text(f"{'':<13}fix: {check.fix}"), soft_wrap=True)
        console.print(", ".join(f"{counted(counts[state], 'file')} {state}" for state in _STYLES if counts[state]))
    return 1 if counts["damaged"] or counts["missing"] else 0
