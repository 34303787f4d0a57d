"""The client that MCP's conformance suite starts, as `python mcp_conformance_client.py URL`.

It connects as a recipe's `[tools.server]` would, calls every tool once with arguments made up from its schema, and
closes. MCP_CONFORMANCE_SCENARIO names the scenario.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.tool_calls import call_tool
from midstream_mcp.tools import McpConfig, make

SAMPLES: dict[str, Any] = {"number": 2, "integer": 2, "string": "two", "boolean": True, "array": [], "object": {}}


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
    try:
        tools = make(McpConfig(url=url, timeout_s=20), "server")
    except RecipeError as error:  # connected, and the server has no tools: all that `initialize` tests
        sys.stdout.write(f"{error}\n")
        return 0 if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "initialize" else 1
    return 0 if asyncio.run(use(tools)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
