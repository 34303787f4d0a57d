"""A model's own text of a reply: what it says, its thoughts, and its tool calls in the form that it was trained on.

    hermes       <think>...</think> I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
    qwen3_coder  <tool_call><function=add><parameter=a>1</parameter></function></tool_call>, also with thoughts
    llama3_json  {"name": "add", "parameters": {"a": 1}}, alone, or after <|python_tag|>
    mistral      [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}], or [TOOL_CALLS]add{"a": 1}, add[ARGS]{"a": 1}
    none         all of it is text

A call that the model got wrong stays in the text. No text is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from midstream.core.data import JsonObject, unfit
from midstream.core.tool_calls import OPEN, functions_in, parsed, replace_blocks
from midstream.gateway.forms import NAME, FunctionCall, call_id

_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)
# As templates write values that are not JSON.
_WORDS = {"null": None, "None": None, "True": True, "False": False}
_PYTHON_TAG, _TOOL_CALLS = "<|python_tag|>", "[TOOL_CALLS]"
_MISTRAL_HEAD = re.compile(rf"\s*(?:({NAME.pattern})(?:\[CALL_ID\][A-Za-z0-9]+)?(?:\[ARGS\])?\s*)?")
_DECODER = json.JSONDecoder()

# Names, and arguments as the JSON text of an object.
_Calls = list[tuple[str, str]]
_Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """The parts of a reply; `calls` are names, and arguments as the JSON text of an object."""

    text: str
    thoughts: str = ""
    calls: tuple[tuple[str, str], ...] = ()

    def tool_uses(self, answer_id: str) -> tuple[FunctionCall, ...]:
        """The calls with ids (`call_id`)."""
        return tuple(
            FunctionCall(id=call_id(answer_id, place), name=name, arguments=text)
            for place, (name, text) in enumerate(self.calls)
        )


def _in_blocks(
    text: str,
    tools: _Tools = (),
    *,
    calls_in: Callable[[str, _Tools], _Calls],
) -> Parsed:
    """A reply with calls in <tool_call> blocks, after thoughts."""
    thoughts, said = _split_thoughts(text)
    calls: _Calls = []

    def take(block: re.Match[str]) -> str:
        found = calls_in(block[1], tools)
        calls.extend(found)
        return "" if found else block[0]

    kept = replace_blocks(said, take)
    return Parsed(text=kept.strip() if calls else kept, thoughts=thoughts, calls=tuple(calls))


def _split_thoughts(text: str) -> tuple[str, str]:
    """(thoughts, the rest). A chat template may have opened the thoughts in the prompt; a limit may cut them off."""
    before, close, rest = text.partition("</think>")
    opened = before.lstrip().startswith("<think>")
    # Else the mark is in the text or in an argument.
    if not opened and (not close or "<think>" in before or OPEN in before):
        return "", text
    return before.lstrip().removeprefix("<think>").strip("\n"), rest.lstrip("\n")


def _read_calls(value: object) -> _Calls:
    """The call or calls of a JSON value; none if one of them is malformed."""
    functions, _ = functions_in(value)
    calls = [(function["name"], function["arguments"]) for function in functions]
    return calls if all(NAME.fullmatch(name) for name, _ in calls) else []


def _qwen3_coder(block: str, tools: _Tools) -> _Calls:
    function = _FUNCTION.fullmatch(block.strip())
    if function is None:
        return []
    name, body = function[1].strip(), function[2]
    declared = next((tool["function"] for tool in tools if tool["function"]["name"] == name), {})
    types = declared.get("parameters", {}).get("properties", {})
    arguments: JsonObject = {}
    place = 0
    while parameter := _PARAMETER.match(body, place):
        place, key, text = parameter.end(), parameter[1].strip(), parameter[2]
        schema = types.get(key) if isinstance(types, dict) else None
        kinds = schema.get("type") if isinstance(schema, dict) else None
        value = _WORDS[text] if text in _WORDS else parsed(text)
        # Texts stand without quotes, so one that looks like a number is a number unless the schema names a text.
        is_text = "string" in (kinds if isinstance(kinds, list) else [kinds]) or isinstance(value, str)
        arguments[key] = text if is_text or (value is None and text not in _WORDS) else value
    return [] if body[place:].strip() or unfit(arguments) else _read_calls({"name": name, "arguments": arguments})


def _llama3_json(text: str, tools: _Tools = ()) -> Parsed:
    value = parsed(text.strip().removeprefix(_PYTHON_TAG))
    if not isinstance(value, dict) or "parameters" not in value or not value.keys() <= {"type", "name", "parameters"}:
        return Parsed(text=text)
    calls = _read_calls({"name": value.get("name"), "arguments": value["parameters"]})
    return Parsed(text="" if calls else text, calls=tuple(calls))


def _mistral(text: str, tools: _Tools = ()) -> Parsed:
    calls: _Calls = []
    kept, place = "", 0
    while (mark := text.find(_TOOL_CALLS, place)) >= 0:
        head = _MISTRAL_HEAD.match(text, mark + len(_TOOL_CALLS))
        start = head.end() if head else mark
        try:
            end = _DECODER.raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            break
        value = parsed(text[start:end])
        if head and head[1]:
            value = {"name": head[1], "arguments": value}
        elif isinstance(value, list):
            # The calls of some versions have ids.
            value = [{k: v for k, v in call.items() if k != "id"} if isinstance(call, dict) else call for call in value]
        if not (found := _read_calls(value)):
            break
        calls += found
        kept, place = kept + text[place:mark], end
    return Parsed(text=(kept + text[place:]).strip() if calls else text, calls=tuple(calls))


# parser(text, tools) takes a reply apart; the tools have the types of arguments that come without JSON.
PARSERS: Mapping[str, Callable[..., Parsed]] = {
    "hermes": partial(_in_blocks, calls_in=lambda block, _: _read_calls(parsed(block))),
    "qwen3_coder": partial(_in_blocks, calls_in=_qwen3_coder),
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "none": lambda text, tools=(): Parsed(text=text),
}


def parse_reply(text: str, tools: _Tools, parser: str) -> Parsed:
    """A reply taken apart by its model's parser; a call is text where no tool was offered."""
    reply = PARSERS[parser](text, tools)
    # What a server has parsed itself comes in the form of hermes (`core/tool_calls.py`).
    if not reply.calls and parser != "none":
        reply = PARSERS["hermes"](text, tools)
    return reply if tools or not reply.calls else Parsed(text=text)
