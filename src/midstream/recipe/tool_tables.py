"""Build the tools of a recipe: recorded or replayed, wrapped, renamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from midstream.components.component import Context, Wrappers, wrapper_config
from midstream.core.errors import RecipeError
from midstream.core.tool import Tool
from midstream.tools.function import Renamed
from midstream.tools.recording import Recording, RecordingOrigin

if TYPE_CHECKING:
    from midstream.recipe.build import Build


class ToolTables:
    """The tools of a build, from the tables `tools` and `wrappers` of its recipe."""

    def __init__(self, build: Build) -> None:
        self._build, self._recipe = build, build.recipe

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools, in the recipe's order. Raises `RecipeError` for an equal name."""
        return [tool for tool, _ in self._built.values()]

    @cached_property
    def _built(self) -> dict[str, tuple[Tool, str]]:
        """The tools by name, in the recipe's order, each with the name of its table."""
        recipe = self._recipe
        only_trains = recipe.training is not None and recipe.warm_start is None and recipe.evaluation.at == "none"
        built: dict[str, tuple[Tool, str]] = {}
        for table, component in recipe.tools.items():
            context, config = Context(self._build, component, table), component.config
            wrappers = recipe.wrappers.get(table, {}).values()
            configs = [wrapper_config(wrapper) for wrapper in wrappers]
            replaced = any(each.replaces and (only_trains or each.everywhere) for each in configs)
            if replaced and hasattr(config, "api_key_env"):
                config = config.model_copy(update={"api_key_env": ""})  # nothing asks the tool itself
            tools = self.recorded(self._origin(context), partial(config.build, context))
            for wrapper in wrappers:
                tools = wrapper_config(wrapper).wrap(tools, Context(self._build, wrapper, table))
            if component.alias and len(tools) == 1:
                tools = [Renamed(tools[0], component.alias)]
            elif component.alias:
                raise RecipeError(
                    f"tools.{table}.alias = {component.alias!r} with {len(tools)} tools",
                    code="name-clash",
                    fix="remove it; an MCP server's tools get other names with `prefix`",
                )
            for tool in tools:
                if tool.name in built:
                    raise RecipeError(
                        f"tools.{table} and tools.{built[tool.name][1]} both have a tool called {tool.name!r}",
                        code="name-clash",
                        fix="remove one of them; a server's tools get other names with `prefix`",
                    )
                built[tool.name] = (tool, table)
        return built

    def wrapped(self, wrappers: Wrappers) -> list[Tool]:
        """The tools of an evaluation set, or of a warm start, in whose every run these wrap them."""
        found: list[Tool] = []
        for tool, table in self._built.values():
            tools: Sequence[Tool] = [tool]
            for wrapper in wrappers.get(table, {}).values():
                config = wrapper_config(wrapper).model_copy(update={"everywhere": True})
                tools = config.wrap(tools, Context(self._build, wrapper, table))
            found += tools
        return found

    @property
    def recorded_tier(self) -> str:
        """The tier of the sandbox in which recorded code ran, "" if none did."""
        if self._recording is None:
            return ""
        contexts = (Context(self._build, component, name) for name, component in self._recipe.tools.items())
        return next(filter(None, (self._recording.sandbox(self._origin(context)) for context in contexts)), "")

    @cached_property
    def _recording(self) -> Recording | None:
        """The recording that tools are recorded in or replayed from, if any."""
        directory = self._build.record or self._build.replay
        if directory is None:
            return None
        opened = Recording(directory, write=self._build.record is not None)
        self._build.opened.append(opened)
        return opened

    def recorded(self, origin: RecordingOrigin, build: Callable[[], Tool | list[Tool]]) -> list[Tool]:
        """The tools of one table: built, and recorded if this run records; or replayed, and then not built."""
        # First: an unusable recording must be refused before a server starts.
        recorded = self._recording
        if recorded is not None and self._build.replay:
            return recorded.replay(origin)
        made = build()
        tools = made if isinstance(made, list) else [made]  # a server has several
        self._build.opened += tools
        return tools if recorded is None else recorded.record(tools, origin)

    def _origin(self, context: Context) -> RecordingOrigin:
        """Everything in the recipe that affects the answers of a table's tools."""
        component, settings = context.component, context.component.table()
        if component.engine is not None:
            settings["engine"] = context.engine_identity
        if component.config.needs_world:
            settings["tasks"] = self._recipe.tasks.table()
        runs_code = component.config.sandboxed and not self._build.replay
        return RecordingOrigin(table=context.name, settings=settings, sandbox=context.sandbox.tier if runs_code else "")
