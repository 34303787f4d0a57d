"""Every kind of component by name: midstream's own (`components/registry.py`), those of packages, and your own.

A package offers its components as entry points:

    [project.entry-points."midstream.components"]
    "reward.exact_words" = "my_package.rewards:exact_words"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from midstream.components.component import ComponentConfig, EngineConfig, Kind, RewardConfig, TasksConfig, ToolConfig
from midstream.components.own import load
from midstream.components.registry import AGENTS, COMPONENTS, OWN
from midstream.core.data import Settings
from midstream.core.errors import RecipeError

KINDS: tuple[Kind, ...] = get_args(Kind)
GROUP = "midstream.components"

_BASES: dict[Kind, type] = {
    "tasks": TasksConfig,
    "reward": RewardConfig,
    "tool": ToolConfig,
    "engine": EngineConfig,
    "agent": Settings,
}
_REGISTRY: dict[Kind, dict[str, type[ComponentConfig] | str]] = {kind: {**names} for kind, names in COMPONENTS.items()}
_REGISTRY["agent"] = {**AGENTS}
_own_classes: dict[tuple[Kind, str], tuple[Any, type[ComponentConfig]]] = {}


def register(kind: Kind, name: str, config: type[ComponentConfig] | str) -> None:
    """Register a component: the class of its settings, or "package.module:Class", which is imported on first use.

    Programs and tests add components of their process so; a package has entry points.
    """
    _REGISTRY.setdefault(kind, {})[name] = config


def registered(kind: Kind) -> list[str]:
    """The types of a kind: midstream's own, in the order of registration, then those of installed packages."""
    return list(dict.fromkeys([*_REGISTRY.get(kind, ()), *installed(kind)]))


@cache
def installed(kind: Kind) -> dict[str, list[EntryPoint]]:
    """The components of a kind in installed packages: entry points `KIND.NAME` of the group `midstream.components`."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        of, _, name = point.name.partition(".")
        if of == kind and name:
            found.setdefault(name, []).append(point)
    return found


def reference_of_installed(kind: Kind, name: str) -> str:
    """The object behind a package's component as a reference. Raises `RecipeError` if two define one of that name."""
    points = installed(kind)[name]
    ours = ["midstream"] * (name in _REGISTRY.get(kind, ()))
    if len(ours) + len(points) > 1:
        packages = ours + [package_of(point) for point in points]
        raise RecipeError(
            f"{kind} {name!r} is defined twice: by {' and '.join(packages)}",
            code="name-clash",
            fix=f"uninstall one of them, or name the object itself: type = {points[0].value!r}",
        )
    return points[0].value


def package_of(point: EntryPoint) -> str:
    """Name and version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "a package"


def config_class(kind: Kind, name: str) -> type[ComponentConfig]:
    """The class of a component's settings: of a registered, installed or own one.

    Raises `RecipeError` if it cannot be imported, or is not of this kind.
    """
    if name in installed(kind):
        name = reference_of_installed(kind, name)
    config = _REGISTRY.get(kind, {}).get(name)
    if config is None:
        return _own_class(kind, name)
    if isinstance(config, str):
        try:
            config = _REGISTRY[kind][name] = _imported(config)
        except (ImportError, AttributeError) as failure:
            raise RecipeError(
                f"{config}, registered as {kind} {name!r}, cannot be imported: {failure}",
                code="import-failed",
                fix="correct the place, or install its package",
            ) from failure
    return _of_kind(kind, name, config)


def _own_class(kind: Kind, reference: str) -> type[ComponentConfig]:
    """The class of an own component's settings, made once for each object."""
    value = load(reference)
    known = _own_classes.get((kind, reference))
    if known is not None and known[0] is value:
        return known[1]
    if isinstance(value, type) and issubclass(value, ComponentConfig):
        made = _of_kind(kind, reference, value)
    else:
        maker: Callable[[Kind, str, Any], type[ComponentConfig]] = _imported(OWN[kind])
        made = maker(kind, reference, value)
    _own_classes[kind, reference] = (value, made)
    return made


def _imported(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _of_kind(kind: Kind, name: str, config: type) -> type[ComponentConfig]:
    base = _BASES.get(kind, ComponentConfig)
    if not issubclass(config, base):
        raise RecipeError(
            f"{config.__name__}, registered as {kind} {name!r}, is not a {base.__name__}",
            code="component-invalid",
            fix=f"derive it from midstream.components.component.{base.__name__}",
        )
    return config


def rules() -> list[str]:
    """The types of midstream's rewards that a task may name: rule-based, without a model."""
    classes = {name: config_class("reward", name) for name in _REGISTRY["reward"]}
    return [name for name, config in classes.items() if issubclass(config, RewardConfig) and config.rule_based]
