"""Components: what a recipe names by `type`. Each has its own settings, and the settings build it.

To add a component, write its settings as a subclass of the class of its kind (`TasksConfig`, `RewardConfig`,
`ToolConfig`, `EngineConfig`; `ComponentConfig` for an agent's module) that names its class, or has a method `build` if
it needs more than the settings, and register it:

    class NumericConfig(RewardConfig):
        component = Numeric
        tolerance: float = 0.0

    register("reward", "numeric", NumericConfig)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, SerializeAsAny, ValidationError, model_serializer

from midstream.core.data import Settings, classes_in
from midstream.core.errors import RecipeError, UnsupportedError

if TYPE_CHECKING:
    from midstream.core.protocols import Engine, Reward, TaskSource
    from midstream.core.stream_template import Template
    from midstream.sandbox.tiers import Sandbox

Kind = Literal["tasks", "reward", "tool", "engine", "planner", "executor", "verifier", "generator", "analyst", "policy"]
Table = dict[str, Any]
ModelT = TypeVar("ModelT", bound=BaseModel)

_PART_NAME = re.compile(r"[A-Za-z0-9_-]+")  # a bare key of TOML; "." and ":" join names of nested parts
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-9, 1e9  # beyond these, sums of weights lose all precision


class Context(Protocol):
    """What a component may use while it is built: the rest of its recipe, each object built once."""

    @property
    def name(self) -> str:
        """The name of the component's table, such as NAME of `[tools.NAME]`."""
        ...

    @property
    def engine(self) -> Engine | None:
        """The engine that the component's table names."""
        ...

    @property
    def engine_identity(self) -> Mapping[str, Any]:
        """The settings that decide the replies of that engine's model: name and extra settings, not the address."""
        ...

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox for code that a model writes."""
        ...

    @property
    def template(self) -> Template | None:
        """The stream template of the recipe's interleaved agent; None for other agents."""
        ...

    @property
    def source(self) -> TaskSource:
        """The recipe's task source."""
        ...

    @property
    def tool_names(self) -> Sequence[str]:
        """The names of the recipe's tools."""
        ...

    @property
    def warm_seed(self) -> int:
        """The seed of untrained weights."""
        ...

    @property
    def warm_lessons(self) -> bool:
        """Whether a warm start teaches the policy to read lessons."""
        ...

    @property
    def trains_adapter(self) -> bool:
        """Whether a LoRA adapter is trained on this engine's model; it must then be separate from the weights."""
        ...

    def tasks(self, component: Component) -> TaskSource:
        """The task source of another component, such as a part of a mixture."""
        ...

    def reward(self, component: Component) -> Reward:
        """The reward of another component, such as a part of a composite."""
        ...


class ComponentConfig(Settings):
    """The settings of one component. The class variables serve its default `build` and the check of a recipe."""

    component: ClassVar[Callable[..., Any]]  # the class that the default `build` calls; `midstream tools` describes it
    asks: ClassVar[Literal["never", "optional", "always"]] = "never"  # a model, so that the table names an `engine`
    extra: ClassVar[str] = ""  # the optional extra of midstream that it needs
    packages: ClassVar[tuple[str, ...]] = ()  # what it imports of that extra
    teaches: ClassVar[str] = ""  # type of module that learns from its transcripts, by default its own

    @property
    def needs_world(self) -> bool:
        """Whether the component needs the facts or names of the recipe's world (`core.protocols.World`)."""
        return False

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
    dialogues: ClassVar[bool] = False  # its tasks are dialogues (`core.protocols.Dialogues`)
    plays: ClassVar[tuple[str, ...]] = ()  # models that a simulated engine can play on its tasks (`Plays`)
    world: ClassVar[bool] = False  # it has its own facts (`core.protocols.World`)
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


class EngineConfig(ComponentConfig):
    """The settings of an engine."""

    in_process: ClassVar[bool] = False  # it samples in this process, once all live trajectories wait


class Component(Settings):
    """One component of a recipe: its type, its settings, its engine, its weight if it is a part of another.

    `alias` is the name that agents call a tool by, in place of its own.
    """

    kind: Kind
    type: str
    config: SerializeAsAny[ComponentConfig]
    engine: str | None = None
    weight: float | None = None
    alias: str | None = None

    @model_serializer
    def table(self) -> Table:
        """The component's table with every default, as JSON values."""
        keys = {"type": self.type, "engine": self.engine, "weight": self.weight, "alias": self.alias}
        settings = self.config.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in keys.items() if value is not None} | settings


Parts = dict[str, Component]

_BASES: dict[Kind, type[ComponentConfig]] = {
    "tasks": TasksConfig,
    "reward": RewardConfig,
    "tool": ToolConfig,
    "engine": EngineConfig,
}
_REGISTRY: dict[Kind, dict[str, type[ComponentConfig] | str]] = {}


def register(kind: Kind, name: str, config: type[ComponentConfig] | str) -> None:
    """Register a component: the class of its settings, or "package.module:Class", which is imported on first use."""
    _REGISTRY.setdefault(kind, {})[name] = config


def registered(kind: Kind) -> list[str]:
    """The types of a kind, in the order of registration."""
    return list(_REGISTRY.get(kind, ()))


def config_class(kind: Kind, name: str) -> type[ComponentConfig]:
    """The class of a registered component's settings. Raises `RecipeError` if it is not one of this kind."""
    config = _REGISTRY[kind][name]
    if isinstance(config, str):
        module, _, attribute = config.partition(":")
        try:
            config = _REGISTRY[kind][name] = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as failure:
            raise RecipeError(
                f"{config}, registered as {kind} {name!r}, cannot be imported: {failure}",
                code="import-failed",
                fix="correct the place, or install its package",
            ) from failure
    base = _BASES.get(kind, ComponentConfig)
    if not issubclass(config, base):
        raise RecipeError(
            f"{config.__name__}, registered as {kind} {name!r}, is not a {base.__name__}",
            code="component-invalid",
            fix=f"derive it from midstream.core.component.{base.__name__}",
        )
    return config


def rules() -> list[str]:
    """The types of rewards that a task may name: rule-based, without a model."""
    classes = {name: config_class("reward", name) for name in registered("reward")}
    return [name for name, config in classes.items() if issubclass(config, RewardConfig) and config.rule_based]


def parse_component(kind: Kind, table: Mapping[str, Any], where: str) -> Component:
    """Validate the table of a component at `where`. Raises `RecipeError` for a wrong type, engine or setting."""
    settings = dict(table)
    named, engine = str(settings.pop("type", None)), settings.pop("engine", None)
    if named not in registered(kind):
        raise RecipeError(
            f"{where}.type = {named!r} does not exist" if "type" in table else f"{where} has no type",
            code="unknown-type",
            fix=f"name one of: {', '.join(registered(kind))}",
        )
    config = config_class(kind, named)
    alias = settings.pop("alias", None) if kind == "tool" else None
    if alias is not None and not _ALIAS.fullmatch(str(alias)):
        raise RecipeError(
            f"{where}.alias = {shown(alias)} is not a name",
            code="recipe-invalid",
            fix="use letters, digits, _ and -, as in Python_Code_Generator_Tool",
        )
    if not isinstance(engine, str | None):
        raise RecipeError(
            f"{where}.engine = {engine!r} is not a name", code="unknown-engine", fix="name a table of [engines]"
        )
    if engine is not None and config.asks == "never":
        raise RecipeError(
            f"{where}.engine = {engine!r} would never be used, because {named!r} is a program",
            code="engine-not-used",
            fix="remove `engine`, or choose a type that asks a model",
        )
    if "parts" in config.model_fields and isinstance(settings.get("parts"), Mapping):
        settings["parts"] = _parse_parts(config.parts_kind, settings["parts"], f"{where}.parts")  # type: ignore[attr-defined]
    return Component(kind=kind, type=named, config=validate(config, settings, where), engine=engine, alias=alias)


def _parse_parts(kind: Kind, tables: Mapping[str, Any], where: str) -> Parts:
    """The parts of a mixture or composite, each a component with a `weight`."""
    if not tables:
        raise RecipeError(f"{where} is empty", code="parts-invalid", fix="add at least one part, a table with a type")
    parts = {}
    for name, table in tables.items():
        weight = table.get("weight", 1.0) if isinstance(table, Mapping) else None
        if (
            not isinstance(weight, int | float)
            or isinstance(weight, bool)
            or not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT
            or not _PART_NAME.fullmatch(name)
        ):
            raise RecipeError(
                f"{where}.{name} = {shown(table)} is not a part",
                code="parts-invalid",
                fix="give it a name of letters, digits, _ and -, a table with a `type`, and a `weight` from "
                f"{_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g} (default 1)",
            )
        part = parse_component(kind, {key: value for key, value in table.items() if key != "weight"}, f"{where}.{name}")
        parts[name] = part.model_copy(update={"weight": float(weight)})
    return parts


def validate(
    model: type[ModelT],
    table: Mapping[str, Any],
    where: str,
    tags: Mapping[str, type[BaseModel]] | None = None,
    *,
    of: str = "recipe",
) -> ModelT:
    """Build `model` from a table of a recipe, or of the file that `of` names for errors.

    `tags` are the members of a discriminated union in it, by name.

    Raises `RecipeError`, which names every wrong key with its place and value.
    """
    try:
        return model.model_validate(dict(table))
    except ValidationError as failure:
        # A default that depends on another key is missing only because that key is wrong.
        errors = [error for error in failure.errors() if error["type"] != "default_factory_not_called"]
        # A list without its invalid items may seem too short.
        wrong = {error["loc"][:length] for error in errors for length in range(len(error["loc"]))}
        errors = [error for error in errors if error["type"] != "too_short" or error["loc"] not in wrong]
        problems = [
            ".".join(filter(None, [where, *(str(key) for key in error["loc"] if key not in (tags or ()))]))
            + (f" = {shown(error['input'])}" if error["type"] != "missing" else "")  # whose input is the whole table
            + f": {error['msg']}"
            for error in errors
        ]
        raise RecipeError(
            f"the {of} is invalid: " + "; ".join(problems),
            code="recipe-invalid",
            fix=f"correct it in {'the recipe or with --set' if of == 'recipe' else 'that file'}; known keys here: "
            + ", ".join(_fields_around(model, errors[0]["loc"], tags or {})),
        ) from failure


def _fields_around(
    model: type[BaseModel], location: tuple[int | str, ...], tags: Mapping[str, type[BaseModel]]
) -> list[str]:
    """The keys of the table that holds the last key of `location`."""
    for key in location[:-1]:
        if key in tags:
            model = tags[str(key)]
            continue
        field = model.model_fields.get(str(key))
        if field is None:
            continue  # a place in a list
        inner = [cls for cls in classes_in(field.annotation) if issubclass(cls, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)


def shown(value: object) -> str:
    """A value for an error message, cut if it is long."""
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
