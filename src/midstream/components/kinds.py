"""Every kind of component by name: midstream's own, those of installed packages, and your own.

Midstream's own are listed here by the place of their settings, which is imported when a recipe names it. A package
offers its components as entry points:

    [project.entry-points."midstream.components"]
    "reward.exact_words" = "my_package.rewards:exact_words"
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from midstream.components.component import (
    ComponentConfig,
    EngineConfig,
    Kind,
    ProposerConfig,
    RewardConfig,
    StrategyConfig,
    TasksConfig,
    ToolConfig,
    WrapperConfig,
)
from midstream.components.own import load
from midstream.core.data import Settings
from midstream.core.errors import RecipeError

# The end of a fix where a name is unknown.
IN_A_PACKAGE = "or install the package that has it: midstream's repository has some in plugins/"
# The modules of each kind of agent; the first is the one whose weights are trained.
MODULES: dict[str, tuple[Kind, ...]] = {
    "agentflow": ("planner", "executor", "verifier", "generator"),
    "interleaved": ("policy",),
    "direct": ("policy",),
}
MODULE_KINDS: tuple[Kind, ...] = ("planner", "executor", "verifier", "generator", "analyst", "policy")
COMPONENTS: dict[Kind, dict[str, str]] = {
    "tasks": {
        "benchmark": "midstream.sources.benchmarks:BenchmarkConfig",
        "file": "midstream.sources.file:FileTasksConfig",
        "none": "midstream.sources.finite:NoTasksConfig",
    },
    "reward": {
        "exact_match": "midstream.rewards.exact_match:ExactMatchConfig",
        "f1": "midstream.rewards.exact_match:F1Config",
        "numeric": "midstream.rewards.numeric:NumericConfig",
        "multiple_choice": "midstream.rewards.multiple_choice:MultipleChoiceConfig",
        "math": "midstream.rewards.math:MathConfig",
        "judge": "midstream.rewards.judge:JudgeConfig",
        "composite": "midstream.rewards.composite:CompositeConfig",
        "per_task": "midstream.rewards.composite:PerTaskConfig",
    },
    "tool": {
        "local_search": "midstream.tools.local_search:LocalSearchConfig",
        "python": "midstream.tools.python:PythonConfig",
        "base_generator": "midstream.tools.base_generator:BaseGeneratorConfig",
        "function": "midstream.tools.function:FunctionConfig",
    },
    "engine": {
        "reference": "midstream.engines.local.settings:ReferenceConfig",
        "transformers_local": "midstream.engines.local.settings:LocalModelConfig",
        "openai_compatible": "midstream.engines.openai.settings:OpenAIConfig",
    },
    "proposer": {
        "reflection": "midstream.lessons.reflection:ReflectionConfig",
    },
    "learner": {
        "local": "midstream.training.settings:LearnerConfig",
    },
    "planner": {
        "prompted": "midstream.agents.prompted:PlannerConfig",
    },
    "executor": {
        "prompted": "midstream.agents.prompted:ExecutorConfig",
    },
    "verifier": {
        "prompted": "midstream.agents.prompted:VerifierConfig",
    },
    "generator": {
        "prompted": "midstream.agents.prompted:GeneratorConfig",
    },
    "analyst": {"prompted": "midstream.agents.prompted:AnalystConfig"},
    "policy": {
        "model": "midstream.agents.stream_policy:PolicyConfig",
    },
}

AGENTS = {
    "agentflow": "midstream.recipe.schema:AgentConfig",
    "interleaved": "midstream.recipe.schema:InterleavedConfig",
    "direct": "midstream.recipe.schema:DirectConfig",
    "command": "midstream.gateway.session_agent:CommandSettings",
}

# By kind, the function that makes the settings of a component of your own: of a function, a class or an object. It
# receives the kind, the reference, and the object that it names.
OWN: dict[Kind, str] = {
    "tasks": "midstream.sources.file:own_tasks",
    "reward": "midstream.rewards.own:own_reward",
    "tool": "midstream.tools.function:own_tool",
    "engine": "midstream.engines.own:own_engine",
    "agent": "midstream.agents.own_agent:own_agent",
    "advantage": "midstream.training.own:own_advantage",
    "loss": "midstream.training.own:own_loss",
    "learner": "midstream.training.own:own_learner",
    "proposer": "midstream.lessons.proposer:own_proposer",
}
OWN |= dict.fromkeys(MODULE_KINDS, "midstream.agents.own_module:own_module")

_BASES: dict[Kind, type] = {
    "tasks": TasksConfig,
    "reward": RewardConfig,
    "tool": ToolConfig,
    "engine": EngineConfig,
    "strategy": StrategyConfig,
    "proposer": ProposerConfig,
    "wrapper": WrapperConfig,
    "agent": Settings,
}
_REGISTRY: dict[Kind, dict[str, type[ComponentConfig] | str]] = {kind: {**names} for kind, names in COMPONENTS.items()}
_REGISTRY["agent"] = {**AGENTS}
# With the object that each was made of: a notebook may define it again.
_own_classes: dict[tuple[Kind, str], tuple[object, type[ComponentConfig]]] = {}


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
    for point in entry_points(group="midstream.components"):
        of, _, name = point.name.partition(".")
        # A name that midstream has itself stays its own, as with recipes and commands.
        if of == kind and name not in _REGISTRY.get(kind, {}):
            found.setdefault(name, []).append(point)
    return found


def installed_reference(kind: Kind, name: str) -> str | None:
    """The object behind a package's component, None without one. Raises `RecipeError` if two packages define it."""
    points = installed(kind).get(name, [])
    if len({point.value for point in points}) > 1:
        packages = " and ".join(point.dist.name if point.dist else "a package" for point in points)
        fix = f"uninstall one of them, or name the object itself: type = {points[0].value!r}"
        raise RecipeError(f"{kind} {name!r} is defined twice: by {packages}", code="name-clash", fix=fix)
    return points[0].value if points else None


def config_class(kind: Kind, name: str) -> type[ComponentConfig]:
    """The class of a component's settings: of a registered, installed or own one.

    Raises `RecipeError` if it cannot be imported, or is not of this kind.
    """
    name = installed_reference(kind, name) or name
    config = _REGISTRY.get(kind, {}).get(name)
    if isinstance(config, str):
        config = _REGISTRY[kind][name] = load(config)
    if config is not None:
        return _of_kind(kind, name, config)
    value = load(name)
    known = _own_classes.get((kind, name))
    if known is None or known[0] is not value:
        # Made once for each object: two classes of one component's settings would not be equal.
        is_config = isinstance(value, type) and issubclass(value, ComponentConfig)
        made = load(OWN[kind])(kind, name, value) if kind in OWN and not is_config else _of_kind(kind, name, value)
        known = _own_classes[kind, name] = (value, made)
    return known[1]


def _of_kind(kind: Kind, name: str, config: object) -> type[ComponentConfig]:
    base = _BASES.get(kind, ComponentConfig)
    if not (isinstance(config, type) and issubclass(config, base)):
        raise RecipeError(
            f"{getattr(config, '__name__', config)}, registered as {kind} {name!r}, is not a {base.__name__}",
            code="component-invalid",
            fix=f"derive it from midstream.components.component.{base.__name__}",
        )
    return config


def rules() -> list[str]:
    """The types of rewards that a task may name: rule-based, without a model."""
    classes = {name: config_class("reward", name) for name in registered("reward")}
    return [name for name, config in classes.items() if issubclass(config, RewardConfig) and config.rule_based]


def agent_type(agent: object) -> str:
    """The type of an agent, or of its table."""
    return str(agent.get("type", "agentflow") if isinstance(agent, Mapping) else getattr(agent, "type", "agentflow"))


def modules_of(agent: str) -> tuple[Kind, ...]:
    """The modules of an agent of this type; the first is trained. One of your own is itself its one module."""
    return MODULES.get(agent, ("policy",))
