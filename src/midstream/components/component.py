"""Components: what a recipe names by `type`. Each has its own settings, and the settings build it.

To add a component, write its settings as a subclass of the class of its kind (`TasksConfig`, `RewardConfig`,
`ToolConfig`, `EngineConfig`; `ComponentConfig` for an agent's module) that names its class, or has a method `build` if
it needs more than the settings, and register it:

    class NumericConfig(RewardConfig):
        component = Numeric
        tolerance: float = 0.0

    register("reward", "numeric", NumericConfig)

`components/kinds.py` finds these classes by kind and name, `components/tables.py` validates a recipe's tables with
them. A component of your own needs neither: `type` may name a function, a class or an object in a file or module
(`components/own.py`). Its settings are then the function's or class's parameters (`components/own_settings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_serializer

from midstream.components.own import is_reference
from midstream.core.agent import Agent
from midstream.core.data import Settings
from midstream.core.engine import Engine
from midstream.core.errors import UnsupportedError
from midstream.core.source import Reward, TaskSource
from midstream.core.stream_template import Template, load_template
from midstream.core.tool import Tool

Kind = Literal[
    "tasks", "reward", "tool", "engine", "agent", "planner", "executor", "verifier", "generator", "analyst", "policy",
    "advantage", "loss", "learner", "strategy", "wrapper", "proposer", "branching", "asynchrony",
]  # fmt: skip
Table = dict[str, Any]
Tier = Literal["strong", "standard", "remote", "arithmetic", "unsafe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A tier of the sandbox that works here; `mechanisms` names what holds code back, for people to read."""

    tier: Tier
    mechanisms: str = ""
    image: str = ""


@dataclass(frozen=True)
class Context:
    """What a component may use while it is built: the rest of its recipe, each object built once.

    The packages of recipe and gateway are above this one, so their classes are named in words. `build` is the
    `recipe.build.Build`, `name` that of the component's table, such as NAME of `[tools.NAME]`.
    """

    build: Any
    component: Component
    name: str

    @property
    def recipe(self) -> Any:
        """The recipe (`recipe.schema.Recipe`)."""
        return self.build.recipe

    @property
    def engine(self) -> Engine | None:
        """The engine that the component's table names."""
        name, counted = self.component.engine, self.component.kind != "engine"
        return self.build.engine(name, counted=counted) if name else None

    @property
    def engine_identity(self) -> Table:
        """The settings that decide the replies of that engine's model: name and extra settings, not the address."""
        return self.recipe.engines[self.component.engine].identity

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox for code that a model writes."""
        return self.build.sandbox

    @property
    def template(self) -> Template | None:
        """The stream template of the recipe's interleaved agent; None for other agents."""
        template = getattr(self.recipe.agent, "template", None)
        return load_template(template) if template is not None else None

    @property
    def source(self) -> TaskSource:
        """The recipe's task source."""
        return self.build.source

    def tasks(self, component: Component) -> TaskSource:
        """The task source of another component, such as a part of a mixture."""
        return self.build.tasks(component)

    def reward(self, component: Component) -> Reward:
        """The reward of another component, such as a part of a composite."""
        return self.build.reward(component)


class ComponentConfig(Settings):
    """The settings of one component. The class variables serve its default `build` and the check of a recipe."""

    component: ClassVar[Callable[..., Any]]  # the class that the default `build` calls
    asks: ClassVar[Literal["never", "optional", "always"]] = "never"  # a model, so that the table names an `engine`
    extra: ClassVar[str] = ""  # the optional extra of midstream that it needs
    packages: ClassVar[tuple[str, ...]] = ()  # what it imports of that extra
    sandboxed: ClassVar[bool] = False  # a tool that runs programs in the sandbox
    borrowed: ClassVar[bool] = False  # `build` returns an object that is not closed with the recipe's others
    teaches: ClassVar[str] = ""  # type of module that learns from its transcripts, by default its own
    own_settings: ClassVar[tuple[str, ...]] = ()  # fields that are parameters of a user's function or class

    @property
    def needs_world(self) -> bool:
        """Whether the component needs the facts or names of the recipe's world (`core.source.World`)."""
        return False

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Check that the component at `where` fits its `recipe.schema.Recipe`. Raises `RecipeError`."""

    def check_template(self, template: Template) -> None:
        """Check that a module can write an interleaved agent's template. Raises `RecipeError`."""

    def check_machine(self, where: str) -> None:
        """Check, for `--dry-run`, that what `build` needs is on this machine; `where` is the component's place.

        Raises `MidstreamError` if not.
        """
        if missing := [package for package in self.packages if find_spec(package) is None]:
            raise UnsupportedError(
                f"{where} needs {' and '.join(missing)}, not installed here",
                code="missing-extra",
                fix=f"pip install 'midstream[{self.extra}]'",
            )

    def build(self, context: Context) -> Any:
        """Build the component; without fields, `component` takes no argument."""
        component = type(self).component
        return component(self) if type(self).model_fields else component()


class TasksConfig(ComponentConfig):
    """The settings of a task source."""

    endless: ClassVar[bool] = False  # it makes tasks, so that drawing them costs nothing
    dialogues: ClassVar[bool] = False  # its tasks are dialogues (`core.source.Dialogues`)
    world: ClassVar[bool] = False  # it has its own facts (`core.source.World`)
    teacher: ClassVar[str] = ""  # type of the planner or policy that a warm start imitates by default
    gate_samples: ClassVar[int] = 0  # rollouts of each validation task in the check of a warm start
    parts_kind: ClassVar[Kind] = "tasks"


class RewardConfig(ComponentConfig):
    """The settings of a reward."""

    rule_based: ClassVar[bool] = False  # it compares with the gold answer without a model: a task may name it
    of_dialogues: ClassVar[bool] = False  # it scores the outcome of a dialogue
    of_stream: ClassVar[bool] = False  # it also scores the form of an interleaved agent's stream
    parts_kind: ClassVar[Kind] = "reward"


class ToolConfig(ComponentConfig):
    """The settings of a tool, or of a server of several tools."""

    several: ClassVar[bool] = False  # `build` returns a list of tools, whose names are known only then

    def build(self, context: Context) -> Any:
        """Build the tool, with its engine if it may ask a model."""
        return super().build(context) if self.asks == "never" else type(self).component(self, context.engine)


class EngineConfig(ComponentConfig):
    """The settings of an engine."""

    in_process: ClassVar[bool] = False  # it samples in this process, once all live trajectories wait
    tiny: ClassVar[bool] = False  # it is made here, and so small that one CPU thread is fastest
    service: ClassVar[str] = ""  # the server that also trains what it samples; the learner has the same
    limits: ClassVar[str] = ""  # what a run with this engine cannot show, for the run's page

    @property
    def priced(self) -> bool:
        """Whether the costs of its requests are known, if only as 0: one of its settings of prices is set."""
        return {getattr(self, name, 0.0) for name in ("price_prompt_usd", "price_completion_usd")} != {None}


class StrategyConfig(ComponentConfig):
    """The settings of a strategy, which runs an agent several times on a task and makes one answer of the results.

    Its `str` is its text in `evaluation.strategy`: "NAME:KEY=VALUE,KEY=VALUE".
    """

    example: ClassVar[str]  # such a text, and what it means

    @property
    def agent_runs(self) -> int:
        """The most runs of the agent on a task."""
        raise NotImplementedError

    def wrap(self, agent: Agent, *, max_attempts: int, kept: Path | None) -> Agent:
        """The agent that applies the strategy to `agent`, and closes it.

        Each run of `agent` has up to `max_attempts` attempts. `kept` is a new file for runs that have ended, so that a
        resumed evaluation does not repeat them; its folder may be missing, and is removed after the evaluation.
        """
        raise NotImplementedError


class ProposerConfig(ComponentConfig):
    """The settings of a proposer, which suggests changes of an agent's texts (`lessons.proposer.Proposer`)."""

    searches: ClassVar[bool] = True  # it tries candidates on rollouts, up to `lessons.search_rollouts` an update


class WrapperConfig(ComponentConfig):
    """The settings of what wraps a tool while an agent trains: a tool that is simulated, or made worse.

    Attributes:
        everywhere: it wraps the tool in evaluations and in `solve`, too
    """

    replaces: ClassVar[bool] = False  # where it wraps a tool, the tool itself is never asked

    everywhere: bool = False

    def wrap(self, tools: Sequence[Tool], context: Context) -> list[Tool]:
        """The tools of one table, each of which the wrapper may change in each run (`core.tool.PerRun`).

        `context.component` is the wrapper, `context.name` the tools' table.
        """
        raise NotImplementedError


def wrapper_config(wrapper: Component) -> WrapperConfig:
    """The settings of a component of kind wrapper."""
    assert isinstance(wrapper.config, WrapperConfig)
    return wrapper.config


class Component(Settings):
    """One component of a recipe: its type, its settings, its engine, its weight if it is a part of another.

    `alias` is the name that agents call a tool by, in place of its own.
    """

    kind: Kind
    type: str
    config: SerializeAsAny[ComponentConfig]
    engine: str | None = None
    # Beyond, sums lose all precision.
    weight: float | None = Field(default=None, ge=1e-9, le=1e9, strict=True)
    alias: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")

    @model_serializer
    def table(self) -> Table:
        """The component's table with every default, as JSON values."""
        keys = {"type": self.type, "engine": self.engine, "weight": self.weight, "alias": self.alias}
        settings = self.config.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in keys.items() if value is not None} | settings

    @property
    def identity(self) -> Table:
        """The settings of an engine that decide its model's replies: not its address, nor where or how fast it runs."""
        table = self.table()
        if isinstance(self.config, EngineConfig) and self.config.in_process:
            return {key: value for key, value in table.items() if key not in ("device", "max_batch")}
        known = ("type", "model", "extra_body") if is_reference(self.type) else ("model", "extra_body")
        return {key: table[key] for key in known if key in table}


Parts = dict[str, Component]
Wrappers = dict[str, dict[str, Component]]  # by tool and name, in the order in which they wrap the tool
