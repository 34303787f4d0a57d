"""Components: one explicit dictionary a room, from a `type` to the class of its settings and what makes it from them.

A component table names its `type`; everything else in it is validated by that component's own `Config`. To add a
component, write its class and its `Config` and give it a line here. `recipe/build.py` makes the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from midstream.agents import code, interleaved, prompted
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.protocols import TaskSource
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.engines import simulated
from midstream.engines.openai import engine as openai_compatible
from midstream.evaluation import SetConfig
from midstream.recipe.schema import Recipe, Table, validate
from midstream.rewards import (
    artist,
    composite,
    dialogue,
    exact_match,
    f1,
    gaia,
    judge,
    math,
    multiple_choice,
    numeric,
    per_task,
)
from midstream.rewards import game24 as game24_reward
from midstream.tasks import benchmarks, file, mixture
from midstream.tasks.bfcl import tasks as bfcl
from midstream.tasks.tau import tasks as tau_bench
from midstream.tools import base_generator, function, local_search, python
from midstream.tools.mcp import tools as mcp
from midstream.tools.web import web_page, web_search, wikipedia
from midstream.training.settings import LocalModelConfig
from midstream.worlds import game24
from midstream.worlds.desks import agent as desk_agent
from midstream.worlds.desks import tasks as desks
from midstream.worlds.gazetteer import compact, programs, scripted, tiny_model
from midstream.worlds.gazetteer import reflector as gazetteer_reflector
from midstream.worlds.gazetteer import tasks as gazetteer
from midstream.worlds.workshop import models as workshop_models
from midstream.worlds.workshop import tasks as workshop


@dataclass(frozen=True)
class Component:
    """How one `type` is made: the class of its settings, and what makes it from them.

    `asks`: it needs an `engine`; `may_ask`: it takes one, and does without. `extra` of midstream: it needs that.
    `face`: a tool's class, if that says already what the tool is, before one is made. `endless`: a source of tasks that
    makes them, so that asking for some costs nothing. `dialogues`: its tasks are dialogues (`core.dialogue`).
    """

    config: type[Frozen]
    make: Callable[..., Any]
    asks: bool = False
    may_ask: bool = False
    extra: str = ""
    face: type | None = None
    endless: bool = False
    dialogues: bool = False


TASKS = {
    "gazetteer": Component(gazetteer.Config, gazetteer.Gazetteer, endless=True),
    "game24": Component(game24.Config, game24.GameOf24, endless=True),
    "workshop": Component(workshop.Config, workshop.Workshop),
    "desks": Component(desks.Config, desks.Desks, endless=True, dialogues=True),
    "benchmark": Component(benchmarks.Config, lambda config: benchmarks.make(config, task_source)),
    "file": Component(file.Config, file.FileTasks),
    "bfcl": Component(bfcl.Config, bfcl.Bfcl, dialogues=True),
    "tau_bench": Component(tau_bench.Config, tau_bench.TauBench, asks=True, dialogues=True),
    "mixture": Component(mixture.Config, lambda config: mixture.Mixture(config, task_source)),
}
REWARDS = {
    "exact_match": Component(exact_match.Config, lambda build, config, table: exact_match.ExactMatch(config)),
    "f1": Component(f1.Config, lambda build, config, table: f1.F1()),
    "numeric": Component(numeric.Config, lambda build, config, table: numeric.Numeric(config)),
    "multiple_choice": Component(multiple_choice.Config, lambda build, config, table: multiple_choice.MultipleChoice()),
    "gaia": Component(gaia.Config, lambda build, config, table: gaia.Gaia()),
    "game24": Component(game24_reward.Config, lambda build, config, table: game24_reward.Game24()),
    "math": Component(math.Config, lambda build, config, table: math.Math(config, build.sandbox), extra="math"),
    "judge": Component(judge.Config, lambda build, config, table: build.judge(config, table["engine"]), asks=True),
    "composite": Component(composite.Config, lambda build, config, table: build.composite(config)),
    "per_task": Component(
        per_task.Config, lambda build, config, table: per_task.PerTask(lambda name: build.reward({"type": name}), RULES)
    ),
    "dialogue": Component(dialogue.Config, lambda build, config, table: dialogue.DialogueSuccess()),
    "artist_math": Component(
        artist.MathConfig,
        lambda build, config, table: artist.Math(config, build.reward({"type": config.answer}), build.template),
    ),
    "function_calling": Component(
        artist.FunctionCallingConfig, lambda build, config, table: artist.FunctionCalling(config, build.template)
    ),
}
OF_DIALOGUES = ("dialogue", "function_calling")  # what judges what came of a dialogue
OF_A_STREAM = ("artist_math", "function_calling")  # what scores the form of an interleaved agent's stream, too
RULES = tuple(
    name for name, one in REWARDS.items() if not one.asks and name not in ("per_task", "composite", *OF_A_STREAM)
)
TOOLS = {
    "local_search": Component(
        local_search.Config,
        lambda build, config, table: build.local_search(config),
        face=local_search.LocalSearch,
    ),
    "python": Component(
        python.Config,
        lambda build, config, table: python.make(config, build.sandbox, build.tool_engine(table)),
        may_ask=True,
        face=python.PythonTool,
    ),
    "guess": Component(
        programs.GuessConfig, lambda build, config, table: programs.ConfidentGuess(config), face=programs.ConfidentGuess
    ),
    "base_generator": Component(
        base_generator.Config,
        lambda build, config, table: base_generator.BaseGenerator(build.tool_engine(table), config),
        asks=True,
        face=base_generator.BaseGenerator,
    ),
    "function": Component(function.Config, lambda build, config, table: function.load(config, table["name"])),
    "web_search": Component(
        web_search.Config,
        lambda build, config, table: web_search.WebSearch(config, build.tool_engine(table)),
        may_ask=True,
        extra="web",
        face=web_search.WebSearch,
    ),
    "web_page": Component(
        web_page.Config,
        lambda build, config, table: web_page.WebPage(config, build.tool_engine(table)),
        may_ask=True,
        extra="web",
        face=web_page.WebPage,
    ),
    "mcp": Component(mcp.Config, lambda build, config, table: mcp.make(config, table["name"]), extra="mcp"),
    "wikipedia": Component(
        wikipedia.Config, lambda build, config, table: wikipedia.Wikipedia(config), face=wikipedia.Wikipedia
    ),
}
ENGINES = {
    "tiny": Component(
        tiny_model.Config, lambda build, config, name: build.local_engine(name, *build.tiny(config), config)
    ),
    "transformers_local": Component(
        LocalModelConfig, lambda build, config, name: build.local_engine(name, *build.pretrained(config, name), config)
    ),
    "simulated": Component(simulated.Config, lambda build, config, name: build.simulated(config, name)),
    "openai_compatible": Component(
        openai_compatible.Config, lambda build, config, name: openai_compatible.OpenAICompatibleEngine(config, name)
    ),
}
# What a simulated engine can play, by the type of the recipe's tasks.
PLAYED: dict[str, dict[str, Callable[[Any, simulated.Config], simulated.Reply]]] = {
    "gazetteer": {"reflector": lambda build, config: gazetteer_reflector.reply},
    "workshop": {
        "agent": lambda build, config: workshop_models.agent_reply(build.source),
        "reflector": lambda build, config: workshop_models.reflector_reply(build.source),
    },
    "desks": {
        "agent": lambda build, config: desk_agent.agent_reply(load_template(build.recipe.agent.template), config.skill)
    },
}
IN_PROCESS = ("tiny", "transformers_local")
PLANNERS = {
    "compact": Component(compact.Config, compact.CompactPlanner, asks=True),
    "prompted": Component(prompted.PlannerConfig, prompted.PromptedPlanner, asks=True),
    "clumsy": Component(scripted.ScriptedConfig, scripted.ScriptedPlanner),
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
POLICIES = {
    "model": Component(interleaved.PolicyConfig, interleaved.ModelPolicy, asks=True),
    "clumsy": Component(scripted.ScriptedConfig, scripted.ScriptedPolicy),
}
ROOMS = {
    "planner": PLANNERS,
    "executor": EXECUTORS,
    "verifier": VERIFIERS,
    "generator": GENERATORS,
    "policy": POLICIES,
}


def resolve(room: Mapping[str, Component], table: Table, where: str) -> tuple[Component, Any]:
    """The component that a table names, and its validated settings; `type` and `engine` are not the component's."""
    named = str(table.get("type"))
    if named not in room:
        raise RecipeError(
            f"{where}.type = {named!r} does not exist",
            cause="it is misspelt or missing",
            fix=f"name one of: {', '.join(room)}",
        )
    component = room[named]
    if "engine" in table and not (component.asks or component.may_ask):
        raise RecipeError(
            f"{where}.engine = {table['engine']!r} is never asked",
            cause=f"{named!r} is a program",
            fix="remove `engine`, or choose a type that asks a model",
        )
    return component, validate(component.config, {k: v for k, v in table.items() if k not in ("type", "engine")}, where)


def set_reward(recipe: Recipe, chosen: SetConfig) -> Table:
    """What scores an evaluation set: its own reward, that of its benchmark, or the recipe's."""
    if chosen.reward is not None:
        return chosen.reward
    return recipe.reward if chosen.tasks is None else {"type": "per_task"}


def task_source(table: Table, where: str = "tasks") -> TaskSource:
    """The source of tasks that a table names."""
    component, config = resolve(TASKS, table, where)
    return component.make(config)


def draw(source: TaskSource, chosen: SetConfig) -> list[Task]:
    """The tasks of an evaluation set."""
    return source.fixed(
        chosen.split,
        seed=chosen.seed,
        families=chosen.families,
        per_family=chosen.per_family,
        count=chosen.count,
    )


def no_engine(recipe: Recipe, what: str) -> RecipeError:
    """What a name that is no engine's is refused with."""
    return RecipeError(
        f"{what} does not exist",
        cause=f"the recipe's engines are {', '.join(recipe.engines) or 'none'}",
        fix="name one of them, or add its [engines.NAME] table",
    )


def no_world(recipe: Recipe) -> RecipeError:
    """What needs the offline world and finds other tasks is refused with."""
    return RecipeError(
        f"tasks.type = {recipe.tasks.get('type')!r} has no facts and no names of its own",
        cause="a local_search without an index, a tiny engine and a warm start are made from the offline world",
        fix='set tasks.type = "gazetteer"; or give local_search an `index`; or leave them out, '
        "e.g. local_search = false under [tools]",
    )
