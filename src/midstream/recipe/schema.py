"""Recipes: one TOML file describes a run (`recipe/files.py` reads it).

The table of a component (tasks, an agent's module, an engine, a tool, a reward) has a `type` and the settings of that
component (`components/component.py`). Unknown keys are errors everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_serializer

from midstream.agents.agentflow import LoopConfig
from midstream.agents.interleaved import StreamConfig
from midstream.components.component import Component, EngineConfig, Kind, Table, Wrappers
from midstream.components.kinds import MODULES, agent_type, config_class, modules_of
from midstream.components.own import anchored
from midstream.components.tables import located, parse_component, validate
from midstream.core.data import Settings
from midstream.core.errors import RecipeError
from midstream.core.seeds import Seed
from midstream.core.stream_template import load_template
from midstream.evaluation.settings import EvaluationConfig
from midstream.gateway.settings import ServeConfig, SessionSettings
from midstream.lessons.settings import ROLES, LessonsConfig
from midstream.recipe.files import read_table, with_overrides
from midstream.rollout import RolloutConfig
from midstream.runs.budget import BudgetConfig
from midstream.sandbox.settings import SandboxConfig
from midstream.sources.finite import NoTasksConfig
from midstream.training.settings import LearnerConfig, TrainingConfig, WarmStartConfig

# An optional module of agentflow.
_ANALYST: Kind = "analyst"


class AgentConfig(LoopConfig):
    """AgentFlow: planner, executor, verifier and generator with a memory (arXiv 2510.05592).

    `lessons` is a run directory or a file whose lessons are in the modules' prompts.

    `analyst` is optional: it analyzes the query before the first turn. It is not trained, and it gets no lessons.
    """

    type: str = "agentflow"
    planner: Component
    executor: Component
    verifier: Component
    generator: Component
    analyst: Component | None = None
    lessons: Path | None = None


class InterleavedConfig(StreamConfig):
    """One policy that interleaves thoughts, tool calls and tool output (ARTIST, arXiv 2505.01441).

    `template` is the name of one that comes with midstream, or a TOML file; `lessons` as in `AgentConfig`.
    """

    type: str = "interleaved"
    template: str
    policy: Component
    lessons: Path | None = None


class DirectConfig(InterleavedConfig):
    """The model alone: it answers in one reply, or calls the recipe's tools in its own form."""

    type: str = "direct"
    template: str = "direct"


class OwnAgentConfig(Settings):
    """An agent of your own: one component, whose settings stand in the table of the agent itself.

    `policy` is that component; it asks the model of its `engine`, whose calls are trained. `engines` are other models
    by the names that the agent gives them; `lessons` as in `AgentConfig`.
    """

    type: str
    policy: Component
    engines: dict[str, str] = {}
    lessons: Path | None = None

    @model_serializer
    def table(self) -> Table:
        """The agent's table; `parse_recipe` reads it back."""
        others = {"engines": self.engines, "lessons": str(self.lessons) if self.lessons else None}
        return self.policy.table() | {key: value for key, value in others.items() if value}


AGENTS: dict[str, type[AgentConfig | InterleavedConfig]] = {
    "agentflow": AgentConfig,
    "interleaved": InterleavedConfig,
    "direct": DirectConfig,
}


class Recipe(Settings):
    """A whole recipe, every component's settings validated; `recipe/check.py` checks that they fit each other.

    Attributes:
        name: names the run directory and the report
        description: a line for tables
        seed: the run seed, from which every random draw derives
        tasks: the task source; without it, `solve`, `--tasks` or `--benchmark` give questions
        agent: the agent: its loop and modules
        engines: models by name: `[engines.NAME]`; a module names one with `engine = "NAME"`
        tools: one table a tool, in the order of the planner's prompt
        wrappers: what wraps a tool while an agent trains, one after the other: `[wrappers.TOOL.TYPE]`
        reward: scores the answer
        sandbox: see `[sandbox]`
        rollout: see `[rollout]`
        warm_start: see `[warm_start]`; without the table, no warm start
        training: see `[training]`; without it and `lessons`, the recipe can be evaluated but not trained
        lessons: see `[lessons]`: lessons instead of weights; with `training`, both by turns
        learn: `weights`, `lessons` or both: of a recipe with `[training]` and `[lessons]` what a run learns
        learner: see `[learner]`
        serve: see `[serve]`: for agents of other programs
        evaluation: see `[evaluation]`
        budget: see `[budget]`: limits on what a run may use
    """

    name: str = Field(pattern=r"^[^/\\\x00-\x1f]+$")  # it names run directories
    description: str = ""
    seed: Seed = 0
    tasks: Component = Component(kind="tasks", type="none", config=NoTasksConfig())
    agent: SerializeAsAny[AgentConfig | InterleavedConfig | OwnAgentConfig]
    engines: dict[str, Component] = {}
    tools: dict[str, Component]
    wrappers: Wrappers = {}
    reward: Component
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    warm_start: WarmStartConfig | None = None
    learn: tuple[Literal["weights", "lessons"], ...] | None = None
    training: TrainingConfig | None = None
    lessons: LessonsConfig | None = None
    learner: SerializeAsAny[LearnerConfig] = LearnerConfig()
    serve: ServeConfig = ServeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    budget: BudgetConfig | None = None

    @property
    def trained(self) -> Kind:
        """The module whose weights are trained."""
        return modules_of(self.agent.type)[0]

    @property
    def trained_modules(self) -> tuple[str, ...]:
        """The modules whose calls are trained."""
        return tuple((self.training and self.training.roles) or (self.trained,))

    @property
    def trained_engine(self) -> str | None:
        """The engine of the trained weights: `training.weights`, or that of planner or policy."""
        return (self.training and self.training.weights) or self.modules[self.trained].engine

    @property
    def warm_seed(self) -> int:
        """The seed of untrained weights and of the warm start."""
        return self.seed if self.warm_start is None or self.warm_start.seed is None else self.warm_start.seed

    @property
    def role(self) -> str:
        """The role of the calls that are trained."""
        config: Any = self.modules[self.trained].config
        return config.role if isinstance(self.agent, OwnAgentConfig) else self.trained

    @property
    def continuous(self) -> bool:
        """Whether engines in this process answer each request as it comes.

        They do for another program, for several chains, where a reflector asks one of them, too, and if the recipe
        says so.
        """
        roles = [self.lessons.role(name).engine for name in ROLES] if self.lessons is not None else []
        asked = [self.engines[name].config for name in roles if name in self.engines]
        reflects = any(isinstance(config, EngineConfig) and config.in_process and not config.tiny for config in asked)
        served = self.of_another_program and self.serve.batching == "continuous"
        chosen = self.rollout.batching == "continuous"
        return self.evaluation.strategy is not None or reflects or served or chosen

    @property
    def tool_servers(self) -> list[str]:
        """The tables in `tools` that are each a server of several tools."""
        return [name for name, tool in self.tools.items() if getattr(tool.config, "several", False)]

    @property
    def holds_dialogues(self) -> bool:
        """Whether the agent can hold a dialogue."""
        if isinstance(self.agent, OwnAgentConfig):
            return self.agent.policy.config.dialogues  # type: ignore[attr-defined]
        return isinstance(self.agent, InterleavedConfig) and load_template(self.agent.template).appends != "inline"

    @property
    def of_another_program(self) -> bool:
        """Whether the agent asks through the gateway."""
        return isinstance(self.agent, OwnAgentConfig) and isinstance(self.agent.policy.config, SessionSettings)

    @property
    def modules(self) -> dict[Kind, Component]:
        """The agent's modules, the trained one first, and its analyst, if it has one.

        An agent of your own is its one module, once for each model that it asks.
        """
        if isinstance(self.agent, OwnAgentConfig):
            own, engines = self.agent.policy, dict(self.agent.engines)
            for name, model in self.serve.models.items():  # of another program
                if model.train:
                    own = own.model_copy(update={"engine": model.engine})
                else:
                    engines[name] = model.engine
            others: Any = {name: own.model_copy(update={"engine": engine}) for name, engine in engines.items()}
            return {"policy": own, **others}
        found: dict[Kind, Component] = {}
        for name in (*MODULES[self.agent.type], _ANALYST):
            if (component := getattr(self.agent, name, None)) is not None:
                found[name] = component
        return found

    def table(self) -> Table:
        """The recipe with every default filled in, as JSON values; `parse_recipe` reads it back."""
        return self.model_dump(mode="json", exclude_none=True)


def parse_recipe(table: Mapping[str, object]) -> Recipe:
    """Validate a recipe's table. A `RecipeError` names every wrong key of a component, of the agent or of the rest."""
    parsed: Table = dict(anchored(table, Path.cwd()))
    agent = parsed.get("agent")
    kind = agent_type(agent)
    if kind not in AGENTS:
        own: Table = dict(parsed["agent"])
        others = {key: own.pop(key) for key in ("engines", "lessons") if key in own}
        policy = parse_component("agent", own, "agent")
        parsed["agent"] = {"type": policy.type, "policy": policy, **others}
        parsed.setdefault("tools", {})
    if isinstance(learner := parsed.get("learner"), Mapping):
        named = located("learner", learner.get("type", "local"), "learner")
        config = config_class("learner", named)
        parsed["learner"] = validate(config, {**learner, "type": named}, "learner")
    lessons = parsed.get("lessons")
    if isinstance(lessons, Mapping):
        parsed["lessons"] = {"modules": modules_of(kind)[:1], **lessons}
    if isinstance(chosen := parsed.get("learn"), list | tuple):
        for name, section in (("weights", "training"), ("lessons", "lessons")):
            if name not in chosen:
                parsed.pop(section, None)
            elif not isinstance(parsed.get(section), Mapping):
                what, fix = f"learn = {[*chosen]} without [{section}]", f"add [{section}], or leave out learn"
                raise RecipeError(what, code="setting-conflict", fix=fix)
        if set(chosen) <= {"weights", "lessons"}:
            # The sections that are left say it.
            del parsed["learn"]
    if kind in ("interleaved", "direct") and isinstance(training := parsed.get("training"), Mapping):
        # What such a policy writes is one response.
        parsed["training"] = {"turns": "merged", **training}
    places: list[tuple[tuple[str, ...], Kind]] = [
        (("tasks",), "tasks"),
        (("reward",), "reward"),
        (("engines", "*"), "engine"),
        (("tools", "*"), "tool"),
        (("wrappers", "*", "*"), "wrapper"),
        (("warm_start", "wrappers", "*", "*"), "wrapper"),
        (("evaluation", "validation", "tasks"), "tasks"),
        (("evaluation", "validation", "reward"), "reward"),
        (("evaluation", "validation", "wrappers", "*", "*"), "wrapper"),
        (("evaluation", "sets", "*", "tasks"), "tasks"),
        (("evaluation", "sets", "*", "reward"), "reward"),
        (("evaluation", "sets", "*", "wrappers", "*", "*"), "wrapper"),
        (("training", "supervised", "planner"), modules_of(kind)[0]),
        *((("agent", module), module) for module in (*MODULES.get(kind, ()), _ANALYST)),
    ]
    for path, component in places:
        parsed = _parse_at(parsed, path, component)
    if "agent" in parsed:
        parsed["agent"] = validate(AGENTS.get(kind, OwnAgentConfig), parsed["agent"], "agent")
    return validate(Recipe, parsed, "")


def _parse_at(value: Any, path: Sequence[str], kind: Kind, where: str = "") -> Any:
    """`value` with the component's table at `path` parsed; "*" is every key of a table or place of a list.

    Missing or wrong values stay unchanged: the schema reports them.
    """
    if not path:
        return parse_component(kind, value, where) if isinstance(value, Mapping) else value
    key, *rest = path
    if key == "*" and isinstance(value, list | tuple):
        return [_parse_at(inner, rest, kind, f"{where}.{place}") for place, inner in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    changed = dict(value)
    for name in [*value] if key == "*" else [key] if key in value else []:
        inner = value[name]
        if not rest and kind in ("tool", "wrapper") and isinstance(inner, Mapping):
            inner = {"type": name, **inner}  # its type is its name unless it says otherwise
        changed[name] = _parse_at(inner, rest, kind, f"{where}.{name}".lstrip("."))
    return changed


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read, extend, override and validate a recipe; a `RecipeError` names each bad key and value."""
    return parse_recipe(with_overrides(read_table(name), overrides))
