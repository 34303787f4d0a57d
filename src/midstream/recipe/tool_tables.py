"""Build the tools of a recipe: recorded or replayed, simulated, degraded, renamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from midstream.components.component import Context
from midstream.core.errors import RecipeError
from midstream.core.tool import Tool
from midstream.tools.corpus import Corpus
from midstream.tools.degraded import DegradedConfig, DegradedTool
from midstream.tools.function import Renamed
from midstream.tools.recording import Recording, RecordingOrigin
from midstream.tools.simulated import SimulatedConfig, SimulatedTool, SimulatorPrompt

if TYPE_CHECKING:
    from midstream.recipe.build import Build


class ToolTables:
    """The tools of a build, from the tables `tools`, `simulated` and `degraded` of its recipe."""

    def __init__(self, build: Build) -> None:
        self._build, self._recipe = build, build.recipe

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools, in the recipe's order. Raises `RecipeError` for an equal name."""
        return [tool for tool, _ in self._built]

    @cached_property
    def _built(self) -> list[tuple[Tool, Context]]:
        """The tools in the recipe's order, each with its table's context."""
        recipe = self._recipe
        always_simulated = recipe.training is not None and recipe.warm_start is None and recipe.evaluation.at == "none"
        built: dict[str, tuple[Tool, Context]] = {}
        for table, component in recipe.tools.items():
            context, config = Context(self._build, component, table), component.config
            simulated, degraded = recipe.simulated.get(table), recipe.degraded.get(table)
            if simulated and (always_simulated or simulated.everywhere) and hasattr(config, "api_key_env"):
                config = config.model_copy(update={"api_key_env": ""})  # nothing asks the tool itself
            tools = self._recorded(self._origin(context), partial(config.build, context))
            if simulated is not None:
                simulator = self._simulator(simulated, context)
                tools = [SimulatedTool(tool, simulator, simulated) for tool in tools]
            if degraded is not None:
                tools = [self._degraded(tool, degraded, context) for tool in tools]
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
                        f"tools.{table} and tools.{built[tool.name][1].name} both have a tool called {tool.name!r}",
                        code="name-clash",
                        fix="remove one of them; a server's tools get other names with `prefix`",
                    )
                built[tool.name] = (tool, context)
        return [*built.values()]

    def worse(self, degraded: Mapping[str, DegradedConfig]) -> list[Tool]:
        """The tools of an evaluation in which some are degraded in every run."""
        return [
            self._degraded(tool, degraded[context.name], context, always=True) if context.name in degraded else tool
            for tool, context in self._built
        ]

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

    def _recorded(self, origin: RecordingOrigin, build: Callable[[], Tool | list[Tool]]) -> list[Tool]:
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

    def _simulator(self, config: SimulatedConfig, context: Context) -> Tool:
        """The simulator of a table's tools."""
        settings, engine = config.model_dump(mode="json", exclude={"noise", "everywhere", "prompt_file"}), None
        if config.engine is None:
            settings["tasks"] = self._recipe.tasks.table()
        else:
            settings["engine"] = self._recipe.engines[config.engine].identity
            settings["prompt"] = SimulatorPrompt(config).template
            if not self._build.replay:
                # It answers at any time, not in the waves of the agent's engine.
                engine = self._build.engine(config.engine, continuous=True)
        origin = RecordingOrigin(table=f"{context.name}.simulated", settings=settings)
        [simulator] = self._recorded(origin, partial(config.simulator, context, engine))
        return simulator

    def _degraded(self, tool: Tool, config: DegradedConfig, context: Context, *, always: bool = False) -> DegradedTool:
        """A tool that is made worse."""
        corpus = None
        if config.needs_corpus:
            corpus = Corpus(config.index, context)
            self._build.opened.append(corpus)
        return DegradedTool(tool, config, corpus, always=always)
