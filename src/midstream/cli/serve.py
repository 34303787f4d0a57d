"""`midstream serve`: answer clients with an agent, or open sessions for agents that run elsewhere."""

from __future__ import annotations

import argparse
import sys

from midstream import api, serve
from midstream.cli import options as shared
from midstream.gateway.settings import ServeConfig
from midstream.recipe.overrides import AgentChanges


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument("target", help="run directory or recipe")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sessions", action="store_true", help="open sessions for agents that run elsewhere")
    how.add_argument("--train", action="store_true", help="likewise, with the tasks of the recipe's training")
    how.add_argument("--mcp", action="store_true", help="answer as an MCP server on standard input and output")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8321, help="the port (default: 8321)")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--library", "--unsafe", "--budget")
    shared.add(parser, *shared.RECIPE, "--out", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""

    def ready(address: str) -> None:
        if not options.quiet:
            print(f"{options.target} answers at {address}/v1 (Ctrl-C ends it)", file=sys.stderr, flush=True)

    source = api.trained_run(options.target) or options.target
    serve.serve_agent(
        source,
        config=ServeConfig(host=options.host, port=options.port),
        mcp=options.mcp,
        temperature=options.temperature,
        unsafe=options.unsafe,
        ready=ready,
        **shared.changes(AgentChanges, options),
    )
    return 0
