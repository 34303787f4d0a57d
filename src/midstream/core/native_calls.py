"""Function calls in a model's own text, in the form of Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from midstream.core.data import unfit

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPEN}(.*?){CLOSE}", re.DOTALL)


def replace_blocks(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    """The text with each block of a call replaced; group 1 of a match is what stands between its marks."""
    calling, close, rest = text.rpartition(CLOSE)  # `sub` would search the rest once for each mark that opens a call
    return _BLOCK.sub(replacement, calling + close) + rest


def functions_in(value: Any) -> tuple[list[dict[str, str]], int]:
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
