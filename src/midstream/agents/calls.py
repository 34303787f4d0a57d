"""Tool calls as a policy writes them: from the body of a call to valid arguments, or to what is wrong with it.

    text     print(2 + 3)                                      the tool's one required argument
    json     {"name": "fill_tank", "arguments": {"litres": 20}}       or a list of such objects
    python   [fill_tank(litres=20), status()]                  calls with literal arguments

Nothing that a model wrote is ever run here: Python is parsed, and only calls, names and literals of the tree are read.
A call that cannot be read is data: it has an `error`, for the policy to read.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from midstream.core.answers import extract
from midstream.core.data import unfit
from midstream.core.errors import RecipeError
from midstream.core.json_schema import schema_error
from midstream.core.stream import Block
from midstream.core.stream_template import Template
from midstream.core.tool import Tool
from midstream.core.tool_calls import functions_in, parsed
from midstream.core.trajectory import Action, Command

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*)```", re.DOTALL)
_FENCES = re.compile(r"```[\w+-]*\s(.*?)```", re.DOTALL)
MOST_CALLS = 64  # in one reply; each is a turn
_MAX_PYTHON = 50_000  # characters: parsing more would block every other run
_BROKEN = (ValueError, RecursionError, MemoryError, OverflowError)  # parser errors besides SyntaxError
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
        raise RecipeError(
            f"two of the tools {', '.join(tool.name for tool in tools)} have one name",
            code="name-clash",
            fix="rename it in agent.tools",
        )
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
        raise RecipeError(
            f"the template {template.name!r} cannot call {', '.join(beyond)}: its marks call {template.tool} alone",
            code="template-mismatch",
            fix="take the others out of [tools], or choose a template whose marks or calls name their tool",
        )
    several = sorted(name for name, tool in found.items() if len(tool.parameters.get("required", ())) != 1)
    if several and template.body == "text":
        raise RecipeError(
            f"the template {template.name!r} cannot call {', '.join(several)}",
            code="template-mismatch",
            fix='choose a template with body = "json"',
        )
    return found


class _Unreadable(Exception):
    """Why a call's body cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """A call before its tool is known: its name, arguments by position (`values`) and by name, and its text."""

    name: str
    text: str
    values: tuple[JsonValue, ...] = ()
    arguments: dict[str, JsonValue]


def read_calls(blocks: Sequence[Block], template: Template, tools: Mapping[str, Tool]) -> list[WrittenCall]:
    """The calls in a reply's blocks, at least one in each; of more than `MOST_CALLS` only the number is read."""
    calls = [call for block in blocks for call in _calls_in(block, template, tools)]
    if len(calls) > MOST_CALLS:
        problem = f"the reply holds {len(calls)} calls, and at most {MOST_CALLS} are run at once"
        return [WrittenCall(unreadable=problem)]
    return [_check(call, tools) for call in calls]


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
    """The calls of one block, whose arguments are not checked yet."""
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
        arguments: dict[str, JsonValue] = {tools[name].parameters["required"][0]: value}
        return [WrittenCall(tool=name, text=text, command=Command(tool=tools[name].name, arguments=arguments))]
    parse = _json_calls if template.body == "json" else _python_calls
    try:
        written = parse((fenced[1] if fenced else text).strip())
    except _Unreadable as failure:
        return [WrittenCall(tool=name, text=text, unreadable=f"the call cannot be read: {failure}")]
    return [_resolve(call, name, tools) for call in written]


def _resolve(call: _Written, marks: str, tools: Mapping[str, Tool]) -> WrittenCall:
    """The call with its tool: the one that its marks name, or else the one that it names itself."""
    name = marks or call.name
    if name not in tools or (marks and call.name not in ("", marks)):
        return WrittenCall(tool=call.name, text=call.text, unreadable=_unknown(call.name, tools))
    tool = tools[name]
    known = list(tool.parameters.get("properties", {}))
    arguments = dict(zip(known, call.values, strict=False))
    twice = sorted(set(arguments) & set(call.arguments))
    problem = f"{twice[0]} is given twice" if twice else None
    if len(call.values) > len(known):
        problem = f"{len(call.values)} arguments without a name, where it takes {len(known)}"
    command = Command(tool=tool.name, arguments=arguments | call.arguments)
    return WrittenCall(tool=name, text=call.text, command=_refusal(name, tool, problem) if problem else command)


def _check(call: WrittenCall, tools: Mapping[str, Tool]) -> WrittenCall:
    """The call, with an error if its tool does not take its arguments."""
    if call.command is None or call.command.error:
        return call
    problem = schema_error(call.command.arguments, tools[call.tool].parameters)
    return replace(call, command=_refusal(call.tool, tools[call.tool], problem)) if problem else call


def _refusal(name: str, tool: Tool, problem: str) -> Command:
    return Command(tool=tool.name, error=f"invalid arguments for {name}: {problem}")


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    return f"no tool is called {name[:80]!r} (tools: {', '.join(tools) or 'none'})"


def _json_calls(text: str) -> list[_Written]:
    """An object, or a list of objects, with a name and arguments."""
    try:
        value = json.loads(text)
    except _BROKEN as failure:
        raise _Unreadable(f"it is no JSON: {failure}") from None
    problem = unfit(value)
    if problem:
        raise _Unreadable(problem)
    calls: list[_Written] = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise _Unreadable(f"a call is an object {_FORM}, not {json.dumps(call)[:200]}")
        arguments = call.get("arguments", {})
        beyond = sorted(set(call) - {"name", "arguments"})
        if not isinstance(arguments, dict) or beyond:
            raise _Unreadable(f"a call is an object {_FORM}, with nothing else: {', '.join(beyond) or 'bad arguments'}")
        calls.append(_Written(name=call["name"], text=json.dumps(call, ensure_ascii=False), arguments=arguments))
    if not calls:
        raise _Unreadable("the list of calls is empty")
    return calls


def _python_calls(text: str) -> list[_Written]:
    """Python calls with literal arguments: one, or a list of them."""
    if len(text) > _MAX_PYTHON:
        raise _Unreadable(f"its {len(text)} characters are more than {_MAX_PYTHON}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about "\d" in a string is not for the library's user
            tree = ast.parse(text, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        calls = [_python_call(node, text) for node in nodes]
    except SyntaxError as failure:
        raise _Unreadable(f"it is no Python call: {failure.msg}") from None
    except _BROKEN as failure:
        raise _Unreadable(f"it is no Python call: {str(failure) or 'it nests too deeply'}") from None
    if not calls:
        raise _Unreadable("the list of calls is empty")
    return calls


def _python_call(node: ast.expr, text: str) -> _Written:
    if not isinstance(node, ast.Call):
        raise _Unreadable(f"it is no call: {_source(node, text)}")
    arguments: dict[str, JsonValue] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise _Unreadable("an argument is given twice, or as **arguments")
        arguments[keyword.arg] = _literal(keyword.value, text)
    values = tuple(_literal(value, text) for value in node.args)
    return _Written(name=_dotted_name(node.func, text), text=_source(node, text), values=values, arguments=arguments)


def _dotted_name(node: ast.expr, text: str) -> str:
    """The name that is called: `fill_tank` or `desk.fill_tank`, and no other expression."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value, text)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise _Unreadable(f"what is called is no name: {_source(node, text)}")


def _literal(node: ast.expr, text: str) -> JsonValue:
    """A literal as JSON holds it: numbers, texts, None, True, False, lists (also from tuples) and dicts of these."""
    try:
        value = json.loads(json.dumps(ast.literal_eval(node)))
    except (TypeError, *_BROKEN):
        raise _Unreadable(f"an argument is no literal that JSON holds: {_source(node, text)}") from None
    problem = unfit(value)
    if problem:
        raise _Unreadable(problem)
    return value


def _source(node: ast.expr, text: str) -> str:
    return (ast.get_source_segment(text, node) or "")[:200]
