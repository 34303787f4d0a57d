"""Agents as objects: each is the `[agent]`, `[engines]` and `[tools]` of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from midstream.core.component import Table
from midstream.core.errors import UsageError
from midstream.core.own import reference_of
from midstream.core.protocols import Engine, Tool
from midstream.engines.openai.providers import PROVIDERS
from midstream.interface.names import shown_table
from midstream.recipe.overrides import chosen_tools
from midstream.recipe.schema import merge, modules_of, read_table

LOCAL = "local"


class AgentSpec:
    """What an agent is made of. It holds no connection and no weights: these belong to the runs that use it.

    Args:
        recipe: the recipe whose agent it changes.
        model: `"provider/name"`, such as "ollama/qwen2.5:7b" or "openai/gpt-4o-mini"; a name alone is one of OpenAI, or
            of the server at `base_url`; "local/NAME" is a model of the Hugging Face Hub, or a directory, that is loaded
            into this process and can be trained; or an `Engine`.
        tools: functions, `Tool`s, names of midstream's tools ("python"), or "my_tools.py:name".
        base_url: the address of an OpenAI-compatible server.
        settings: other settings of a recipe, by their names: `{"agent.max_turns": 5}`.
        modules: objects, classes or "file.py:name" in place of prompted modules, by name.
    """

    def __init__(
        self,
        recipe: str,
        model: str | Engine | None,
        tools: Iterable[Any] | None,
        *,
        base_url: str | None,
        settings: Mapping[str, Any] | None,
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        table = read_table(recipe)
        if model is not None:
            table["engines"] = {**table.get("engines", {}), "model": _engine_table(model, base_url)}
        elif base_url is not None:
            raise UsageError("base_url without model", code="missing-option", fix='name a model: model="NAME"')
        if tools is not None:
            table["tools"] = _tool_tables(tools)
        for name, module in (modules or {}).items():
            if module is not None:
                engine = {"engine": "model"} if isinstance(module, type | str) else {}
                table["agent"][name] = {**engine, "type": named(module)}
        for key, value in (settings or {}).items():
            for part in reversed(key.split(".")):
                value = {part: value}
            table = merge(table, value)
        self._table = table

    def table(self) -> Table:
        """The recipe's table of this agent."""
        return merge({}, self._table)

    def __repr__(self) -> str:
        table = self._table
        engine = table["engines"]["model"]
        tools = ", ".join(table["tools"]) or "none"
        return f"<{type(self).__name__} model {engine.get('model', engine['type'])}, tools {tools}>"

    def _repr_html_(self) -> str:
        trained = modules_of(self._table["agent"])
        rows = {"agent": type(self).__name__, "modules": ", ".join(trained), "tools": ", ".join(self._table["tools"])}
        return shown_table([rows])


class AgentFlow(AgentSpec):
    """Planner, executor, verifier and generator around an evolving memory (arXiv 2510.05592).

    Arguments as of `AgentSpec`; `planner`, `executor`, `verifier` and `generator` replace these modules.

        agent = AgentFlow(model="ollama/qwen2.5:7b", tools=["python"])
    """

    def __init__(
        self,
        model: str | Engine | None = None,
        tools: Iterable[Any] | None = None,
        *,
        base_url: str | None = None,
        planner: Any = None,
        executor: Any = None,
        verifier: Any = None,
        generator: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        modules = {"planner": planner, "executor": executor, "verifier": verifier, "generator": generator}
        super().__init__("agentflow-prompted", model, tools, base_url=base_url, settings=settings, modules=modules)


class Interleaved(AgentSpec):
    """One policy that interleaves thoughts, tool calls and tool output (ARTIST, arXiv 2505.01441).

    Arguments as of `AgentSpec`; `template`, of midstream or a TOML file, is the form of its stream, by default the
    model's own function calls; `policy` replaces the model that writes it.

        agent = Interleaved(model="openai/gpt-4o-mini", tools=[word_count])
    """

    def __init__(
        self,
        model: str | Engine | None = None,
        tools: Iterable[Any] | None = (),
        *,
        base_url: str | None = None,
        template: str = "direct",
        policy: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = {"agent.type": "interleaved" if template != "direct" else "direct", "agent.template": template}
        super().__init__(
            "direct",
            model,
            tools,
            base_url=base_url,
            settings={**chosen, **(settings or {})},
            modules={"policy": policy},
        )


def named(value: Any) -> str:
    """The `type` of a component: a name as it is, an object by its reference."""
    return value if isinstance(value, str) else reference_of(value)


def _engine_table(model: str | Engine, base_url: str | None) -> Table:
    if not isinstance(model, str):
        return {"type": reference_of(model)}
    provider, slash, name = model.partition("/")
    if slash and provider == LOCAL:
        return {"type": "transformers_local", "model": name}
    known = slash and provider in PROVIDERS
    if slash and not known and base_url is None:
        raise UsageError(
            f"model = {model!r} names no provider",
            code="unknown-name",
            fix=f"begin with one of: {', '.join(PROVIDERS)}, {LOCAL}; or give base_url",
        )
    table = {"type": "openai_compatible", "model": name if known else model}
    if known:
        table["provider"] = provider
    return table if base_url is None else {**table, "base_url": base_url}


def _tool_tables(tools: Iterable[Any]) -> dict[str, Table]:
    """The tables of tools by name."""
    if isinstance(tools, str):
        tools = [tools]
    tables: dict[str, Table] = {}
    for tool in tools:
        if isinstance(tool, str):
            found = chosen_tools({}, tool)
        elif isinstance(tool, Mapping):
            found = {str(tool["type"]): dict(tool)}
        else:
            name = tool.name if isinstance(tool, Tool) and not isinstance(tool, type) else tool.__name__
            found = {name: {"type": reference_of(tool)}}
        if twice := tables.keys() & found.keys():
            raise UsageError(
                f"two tools have the name {twice.pop()!r}",
                code="name-clash",
                fix='give one another: @tool(name="other")',
            )
        tables |= found
    return tables
