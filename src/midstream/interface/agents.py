"""Agents as objects: each is the `[agent]`, `[engines]` and `[tools]` of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from midstream.components.component import Table
from midstream.components.kinds import agent_type, modules_of
from midstream.components.own import name_of, reference_of
from midstream.core.engine import Engine
from midstream.core.errors import UsageError, did_you_mean
from midstream.core.text import html_table
from midstream.core.tool import Tool
from midstream.engines.openai.providers import PROVIDERS
from midstream.recipe.files import read_table, with_settings
from midstream.recipe.overrides import LOCAL, chosen_tools, local_engine


class AgentSpec:
    """What an agent is made of. It holds no connection and no weights: these belong to the runs that use it.

    Args:
        recipe: the recipe whose agent it changes.
        model: `"provider/name"`, such as "ollama/qwen2.5:7b" or "openai/gpt-4o-mini"; any name with `base_url`;
            "local/NAME" is a model of the Hugging Face Hub, a directory, a GGUF file or a short name (`midstream
            models`), that is loaded into this process and can be trained; or an `Engine`.
        tools: functions, `Tool`s, names of midstream's tools ("python"), or "my_tools.py:name".
        base_url: the address of an OpenAI-compatible server.
        settings: others of a recipe, by their names: `{"agent.max_turns": 5}`. They are applied last.
        modules: objects, classes or "file.py:name" in place of the modules that ask the model, by name.
        planner_model: as `model`, of the planner alone.
    """

    def __init__(
        self,
        recipe: str,
        model: str | Engine | None,
        tools: Iterable[object],
        *,
        base_url: str | None,
        settings: Mapping[str, object] | None,
        modules: Mapping[str, object],
        planner_model: str | Engine | None = None,
    ) -> None:
        table = read_table(recipe)
        if model is not None:
            table["engines"] = {"model": _engine_table(model, base_url)}
        elif base_url is not None or None in modules.values():
            fix = 'name one, e.g. model="ollama/qwen2.5:7b", or model="NAME" with base_url="http://localhost:8000/v1"'
            raise UsageError(f"{type(self).__name__} has no model", code="missing-option", fix=fix)
        else:
            # Every module is a program.
            table["engines"] = {}
        table |= _tool_tables(tools)
        for name, module in modules.items():
            if module is not None:
                asks = {"engine": "model"} if model is not None and isinstance(module, type | str) else {}
                table["agent"][name] = {**asks, "type": component_type(module)}
        if planner_model is not None:
            table["engines"]["planner"] = _engine_table(planner_model, None)
            table["agent"]["planner"] = {**table["agent"].get("planner", {}), "engine": "planner"}
        self._table = with_settings(table, (settings or {}).items())

    def table(self) -> Table:
        """The recipe's table of this agent."""
        return deepcopy(self._table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{key} {value}' for key, value in self._rows().items())}>"

    def _repr_html_(self) -> str:
        return html_table([{"agent": type(self).__name__, **self._rows()}])

    def _rows(self) -> dict[str, str]:
        agent, engines = self._table["agent"], self._table["engines"]
        rows = {}
        for module in modules_of(agent_type(agent)):
            table = agent.get(module, agent)  # an agent of your own is its one module
            engine = engines.get(table.get("engine"), {})
            rows[module] = str(engine.get("model", engine.get("type", table["type"])))
        return {**rows, "tools": ", ".join(self._table["tools"]) or "none"}


@dataclass(frozen=True)
class WrappedTool:
    """A tool of an agent with its tables of `[wrappers.NAME]`."""

    tool: object
    wrappers: Mapping[str, Mapping[str, object]]


def wrapped(tool: object, wrapper: str, **settings: object) -> WrappedTool:
    """The tool with a wrapper that changes it while the agent trains; settings as in `[wrappers.NAME.WRAPPER]`.

    agent = AgentFlow(model="ollama/qwen2.5:7b", tools=[wrapped("web_search", "degraded", error=0.2)])
    """
    inner, others = (tool.tool, tool.wrappers) if isinstance(tool, WrappedTool) else (tool, {})
    return WrappedTool(inner, {**others, wrapper: {**others.get(wrapper, {}), **settings}})


class AgentFlow(AgentSpec):
    """Planner, executor, verifier and generator around an evolving memory (arXiv 2510.05592).

    Arguments as of `AgentSpec`; `planner`, `executor`, `verifier` and `generator` replace these modules.
    `planner_model` is that of the planner alone, such as "local/Qwen/Qwen2.5-0.5B-Instruct", which `train` trains.

        agent = AgentFlow(model="ollama/qwen2.5:7b", tools=["python"])
    """

    def __init__(
        self,
        model: str | Engine | None = None,
        tools: Iterable[object] = (),
        *,
        base_url: str | None = None,
        planner_model: str | Engine | None = None,
        planner: object = None,
        executor: object = None,
        verifier: object = None,
        generator: object = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        modules = {"planner": planner, "executor": executor, "verifier": verifier, "generator": generator}
        super().__init__(
            "agentflow-prompted",
            model,
            tools,
            base_url=base_url,
            settings=settings,
            modules=modules,
            planner_model=planner_model,
        )
        if not self._table["tools"]:
            fix = 'give it some, e.g. tools=["python"] or your function; Interleaved can do without'
            raise UsageError("AgentFlow has no tools", code="missing-option", fix=fix)


class Interleaved(AgentSpec):
    """One policy that interleaves thoughts, tool calls and tool output (ARTIST, arXiv 2505.01441).

    Arguments as of `AgentSpec`; `template`, of midstream or a TOML file, is the form of its stream, by default the
    model's own function calls; `policy` replaces the model that writes it.

        agent = Interleaved(model="openai/gpt-4o-mini", tools=["python"])
    """

    def __init__(
        self,
        model: str | Engine | None = None,
        tools: Iterable[object] = (),
        *,
        base_url: str | None = None,
        template: str = "direct",
        policy: object = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        chosen = {} if template == "direct" else {"agent.type": "interleaved", "agent.template": template}
        settings = {**chosen, **(settings or {})}
        super().__init__("direct", model, tools, base_url=base_url, settings=settings, modules={"policy": policy})


class OwnAgent(AgentSpec):
    """An agent of your own: a function that asks a model and calls tools, or a class with `run` (docs/extending.md).

    Arguments as of `AgentSpec`; `agent` is the function or class, an object, or "my_agent.py:name".

        agent = OwnAgent(debate, model="ollama/qwen2.5:7b", settings={"agent.rounds": 3})

    A function that takes `session`, and a command (a list of words), ask the model through the gateway with their own
    client (docs/any-agent.md).
    """

    def __init__(
        self,
        agent: object,
        model: str | Engine | None = None,
        tools: Iterable[object] = (),
        *,
        base_url: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__("direct", model, tools, base_url=base_url, settings=None, modules={})
        asks = {} if model is None else {"engine": "model"}
        command = isinstance(agent, list | tuple)
        named = {"type": "command", "command": list(agent)} if command else {"type": component_type(agent)}
        self._table["agent"] = {**named, **asks}
        self._table["name"] = Path(agent[0]).name if command else name_of(str(named["type"])).rpartition(".")[2]
        self._table = with_settings(self._table, (settings or {}).items())


def component_type(value: object) -> str:
    """The `type` of a component: a name as it is, an object by its reference."""
    return value if isinstance(value, str) else reference_of(value)


def _engine_table(model: str | Engine, base_url: str | None) -> Table:
    if not isinstance(model, str):
        return {"type": reference_of(model)}
    if local := local_engine(model):
        return local
    provider, slash, name = model.partition("/")
    known = slash and provider in PROVIDERS
    if not known and base_url is None:
        raise UsageError(
            f"model = {model!r} names no provider",
            code="unknown-name",
            fix=did_you_mean(provider, PROVIDERS)
            + f"begin with one of: {', '.join(f'{known}/' for known in (*PROVIDERS, LOCAL))}; or give base_url",
        )
    table = {"type": "openai_compatible", "model": name if known else model}
    if known:
        table["provider"] = provider
    return table if base_url is None else {**table, "base_url": base_url}


def _tool_tables(tools: str | WrappedTool | Iterable[object]) -> Table:
    """The table `tools` of these tools by name, and what wraps them."""
    tables: dict[str, Table] = {"tools": {}, "wrappers": {}}
    for given in [tools] if isinstance(tools, str | WrappedTool) else tools:
        tool, wrappers = (given.tool, given.wrappers) if isinstance(given, WrappedTool) else (given, {})
        if isinstance(tool, str):
            found = chosen_tools({}, tool)
        elif isinstance(tool, Mapping):
            found = {str(tool["type"]): dict(tool)}
        elif isinstance(tool, Tool) and not isinstance(tool, type):
            found = {tool.name: {"type": reference_of(tool)}}
        elif callable(tool):
            found = {tool.__name__: {"type": reference_of(tool)}}
        else:
            fix = 'give a function with @tool, the name of a tool, or "my_tools.py:name"; several in a list'
            raise UsageError(f"{tool!r} is not a tool", code="tool-invalid", fix=fix)
        if twice := tables["tools"].keys() & found.keys():
            what, fix = f"two tools have the name {twice.pop()!r}", 'give one another: @tool(name="other")'
            raise UsageError(what, code="name-clash", fix=fix)
        tables["tools"] |= found
        if wrappers:
            tables["wrappers"] |= {name: {kind: dict(each) for kind, each in wrappers.items()} for name in found}
    return {kind: table for kind, table in tables.items() if table or kind == "tools"}
