"""The reply formats of prompted modules: parsers from any text to a value.

A model's bad output is data, so no parser raises: a planner reply becomes an `Action` (with `error` if it is
malformed), an executor reply a `Command` (likewise), a verifier reply a `Verdict` or None, a generator reply a text.
Error texts name what was missing and what would do, for the model that reads them next.

JSON is read strictly; only when the last ask has failed may it be repaired (`repair=True`, `agents/json_replies.py`).

    Justification: the height is not known yet          {"query": "height of Amberbank"}
    Context: Amberbank is a hill
    Sub-Goal: find the height of Amberbank              {"analysis": "...", "result_valid": true,
    Tool Name: local_search                              "memory_sufficient": false}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from midstream.agents.json_replies import json_objects, repaired_objects
from midstream.core.errors import ToolServerError
from midstream.core.protocols import Tool
from midstream.core.replies import spoken
from midstream.core.trajectory import Action, Command, Verdict

_LABELS = {
    "justification": "justification",
    "context": "context",
    "subgoal": "sub_goal",
    "toolname": "tool",
    "tool": "tool",
}
# A label at the start of a line, in whatever a model wraps around one: "## 2. **Sub-Goal:** ...", "- `Tool Name`: ...".
# Every run is bounded: an unbounded one would take quadratic time on a line of 50,000 stars.
_SECTION = re.compile(
    r"^[#>*_`<\- \t]{0,12}(?:\d{1,2}[.)])?[*_`< \t]{0,8}"
    r"(justification|context|sub[ \t_-]?goal|tool[ \t_-]?name|tool)[*_`> \t]{0,8}:[*_`]{0,4}",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*$", re.MULTILINE)
_CONCLUSION = re.compile(r"conclusion[*_`\s]*:[*_`\s]*(stop|continue)\b", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)


def parse_action(text: str, tools: Sequence[Tool]) -> Action:
    """The planner's decision from its labelled sections, in any order; the first of each label counts.

    Sub-goal and tool are required. The tool's name is matched without regard to case, spaces and punctuation.
    """
    sections = _sections(spoken(text))
    sub_goal, context = sections.get("sub_goal", ""), sections.get("context", "")
    names = ", ".join(tool.name for tool in tools) or "none"
    labels = (("Sub-Goal:", sub_goal), ("Tool Name:", sections.get("tool", "")))
    missing = [label for label, value in labels if not value]
    if missing:
        error = f"the reply has no section {' and no section '.join(missing)} (tools: {names})"
        return Action(sub_goal=sub_goal, context=context, error=error)
    tool = _find_tool(sections["tool"], tools)
    if tool is None:
        said = _first_line(sections["tool"])[:80]
        error = f"no tool is called {said!r} (tools: {names})"
        return Action(sub_goal=sub_goal, context=context, error=error)
    return Action(sub_goal=sub_goal, tool=tool.name, context=context)


def _sections(text: str) -> dict[str, str]:
    text = _FENCE.sub("", text)
    marks = list(_SECTION.finditer(text))
    sections: dict[str, str] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=False):  # no marks: no sections
        label = _LABELS[re.sub(r"[\s_-]", "", mark[1].lower())]
        body = text[mark.end() : end]
        sections.setdefault(label, body.strip().rstrip("*_`").strip())
    return sections


def _find_tool(said: str, tools: Sequence[Tool]) -> Tool | None:
    """The tool meant by a "Tool Name" section: its first line, or that line's first word ("python (to add up)")."""
    line = _first_line(said)
    for candidate in (line, line.split("(")[0], line.split()[0]):
        for tool in tools:
            if candidate == tool.name or (_plain(candidate) and _plain(candidate) == _plain(tool.name)):
                return tool
    return None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].strip() if text.strip() else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def parse_command(text: str, tool: Tool, *, repair: bool = False) -> Command:
    """The executor's tool call: the first JSON object, fenced or bare, that satisfies the tool's schema.

    Arguments the schema does not name are refused unless it says `additionalProperties`.
    """
    problem = "the reply holds no JSON object with the arguments"
    for count, found in enumerate(_objects(text, repair)):
        arguments = _unwrapped(found, tool.parameters)
        invalid = schema_error(arguments, tool.parameters)
        if invalid is None:
            return Command(tool=tool.name, arguments=arguments)
        problem = invalid if count == 0 else problem
    return Command(tool=tool.name, error=f"invalid arguments for {tool.name}: {problem}")


def _unwrapped(found: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments inside a function-call envelope such as {"name": ..., "arguments": {...}}."""
    for key in ("arguments", "parameters"):
        inner = found.get(key)
        if isinstance(inner, dict) and key not in schema.get("properties", {}):
            return inner
    return found


def schema_error(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `arguments` under a JSON schema, in words, or None. Remote references are never fetched.

    Raises `ToolServerError` for a schema that is none: that is no model's fault.
    """
    try:
        error = best_match(_validator(json.dumps(schema)).iter_errors(arguments))
    except SchemaError as failure:
        raise _broken_schema(schema, failure.message) from failure
    except (Unresolvable, RecursionError) as failure:
        raise _broken_schema(schema, f"{type(failure).__name__}: {failure}") from failure
    if error is not None:
        where = f"at {error.json_path}: " if error.path else ""
        return where + error.message[:300]
    known = schema.get("properties")
    open_ended = known is None or "additionalProperties" in schema or "patternProperties" in schema
    extra = [] if open_ended else sorted(set(arguments) - set(known or ()))
    if extra:
        return f"unknown arguments {', '.join(extra)[:200]} (known: {', '.join(known or ())})"
    return None


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    """The validator of a schema's JSON text, made once; a schema that is none raises `SchemaError`."""
    parsed = json.loads(schema)
    kind = validator_for(parsed, default=Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=Registry())


def _broken_schema(schema: Mapping[str, Any], why: str) -> ToolServerError:
    return ToolServerError(
        f"a tool's schema cannot be used: {why[:300]}",
        cause=f"it is no JSON schema that is complete in itself: {json.dumps(schema)[:300]}",
        fix="correct the tool's `parameters`",
    )


def parse_verdict(text: str, *, repair: bool = False) -> Verdict | None:
    """The verifier's judgement from a JSON object, or from a text that ends in "Conclusion: STOP" or "CONTINUE".

    The text form says nothing about the newest result alone: it is then taken as valid. None if neither is there.
    """
    for found in _objects(text, repair):
        valid, sufficient = _truth(found.get("result_valid")), _truth(found.get("memory_sufficient"))
        if valid is not None and sufficient is not None:
            analysis = found.get("analysis", "")
            return Verdict(
                result_valid=valid,
                memory_sufficient=sufficient,
                analysis=analysis if isinstance(analysis, str) else json.dumps(analysis),
            )
    text = spoken(text)
    conclusions = list(_CONCLUSION.finditer(text))
    if not conclusions:
        return None
    analysis = text[: conclusions[-1].start()].strip().rstrip("*_#").strip()
    stop = conclusions[-1][1].lower() == "stop"
    return Verdict(result_valid=True, memory_sufficient=stop, analysis=analysis)


def _truth(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def parse_answer(text: str) -> str:
    """The generator's answer: inside the last `<answer>` tag, or else the whole text; "" if there is none."""
    text = spoken(text)
    tagged = _ANSWER.findall(text)
    return (tagged[-1] if tagged else text).strip()


def _objects(text: str, repair: bool) -> Iterator[dict[str, Any]]:
    return repaired_objects(spoken(text)) if repair else json_objects(spoken(text))
