"""Calls of tools: one made within its limits, for a command's arguments and a program's calls alike; and calls in text.

In a model's own text they have the form of Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
"""

from __future__ import annotations

import asyncio
import json
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from midstream.core.data import JsonObject, JsonSchema, object_schema, unfit
from midstream.core.errors import MidstreamError, ToolServerError
from midstream.core.tool import Tool, ToolResult

CHARACTERS_PER_TOKEN = 4  # of English text, roughly: tools have no tokenizer
_LONGEST_MESSAGE = 500  # characters of an exception
_PACKAGE = str(Path(__file__).parents[1])


def text_arguments(**descriptions: str) -> JsonSchema:
    """The JSON schema of a tool whose arguments are texts, all required: {argument: its description}."""
    properties: JsonObject = {name: {"type": "string", "description": text} for name, text in descriptions.items()}
    return object_schema(**properties)


async def call_tool(tool: Tool, arguments: Mapping[str, JsonValue]) -> ToolResult:
    """Call a tool within its limits: `ok=False` after `timeout_s`, and a long result is cut.

    Halves of surrogate pairs, which no file or request can hold, become "?". Raises `InfrastructureError` if the tool
    failed; a time-out, a cancellation or any other exception inside the tool is a `ToolServerError`.
    """
    clock = asyncio.timeout(tool.timeout_s)
    try:
        async with clock:
            result = await tool.call(arguments)
    except TimeoutError as failure:
        if not clock.expired():
            raise ToolServerError(f"{tool.name}: its back end timed out: {failure!r}", code="tool-failed") from failure
        return ToolResult(text=f"{tool.name} gave no result within {tool.timeout_s:g} s", ok=False)
    except asyncio.CancelledError as failure:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            raise
        # Nobody cancelled this call, only something inside the tool; the run must not take it for its own end.
        raise ToolServerError(f"{tool.name} was cancelled by its own back end", code="tool-failed") from failure
    except MidstreamError:
        raise
    except Exception as failure:
        # A tool, or a library that it uses, may raise anything.
        frames = traceback.extract_tb(failure.__traceback__)
        # The line in the tool's own code, which says more than the one in a library that it calls.
        own = next((frame for frame in frames if not frame.filename.startswith(_PACKAGE)), frames[-1])
        raise ToolServerError(
            f"{tool.name} raised {traceback.format_exception_only(failure)[-1].strip()[:_LONGEST_MESSAGE]}",
            code="tool-broken",
            cause=f"raised in {own.name}, {own.filename}, line {own.lineno}",
            fix="correct the tool; a function raises ValueError with a text if arguments are wrong or nothing is found",
        ) from failure
    text = cut_result(result.text, CHARACTERS_PER_TOKEN * tool.output_tokens)
    return replace(result, text=text.encode("utf-8", "replace").decode())


def cut_result(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a line that says how many there were."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text)} characters, of which the first {limit} are shown]"


OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPEN}(.*?){CLOSE}", re.DOTALL)


def replace_blocks(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    """The text with each block of a call replaced; group 1 of a match is what stands between its marks."""
    # `sub` would search the rest once for each mark that opens a call.
    calling, close, rest = text.rpartition(CLOSE)
    return _BLOCK.sub(replacement, calling + close) + rest


def functions_in(value: object) -> tuple[list[dict[str, str]], int]:
    """(names and arguments of a block's calls as they are sent, number of calls that the agent reads there).

    A block's `value` is a call or a list of calls. None is sent if one of them is not a call.
    """
    calls: list[Any] = value if isinstance(value, list) and value else [value]
    for call in calls:
        if not isinstance(call, dict) or not call.keys() <= {"name", "arguments"}:
            return [], 1
        if not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), dict):
            return [], 1
    arguments = [json.dumps(call.get("arguments", {}), ensure_ascii=False) for call in calls]
    return [{"name": call["name"], "arguments": text} for call, text in zip(calls, arguments, strict=True)], len(calls)


def parsed(text: str) -> Any:
    """The JSON value of a text; None if it is not JSON, or a value that a trajectory cannot hold."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if unfit(value) else value
