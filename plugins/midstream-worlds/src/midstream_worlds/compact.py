"""AgentFlow's modules in a form that a small language model can follow; the recipe agentflow-small has all four.

The loop is the paper's (`midstream.agents.agentflow`); only what the modules read and write is shorter. The planner
writes one line of JSON, which midstream begins for it where the engine continues text (`opening`) and a JSON schema
holds to its form on other servers. The line's input is already the tool's one argument, so a program is the executor:

    Query: How much taller is K2 than Elbrus?
    Step 1: {"tool": "local_search", "input": "height K2 Elbrus"}
    Result 1: K2: height 8611 m. Elbrus: height 5642 m.
    {"tool": "python", "input": "print(8611 - 5642)"}

Verifier and generator are programs too, which ask a model only where they cannot decide, if they have an engine: a
model of 0.5 B takes an error for a result, but reads an answer off a result well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from midstream.agents.formats import json_objects, repaired_objects
from midstream.agents.prompted import ModuleConfig, PromptedModule, answer_in
from midstream.agents.rendering import prompt_text
from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.data import object_schema
from midstream.core.text import fill, neutral, spoken, to_json
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Sampling, Verdict

_SEARCHES = ("local_search", "web_search", "wikipedia")
# The tools that an example names.
_NAMED = re.compile(r'"tool": "(\w+)"')
# A line whose input is never closed: the rest of the reply is the input.
_UNCLOSED = re.compile(r'\{\s*"tool"\s*:\s*"([^"\n]{1,80})"\s*,\s*"input"\s*:\s*"(.+)', re.DOTALL)
# A line whose input has no quotation marks: {"tool": "python", "input": 36 * 43 - 214}
_BARE = re.compile(
    r'\{\s*"tool"\s*:\s*"([^"\n]{1,80})"\s*,\s*"input"\s*:\s*(?!(?:null|None|true|false)\b)([^"\'\s{}\[\],“][^\n"]*)\Z'
)
_SUFFICIENT = re.compile(r'"sufficient"\s*:\s*(true|false)\b')
# Characters of a result that is an answer as it stands.
_MAX_VALUE = 60
SUFFICIENT_SCHEMA = object_schema(sufficient={"type": "boolean"})


class CompactModule(PromptedModule):
    """A prompted module that sees the query and the memory as numbered steps and results."""

    package = "midstream_worlds"

    def _values(self, question: str, memory: Memory) -> dict[str, str]:
        return {"query": neutral(question), "memory": render_steps(memory)}


class JsonLinePlanner(CompactModule):
    """`core.agent.Planner` on an engine: a line of JSON with `tool` and `input`; anything else costs the turn."""

    role, layout = "planner", ("tools", "query", "memory")
    prompt, opening = "planner_compact", '{"tool": "'

    def __init__(self, config: JsonLineConfig) -> None:
        super().__init__(config)
        self._examples = prompt_text("planner_examples", package=self.package)

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next tool and its input."""

        def parse(reply: str, repair: bool) -> tuple[Action, str | None]:
            action = parse_line(reply, tools, repair=repair)
            return action, action.error

        schema = object_schema(tool={"enum": [tool.name for tool in tools]}, input={"type": "string"})
        values = self._values(question, memory) | {"tools": self.render_tools(tools)}
        return await self._ask(values, context, parse, asks=1, json_schema=schema)

    def render_tools(self, tools: Sequence[Tool]) -> str:
        """A line for each tool, and the examples whose tools are all there."""
        names = {tool.name for tool in tools}
        search = next((name for name in _SEARCHES if name in names), _SEARCHES[0])
        blocks = fill(self._examples, {"search": search}).strip().split("\n\n")
        known = [block for block in blocks if set(_NAMED.findall(block)) <= names]
        if not known and tools:
            line = {"tool": tools[0].name, "input": f"({_input_of(tools[0])})"}
            known = [f"Query: (what is asked)\n{to_json_line(line)}"]
        lines = []
        for tool in tools:
            first_sentence = re.split(r"(?<=[.!?])\s", tool.description.strip(), maxsplit=1)[0]
            lines.append(neutral(f"- {tool.name}: {first_sentence} Input: {_input_of(tool)}."))
        return "\n".join(lines) + "\n\nExamples:\n\n" + "\n\n".join(known)


class JsonLineConfig(ModuleConfig, ComponentConfig):
    """A chat model that plans in one line of JSON, `{"tool": ..., "input": ...}`: for small models.

    Its prompt has the examples of `prompts/planner_examples.md` whose tools are all in the recipe.
    """

    asks = "always"
    component = JsonLinePlanner

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=64, stop=('"}',))


class SingleArgumentExecutor:
    """Passes the action's context on as the one required string argument of its tool."""

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Return the command, or one with `error` if the tool is unknown or takes other arguments."""
        tool = next((known for known in tools if known.name == action.tool), None)
        if tool is None:
            return Command(tool=action.tool, error=f"no tool is called {action.tool}"), ()
        required = tool.parameters.get("required", ())
        if len(required) != 1:
            return Command(tool=action.tool, error=f"{action.tool} wants {len(required)} arguments"), ()
        return Command(tool=action.tool, arguments={required[0]: action.context}), ()


class SingleArgumentConfig(ComponentConfig):
    """A program that passes the action's context on as the one string argument of its tool."""

    component = SingleArgumentExecutor


class ResultVerifier(CompactModule):
    """`core.agent.Verifier`: an error is never valid, and the result of a tool in `ends` ends the run.

    Of other results an engine says whether they suffice; without one, they do not.
    """

    role, layout = "verifier", ("query", "memory")
    prompt, opening = "verifier_compact", '{"sufficient": '
    config: ResultConfig

    async def verify(
        self, question: str, tools: Sequence[Tool], memory: Memory, newest: MemoryRecord, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest result."""
        if newest.error is not None or not newest.result.strip():
            return Verdict(result_valid=False, memory_sufficient=False), ()
        ends = newest.action.tool in self.config.ends
        if ends or context.engine is None:
            return Verdict(result_valid=True, memory_sufficient=ends), ()

        def parse(reply: str, _: bool) -> tuple[Verdict, str | None]:
            said = _SUFFICIENT.search(spoken(reply))
            problem = None if said else 'it is not {"sufficient": true} or {"sufficient": false}'
            return Verdict(result_valid=True, memory_sufficient=bool(said and said[1] == "true")), problem

        values = self._values(question, memory.append(newest))
        return await self._ask(values, context, parse, asks=1, json_schema=SUFFICIENT_SCHEMA)


class ResultConfig(ModuleConfig, ComponentConfig):
    """A program that never takes an error for a result; a model judges the rest if an engine is named.

    Attributes:
        ends: tools whose result, if it is no error, ends the run
    """

    asks = "optional"
    component = ResultVerifier

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=16, stop=("}",))
    ends: tuple[str, ...] = ("python", "base_generator")


class LastResultGenerator(CompactModule):
    """`core.agent.Generator`: the last valid result is the answer if it is one short value.

    Otherwise an engine reads the answer off the memory; without one, the last valid result is the answer as it stands.
    """

    role, layout = "generator", ("query", "memory")
    prompt, opening = "generator_compact", "<answer>"

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Answer from the memory; None without a valid result and without an engine."""
        valid = [record for record in memory.records if record.verdict is not None and record.verdict.result_valid]
        result = valid[-1].result.strip() if valid else ""
        is_value = bool(result) and len(result) <= _MAX_VALUE and "\n" not in result
        if context.engine is None or (is_value and valid[-1].action.tool not in _SEARCHES):
            return result or None, ()
        return await self._ask(self._values(question, memory), context, answer_in, asks=1)


class LastResultConfig(ModuleConfig, ComponentConfig):
    """A program that answers with the last valid result; a model reads the answer off longer ones if it has an engine.

    A result is an answer as it stands if it is one line of at most 60 characters, and not of a search."""

    asks = "optional"
    component = LastResultGenerator

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=32, stop=("</answer>",))


def render_steps(memory: Memory) -> str:
    """The memory as numbered steps and results, each on one line."""
    lines = []
    for record in memory.records:
        action = {"tool": record.action.tool, "input": record.action.context}
        step = to_json_line(action) if record.action.tool else "(not readable)"
        result = f"error: {record.error}" if record.error is not None else record.result
        lines.append(f"Step {record.turn}: {step}\nResult {record.turn}: {neutral(' '.join(result.split()))}\n")
    return "".join(lines)


def to_json_line(value: Mapping[str, str]) -> str:
    """One line of JSON with spaces, as models write it; it cannot start a chat turn."""
    return "{" + ", ".join(f"{to_json(key)}: {to_json(text)}" for key, text in value.items()) + "}"


def parse_line(text: str, tools: Sequence[Tool], *, repair: bool = False) -> Action:
    """The planner's action from a line of JSON; with `repair`, also from one that is almost JSON."""
    text = spoken(text).strip()
    found = next(iter(json_objects(text)), None)
    if repair and not isinstance((found or {}).get("input"), str):
        candidates = (table for table in repaired_objects(text) if isinstance(table.get("input"), str))
        found = next(candidates, None) or _almost_line(text)
    if found is None or not isinstance(written := found.get("input"), str) or not written.strip():
        return Action(error='the reply is not {"tool": "...", "input": "..."}')
    named = str(found.get("tool"))
    if named not in (tool.name for tool in tools):
        names = ", ".join(tool.name for tool in tools) or "none"
        return Action(context=written, error=f"no tool is called {named[:80]!r} (tools: {names})")
    return Action(tool=named, context=written)


def _almost_line(text: str) -> dict[str, str] | None:
    """Tool and input of a line of JSON whose input is never closed, or has no quotation marks."""
    unclosed = _UNCLOSED.match(text)
    found = unclosed or _BARE.match(text)
    # Sampling may have stopped at a quotation mark and brace inside the input.
    if found is None or (unclosed and found[2].rstrip().endswith('\\"}')):
        return None
    written = found[2].rstrip()
    # The brace that ends the line of JSON is no part of the input.
    if written.endswith("}") and written.count("}") > written.count("{"):
        written = written[:-1].rstrip()
    if not unclosed:
        return None if written.count("}") > written.count("{") else {"tool": found[1], "input": written}
    try:
        return {"tool": found[1], "input": json.JSONDecoder(strict=False).decode(f'"{written}"')}
    except ValueError:
        return None


def _input_of(tool: Tool) -> str:
    """What the planner's input is to the tool: its one required argument."""
    required = tool.parameters.get("required", ())
    properties = tool.parameters.get("properties", {})
    names = required or list(properties)[:1]
    return "; ".join(str(properties.get(name, {}).get("description") or name) for name in names)
