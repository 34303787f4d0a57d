"""Tool calls as a policy writes them: from the body of a call to valid arguments, or to what is wrong with it.

    text     print(2 + 3)                                      the tool's one required argument
    json     {"name": "fill_tank", "arguments": {"litres": 20}}       or a list of such objects

A call that cannot be read is data: it has an `error`, for the policy to read.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream.core.answers import extract
from midstream.core.data import JsonObject, unfit
from midstream.core.errors import RecipeError
from midstream.core.json_schema import schema_error
from midstream.core.stream import Block
from midstream.core.stream_template import Template
from midstream.core.tool import Tool
from midstream.core.tool_calls import functions_in, parsed
from midstream.core.trajectory import Action, Command

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*)```", re.DOTALL)
_FENCES = re.compile(r"```[\w+-]*\s(.*?)```", re.DOTALL)
# Of one reply: each is a turn.
MOST_CALLS = 64
_FORM = '{"name": "...", "arguments": {...}}'


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCall:
    """A call as it was written: the name of its tool, its text, and its arguments or what is wrong with them.

    `tool` is the name that the policy used, `command` what is to be run. `unreadable`: no tool or no arguments were
    found; a `command` with an error has arguments that the tool does not take.
    """

    tool: str = ""
    text: str = ""
    unreadable: str = ""
    command: Command | None = None

    @property
    def action(self) -> Action:
        """The policy's decision, as a turn records it."""
        tool = self.tool if self.command is None else self.command.tool
        return Action(tool=tool, context=self.text, error=self.unreadable or None)


def tools_by_name(tools: Sequence[Tool], template: Template, names: Mapping[str, str]) -> dict[str, Tool]:
    """The tools by the names that the policy calls them; `names` maps names in its marks to names of tools.

    Raises:
        RecipeError: a name has no tool, two tools have one name or one tool two, the template's marks call no tool or
            not all of them, or a tool takes more or less than the one text that a call holds.
    """
    marks = {tool: mark for mark, tool in names.items()}
    found = {marks.get(tool.name, tool.name): tool for tool in tools}
    if len(found) < len(tools):
        listed = ", ".join(tool.name for tool in tools)
        raise RecipeError(f"two of the tools {listed} have one name", code="name-clash", fix="rename it in agent.tools")
    # `recipe/check.py` sees no tools of servers, whose names are known only now.
    own = {tool.name: mark for mark, tool in found.items()}
    missing = [mark for mark, tool in names.items() if own.get(tool) != mark]
    missing += [template.tool] if template.tool and template.tool not in found else []
    if missing:
        raise RecipeError(
            f"the template {template.name!r} has marks for {missing[0]!r}, which is not a tool of the agent"
            f" ({', '.join(found) or 'it has none'})",
            code="unknown-tool",
            fix=f'add it to [tools], or name the tool that it is: agent.tools = {{ {missing[0]} = "..." }}',
        )
    beyond = sorted(set(found) - {template.tool}) if template.tool else []
    if beyond:
        fix = "take the others out of [tools], or choose a template whose marks or calls name their tool"
        raise template.mismatch(f"cannot call {', '.join(beyond)}: its marks call {template.tool} alone", fix)
    several = sorted(name for name, tool in found.items() if len(tool.parameters.get("required", ())) != 1)
    if several and template.body == "text":
        raise template.mismatch(f"cannot call {', '.join(several)}", 'choose a template with body = "json"')
    return found


def read_calls(blocks: Sequence[Block], template: Template, tools: Mapping[str, Tool]) -> list[WrittenCall]:
    """The calls in a reply's blocks, at least one in each; of more than `MOST_CALLS` only the number is read."""
    calls = [call for block in blocks for call in _calls_in(block, template, tools)]
    if len(calls) > MOST_CALLS:
        problem = f"the reply holds {len(calls)} calls, and at most {MOST_CALLS} are run at once"
        return [WrittenCall(unreadable=problem)]
    return calls


def stray_calls(blocks: Sequence[Block], tools: Mapping[str, Tool]) -> list[Block]:
    """Calls in JSON that a reply holds outside the template's marks: in a code fence, or as a whole text or answer."""
    found: list[Block] = []
    for block in blocks:
        if block.kind in ("text", "answer"):
            for body in _FENCES.findall(block.body) or [extract(block.body)]:
                functions, _ = functions_in(parsed(body))
                if functions and all(function["name"] in tools for function in functions):
                    found.append(Block(kind="call", body=body))
    return found


def _calls_in(block: Block, template: Template, tools: Mapping[str, Tool]) -> list[WrittenCall]:
    body = block.body.encode("utf-8", "replace").decode()
    text = body.strip()
    if not block.closed:
        close = template.call.close.replace("{tool}", block.tool)
        return [WrittenCall(tool=block.tool, text=text, unreadable=f"the call is never closed: {close} is missing")]
    name = block.tool or template.tool
    fenced = _FENCED.fullmatch(text)
    if template.body == "text":
        if name not in tools:
            return [WrittenCall(tool=name, text=text, unreadable=_unknown(name, tools))]
        # The body is the tool's one argument, without the indentation that all its lines share.
        value = textwrap.dedent(fenced[1] if fenced else body).strip()
        return [_call(name, text, {tools[name].parameters["required"][0]: value}, tools)]
    written = _read_json((fenced[1] if fenced else text).strip())
    if isinstance(written, str):
        return [WrittenCall(tool=name, text=text, unreadable=f"the call cannot be read: {written}")]
    calls: list[WrittenCall] = []
    for named, arguments, text in written:
        # The tool is the one that the marks name, or else the one that the call names.
        if (name or named) not in tools or (name and named not in ("", name)):
            calls.append(WrittenCall(tool=named, text=text, unreadable=_unknown(named, tools)))
        else:
            calls.append(_call(name or named, text, arguments, tools))
    return calls


def _call(name: str, text: str, arguments: JsonObject, tools: Mapping[str, Tool]) -> WrittenCall:
    """The call of a tool, with an error if the tool does not take its arguments."""
    tool = tools[name]
    command = Command(tool=tool.name, arguments=arguments)
    if problem := schema_error(arguments, tool.parameters):
        command = Command(tool=tool.name, error=f"invalid arguments for {name}: {problem}")
    return WrittenCall(tool=name, text=text, command=command)


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    return f"no tool is called {name[:80]!r} (tools: {', '.join(tools) or 'none'})"


def _read_json(text: str) -> list[tuple[str, JsonObject, str]] | str:
    """(name, arguments, text) of an object, or of each object in a list; or why it holds no call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as failure:
        return f"it is no JSON: {failure}"
    if problem := unfit(value):
        return problem
    calls: list[tuple[str, JsonObject, str]] = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return f"a call is an object {_FORM}, not {json.dumps(call)[:200]}"
        arguments = call.get("arguments", {})
        beyond = sorted(set(call) - {"name", "arguments"})
        if not isinstance(arguments, dict) or beyond:
            return f"a call is an object {_FORM}, with nothing else: {', '.join(beyond) or 'bad arguments'}"
        calls.append((call["name"], arguments, json.dumps(call, ensure_ascii=False)))
    return calls or "the list of calls is empty"
