"""Build the objects of a recipe, each once: task sources, tools, engines, rewards, agent, environment.

Settings build their component (`components/component.py`); `Build` passes them the rest of the recipe, and closes
everything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream import rollout
from midstream.agents.agentflow import AgentFlowLoop
from midstream.agents.interleaved import InterleavedLoop
from midstream.agents.prompted import ExecutorConfig
from midstream.components.component import Component, Context, Sandbox, Wrappers, wrapper_config
from midstream.components.tables import parse_strategy, validate
from midstream.core.agent import Agent
from midstream.core.engine import Engine, ServedEngine, Weights
from midstream.core.errors import RecipeError, RewardError, UnsupportedError, UsageError
from midstream.core.source import Dialogues, Reward, TaskSource
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.texts import EXAMPLES, PROMPT, TEXTS, TOOLS, Lessons
from midstream.core.threads import in_event_loop
from midstream.core.tool import Renamed, Tool
from midstream.core.trajectory import Trajectory
from midstream.engines.adapters import adapter_of
from midstream.engines.cached import CachedEngine, ReplyFile
from midstream.engines.openai.providers import price_of
from midstream.engines.openai.settings import wanted_key
from midstream.evaluation.settings import OWN, SetConfig, sampling_name
from midstream.recipe.check import draw, in_process, resolve, set_reward, wrappers_of
from midstream.recipe.lessons import lessons_of, one_texts
from midstream.recipe.schema import InterleavedConfig, OwnAgentConfig, Recipe
from midstream.rewards.own import FunctionReward
from midstream.runs.budget import Budget, BudgetedAgent, budgeted
from midstream.runs.segments import evaluation_name, result_name
from midstream.sandbox.code_runner import ProgramRunner
from midstream.sandbox.tiers import choose
from midstream.tools.recording import Recording, RecordingOrigin
from midstream.training.protocols import TrainableWorld

if TYPE_CHECKING:
    from midstream.gateway.server import Gateway


@dataclass
class Build(AbstractContextManager, AbstractAsyncContextManager):
    """The objects of one recipe, each built when first asked for; leaving the context closes them all.

    Use `async with` inside a running event loop, `with` elsewhere.

    Args:
        recipe: what to build.
        adapters: the directory for LoRA adapters that are sent to a served model.
        unsafe: run a model's code without a sandbox.
        record: the directory in which tools' answers are recorded.
        replay: a directory of such recordings that answers in place of the tools; no tool is built.
        cache: the directory in which replies of served models are kept, and found by an equal request.
        budget: counts every request and every rollout of the recipe's agent, and refuses what would pass a limit.
        continuous: engines in this process answer each request as it comes, also those of midstream's own agents.
        kept: the directory in which a strategy keeps the agent runs that have ended.

    Raises:
        RecipeError: the recipe's components do not fit each other.
    """

    recipe: Recipe
    adapters: Path = Path("adapters")
    unsafe: bool = False
    record: Path | None = None
    replay: Path | None = None
    cache: Path | None = None
    budget: Budget | None = None
    continuous: bool = False
    kept: Path | None = None
    _engines: dict[str, Engine] = field(default_factory=dict)
    # As agents ask them: counted, and each request at once.
    _asked: dict[str, Engine] = field(default_factory=dict)
    # By their tables, so that equal ones are one object.
    _rewards: dict[str, Reward] = field(default_factory=dict)
    _sources: dict[str, TaskSource] = field(default_factory=dict)
    # Of those that are scored; `try_rewards` has one to try.
    first_task: Task | None = None
    # Closed with the build, the newest first.
    opened: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resolved = resolve(self.recipe)
        self._replies = None if self.cache is None else ReplyFile(self.cache)
        executor = self.recipe.modules.get("executor")
        config = executor.config if executor else None
        self._program = config.program if isinstance(config, ExecutorConfig) and config.mode == "code" else None

    @cached_property
    def gateway(self) -> Gateway:
        """The server that agents of other programs ask, which starts with its first session."""
        from midstream.gateway.server import Gateway

        gateway = Gateway(self.recipe.serve, tuple(self.recipe.training.roles) if self.recipe.training else ())
        # First: it is closed last, after the engines.
        self.opened.insert(0, gateway)
        return gateway

    # -- where code of a model runs -----------------------------------------------------------------------------------

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox for code that a model writes."""
        return choose(self.recipe.sandbox, unsafe=self.unsafe)

    @property
    def runs_code(self) -> bool:
        """Whether anything in this run runs in the sandbox; a replayed tool does not."""
        tools = () if self.replay else self.recipe.tools.values()
        return self._program is not None or any(tool.config.sandboxed for tool in tools)

    @property
    def sandbox_line(self) -> str:
        """The sandbox as a line of text; "" if no code runs."""
        return f"{self.sandbox.tier}: {self.sandbox.mechanisms}" if self.runs_code else ""

    @property
    def tier(self) -> str:
        """The tier of the sandbox in which code runs, or ran when it was recorded; "" if no code runs."""
        return self.sandbox.tier if self.runs_code else self.tool_tables.recorded_tier

    @cached_property
    def code_runner(self) -> ProgramRunner:
        """The runner of the executor's programs."""
        assert self._program is not None
        runner = ProgramRunner(self._program, self.sandbox)
        self.opened.append(runner)
        return runner

    # -- tasks and rewards --------------------------------------------------------------------------------------------

    @property
    def source(self) -> TaskSource:
        """The recipe's task source."""
        return self.tasks(self.recipe.tasks)

    def tasks(self, component: Component) -> TaskSource:
        """The task source of a component."""
        key = component.model_dump_json()
        if key not in self._sources:
            self._sources[key] = component.config.build(Context(self, component, "tasks"))
        return self._sources[key]

    def set_tasks(self, chosen: SetConfig) -> list[Task]:
        """The tasks of an evaluation set. Raises `RecipeError` if one of them cannot be scored."""
        tasks = draw(self.tasks(chosen.tasks or self.recipe.tasks), chosen)
        require_scored(self, set_reward(self.recipe, chosen), tasks)
        return tasks

    def reward(self, component: Component) -> Reward:
        """The reward of a component."""
        key = component.model_dump_json(exclude={"weight"})
        if key not in self._rewards:
            self._rewards[key] = component.config.build(Context(self, component, "reward"))
            if not component.config.borrowed:
                self.opened.append(self._rewards[key])
        return self._rewards[key]

    # -- tools --------------------------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools, in the recipe's order. Raises `RecipeError` if two have the same name."""
        return [tool for tool, _ in self.tool_tables.built.values()]

    @cached_property
    def tool_tables(self) -> ToolTables:
        """The tools by their tables."""
        return ToolTables(self)

    # -- engines ------------------------------------------------------------------------------------------------------

    def engine(self, name: str, *, counted: bool = True, continuous: bool = False) -> Engine:
        """Return an engine by name; with a budget, its requests count toward it unless `counted` is false.

        With `continuous`, one in this process answers each request as it comes.
        """
        component = self.recipe.engines[name]
        continuous = continuous or self.continuous or self.recipe.continuous
        if component.type == "reference" and component.engine is not None and continuous:
            if self.recipe.training is not None:
                raise RecipeError(
                    f"engine {name!r} is the reference of trained weights, and cannot answer each request as it comes",
                    code="engine-in-process",
                    fix=f"name {component.engine!r} in its place, e.g. --set agent.verifier.engine={component.engine}",
                )
            # Nothing changes the weights, so the reference is the engine itself.
            return self.engine(component.engine, counted=counted, continuous=True)
        if name not in self._engines:
            self._engines[name] = component.config.build(Context(self, component, name))
            if not component.config.borrowed:
                self.opened.append(self._engines[name])
        if not counted:
            return self._engines[name]
        if name not in self._asked:
            engine = self._engines[name]
            if continuous and in_process(self.recipe, name):
                from midstream.engines.local.continuous import ContinuousLocal

                engine = ContinuousLocal(engine)  # type: ignore[arg-type]
                self.opened.append(engine)
            if self.budget is not None:
                engine = budgeted(engine, self.budget, price_of(component.config))
            # Weights that change under one name would have replies of others; what is found costs no budget.
            trains = self.recipe.training is not None and name == self.recipe.training.weights
            if self._replies is not None and isinstance(engine, ServedEngine) and not trains:
                # Two servers may have two models, or quantizations, of one name.
                table = component.table()
                server = {key: table[key] for key in ("provider", "base_url", "serve") if key in table}
                engine = CachedEngine(engine, component.identity | server, self._replies)
                self.opened.append(engine)
            self._asked[name] = engine
        return self._asked[name]

    @cached_property
    def policy(self) -> Policy:
        """The weights that are trained: their engine, their learner."""
        return Policy(self)

    # -- agent and environment ----------------------------------------------------------------------------------------

    @cached_property
    def lessons(self) -> Lessons:
        """The texts of the recipe's lesson set, by place. Raises `RecipeError` for a place that this agent lacks."""
        named = self.resolved["agent"].get("lessons")
        found = lessons_of(self.recipe.agent, named)
        if any(place.startswith((TOOLS, TEXTS)) for place in found):
            one_texts(self.recipe.agent, self.tools, found, f"agent.lessons = {named!r}")
        return found

    def environment(
        self, *, planner: object = None, temperature: float | None = None, chosen: SetConfig | None = None
    ) -> rollout.Environment:
        """Agent, tools, engines and reward, as the recipe has them or as an evaluation set wants them.

        Args:
            planner: a component or object to use instead of the planner (or the policy of an interleaved agent); one
                of kind engine answers in all modules in place of the model in this process.
            temperature: replaces the temperature of planner or policy, and of other modules that are trained.
            chosen: an evaluation set, whose tasks, reward and `max_turns` are used.
        """
        trained, components = self.recipe.trained, self.recipe.modules
        config: Any = components[trained].config
        stand_in = planner if isinstance(planner, Component) and planner.kind == "engine" else None
        if isinstance(planner, Component) and stand_in is None:
            components[trained] = planner
        elif planner is not None and stand_in is None:
            components.pop(trained)
        elif temperature is not None:
            for name in components.keys() & {trained, *self.recipe.trained_modules}:
                components[name] = _at_temperature(name, components[name], temperature)
            config = components[trained].config
        engines: dict[str, Engine] = {
            name: self.engine(part.engine) for name, part in components.items() if part.engine is not None
        }
        if stand_in is not None:
            engine = stand_in.config.build(Context(self, stand_in, stand_in.type))
            engines |= {name: engine for name, part in components.items() if in_process(self.recipe, part.engine)}
        table = self.recipe.agent
        own = isinstance(table, OwnAgentConfig)
        modules: dict[str, Any] = {
            name: component.config.build(Context(self, component, name))
            for name, component in components.items()
            if not own or name == trained
        }
        modules.setdefault(trained, planner)
        if chosen is not None and chosen.max_turns is not None:
            table = table.model_copy(update={"max_turns": chosen.max_turns})
        agent: Agent
        if isinstance(table, OwnAgentConfig):
            agent = modules[trained]
            if trained in engines:
                engines[self.recipe.role] = engines.pop(trained)
        elif isinstance(table, InterleavedConfig):
            template = load_template(table.template)
            agent = InterleavedLoop(policy=modules["policy"], template=template, config=table, name=table.type)
        else:
            agent = AgentFlowLoop(**modules, config=table, code_runner=self.code_runner if self._program else None)
        # Rollouts of another planner (a teacher, before a run begins) do not count toward the budget.
        if self.budget is not None and planner is None:
            agent = BudgetedAgent(agent, self.budget)
        if self.recipe.evaluation.strategy is not None:
            # After the budget: each of its agent runs is a rollout.
            name = chosen and result_name(chosen.name, sampling_name(OWN if temperature is None else temperature))
            kept = self.kept / f"{evaluation_name(name)}.jsonl" if self.kept is not None and name else None
            strategy = parse_strategy(self.recipe.evaluation.strategy)
            agent = strategy.wrap(agent, max_attempts=self.recipe.rollout.max_attempts, kept=kept)
            self.opened.append(agent)
        source = self.source if chosen is None else self.tasks(chosen.tasks or self.recipe.tasks)

        # Another planner may be a program, which shows no lessons.
        def shows(place: str) -> bool:
            name = place.removesuffix(PROMPT)
            shown = "instructions" if name != place else "shows_lessons"
            return place.startswith((TOOLS, TEXTS)) or bool(getattr(modules[name.removesuffix(EXAMPLES)], shown, False))

        return rollout.Environment(
            agent=agent,
            tools=self.tool_tables.wrapped(chosen.wrappers) if chosen and chosen.wrappers else self.tools,
            engines=engines,
            reward=self.reward(set_reward(self.recipe, chosen) if chosen else self.recipe.reward),
            config=self.recipe.rollout,
            sampling=temperature if self.recipe.training is None else getattr(config, "sampling", None),
            sandbox=self.tier,
            lessons={place: text for place, text in self.lessons.items() if shows(place)},
            dialogues=source if isinstance(source, Dialogues) else None,
        )

    # -- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close everything that was built, newest first, even if an object fails to close; repeating does nothing."""
        async with AsyncExitStack() as closing:
            while self.opened:
                closing.push_async_callback(self.opened.pop(0).close)

    def __exit__(self, *exception: object) -> None:
        if in_event_loop():
            what, fix = "`with Build(...)` in a running event loop", "use `async with Build(...)`"
            raise UsageError(what, code="event-loop-running", fix=fix)
        asyncio.run(self.close())

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _at_temperature(name: str, component: Component, temperature: float) -> Component:
    """A module with another temperature, if it samples."""
    config: Any = component.config
    if not hasattr(config, "sampling"):
        return component
    sampling = {**config.sampling.model_dump(), "temperature": temperature}
    sampling = validate(type(config.sampling), sampling, f"agent.{name}.sampling")
    return component.model_copy(update={"config": config.model_copy(update={"sampling": sampling})})


def require_scored(build: Build, reward: Component, tasks: Sequence[Task]) -> None:
    """Check that a reward can score these tasks. Raises `RecipeError`."""
    for task in tasks:
        build.reward(reward).check(task)
        build.first_task = build.first_task or task


async def try_rewards(build: Build) -> None:
    """Call each reward of your own on an empty answer, to find one that returns no score before any request.

    What it raises there says nothing of other answers.
    """
    for reward in build._rewards.values():
        if isinstance(reward, FunctionReward) and (task := build.first_task) is not None:
            try:
                await reward.score(task, Trajectory(id=task.id, task_id=task.id, answer=""))
            except RewardError as error:
                if error.code == "reward-out-of-range":
                    raise


def unset_keys(build: Build) -> dict[str, str]:
    """By engine, the variables of keys that hosted servers want and that are not set.

    Engines count that agent or tools ask, and those that have been built for a reward or a role.
    """
    recipe = build.recipe
    tools = () if build.replay else (*recipe.tools.values(), *(wrapper for _, wrapper in wrappers_of(recipe)))
    asked = dict.fromkeys(
        [*(user.engine for user in (*recipe.modules.values(), *tools) if user.engine), *build._engines]
    )
    variables = {name: wanted_key(recipe.engines[name].config) for name in asked}
    return {name: wanted for name, wanted in variables.items() if wanted and not os.environ.get(wanted, "").strip()}


def sampling_notes(recipe: Recipe) -> list[str]:
    """A line where the sampling of an agent of another program is replaced."""
    if not recipe.of_another_program or recipe.training is None:
        return []
    return ["the model samples as agent.sampling says, not as the agent asks, because its weights are trained"]


@dataclass
class Policy:
    """The trained weights of a build."""

    build: Build

    @cached_property
    def learner(self) -> Any:
        """The learner over the weights that are trained (`training.protocols.Learner`)."""
        student, settings = self.student(), self.build.recipe.learner
        if isinstance(self.build.source, TrainableWorld) and not settings.elsewhere:
            self.build.source.attach(student.model)
        if settings.lora is not None and settings.lora.per_role:
            student.adapters = tuple(map(adapter_of, self.build.recipe.trained_modules))
        return settings.learner(student, sampled=student is self.engine())

    def engine(self) -> Engine:
        """The engine of planner or policy. Raises `UnsupportedError` if it is a program."""
        recipe = self.build.recipe
        module = recipe.modules[recipe.trained]
        if module.engine is None:
            what = "it is a program" if module.config.asks == "never" else "it names no engine"
            raise UnsupportedError(
                f"agent.{recipe.trained} of type {module.type!r} cannot be trained: {what}",
                code="not-trainable",
                fix=f"give it an engine, and a type that asks one: midstream list {recipe.trained}",
            )
        return self.build.engine(module.engine, counted=False)

    def student(self) -> Any:
        """The engine that holds the trained weights, or whose server does: the planner's, or `training.weights`."""
        training = self.build.recipe.training
        named = training.weights if training else None
        engine = self.build.engine(named, counted=False) if named else self.engine()
        if not hasattr(engine, "model") and not self.build.recipe.learner.elsewhere:
            raise UnsupportedError(
                f"engine {engine.name!r} holds no weights that can be trained here: it is a remote server",
                code="not-trainable",
                fix="set training.weights to an engine of type tiny or transformers_local with the same weights",
            )
        return engine

    async def publish(self, version: int) -> None:
        """Make the planner's engine sample from the newest weights; a server receives them as a LoRA adapter."""
        engine: Any = self.engine()
        self.learner.publish()
        await engine.use_weights(
            Weights(
                version=version,
                codec=self.student().codec,
                export=lambda directory: self.learner.export_weights(directory),
                directory=self.build.adapters.absolute(),
            )
        )


class ToolTables:
    """The tools of a build, from the tables `tools` and `wrappers` of its recipe."""

    def __init__(self, build: Build) -> None:
        self._build, self._recipe = build, build.recipe

    @cached_property
    def built(self) -> dict[str, tuple[Tool, str]]:
        """The tools by name, in the recipe's order, each with its table's. Raises `RecipeError` for an equal name."""
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
        for tool, table in self.built.values():
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
