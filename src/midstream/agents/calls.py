"""Tool calls as a policy writes them: from the body of a call to valid arguments, or to what is wrong with it.

    text     print(2 + 3)                                      the tool's one required argument
    json     {"name": "fill_tank", "arguments": {"litres": 20}}       or a list of such objects
    python   [fill_tank(litres=20), status()]                  calls with literal arguments

Nothing that a model wrote is ever run here: Python is parsed, and of the tree only calls, names and literals are read.
What cannot be read is data: a call with `error`, for the policy to read.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from midstream.agents.formats import schema_error
from midstream.core.data import unfit
from midstream.core.errors import RecipeError
from midstream.core.protocols import Tool
from midstream.core.stream import Block, Template
from midstream.core.trajectory import Action, Command

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*)```", re.DOTALL)
_MAX_PYTHON = 50_000  # characters: parsing more would hold up every other run
_BROKEN = (ValueError, RecursionError, MemoryError, OverflowError)  # what text may do to a parser, SyntaxError besides


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call as it was written: whose, the text of it, its arguments or what is wrong.

    `tool` is the name that the policy called it by, `command` what is to be run. `unreadable`: no tool or no arguments
    could be made out; with a `command` that has an error, the arguments are none that the tool takes.
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


def by_name(tools: Sequence[Tool], template: Template, names: Mapping[str, str]) -> dict[str, Tool]:
    """The tools by what the policy calls them: `names` leads from the names in its marks to those of tools.

    Raises:
        RecipeError: a name leads to no tool, two tools go by one name or one by two, the template's marks call none of
            them or not all, or one of them takes more or less than the one text that a call holds.
    """
    marks = {tool: mark for mark, tool in names.items()}
    found = {marks.get(tool.name, tool.name): tool for tool in tools}
    if len(found) < len(tools):
        raise RecipeError(
            f"two of the tools {', '.join(tool.name for tool in tools)} go by one name",
            cause="a recipe's tool has the name of another of agent.tools, or of a function of the task's own",
            fix="name it otherwise in agent.tools",
        )
    own = {tool.name: mark for mark, tool in found.items()}
    missing = [mark for mark, tool in names.items() if own.get(tool) != mark]
    missing += [template.tool] if template.tool and template.tool not in found else []
    if missing:
        raise RecipeError(
            f"the template {template.name!r} has marks for {missing[0]!r}, and the agent no such tool",
            cause=f"its tools are {', '.join(found) or 'none'}",
            fix=f'add it to [tools], or say which one it is: agent.tools = {{ {missing[0]} = "..." }}',
        )
    _require_callable(found, template)
    return found


def _require_callable(found: Mapping[str, Tool], template: Template) -> None:
    """Refuse tools that the template's marks and bodies cannot call."""
    beyond = sorted(set(found) - {template.tool}) if template.tool else []
    if beyond:
        raise RecipeError(
            f"the template {template.name!r} cannot call {', '.join(beyond)}",
            cause=f"its marks call one tool, {template.tool}",
            fix="take the others out of [tools], or choose a template whose marks or calls name their tool",
        )
    several = sorted(name for name, tool in found.items() if len(tool.parameters.get("required", ())) != 1)
    if several and template.body == "text":
        raise RecipeError(
            f"the template {template.name!r} cannot call {', '.join(several)}",
            cause="a call of it is one text, and a tool must require one argument to take that",
            fix='choose a template with body = "json"',
        )


def read_calls(block: Block, template: Template, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """The calls that a call's block holds, at least one."""
    body = block.body.encode("utf-8", "replace").decode()
    text = body.strip()
    if not block.closed:
        close = template.call.close.replace("{tool}", block.tool)
        return [ToolCall(tool=block.tool, text=text, unreadable=f"the call is never closed: {close} is missing")]
    named = block.tool or template.tool
    if template.body == "text":
        return [_written(named, body, tools)]
    read = _json if template.body == "json" else _python
    try:
        asked = read(_unfenced(text).strip())
    except _Unreadable as failure:
        return [ToolCall(tool=named, text=text, unreadable=f"the call cannot be read: {failure}")]
    return [_asked(one, named, tools) for one in asked]


class _Unreadable(Exception):
    """Why a call's body cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A call before its tool is known: by position, by name, and as it was written."""

    name: str
    text: str
    values: tuple[JsonValue, ...] = ()
    arguments: dict[str, JsonValue]


def _unfenced(text: str) -> str:
    found = _FENCED.fullmatch(text)
    return found[1] if found else text


def _written(name: str, body: str, tools: Mapping[str, Tool]) -> ToolCall:
    """A call whose body is its tool's one argument; the indentation that all its lines share is none of it."""
    text = body.strip()
    if name not in tools:
        return ToolCall(tool=name, text=text, unreadable=_unknown(name, tools))
    code = _unfenced(text)
    said = textwrap.dedent(body if code == text else code).strip()
    argument = tools[name].parameters["required"][0]
    return _valid(name, text, {argument: said}, tools[name])


def _asked(one: _Asked, marks: str, tools: Mapping[str, Tool]) -> ToolCall:
    """A call that names its tool, or, where marks do, leaves that to them."""
    name = marks or one.name
    if name not in tools or (marks and one.name not in ("", marks)):
        return ToolCall(tool=one.name, text=one.text, unreadable=_unknown(one.name, tools))
    tool = tools[name]
    known = list(tool.parameters.get("properties", {}))
    arguments = dict(zip(known, one.values, strict=False))
    twice = sorted(set(arguments) & set(one.arguments))
    problem = f"{twice[0]} is given twice" if twice else None
    if len(one.values) > len(known):
        problem = f"{len(one.values)} arguments without a name, where it takes {len(known)}"
    return _valid(name, one.text, arguments | one.arguments, tool, problem)


def _valid(name: str, text: str, arguments: dict[str, JsonValue], tool: Tool, problem: str | None = None) -> ToolCall:
    """A call with arguments, which may be none that its tool takes."""
    problem = problem or schema_error(arguments, tool.parameters)
    if problem is None:
        return ToolCall(tool=name, text=text, command=Command(tool=tool.name, arguments=arguments))
    error = f"invalid arguments for {name}: {problem}"
    return ToolCall(tool=name, text=text, command=Command(tool=tool.name, error=error))


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    return f"no tool is called {name[:80]!r} (tools: {', '.join(tools) or 'none'})"


def _json(text: str) -> list[_Asked]:
    """An object, or a list of objects, with a name and arguments."""
    try:
        value = json.loads(text)
    except _BROKEN as failure:
        raise _Unreadable(f"it is no JSON: {failure}") from None
    problem = unfit(value)
    if problem:
        raise _Unreadable(problem)
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise _Unreadable("the list of calls is empty")
    return [_json_call(one) for one in calls]


def _json_call(value: Any) -> _Asked:
    form = '{"name": "...", "arguments": {...}}'
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _Unreadable(f"a call is an object {form}, not {json.dumps(value)[:200]}")
    arguments = value.get("arguments", {})
    beyond = sorted(set(value) - {"name", "arguments"})
    if not isinstance(arguments, dict) or beyond:
        raise _Unreadable(f"a call is an object {form}, with nothing else: {', '.join(beyond) or 'bad arguments'}")
    return _Asked(name=value["name"], text=json.dumps(value, ensure_ascii=False), arguments=arguments)


def _python(text: str) -> list[_Asked]:
    """Python calls with literal arguments: one, or a list of them."""
    if len(text) > _MAX_PYTHON:
        raise _Unreadable(f"its {len(text)} characters are more than {_MAX_PYTHON}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string is not the library's user's concern
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


def _python_call(node: ast.expr, text: str) -> _Asked:
    if not isinstance(node, ast.Call):
        raise _Unreadable(f"it is no call: {_source(node, text)}")
    arguments: dict[str, JsonValue] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise _Unreadable("an argument is given twice, or as **arguments")
        arguments[keyword.arg] = _literal(keyword.value, text)
    values = tuple(_literal(value, text) for value in node.args)
    return _Asked(name=_dotted(node.func, text), text=_source(node, text), values=values, arguments=arguments)


def _dotted(node: ast.expr, text: str) -> str:
    """The name that is called: `fill_tank` or `desk.fill_tank`, and no other expression."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, text)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise _Unreadable(f"what is called is no name: {_source(node, text)}")


def _literal(node: ast.expr, text: str) -> JsonValue:
    """A literal as JSON holds it: numbers, texts, None, True, False, lists (of tuples too) and dicts of such."""
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
