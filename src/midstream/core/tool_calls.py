"""Calling a tool: the same for a command's arguments and for the calls of a program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import JsonValue

from midstream.core.errors import ToolServerError
from midstream.core.protocols import Tool, ToolResult

CHARACTERS_PER_TOKEN = 4  # of English text, roughly: tools know no tokenizer


async def call_tool(tool: Tool, arguments: Mapping[str, JsonValue]) -> ToolResult:
    """Call a tool within its limits: a slow one has no result (`ok=False`), a long result is cut.

    The text is valid Unicode: half a surrogate pair, which no file and no request can hold, becomes "?".

    Raises:
        InfrastructureError: the tool's own; a time limit or a cancellation inside it is a `ToolServerError`.
    """
    limit = asyncio.timeout(tool.timeout_s)
    try:
        async with limit:
            result = await tool.call(arguments)
    except TimeoutError as failure:
        if not limit.expired():
            raise ToolServerError(f"{tool.name}: {failure!r}", cause="its back end timed out") from failure
        return ToolResult(text=f"{tool.name} gave no result within {tool.timeout_s:g} s", ok=False)
    except asyncio.CancelledError as failure:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            raise
        # Nobody stopped this call: something inside the tool was, which must not pass for the end of the whole run.
        raise ToolServerError(f"{tool.name} was cancelled from within", cause="its back end gave up") from failure
    text = within_budget(result.text, tool.output_tokens).encode("utf-8", "replace").decode()
    return ToolResult(text=text, ok=result.ok, calls=result.calls)


def within_budget(text: str, tokens: int) -> str:
    """`text`, or as much of its beginning as fits into `tokens`, and a note that says so."""
    limit = CHARACTERS_PER_TOKEN * tokens
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text)} characters, of which the first {limit} are shown]"
