"""The tools for verifiers 0.4: a server of the Model Context Protocol, which verifiers starts."""

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver.tools import Tool

import verifiers.v1 as vf
from midstream_environments.exported import WorldRun

from . import world


def shared_tools() -> bool:
    """Whether there are tools, and none depends on the task."""
    return bool(world().tools) and not world().per_run


def register(mcp: Any, run: Callable[[], WorldRun]) -> None:
    """Offer the tools with their own schemas; midstream checks the arguments."""
    for schema in world().schemas:
        mcp._tool_manager._tools[schema["name"]] = _tool(schema, run)


def _tool(schema: dict[str, Any], run: Callable[[], WorldRun]) -> Tool:
    async def call() -> str:
        raise NotImplementedError

    made = Tool.from_function(call, name=schema["name"], description=schema["description"])
    return _WorldTool(**{**dict(made), "parameters": schema["parameters"]}, run_of=run)


class _WorldTool(Tool):
    """A tool whose arguments are those of its schema, whatever the parameters of a function could be."""

    run_of: Callable[[], WorldRun]

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        result = await self.run_of().call(self.name, arguments)
        return self.fn_metadata.convert_result(result.text) if convert_result else result.text


class SharedTools(vf.Toolset[vf.SharedToolsetConfig]):
    """Tools that are the same for every task."""

    TOOL_PREFIX = None

    def register(self, mcp: Any) -> None:
        """Register them."""
        run = world().open()
        register(mcp, lambda: run)


class PerRunTools(vf.Toolset[vf.ToolsetConfig]):
    """Tools that depend on the task."""

    TOOL_PREFIX = None

    async def setup_task(self, task: Any) -> None:
        """Open the task of this rollout."""
        self._run = world().open(task.case)

    def register(self, mcp: Any) -> None:
        """Register them."""
        register(mcp, lambda: self._run)


if __name__ == "__main__":
    # verifiers names the class by the config that it was made with.
    (PerRunTools if world().per_run else SharedTools).run()
