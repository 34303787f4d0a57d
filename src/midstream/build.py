"""Wiring: from a recipe to objects, one explicit dictionary a room.

A component table names its `type`; everything else in it is validated by that component's own `Config`. To add a
component, write its class and its `Config` and give it a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from midstream import rollout
from midstream.agents import agentflow, code, compact, formats, programs, prompted
from midstream.config import AgentConfig, Recipe, Table, validate
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.protocols import CodeRunner, Engine, Tool
from midstream.engines import lora, openai_compatible
from midstream.rewards import exact_match
from midstream.sandbox import code_runner
from midstream.tasks.worlds import gazetteer
from midstream.tools import base_generator, guess, local_search, python
from midstream.training.settings import LocalModelConfig, TinyConfig

if TYPE_CHECKING:
    from midstream.training.learner import LocalLearner
    from midstream.training.session import Parts

T = TypeVar("T")
MODULES = ("planner", "executor", "verifier", "generator")


@dataclass(frozen=True)
class Component:
    """How one `type` is made: the class of its settings, and what makes it from them; `asks`: it needs an `engine`."""

    config: type[Frozen]
    make: Callable[..., Any]
    asks: bool = False


TASKS = {"gazetteer": Component(gazetteer.Config, gazetteer.Gazetteer)}
REWARDS = {"exact_match": Component(exact_match.Config, lambda config: exact_match.ExactMatch())}
TOOLS = {
    "local_search": Component(local_search.Config, lambda build, config, table: build.local_search(config)),
    "python": Component(python.Config, lambda build, config, table: python.PythonTool(config)),
    "guess": Component(guess.Config, lambda build, config, table: guess.ConfidentGuess(config)),
    "base_generator": Component(
        base_generator.Config,
        lambda build, config, table: base_generator.BaseGenerator(build.tool_engine(table.get("engine")), config),
        asks=True,
    ),
}
ENGINES = {
    "tiny": Component(TinyConfig, lambda build, config, name: build.local_engine(name, *build.tiny(config), config)),
    "transformers_local": Component(
        LocalModelConfig, lambda build, config, name: build.local_engine(name, *build.pretrained(config, name), config)
    ),
    "openai_compatible": Component(
        openai_compatible.Config, lambda build, config, name: openai_compatible.OpenAICompatibleEngine(config, name)
    ),
}
IN_PROCESS = ("tiny", "transformers_local")
PLANNERS = {
    "compact": Component(compact.Config, compact.CompactPlanner, asks=True),
    "prompted": Component(prompted.PlannerConfig, prompted.PromptedPlanner, asks=True),
    "clumsy": Component(programs.ClumsyConfig, programs.ClumsyPlanner),
}
EXECUTORS = {
    "single_argument": Component(programs.NoSettings, lambda config: programs.SingleArgumentExecutor()),
    "prompted": Component(
        prompted.ExecutorConfig,
        lambda config: code.CodeExecutor(config) if config.mode == "code" else prompted.PromptedExecutor(config),
        asks=True,
    ),
}
VERIFIERS = {
    "form": Component(programs.NoSettings, lambda config: programs.FormVerifier()),
    "prompted": Component(prompted.StructuredConfig, prompted.PromptedVerifier, asks=True),
}
GENERATORS = {
    "verified_result": Component(programs.NoSettings, lambda config: programs.VerifiedResultGenerator()),
    "prompted": Component(prompted.Config, prompted.PromptedGenerator, asks=True),
}
ROOMS = {"planner": PLANNERS, "executor": EXECUTORS, "verifier": VERIFIERS, "generator": GENERATORS}


def resolve(room: Mapping[str, Component], table: Table, where: str) -> tuple[Component, Any]:
    """The component that a table names, and its validated settings; `type` and `engine` are not the component's."""
    named = str(table.get("type"))
    if named not in room:
        raise RecipeError(
            f"{where}.type = {named!r} does not exist",
            cause="it is misspelt or missing",
            mend=f"name one of: {', '.join(room)}",
        )
    component = room[named]
    if "engine" in table and not component.asks:
        raise RecipeError(
            f"{where}.engine = {table['engine']!r} is never asked",
            cause=f"{named!r} is a program",
            mend="remove `engine`, or choose a type that asks a model",
        )
    return component, validate(component.config, {k: v for k, v in table.items() if k not in ("type", "engine")}, where)


def check(recipe: Recipe) -> dict[str, Any]:
    """Validate every component and evaluation set; returns the recipe with all defaults filled in."""
    resolved = recipe.model_dump(mode="json", exclude_none=True)

    def fill(room: Mapping[str, Component], table: Table, where: str) -> Table:
        component, config = resolve(room, table, where)
        engine = table.get("engine")
        if component.asks and (not isinstance(engine, str) or engine not in recipe.engines):
            raise _no_engine(recipe, f"{where}.engine = {engine!r}")
        kept = {key: table[key] for key in ("type", "engine") if key in table}
        return {**kept, **config.model_dump(mode="json", exclude_none=True)}

    resolved["tasks"] = fill(TASKS, recipe.tasks, "tasks")
    resolved["reward"] = fill(REWARDS, recipe.reward, "reward")
    resolved["tools"] = {name: fill(TOOLS, {"type": name, **t}, f"tools.{name}") for name, t in recipe.tools.items()}
    resolved["engines"] = {name: fill(ENGINES, table, f"engines.{name}") for name, table in recipe.engines.items()}
    for module, room in ROOMS.items():
        resolved["agent"][module] = fill(room, getattr(recipe.agent, module), f"agent.{module}")
    if recipe.agent.memory_update == "on_continue" and recipe.agent.generator["type"] == "verified_result":
        raise RecipeError(
            'agent.memory_update = "on_continue" with agent.generator.type = "verified_result" never answers',
            cause="the result that satisfies the verifier is then not in memory",
            mend='set memory_update = "every_turn"',
        )
    if recipe.training and recipe.training.weights not in (None, *recipe.engines):
        raise _no_engine(recipe, f"training.weights = {recipe.training.weights!r}")
    if recipe.training:
        _check_others_frozen(recipe, {recipe.agent.planner.get("engine"), recipe.training.weights} - {None})
    _check_sets(recipe)
    return resolved


def _check_sets(recipe: Recipe) -> None:
    """Draw every evaluation set once: one that cannot be made is found now, not after the warm start."""
    component, config = resolve(TASKS, recipe.tasks, "tasks")
    source = component.make(config)
    for chosen in (*recipe.evaluation.sets, *((recipe.evaluation.validation,) if recipe.training else ())):
        source.fixed(chosen.split, chosen.per_family, chosen.seed, chosen.families)


def _check_others_frozen(recipe: Recipe, trained: set[Any]) -> None:
    """Only the planner's weights may change: nothing else may ask an engine that training changes."""
    tables = {f"agent.{module}": getattr(recipe.agent, module) for module in MODULES if module != "planner"}
    # A tool that asks an engine in process is refused anyway, by `Build.tool_engine`.
    served = {name for name, table in recipe.engines.items() if table.get("type") not in IN_PROCESS}
    tables |= {f"tools.{name}": table for name, table in recipe.tools.items() if table.get("engine") in served}
    for where, table in tables.items():
        if table.get("engine") in trained:
            raise RecipeError(
                f"{where}.engine = {table['engine']!r} would be trained together with the planner",
                cause="it samples from the planner's weights, and only the planner may change",
                mend="give it an [engines.NAME] table of its own (the same server and model will do)",
            )


def _no_engine(recipe: Recipe, what: str) -> RecipeError:
    return RecipeError(
        f"{what} does not exist",
        cause=f"the recipe's engines are {', '.join(recipe.engines) or 'none'}",
        mend="name one of them, or add its [engines.NAME] table",
    )


@dataclass
class Build:
    """The objects of one recipe, each made once when first asked for.

    `unsafe` allows what runs a model's code without a sandbox that holds; `adapters` is where LoRA adapters go.
    """

    recipe: Recipe
    adapters: Path = Path("adapters")
    unsafe: bool = False
    _engines: dict[str, Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resolved = check(self.recipe)
        self.writes_code = self.resolved["agent"]["executor"].get("mode") == "code"
        if self.writes_code and not self.unsafe:
            raise UnsupportedError(
                'agent.executor.mode = "code" runs programs that a model writes on this machine',
                cause="the sandbox bounds what they use up; it does not keep hostile code from files or the network",
                mend='say --unsafe if this machine may run them (a container, say), or set mode = "arguments"',
            )

    @cached_property
    def source(self) -> gazetteer.Gazetteer:
        """The task source."""
        component, config = resolve(TASKS, self.recipe.tasks, "tasks")
        return component.make(config)

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools, in the recipe's order."""
        made = []
        for name, table in self.recipe.tools.items():
            component, config = resolve(TOOLS, {"type": name, **table}, f"tools.{name}")
            made.append(component.make(self, config, table))
        return made

    def engine(self, name: str) -> Engine:
        """The engine of that name."""
        if name not in self.recipe.engines:
            raise _no_engine(self.recipe, f"engine {name!r}")
        if name not in self._engines:
            component, config = resolve(ENGINES, self.recipe.engines[name], f"engines.{name}")
            self._engines[name] = component.make(self, config, name)
        return self._engines[name]

    def tool_engine(self, name: str | None) -> Engine:
        """The engine inside a tool: a server, because an in-process engine waits for the very run that calls it."""
        # Told by its type, before it is made: a tiny engine's vocabulary needs the tools.
        if self.recipe.engines.get(name or "", {}).get("type") in IN_PROCESS:
            raise RecipeError(
                f"tool engine {name!r} samples in process",
                cause="it answers only when every live trajectory waits for it, and one that calls a tool does not",
                mend="give the tool an engine of type openai_compatible",
            )
        return self.engine(name or "")

    def environment(
        self, *, planner: Any = None, temperature: float | None = None, max_turns: int | None = None
    ) -> rollout.Environment:
        """Agent, tools, engines and reward; `planner`, its `temperature` and `max_turns` may be replaced."""
        agent = self.recipe.agent
        modules = {
            name: self._module(name, getattr(agent, name)) for name in MODULES if planner is None or name != "planner"
        }
        engines = {
            name: self.engine(getattr(agent, name)["engine"]) for name in modules if "engine" in getattr(agent, name)
        }
        modules.setdefault("planner", planner)
        if temperature is not None and planner is None:
            modules["planner"] = self._module("planner", _with_temperature(agent.planner, temperature))
        reward, reward_config = resolve(REWARDS, self.recipe.reward, "reward")
        return rollout.Environment(
            agent=agentflow.AgentFlow(
                **modules,
                config=_loop_config(agent, max_turns),
                code_runner=self.code_runner if self.writes_code else None,
            ),
            tools=self.tools,
            engines=engines,
            reward=reward.make(reward_config),
            config=self.recipe.rollout,
        )

    @cached_property
    def code_runner(self) -> CodeRunner:
        """What runs the executor's programs."""
        config = resolve(EXECUTORS, self.recipe.agent.executor, "agent.executor")[1]
        return code_runner.ProgramRunner(config.program, formats.schema_error)

    def _module(self, name: str, table: Table) -> Any:
        component, config = resolve(ROOMS[name], table, f"agent.{name}")
        return component.make(config)

    def local_search(self, config: local_search.Config) -> local_search.LocalSearch:
        """An index file, or, without one, the facts of the offline world."""
        if config.index is not None:
            return local_search.LocalSearch(config)
        documents = (local_search.Document(id=one, text=text) for one, text in self.source.documents())
        return local_search.LocalSearch.from_documents(documents, config)

    def tiny(self, config: TinyConfig) -> tuple[Any, Any]:
        """(model, tokenizer) of a from-scratch planner for the offline world; its seed is the warm start's."""
        require_training_extra()
        import torch

        torch.set_num_threads(self.recipe.learner.threads)  # initial weights, too, depend on it in their last bits
        from midstream.training import tiny

        names = self.source.names()
        words = {
            *gazetteer.question_words(),
            *compact.WORDS,
            *programs.action_words(),
            *(tool.name for tool in self.tools),
        }
        tokenizer = tiny.make_tokenizer(words, names)
        return tiny.make_model(config, tokenizer, len(names), self.warm_seed), tokenizer

    def pretrained(self, config: LocalModelConfig, name: str) -> tuple[Any, Any]:
        """(model, tokenizer) of a Hugging Face causal language model; the trained one keeps its adapter apart."""
        require_training_extra()
        from midstream.engines.pretrained import load_model

        training = self.recipe.training
        trained = training is not None and name == (training.weights or self.recipe.agent.planner.get("engine"))
        trainable = trained and self.recipe.learner.lora is not None
        return load_model(config.model, config.dtype, config.device, adapter=config.adapter, trainable=trainable)

    def local_engine(self, name: str, model: Any, tokenizer: Any, config: TinyConfig | LocalModelConfig) -> Engine:
        """The in-process engine over a model."""
        from midstream.engines.transformers_local import TransformersLocal

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

        return LocalLearner(self._weights().model, self.recipe.learner)

    def parts(self) -> Parts:
        """Everything that a training session needs."""
        from midstream.training.session import Parts

        recipe = self.recipe
        if recipe.training is None:
            raise RecipeError(
                f"recipe {recipe.name!r} trains nothing",
                cause="it has no [training] table",
                mend="add one, or use `midstream eval`",
            )
        _check_trainable(recipe, self._planner_engine())
        learner = self.learner
        return Parts(
            seed=recipe.seed,
            source=self.source,
            families=self.source.families,
            place_names=frozenset(self.source.names("validation")),
            tokenizer=self._weights().tokenizer,
            learner=learner,
            make_environment=self.environment,
            clumsy_planner=programs.ClumsyPlanner(
                recipe.warm_start.policy if recipe.warm_start else programs.ClumsyConfig()
            ),
            publish=self.publish,
            warm_start=recipe.warm_start,
            training=recipe.training,
            evaluation=recipe.evaluation,
        )

    def _planner_engine(self) -> Engine:
        name = self.recipe.agent.planner.get("engine")
        if name is None:
            raise UnsupportedError(
                f"agent.planner of type {self.recipe.agent.planner['type']!r} cannot be trained",
                cause="it is a program",
                mend='choose type = "compact" or "prompted" and give it an engine',
            )
        return self.engine(name)

    def _weights(self) -> Any:
        """The in-process engine that holds the trained weights: the planner's own, or the one `weights` names."""
        named = self.recipe.training.weights if self.recipe.training else None
        engine = self.engine(named) if named else self._planner_engine()
        if not hasattr(engine, "model"):
            raise UnsupportedError(
                f"engine {engine.name!r} holds no weights that can be trained here",
                cause="it is a remote server",
                mend="set training.weights to an engine of type tiny or transformers_local with the same weights",
            )
        return engine

    async def publish(self, version: int) -> None:
        """Let the planner's engine sample from the newest weights: share them, or send them as a LoRA adapter."""
        engine = self._planner_engine()
        if engine is self._weights():
            engine.policy_version = version  # type: ignore[attr-defined]
            return
        assert isinstance(engine, openai_compatible.OpenAICompatibleEngine)
        engine.encode = self._weights().encode  # token ids in and out: nothing depends on the server's chat template
        await lora.hand_over(engine, self.learner.export_weights, self.adapters.absolute(), version)


def _loop_config(agent: AgentConfig, max_turns: int | None) -> agentflow.Config:
    config = agentflow.Config(**{name: getattr(agent, name) for name in agentflow.Config.model_fields})
    return config if max_turns is None else config.model_copy(update={"max_turns": max_turns})


def _with_temperature(table: Table, temperature: float) -> Table:
    component, config = resolve(PLANNERS, table, "agent.planner")
    if not component.asks:
        return table
    sampling = {**config.sampling.model_dump(), "temperature": temperature}
    return {**table, "sampling": sampling}


def _check_trainable(recipe: Recipe, engine: Engine) -> None:
    """Token ids and log-probabilities of the planner's calls, over the whole distribution it samples from."""
    if not engine.token_exact:
        raise UnsupportedError(
            f"engine {engine.name!r} cannot be trained on",
            cause="it does not record sampled token ids and log-probabilities",
            mend="set token_ids = true for a server that gives them (vLLM), or use an in-process engine",
        )
    named = recipe.training and recipe.training.weights
    if named not in (None, engine.name) and not (recipe.learner.lora and hasattr(engine, "use_adapter")):
        raise RecipeError(
            f"training.weights = {named!r} cannot reach the planner's engine {engine.name!r}",
            cause="weights trained apart from the planner are handed to its server as a LoRA adapter before every step",
            mend="add [learner.lora] and give the planner an engine of type openai_compatible, or remove `weights`",
        )
    if named not in (None, engine.name) and "chat_template_kwargs" in recipe.engines[engine.name].get("extra_body", {}):
        raise RecipeError(
            f"engines.{engine.name}.extra_body.chat_template_kwargs would not be heard",
            cause=f"the planner's prompts go there as token ids, made with the chat template of engine {named!r}",
            mend=f"move chat_template_kwargs to [engines.{named}]",
        )
    _, config = resolve(PLANNERS, recipe.agent.planner, "agent.planner")
    if config.sampling.top_p < 1 or config.sampling.temperature == 0:
        raise RecipeError(
            f"agent.planner.sampling = {config.sampling!r} cannot be trained on",
            cause="greedy or nucleus sampling draws from another distribution than the recorded log-probabilities",
            mend="set temperature above 0 and top_p = 1",
        )


def require_training_extra() -> None:
    """Refuse with `UnsupportedError` where PyTorch or Transformers is not installed."""
    try:
        import torch
        import transformers
    except ImportError as failure:
        raise UnsupportedError(
            f"{failure.name} is not installed",
            cause="in-process models need the extra `train`",
            mend="pip install 'midstream[train]'",
        ) from failure
    del torch
    transformers.utils.logging.disable_progress_bar()  # ours is the only one
