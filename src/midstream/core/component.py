"""Components: what a recipe names by `type`. Each has its own settings, and the settings build it.

To add a component, write its settings as a subclass of the class of its kind (`TasksConfig`, `RewardConfig`,
`ToolConfig`, `EngineConfig`; `ComponentConfig` for an agent's module) that names its class, or has a method `build` if
it needs more than the settings, and register it:

    class NumericConfig(RewardConfig):
        component = Numeric
        tolerance: float = 0.0

    register("reward", "numeric", NumericConfig)

A component of your own needs neither: `type` may name a function, a class or an object in a file or module
(`core/own.py`). Its settings are then the function's or class's parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_type_hints

from pydantic import BaseModel, SerializeAsAny, ValidationError, create_model, model_serializer
from pydantic.errors import PydanticUserError

from midstream.core.data import Settings, classes_in
from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.own import anchored, is_reference, load

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
    borrowed: ClassVar[bool] = False  # `build` returns an object that is not closed with the recipe's others
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
    """The types of a kind: midstream's own, in the order of registration, then those of installed packages."""
    return [*_REGISTRY.get(kind, ()), *(name for name in installed(kind) if name not in _REGISTRY.get(kind, ()))]


@cache
def installed(kind: Kind) -> dict[str, EntryPoint]:
    """The components of a kind in installed packages: entry points `KIND.NAME` of the group `midstream.components`.

    Raises `RecipeError` if two packages have one of the same name, or a package one with a name of midstream's own.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group="midstream.components"):
        of, _, name = point.name.partition(".")
        if of != kind:
            continue
        if name in found or name in _REGISTRY.get(kind, ()):
            packages = [other.dist.name if other.dist else "?" for other in (found.get(name), point) if other]
            raise RecipeError(
                f"{kind} {name!r} is defined twice: by {' and '.join(packages)}"
                + ("" if name in found else " and midstream"),
                code="name-clash",
                fix=f"uninstall one of them, or name the object itself: type = {point.value!r}",
            )
        found[name] = point
    return found


def config_class(kind: Kind, name: str) -> type[ComponentConfig]:
    """The class of a component's settings: of a registered, installed or own one.

    Raises `RecipeError` if it cannot be imported, or is not of this kind.
    """
    config = _REGISTRY.get(kind, {}).get(name)
    if config is None:
        return _own_class(kind, installed(kind)[name].value if name in installed(kind) else name)
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
    return _of_kind(kind, name, config)


def _of_kind(kind: Kind, name: str, config: Any) -> type[ComponentConfig]:
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


# --- your own ---------------------------------------------------------------------------------------------------------

# The method that makes an object a component of this kind, and the settings' class where plain functions will do too.
_METHODS: dict[Kind, str] = {
    "tasks": "sample",
    "reward": "score",
    "engine": "sample",
    "planner": "plan",
    "executor": "command",
    "verifier": "verify",
    "generator": "generate",
    "analyst": "analyze",
    "policy": "reply",
}
_FUNCTIONS: dict[Kind, str] = {}
_own_classes: dict[tuple[Kind, str], tuple[Any, type[ComponentConfig]]] = {}


class FunctionSettings(Protocol):
    """Makes the class of settings of a plain function, for the kinds whose components may be one."""

    def __call__(self, reference: str, function: Callable[..., Any]) -> type[ComponentConfig]:
        """The class; its fields are the function's own parameters."""
        ...


def register_functions(kind: Kind, place: str) -> None:
    """Register the `FunctionSettings`, "package.module:name", of a kind."""
    _FUNCTIONS[kind] = place


def _own_class(kind: Kind, reference: str) -> type[ComponentConfig]:
    """The class of settings of an own component, made from its parameters once for each object."""
    value = load(reference)
    known = _own_classes.get((kind, reference))
    if known is not None and known[0] is value:
        return known[1]
    method, functions = _METHODS[kind], _FUNCTIONS.get(kind)
    base = _BASES.get(kind, ComponentConfig)
    if isinstance(value, type) and issubclass(value, ComponentConfig):
        made = _of_kind(kind, reference, value)
    elif isinstance(value, type) and hasattr(value, method):
        made = _class_settings(base, reference, value)
    elif hasattr(value, method):
        made = _object_settings(base, reference, value)
    elif functions is not None and callable(value):
        module, _, attribute = functions.partition(":")
        made = getattr(import_module(module), attribute)(reference, value)
    else:
        raise RecipeError(
            f"{reference} is no {kind}: {value!r:.100}",
            code="component-invalid",
            cause=f"a {kind} has a method `{method}`" + (", or is a function" if functions else ""),
            fix="docs/extending.md has an example of each kind",
        )
    _own_classes[kind, reference] = (value, made)
    return made


def _class_settings(base: type[ComponentConfig], reference: str, cls: type) -> type[ComponentConfig]:
    """Settings that are the parameters of a class; `context` receives the `Context`."""

    def build(self: ComponentConfig, context: Context) -> Any:
        return cls(**given(cls, {"context": context}), **dict(self))

    return settings_of(base, reference, cls, given=("context",), build=build)


def _object_settings(base: type[ComponentConfig], reference: str, value: Any) -> type[ComponentConfig]:
    """An object as it is; whoever made it closes it."""
    return settings_of(base, reference, lambda: value, build=lambda self, context: value, borrowed=True)


def given(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that `function` has as parameters."""
    return {name: value for name, value in values.items() if name in inspect.signature(function).parameters}


def settings_of(
    base: type[ComponentConfig],
    reference: str,
    function: Callable[..., Any],
    *,
    build: Callable[[Any, Context], Any],
    given: Collection[str] = (),
    **class_variables: Any,
) -> type[ComponentConfig]:
    """A subclass of `base` whose fields are the parameters of `function`, but for those that are `given` to it.

    Raises `RecipeError` for a parameter that cannot be a setting.
    """
    try:
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.default is parameter.empty and given and name not in hints
        ):
            raise RecipeError(
                f"{reference}: parameter {name!r} is neither a setting nor one of {', '.join(given)}",
                code="component-invalid",
                fix=f"rename it; or make it a setting, with a type and a default: {name}: int = 3",
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    try:
        made: Any = create_model(
            f"{reference.rpartition(':')[2]}Config",
            __base__=base,
            __module__=__name__,
            __doc__=inspect.getdoc(function),
            **fields,
        )
    except (PydanticUserError, NameError) as error:
        raise RecipeError(
            f"a parameter of {reference} cannot be a setting: {error}",
            code="component-invalid",
            fix="give it a type that TOML has: str, int, float, bool, a list or a table of them",
        ) from error
    made.build = build
    for name, value in class_variables.items():
        setattr(made, name, value)
    return made


# --- tables -----------------------------------------------------------------------------------------------------------


def parse_component(kind: Kind, table: Mapping[str, Any], where: str) -> Component:
    """Validate the table of a component at `where`. Raises `RecipeError` for a wrong type, engine or setting."""
    settings = dict(table)
    named, engine = str(settings.pop("type", None)), settings.pop("engine", None)
    if kind == "tool" and is_reference(named):  # imported when the tool is made, as with its long form
        named, settings["function"] = "function", named
    named = anchored(named, Path.cwd())
    if named not in registered(kind) and not is_reference(named):
        raise RecipeError(
            f"{where}.type = {named!r} does not exist" if "type" in table else f"{where} has no type",
            code="unknown-type",
            fix=f'name one of: {", ".join(registered(kind))}; or your own, e.g. type = "my_file.py:name"',
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
