"""Function calls of a chat model's own kind: fields of a message at the server, text in midstream's stream.

    {"content": "I add.", "tool_calls": [{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]}
    I add.
    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>

What a server sent becomes text, and goes back as fields in the next request. A call that a model got wrong is text in
both directions: a server refuses a conversation with a call in it that is none.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

from midstream.core.data import unfit
from midstream.core.http import TransientError
from midstream.core.trajectory import Message

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI takes for one


def with_calls(content: Any, calls: object) -> Any:
    """A message's content, and where it has `tool_calls`, their text after it.

    Arguments that are no JSON object stand in a call's text as a string.

    Raises:
        TransientError: the calls are none.
    """
    if not calls:
        return content
    if not isinstance(calls, list) or not isinstance(content, str | None):
        raise TransientError("the answer's tool calls are no list, or its text is none")
    return "\n".join([*([content] if content else []), *map(_block, calls)])


def _block(call: object) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise TransientError("the answer holds a tool call without a function's name")
    said = json.dumps({"name": name, "arguments": _arguments(function.get("arguments"))}, ensure_ascii=False)
    # JSON's escapes keep marks inside of arguments from ending the block.
    said = said.replace(_CLOSE, r"<\/tool_call>").replace(_OPEN, r"\u003ctool_call>")
    return f"{_OPEN}{said}{_CLOSE}"


def _arguments(sent: object) -> object:
    """What a call's arguments say: nearly all servers send them as the text of an object, "" where there are none."""
    if sent is None or sent == "":
        return {}
    if not isinstance(sent, str):
        return sent
    read = _read(sent)
    return read if isinstance(read, dict) else sent


def _read(text: str) -> Any:
    """The JSON in a text; None where it is none, or none that a trajectory can hold."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if unfit(value) else value


class StreamedCalls:
    """The calls of a message that comes in pieces, put together."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._places: dict[object, int] = {}

    def add(self, deltas: object) -> None:
        """Take a delta's `tool_calls`: a name comes whole, arguments in pieces; what is no call is kept as it is."""
        for delta in deltas if isinstance(deltas, list) else [deltas] * bool(deltas):
            if not isinstance(delta, dict) or not isinstance(delta.get("function"), dict):
                self.calls.append(delta)
                continue
            piece, function = delta["function"], self._function(delta)
            function["name"] = function.get("name") or piece.get("name")
            sent, more = function.get("arguments"), piece.get("arguments")
            function["arguments"] = sent + more if isinstance(sent, str) and isinstance(more, str) else sent or more

    def _function(self, delta: dict[str, Any]) -> dict[str, Any]:
        """The call that a delta goes on with, by its number, or a new one.

        Some servers send whole calls, each without a number or all with 0.
        """
        index, new_id = str(delta.get("index")), delta.get("id")
        known = self.calls[self._places[index]] if index in self._places else None
        if known is None or (delta["function"].get("name") and new_id != known["id"]):
            known = {"id": new_id, "function": {}}
            self._places[index] = len(self.calls)
            self.calls.append(known)
        return known["function"]


def as_fields(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a server with native calls reads them: calls with ids, and after them their results, in order.

    The result of a call that is none comes from the user, after the others.
    """
    made: list[dict[str, Any]] = []
    numbers, rest = count(1), deque(messages)
    while rest:
        message, results = rest.popleft(), deque[str]()
        while message.role == "assistant" and rest and rest[0].role == "tool":
            results.append(rest.popleft().content)
        made += _exchange(message.content, results, numbers) if results else [_plain(message.role, message.content)]
    return made


def _exchange(said: str, results: deque[str], numbers: count[int]) -> list[dict[str, Any]]:
    """An assistant's message, and what its calls gave."""
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []

    def take(block: re.Match[str]) -> str:
        """Give the next results to a block's calls; returns what the text keeps of it."""
        functions, expected = _functions(block[1])
        own = [results.popleft() for _ in range(min(expected, len(results)))]
        if not functions or len(own) < expected:
            others.extend(_plain("user", result) for result in own)
            return block[0]
        for function, result in zip(functions, own, strict=True):
            name = f"call{next(numbers):05d}"  # as Mistral wants it: nine letters and digits
            calls.append({"id": name, "type": "function", "function": function})
            answers.append({"role": "tool", "tool_call_id": name, "content": result})
        return ""

    kept = _BLOCK.sub(take, said)
    reply = _plain("assistant", said)
    if calls:
        reply |= {"content": kept.strip() or None, "tool_calls": calls}
    return [reply, *answers, *others, *(_plain("user", result) for result in results)]


def _functions(block: str) -> tuple[list[dict[str, str]], int]:
    """Names and arguments of a block's calls as they go out, and how many calls the agent reads there.

    A block is a call or a list of calls. None go out where a server would not take one of them for a call.
    """
    read = _read(block)
    calls: list[Any] = read if isinstance(read, list) and read else [read]
    if not all(map(_is_call, calls)):
        return [], 1
    if not all(_NAME.fullmatch(call["name"]) for call in calls):
        return [], len(calls)
    made = [(call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False)) for call in calls]
    return [{"name": name, "arguments": arguments} for name, arguments in made], len(calls)


def _is_call(value: Any) -> bool:
    """An object of a name and arguments, and nothing else."""
    if not isinstance(value, dict) or not value.keys() <= {"name", "arguments"}:
        return False
    return isinstance(value.get("name"), str) and isinstance(value.get("arguments", {}), dict)


def _plain(role: str, content: str) -> dict[str, Any]:
    """A message without calls; a result without its call is the user's, since no server takes one from a tool."""
    return {"role": "user" if role == "tool" else role, "content": content}
