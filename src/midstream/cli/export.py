"""`midstream export RUN --format FORMAT --out PATH`: trajectories of a run in the formats of other tools."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from midstream import api
from midstream.cli import options as shared
from midstream.exports import formats
from midstream.report.numbers import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("run", help="run directory")
    known = "trl, sft, parquet, or a format of an installed package, e.g. verl"
    parser.add_argument("--format", required=True, choices=formats(), metavar="NAME", help=known)
    parser.add_argument("--out", required=True, metavar="PATH", help="the new file")
    parser.add_argument("--part", default="", metavar="GLOB", help="parts of the run, e.g. 'step-*' or 'eval-test*'")
    parser.add_argument("--module", metavar="NAME", help="of trl and sft: whose replies (default: the one that learns)")
    parser.add_argument("--all", dest="everything", action="store_true", help="of sft: failures too")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Write the file; say what is in it, and what was left out."""
    with shared.spinner("writing", silent=options.quiet):
        done = api.export(
            options.run,
            options.format,
            options.out,
            part=options.part,
            module=options.module,
            everything=options.everything,
        )
    record = {**asdict(done), "path": str(done.path)}
    line = f"{counted(done.rows, 'row')} in {done.path}"
    return shared.show(options, record, shared.written(line, done.left_out))
