"""A chat model's native function calls: fields of a message on the server, text in midstream's stream.

    {"content": "I add.", "tool_calls": [{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]}
    I add.
    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>

Calls from a server become text, and return as fields in the next request. A call that a model got wrong is text in both
directions: a server refuses a conversation with an invalid call in it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from midstream.core.errors import TransientError
from midstream.core.tool_calls import CLOSE, OPEN, functions_in, parsed, replace_blocks
from midstream.core.trajectory import Message

_CALL_SIZE, _LONGEST_ID = 1000, 100  # bytes that a call takes besides its text; characters that distinguish two calls
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the names that OpenAI accepts


def with_calls(content: Any, calls: object) -> Any:
    """A message's content, followed by its `tool_calls` as text, if it has any.

    Arguments that are not a JSON object stand in a call's text as a string. Malformed calls raise `TransientError`.
    """
    if not calls:
        return content
    if not isinstance(calls, list) or not isinstance(content, str | None):
        raise TransientError("the answer's tool calls are not a list, or its content is not text")
    texts = [content] if content else []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TransientError("the answer holds a tool call without a function's name")
        # Nearly all servers send arguments as the text of an object, "" for no arguments.
        arguments = function.get("arguments")
        if arguments is None or arguments == "":
            arguments = {}
        elif isinstance(arguments, str) and isinstance(value := parsed(arguments), dict):
            arguments = value
        text = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        # JSON's escapes keep marks inside of arguments from ending the block.
        text = text.replace(CLOSE, r"<\/tool_call>").replace(OPEN, r"\u003ctool_call>")
        texts.append(f"{OPEN}{text}{CLOSE}")
    return "\n".join(texts)


class StreamedCalls:
    """The calls of a message that arrives in pieces; `size` is about how many bytes they take."""

    def __init__(self) -> None:
        self.size = 0
        self._calls: list[_StreamedCall] = []
        self._latest: dict[str, _StreamedCall] = {}  # by index

    def add(self, deltas: object) -> None:
        """Add a delta's `tool_calls`: names arrive whole, arguments in pieces. Raises `TransientError` if malformed."""
        for delta in deltas if isinstance(deltas, list) else [deltas] * bool(deltas):
            if not isinstance(delta, dict) or not isinstance(delta.get("function"), dict):
                raise TransientError("the answer holds a tool call without a function's name")
            # A delta continues the call of its index, unless it starts a new one: some servers send whole calls, each
            # without an index or all with 0.
            index, identifier = (str(delta.get(key))[:_LONGEST_ID] for key in ("index", "id"))
            name, arguments = delta["function"].get("name"), delta["function"].get("arguments") or ""
            call = self._latest.get(index)
            if call is None or (name and identifier != call.identifier):
                call = self._latest[index] = _StreamedCall(identifier)
                self._calls.append(call)
                self.size += _CALL_SIZE
            if not call.name and isinstance(name, str):
                call.name = name
                self.size += len(name)
            text = arguments if isinstance(arguments, str) else "" if call.arguments else json.dumps(arguments)
            call.arguments += text.encode("utf-8", "surrogatepass")
            self.size += len(text)

    def whole(self) -> list[dict[str, Any]]:
        """The calls as a server sends them that does not stream."""
        return [
            {"function": {"name": call.name or None, "arguments": call.arguments.decode("utf-8", "surrogatepass")}}
            for call in self._calls
        ]


@dataclass(slots=True)
class _StreamedCall:
    identifier: str
    name: str = ""
    arguments: bytearray = field(default_factory=bytearray)


def as_fields(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a server with native calls expects them: calls with ids, followed by their results in order.

    The result of an invalid call comes from the user, after the others.
    """
    fields: list[dict[str, Any]] = []
    numbers, rest = count(1), deque(messages)
    while rest:
        message, results = rest.popleft(), deque[str]()
        while message.role == "assistant" and rest and rest[0].role == "tool":
            results.append(rest.popleft().content)
        if results:
            fields += _with_results(message.content, results, numbers)
        else:  # no server accepts a tool's message without its call
            fields.append({"role": "user" if message.role == "tool" else message.role, "content": message.content})
    return fields


def _with_results(reply: str, results: deque[str], numbers: count[int]) -> list[dict[str, Any]]:
    """An assistant's message, and the results of its calls."""
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    others: list[str] = []

    def take(block: re.Match[str]) -> str:
        """Assign the next results to a block's calls; returns what the text keeps of the block."""
        functions, expected = functions_in(parsed(block[1]))
        named = all(_NAME.fullmatch(function["name"]) for function in functions)
        own = [results.popleft() for _ in range(min(expected, len(results)))]
        if not functions or not named or len(own) < expected:
            others.extend(own)
            return block[0]
        for function, result in zip(functions, own, strict=True):
            name = f"call{next(numbers):05d}"  # Mistral requires nine letters and digits
            calls.append({"id": name, "type": "function", "function": function})
            answers.append({"role": "tool", "tool_call_id": name, "content": result})
        return ""

    kept = replace_blocks(reply, take)
    message: dict[str, Any] = {"role": "assistant", "content": reply}
    if calls:
        message |= {"content": kept.strip() or None, "tool_calls": calls}
    return [message, *answers, *({"role": "user", "content": result} for result in (*others, *results))]
