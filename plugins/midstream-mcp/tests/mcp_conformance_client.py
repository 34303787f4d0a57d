"""The client that MCP's conformance suite starts, as `python mcp_conformance_client.py URL`.

It connects as a recipe's `[tools.server]` would, calls every tool once with arguments made up from its schema, and
closes. MCP_CONFORMANCE_SCENARIO names the scenario.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.tool_calls import call_tool
from midstream_mcp.tools import McpConfig, make

SAMPLES: dict[str, Any] = {"number": 2, "integer": 2, "string": "two", "boolean": True, "array": [], "object": {}}


class Listening(logging.Handler):
    """Waits until the SDK's stream for messages of the server is open, which a line of its log says."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        logger = logging.getLogger("mcp.client.streamable_http")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "GET SSE connection established" in record.getMessage():
            self.open.set()


async def use(tools: list[Any]) -> bool:
    fine = True
    for tool in tools:
        schemas = tool.parameters.get("properties", {})
        arguments = {name: SAMPLES[schemas[name].get("type", "string")] for name in schemas}
        result = await call_tool(tool, arguments)
        sys.stdout.write(f"{tool.name} {arguments} {result}\n")
        fine &= result.ok
    for tool in tools:
        await tool.close()
    return fine


def main(url: str) -> int:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO")
    listening = Listening()
    try:
        tools = make(McpConfig(url=url, timeout_s=20), "server")
    except RecipeError as error:  # connected, and the server has no tools: all that `initialize` tests
        sys.stdout.write(f"{error}\n")
        return 0 if scenario == "initialize" else 1
    if scenario == "sse-retry":
        # The suite takes any GET after the call for a reconnection, also this stream's first, where it is slow to open.
        listening.open.wait(20)
    return 0 if asyncio.run(use(tools)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
