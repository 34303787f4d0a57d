"""Build the objects of a recipe, each once. `recipe/registry.py` lists the types of components."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from midstream import rollout
from midstream.agents import agentflow, formats, interleaved
from midstream.core.dialogue import Dialogues
from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.lessons import Lessons
from midstream.core.parts import table_of, weight_of
from midstream.core.protocols import Agent, CodeRunner, Engine, Reward, TaskSource, Tool, World
from midstream.core.seeds import derive_seed
from midstream.core.stream_template import Template, load_template
from midstream.core.task import Task
from midstream.engines import simulated
from midstream.engines.openai import adapters as lora
from midstream.engines.openai import engine as openai_compatible
from midstream.evaluation import SetConfig
from midstream.practice.budget import Budget, BudgetedAgent, budgeted
from midstream.recipe.check import check
from midstream.recipe.library import lessons_of
from midstream.recipe.registry import (
    ENGINES,
    EXECUTORS,
    IN_PROCESS,
    PLAYED,
    REWARDS,
    ROOMS,
    TOOLS,
    draw,
    no_engine,
    no_world,
    resolve,
    set_reward,
    task_source,
)
from midstream.recipe.schema import InterleavedConfig, Recipe, Table
from midstream.rewards import composite, judge
from midstream.sandbox import code_runner
from midstream.sandbox.tiers import Sandbox, choose
from midstream.tasks.finite import Finite
from midstream.tasks.tau.tasks import TauBench
from midstream.tools import local_search, recording
from midstream.training.settings import LocalModelConfig
from midstream.worlds.gazetteer import tiny_model
from midstream.worlds.gazetteer.tasks import Gazetteer

if TYPE_CHECKING:
    from midstream.training.learner import LocalLearner


@dataclass
class Build:
    """The objects of one recipe, each made once when first asked for; `with Build(...) as build` closes them all.

    `unsafe` runs a model's code without a sandbox; `adapters` is where LoRA adapters go. `budget` counts every request
    and every rollout of the recipe's agent, and refuses what would pass a limit. `record` is where tools are
    recorded, `replay` where their answers come from instead (`tools.recording`): then no tool is made.
    """

    recipe: Recipe
    adapters: Path = Path("adapters")
    unsafe: bool = False
    record: Path | None = None
    replay: Path | None = None
    budget: Budget | None = None
    _engines: dict[str, Engine] = field(default_factory=dict)
    _budgeted: dict[str, Engine] = field(default_factory=dict)
    _rewards: dict[str, Reward] = field(default_factory=dict)  # by their tables
    _sources: dict[str, TaskSource] = field(default_factory=dict)  # by their tables
    _opened: list[Any] = field(default_factory=list)  # to be closed

    def __post_init__(self) -> None:
        self.resolved = check(self.recipe)
        self.writes_code = self.resolved["agent"].get("executor", {}).get("mode") == "code"

    @cached_property
    def sandbox(self) -> Sandbox:
        """What holds back the code that a model writes."""
        return choose(self.recipe.sandbox, unsafe=self.unsafe)

    @property
    def runs_code(self) -> bool:
        """Whether anything in this run runs code that a model writes; a replayed tool does not."""
        tools = () if self.replay else self.resolved["tools"].values()
        return self.writes_code or any(table["type"] == "python" for table in tools)

    @property
    def sandbox_line(self) -> str:
        """What to tell people of it; "" where nothing runs code."""
        return f"{self.sandbox.tier}: {self.sandbox.mechanisms}" if self.runs_code else ""

    @property
    def source(self) -> TaskSource:
        """Where the recipe's tasks come from."""
        return self._source(self.recipe.tasks, "tasks")

    def _source(self, table: Table, where: str) -> TaskSource:
        """The source that a table names, each made, and so read, once."""
        key = _key(table)
        if key not in self._sources:
            self._sources[key] = source = task_source(table, where)
            if isinstance(source, TauBench):
                source.played_by(self.engine(table["engine"]))
        return self._sources[key]

    @property
    def world(self) -> World:
        """The source, where it must be an offline world."""
        if not isinstance(self.source, World):
            raise no_world(self.recipe)
        return self.source

    def set_tasks(self, chosen: SetConfig) -> list[Task]:
        """The tasks of an evaluation set. Raises `RecipeError` if one of them cannot be scored."""
        tasks, reward = draw(self._set_source(chosen), chosen), self.reward(set_reward(self.recipe, chosen))
        for task in tasks:
            reward.check(task)
        return tasks

    def left_out(self, chosen: SetConfig) -> dict[str, int]:
        """The rows of an evaluation set's data that are no tasks, by reason."""
        source = self._set_source(chosen)
        return dict(source.left_out.get(chosen.split, {})) if isinstance(source, Finite) else {}

    def _set_source(self, chosen: SetConfig) -> TaskSource:
        return self.source if chosen.tasks is None else self._source(chosen.tasks, f"set {chosen.name}")

    def reward(self, table: Table) -> Reward:
        """The reward that a table names, each made once."""
        key = _key(table)
        if key not in self._rewards:
            component, config = resolve(REWARDS, table, "reward")
            self._rewards[key] = component.make(self, config, table)
            self._opened.append(self._rewards[key])
        return self._rewards[key]

    def judge(self, config: judge.Config, engine: str) -> judge.Judge:
        """The judge that asks an engine, with the rule-based reward beside it."""
        rule = self.reward({"type": config.rule}) if config.rule else None
        return judge.Judge(config, self.engine(engine), model=self._model_of(engine), rule=rule)

    @cached_property
    def template(self) -> Template:
        """How an interleaved agent writes; `recipe/check.py` has seen that the recipe's agent is one."""
        assert isinstance(self.recipe.agent, InterleavedConfig)
        return load_template(self.recipe.agent.template)

    def composite(self, config: composite.Config) -> composite.Composite:
        """The mean of several rewards."""
        parts = {name: (weight_of(part), table_of(part)) for name, part in config.parts.items()}
        return composite.Composite({name: (weight, self.reward(table)) for name, (weight, table) in parts.items()})

    def _model_of(self, engine: str) -> dict[str, Any]:
        """What of an engine decides what it says; not where it is served: the same model says the same elsewhere."""
        table = self.resolved["engines"][engine]
        return {key: table[key] for key in ("model", "extra_body") if key in table}

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools, in the recipe's order.

        Raises:
            RecipeError: two have the same name.
        """
        kept = self.recording  # one that cannot be used is refused before a server is started
        made: dict[str, tuple[Tool, str]] = {}
        for table in self.recipe.tools:
            for tool in self._tools_of(table, kept):
                if tool.name in made:
                    raise RecipeError(
                        f"tools.{table} and tools.{made[tool.name][1]} both have a tool called {tool.name!r}",
                        cause="a planner names tools, and could not say which it means",
                        fix="take one of them out; an MCP server's tools get other names with `prefix`",
                    )
                made[tool.name] = (tool, table)
        return [tool for tool, _ in made.values()]

    def _tools_of(self, name: str, kept: recording.Recording | None) -> list[Tool]:
        """The tools of one table: a tool server has several. All that is made here is noted before it is used."""
        if kept is not None and self.replay:
            return kept.replay(self._origin(name))
        table = self.recipe.tools[name]
        component, config = resolve(TOOLS, {"type": name, **table}, f"tools.{name}")
        one = component.make(self, config, {"name": name, **table})
        made = one if isinstance(one, list) else [one]
        self._opened += made
        return made if kept is None else kept.record(made, self._origin(name))

    @cached_property
    def recording(self) -> recording.Recording | None:
        """What tools are recorded in, or replayed from, if they are."""
        directory = self.record or self.replay
        if directory is None:
            return None
        kept = recording.Recording(directory, write=self.record is not None)
        self._opened.append(kept)
        return kept

    def _origin(self, name: str) -> recording.Origin:
        """Everything in the recipe that decides what the tools of a table answer."""
        settings = dict(self.resolved["tools"][name])
        if "engine" in settings:
            settings["engine"] = self._model_of(settings["engine"])
        if settings["type"] == "local_search" and "index" not in settings:
            settings["tasks"] = self.resolved["tasks"]
        runs_code = settings["type"] == "python" and not self.replay
        return recording.Origin(table=name, settings=settings, sandbox=self.sandbox.tier if runs_code else "")

    @property
    def tier(self) -> str:
        """The sandbox that code runs in, or ran in when it was recorded; "" where there is none to run."""
        if self.runs_code:
            return self.sandbox.tier
        if self.recording is None:
            return ""
        return next(filter(None, map(self.recording.sandbox, map(self._origin, self.recipe.tools))), "")

    def engine(self, name: str) -> Engine:
        """The engine of that name; behind the budget, if there is one."""
        engine = self._made(name)
        if self.budget is None:
            return engine
        if name not in self._budgeted:
            prices = [self.resolved["engines"][name].get(f"price_{kind}_usd", 0.0) for kind in ("prompt", "completion")]
            self._budgeted[name] = budgeted(engine, self.budget, price_prompt=prices[0], price_completion=prices[1])
        return self._budgeted[name]

    def _made(self, name: str) -> Engine:
        if name not in self.recipe.engines:
            raise no_engine(self.recipe, f"engine {name!r}")
        if name not in self._engines:
            component, config = resolve(ENGINES, self.recipe.engines[name], f"engines.{name}")
            self._engines[name] = component.make(self, config, name)
            self._opened.append(self._engines[name])
        return self._engines[name]

    async def close(self) -> None:
        """Close everything that was made, the newest first, also what an error left half built; again does nothing."""
        async with AsyncExitStack() as closing:  # one that cannot be closed keeps no other open
            while self._opened:
                closing.push_async_callback(self._opened.pop(0).close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run(self.close())

    def tool_engine(self, table: Table) -> Engine | None:
        """The engine inside a tool: a server, because an in-process engine waits for the very run that calls it."""
        name = table.get("engine")
        if name is None:
            return None
        # Told by its type, before it is made: a tiny engine's vocabulary needs the tools.
        if self.recipe.engines.get(name, {}).get("type") in IN_PROCESS:
            raise RecipeError(
                f"tool engine {name!r} samples in process",
                cause="it answers only when every live trajectory waits for it, and one that calls a tool does not",
                fix="give the tool an engine of type openai_compatible",
            )
        return self.engine(name)

    def environment(
        self, *, planner: Any = None, temperature: float | None = None, chosen: SetConfig | None = None
    ) -> rollout.Environment:
        """Agent, tools, engines and reward, as the recipe has them or as an evaluation set wants them.

        `planner` (an object, or a table like `agent.planner`; of an interleaved agent the policy), or its
        `temperature`, may be replaced.
        """
        trained, tables = self.recipe.trained, self.recipe.modules
        # Whoever plans in the recipe's place (a teacher, before a run begins) is none of the run's rollouts.
        counted = self.budget is not None and planner is None
        if isinstance(planner, dict):
            tables, planner = {**tables, trained: planner}, None
        if planner is not None:
            tables.pop(trained)
        modules = {name: self._module(name, table) for name, table in tables.items()}
        engines = {name: self.engine(table["engine"]) for name, table in tables.items() if "engine" in table}
        modules.setdefault(trained, planner)
        # A planner in the recipe's place may be a program, which no lesson reaches.
        shown = {name: text for name, text in self.lessons.items() if getattr(modules[name], "shows_lessons", False)}
        if temperature is not None and planner is None:
            modules[trained] = self._module(trained, _with_temperature(trained, tables[trained], temperature))
        agent = self._agent(modules, chosen.max_turns if chosen else None)
        source = self.source if chosen is None else self._set_source(chosen)
        return rollout.Environment(
            agent=BudgetedAgent(agent, self.budget) if self.budget is not None and counted else agent,
            tools=self.tools,
            engines=engines,
            reward=self.reward(set_reward(self.recipe, chosen) if chosen else self.recipe.reward),
            config=self.recipe.rollout,
            sandbox=self.tier,
            lessons=shown,
            dialogues=source if isinstance(source, Dialogues) else None,
        )

    def _agent(self, modules: dict[str, Any], max_turns: int | None) -> Agent:
        """The agent of these modules; `max_turns` replaces its own limit."""
        agent = self.recipe.agent
        changed: dict[str, Any] = {} if max_turns is None else {"max_turns": max_turns}
        if isinstance(agent, InterleavedConfig):
            settings = {name: getattr(agent, name) for name in interleaved.Config.model_fields}
            return interleaved.Interleaved(
                policy=modules["policy"],
                template=self.template,
                config=interleaved.Config(**settings | changed),
            )
        settings = {name: getattr(agent, name) for name in agentflow.Config.model_fields}
        return agentflow.AgentFlow(
            **modules,
            config=agentflow.Config(**settings | changed),
            code_runner=self.code_runner if self.writes_code else None,
        )

    @cached_property
    def lessons(self) -> Lessons:
        """What the recipe's library puts into the prompts, by module."""
        return lessons_of(self.recipe.agent, self.resolved["agent"].get("library"))

    @cached_property
    def code_runner(self) -> CodeRunner:
        """What runs the executor's programs."""
        config = resolve(EXECUTORS, self.recipe.modules["executor"], "agent.executor")[1]
        runner = code_runner.ProgramRunner(config.program, formats.schema_error, self.sandbox)
        self._opened.append(runner)
        return runner

    def _module(self, name: str, table: Table) -> Any:
        component, config = resolve(ROOMS[name], table, f"agent.{name}")
        return component.make(config)

    def local_search(self, config: local_search.Config) -> local_search.LocalSearch:
        """An index file, or, without one, the facts of the offline world."""
        if config.index is not None:
            return local_search.LocalSearch(config)
        documents = (
            local_search.Document(id=one, text=text)
            for one, text in self.world.documents()
            if derive_seed("coverage", text) < config.coverage * 2**63  # the same ones in every run
        )
        return local_search.LocalSearch.from_documents(documents, config)

    def simulated(self, config: simulated.Config, name: str) -> Engine:
        """A function in place of a model, made from the recipe's tasks."""
        return simulated.SimulatedEngine(PLAYED[self.recipe.tasks["type"]][config.plays](self, config), config, name)

    def tiny(self, config: tiny_model.Config) -> tuple[Any, Any]:
        """(model, tokenizer) of a from-scratch planner for the offline world; its seed is the warm start's."""
        require_training_extra()
        import torch

        torch.set_num_threads(self.recipe.learner.threads)  # initial weights, too, depend on it in their last bits
        warm, agent, world = self.recipe.warm_start, self.recipe.agent, self.source
        if not isinstance(world, Gazetteer):
            raise no_world(self.recipe)
        return tiny_model.make_planner(
            config,
            world,
            [tool.name for tool in self.tools],
            template=load_template(agent.template) if isinstance(agent, InterleavedConfig) else None,
            lessons=warm is not None and warm.lessons > 0,
            seed=self.warm_seed,
        )

    def pretrained(self, config: LocalModelConfig, name: str) -> tuple[Any, Any]:
        """(model, tokenizer) of a Hugging Face causal language model; the trained one keeps its adapter apart."""
        require_training_extra()
        from midstream.engines.local.pretrained import load_model

        training = self.recipe.training
        trained = training is not None and name == (
            training.weights or self.recipe.modules[self.recipe.trained].get("engine")
        )
        trainable = trained and self.recipe.learner.lora is not None
        model, tokenizer = load_model(
            config.model, config.dtype, config.device, adapter=config.adapter, trainable=trainable
        )
        tiny_model.attach_redraw(model)  # of a planner that a run of the offline world saved
        return model, tokenizer

    def local_engine(
        self, name: str, model: Any, tokenizer: Any, config: tiny_model.Config | LocalModelConfig
    ) -> Engine:
        """The in-process engine over a model."""
        from midstream.engines.local.engine import TransformersLocal

        given = config.chat_template_kwargs if isinstance(config, LocalModelConfig) else {}
        return TransformersLocal(model, tokenizer, name=name, max_batch=config.max_batch, chat_template_kwargs=given)

    @property
    def warm_seed(self) -> int:
        """The seed of untrained weights and of the warm start."""
        warm = self.recipe.warm_start
        return self.recipe.seed if warm is None or warm.seed is None else warm.seed

    @cached_property
    def learner(self) -> LocalLearner:
        """The learner over the weights that are trained."""
        from midstream.training.learner import LocalLearner

        return LocalLearner(self.student().model, self.recipe.learner)

    def planner_engine(self) -> Engine:
        """Whom the planner, or the policy, asks.

        Raises:
            UnsupportedError: it is a program.
        """
        trained = self.recipe.trained
        table = self.recipe.modules[trained]
        if "engine" not in table:
            asking = [f'"{name}"' for name, component in ROOMS[trained].items() if component.asks]
            raise UnsupportedError(
                f"agent.{trained} of type {table['type']!r} cannot be trained",
                cause="it is a program",
                fix=f"choose type = {' or '.join(asking)} and give it an engine",
            )
        return self._made(table["engine"])

    def student(self) -> Any:
        """The in-process engine that holds the trained weights: the planner's own, or the one `weights` names."""
        named = self.recipe.training.weights if self.recipe.training else None
        engine = self._made(named) if named else self.planner_engine()
        if not hasattr(engine, "model"):
            raise UnsupportedError(
                f"engine {engine.name!r} holds no weights that can be trained here",
                cause="it is a remote server",
                fix="set training.weights to an engine of type tiny or transformers_local with the same weights",
            )
        return engine

    async def publish(self, version: int) -> None:
        """Let the planner's engine sample from the newest weights: share them, or send them as a LoRA adapter."""
        engine = self.planner_engine()
        if engine is self.student():
            engine.policy_version = version  # type: ignore[attr-defined]
            return
        assert isinstance(engine, openai_compatible.OpenAICompatibleEngine)
        engine.codec = self.student().codec  # token ids in and out: nothing depends on the server's chat template
        await lora.hand_over(engine, self.learner.export_weights, self.adapters.absolute(), version)


def _key(table: Table) -> str:
    return json.dumps(table, sort_keys=True, default=str)


def _with_temperature(module: str, table: Table, temperature: float) -> Table:
    component, config = resolve(ROOMS[module], table, f"agent.{module}")
    if not component.asks:
        return table
    sampling = {**config.sampling.model_dump(), "temperature": temperature}
    return {**table, "sampling": sampling}


def require_training_extra() -> None:
    """Refuse with `UnsupportedError` where PyTorch or Transformers is not installed."""
    try:
        import torch
        import transformers
    except ImportError as failure:
        raise UnsupportedError(
            f"{failure.name} is not installed",
            cause="in-process models need the extra `train`",
            fix="pip install 'midstream[train]'",
        ) from failure
    del torch
    transformers.utils.logging.disable_progress_bar()  # ours is the only one
