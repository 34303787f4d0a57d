"""The reply formats of prompted modules: parsers from any text to a value.

A model's bad output is data, so no parser raises: a planner reply becomes an `Action` (with `error` if it is
malformed), an executor reply a `Command` (likewise), a verifier reply a `Verdict` or None, a generator reply a text.
Error texts name what was missing and what is accepted, for the model that reads them next.

    Justification: the height is not known yet          {"query": "height of Amberbank"}
    Context: Amberbank is a hill
    Sub-Goal: find the height of Amberbank              {"analysis": "...", "result_valid": true,
    Tool Name: local_search                              "memory_sufficient": false}

JSON is read strictly; only after the last ask may it be repaired (`repair=True`, by the library json-repair). A repair
may change white space, quotation marks, commas, colons, escapes and the spelling of true, false and null, and nothing
else: every word, number and bracket of the object must stand in the reply in the same order. So neither a reply that
breaks off nor prose becomes an object, and no value appears that the model did not write.

    {'query': 'height', "top_k": 3,}                    {"query": "height", "top_k": 3}
    {"query": "height of Am                             not repaired: the closing brace is missing
    {"query": "height", "top_k": }                      not repaired: a value would have to be invented
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from midstream.core.answers import extract
from midstream.core.data import JsonObject, leaves, unfit
from midstream.core.json_schema import UNFINISHED, schema_error
from midstream.core.text import spoken
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Command, Verdict

_LABELS = {"subgoal": "sub_goal", "toolname": "tool"}
# A label at the start of a line, in whatever a model wraps around one: "## 2. **Sub-Goal:** ...", "- `Tool Name`: ...".
# A heading, "### Tool Name" or "4. **Tool Name**", needs no colon if it has the line for itself.
# Every run is bounded: an unbounded one would take quadratic time on a line of 50,000 stars.
_SECTION = re.compile(
    r"^(?P<heading>#{1,6}[ \t]|(?:\d{1,2}[.)][ \t]{0,4})?\*\*)?[#>*_`<\- \t]{0,12}(?:\d{1,2}[.)])?[*_`< \t]{0,8}"
    r"(?P<label>justification|context|sub[ \t_-]?goal|tool[ \t_-]?name|tool)[*_`> \t]{0,8}"
    r"(?(heading)(?::[*_`]{0,4}|$)|:[*_`]{0,4})",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*$", re.MULTILINE)
_CONCLUSION = re.compile(r"conclusion[*_`\s]*:[*_`\s]*(stop|continue)\b", re.IGNORECASE)

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
# What a repair may change: white space, quotation marks, commas, colons, and escapes.
_PUNCTUATION = re.compile(r"\\.|[\s\"'“”‘’`,:]+", re.DOTALL)
_QUOTES = "\"'“”‘’`"
# Characters: for as many brackets a repair may take a second, and no other run advances meanwhile.
_MAX_REPAIRED = 8_000
_MAX_OBJECTS = 16


def parse_action(text: str, tools: Sequence[Tool]) -> Action:
    """The planner's decision from its labelled sections, in any order; the first of each label counts.

    Sub-goal and tool are required. The tool's name is matched without regard to case, spaces and punctuation.
    """
    text = _FENCE.sub("", spoken(text))
    marks = list(_SECTION.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    sections: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        label = re.sub(r"[\s_-]", "", mark["label"].lower())
        sections.setdefault(_LABELS.get(label, label), text[mark.end() : end].strip().rstrip("*_`").strip())

    sub_goal, context, named = (sections.get(label, "") for label in ("sub_goal", "context", "tool"))
    names = ", ".join(tool.name for tool in tools) or "none"
    missing = [label for label, value in (("Sub-Goal:", sub_goal), ("Tool Name:", named)) if not value]
    if missing:
        error = f"the reply has no section {' and no section '.join(missing)} (tools: {names})"
        return Action(sub_goal=sub_goal, context=context, error=error)

    # The section's first line names a tool, or that line's first word does: "python (to add up)".
    line = named.splitlines()[0].strip()
    for candidate in (line, line.split("(")[0], line.split()[0]):
        for tool in tools:
            if candidate == tool.name or (_plain(candidate) and _plain(candidate) == _plain(tool.name)):
                return Action(sub_goal=sub_goal, tool=tool.name, context=context)
    error = f"no tool is called {line[:80]!r} (tools: {names})"
    return Action(sub_goal=sub_goal, context=context, error=error)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def parse_command(text: str, tool: Tool, *, repair: bool = False) -> Command:
    """The executor's tool call: the first JSON object, fenced or bare, that satisfies the tool's schema.

    Arguments that the schema does not name are refused unless it sets `additionalProperties`.
    """
    problem = "the reply holds no JSON object with the arguments"
    for count, found in enumerate(_objects(text, repair)):
        arguments = found
        # A function-call envelope such as {"name": ..., "arguments": {...}}.
        for key in ("parameters", "arguments"):
            if isinstance(inner := found.get(key), dict) and key not in tool.parameters.get("properties", {}):
                arguments = inner
        invalid = schema_error(arguments, tool.parameters)
        if invalid is None:
            return Command(tool=tool.name, arguments=arguments)
        problem = invalid if count == 0 else problem
        if invalid == UNFINISHED:
            break
    return Command(tool=tool.name, error=f"invalid arguments for {tool.name}: {problem}")


def parse_verdict(text: str, *, repair: bool = False) -> Verdict | None:
    """The verifier's judgment from a JSON object, or from a text that ends in "Conclusion: STOP" or "CONTINUE".

    The text form does not judge the newest result alone: it is then taken as valid. None if neither form is there.
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
    """The generator's answer (`core.answers.extract`), after its thoughts; "" if there is no answer."""
    return extract(spoken(text))


# --- JSON in a reply --------------------------------------------------------------------------------------------------


def _objects(text: str, repair: bool) -> Iterator[JsonObject]:
    return repaired_objects(spoken(text)) if repair else json_objects(spoken(text))


def json_objects(text: str) -> Iterator[JsonObject]:
    """JSON objects in a reply: those of fenced blocks first, then bare ones, outermost, in order."""
    for block in islice(_FENCED.findall(text), _MAX_OBJECTS):
        found, _ = _read_object(block.strip(), 0)
        if found is not None:
            yield found
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        found, end = _read_object(text, start)
        if found is not None:
            yield found
        start = text.find("{", end)


def _read_object(text: str, start: int) -> tuple[JsonObject | None, int]:
    """The object that starts at `start` and where to read on; None for anything that a `Command` cannot hold."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start + 1
    return (value if isinstance(value, dict) and unfit(value) is None else None), end


def repaired_objects(text: str) -> Iterator[JsonObject]:
    """The one object of a reply that is almost JSON: its first fenced block, or all from its first brace on."""
    # Imported where used: it takes 40 ms, and few runs need it.
    from json_repair import repair_json

    fenced = _FENCED.search(text)
    written = (fenced[1] if fenced else text[max(text.find("{"), 0) :]).strip()
    if len(written) > _MAX_REPAIRED:
        return
    try:
        value = repair_json(written, return_objects=True)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict) or unfit(value):
        return
    if _words(json.dumps(value, ensure_ascii=False)) != _words(written):
        return
    # An empty text may fill a gap, and a quotation mark at the edge of a text ('it's here') was not part of it.
    if all(text and text == text.strip(_QUOTES) for text in leaves(value) if isinstance(text, str)):
        yield value


def _words(text: str) -> str:
    """What a repair must leave as it was."""
    return _PUNCTUATION.sub("", re.sub(r"\bNone\b", "null", text)).casefold()
