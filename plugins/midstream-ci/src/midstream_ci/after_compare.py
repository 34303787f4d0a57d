"""What `midstream compare` can require, and write for a build server."""

from __future__ import annotations

import argparse

from midstream_ci import options as shared
from midstream_ci.comparisons import Compared, decide_comparison, parse_comparison
from midstream_ci.junit import comparison_junit
from midstream_ci.summary import comparison_summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    shared.add_arguments(parser, parse_comparison, "no-regression")


def finish(options: argparse.Namespace, comparison: Compared) -> int:
    """Decide the requirements, and write the files; returns the exit code."""
    decisions = decide_comparison(comparison, options.requirements) if options.requirements else []
    return shared.finish(
        options,
        decisions,
        lambda: comparison_junit(comparison, decisions),
        lambda: comparison_summary(comparison, decisions),
    )
