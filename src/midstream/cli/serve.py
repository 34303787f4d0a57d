"""`midstream serve`: answer clients with an agent."""

from __future__ import annotations

import argparse
import sys

from midstream import serve
from midstream.cli import options as shared
from midstream.components.tables import validate
from midstream.gateway.settings import ServeConfig
from midstream.recipe.overrides import AgentChanges


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument("target", help="run directory or recipe")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8321, help="the port (default: 8321)")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--unsafe", "--budget")
    shared.add(parser, "--set", "--seed", "--trust", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or until a service manager ends it."""
    shared.allow_interrupts()

    def ready(address: str) -> None:
        if not options.quiet:
            print(f"{options.target} answers at {address}/v1 (Ctrl-C ends it)", file=sys.stderr, flush=True)

    serve.serve_agent(
        options.target,
        config=validate(ServeConfig, {"host": options.host, "port": options.port}, "serve"),
        temperature=options.temperature,
        unsafe=options.unsafe,
        ready=ready,
        **shared.changes(AgentChanges, options),
    )
    return 0
