"""An agent as an MCP server on standard input and output: tool `ask`, its steps as progress, lessons as resources."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from midstream.engines.mcp_client import client_session

if TYPE_CHECKING:
    from midstream.serve import AnsweringAgent


async def speak(agent: AnsweringAgent) -> None:
    """Serve until the client closes standard input."""
    server = MCPServer("midstream")

    @server.tool()
    async def ask(question: str, context: Context[Any]) -> str:
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
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        ended = running.result()
        if ended.error is not None:
            raise RuntimeError(ended.error.line)  # the SDK makes it the tool's error
        return ended.answer or ""

    def offer(module: str, text: str) -> None:
        @server.resource(f"lessons://{module}", name=f"lessons of the {module}")
        def lessons() -> str:
            return text

    for module, text in agent.environment.lessons.items():
        offer(module, text)
    with redirect_stdout(sys.__stdout__):  # the command line's own stream cleans text for terminals
        await server.run_stdio_async()
