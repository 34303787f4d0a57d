"""`midstream mcp RUN`: clients of the Model Context Protocol ask an agent, over standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import redirect_stdout

from midstream import api
from midstream.cli import options as shared
from midstream.core.version import __version__
from midstream.recipe.overrides import AgentChanges
from midstream.serve import AnsweringAgent
from midstream_mcp.client_model import client_session

HELP = "answer MCP clients with an agent, on standard input and output"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mcp`."""
    parser.add_argument("target", help="run directory or recipe")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--unsafe")
    shared.add(parser, "--set", "--budget", "--seed", "--trust")


def run(options: argparse.Namespace) -> int:
    """Answer until the client closes its end, or until a signal."""
    shared.allow_interrupts()
    with api.answering(
        options.target,
        temperature=options.temperature,
        unsafe=options.unsafe,
        continuous=True,
        **shared.changes(AgentChanges, options),
    ) as (environment, run_coroutine, build):
        run_coroutine(serve(AnsweringAgent(environment, build.recipe.seed)))
    return 0


async def serve(agent: AnsweringAgent) -> None:
    """Serve the tool `ask`, and the agent's lessons as resources, until the client closes its end."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context

    server = MCPServer("midstream", version=__version__)

    async def ask(question, context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Ask the agent, which plans and calls tools before it answers."""
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        token = client_session.set(context.session)  # an engine may ask the client's own model
        running = asyncio.ensure_future(agent.run(question, steps.put_nowait))
        client_session.reset(token)
        running.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            number = 0
            while (text := await steps.get()) is not None:
                number += 1
                await context.report_progress(number, message=text)
        finally:
            running.cancel()
            await asyncio.wait({running})
        ended = running.result()
        if ended.error is not None:
            raise RuntimeError(ended.error.line)  # the SDK makes it the tool's error
        return ended.answer or ""

    # The SDK reads types, and finds the context by its: as text they would be looked up outside of this function.
    ask.__annotations__ = {"question": str, "context": Context, "return": str}
    server.add_tool(ask)

    def offer(module: str, text: str) -> None:
        @server.resource(f"lessons://{module}", name=f"lessons of the {module}")
        def lessons() -> str:
            return text

    for module, text in agent.environment.lessons.items():
        offer(module, text)
    with redirect_stdout(sys.__stdout__):  # the command line's own stream cleans text for terminals
        await server.run_stdio_async()
