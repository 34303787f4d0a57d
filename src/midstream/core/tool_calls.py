"""Call a tool within its limits, for a command's arguments and for a program's calls alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import ToolServerError
from midstream.core.protocols import Tool, ToolResult

CHARACTERS_PER_TOKEN = 4  # of English text, roughly: tools have no tokenizer


def text_arguments(**descriptions: str) -> dict[str, Any]:
    """The JSON schema of a tool whose arguments are texts, all required: {argument: its description}."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in descriptions.items()},
        "required": list(descriptions),
        "additionalProperties": False,
    }


async def call_tool(tool: Tool, arguments: Mapping[str, JsonValue]) -> ToolResult:
    """Call a tool within its limits: `ok=False` after `timeout_s`, and a long result is cut.

    Halves of surrogate pairs, which no file or request can hold, become "?". Raises `InfrastructureError` if the tool
    failed; a time-out or cancellation inside the tool is a `ToolServerError`.
    """
    clock = asyncio.timeout(tool.timeout_s)
    try:
        async with clock:
            result = await tool.call(arguments)
    except TimeoutError as failure:
        if not clock.expired():
            raise ToolServerError(
                f"{tool.name}: {failure!r}", code="tool-failed", cause="its back end timed out"
            ) from failure
        return ToolResult(text=f"{tool.name} gave no result within {tool.timeout_s:g} s", ok=False)
    except asyncio.CancelledError as failure:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            raise
        # Nobody cancelled this call, only something inside the tool; the run must not take it for its own end.
        raise ToolServerError(f"{tool.name} was cancelled by its own back end", code="tool-failed") from failure
    text = cut_result(result.text, CHARACTERS_PER_TOKEN * tool.output_tokens)
    return replace(result, text=text.encode("utf-8", "replace").decode())


def cut_result(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a line that says how many there were."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text)} characters, of which the first {limit} are shown]"
