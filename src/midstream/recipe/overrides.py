"""A caller's changes to a recipe, or to that of a run: server, tools, seed, evaluation, and `--set`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast
from urllib.parse import urlsplit

from midstream.components import own
from midstream.components.component import Table
from midstream.components.kinds import IN_A_PACKAGE, agent_type, config_class, modules_of, registered
from midstream.components.tables import located, parse_component
from midstream.core.errors import UsageError, did_you_mean
from midstream.core.secrets import refuse_secrets
from midstream.engines.local.catalog import MODELS, place_of
from midstream.engines.openai.providers import LOOPBACK, PROVIDERS, SERVED
from midstream.evaluation.settings import OWN
from midstream.recipe.check import is_dialogues, resolve
from midstream.recipe.files import merge, parse_override, read_table, with_settings
from midstream.recipe.inputs import has_weights, run_table
from midstream.recipe.memory import shape_of
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.runs import RunDirectory
from midstream.runs.budget import parse_limits

if TYPE_CHECKING:
    from midstream.lessons.access import EditableLessons
    from midstream.training.settings import LearnerConfig

ChangesT = TypeVar("ChangesT")
Source = str | RunDirectory | Table
"""A recipe by name, file or table, or a run."""

RECIPE = "agentflow-prompted"
"""The recipe of an agent if neither recipe nor run is named."""
LOCAL = "local"
"""The first part of the name of a model that is loaded into this process."""


class AgentChanges(TypedDict, total=False):
    """What a caller changes in a recipe's agent; None or a missing key keeps the recipe's own.

    `settings` are others of the recipe by their names (docs/recipes.md), such as `{"rollout.concurrency": 4}`, and
    `overrides` the same as texts `A.B=C`; they win over server, seed and lesson set. `seed` is the run seed. `budget`
    is the most that the run may use: "2 usd", "500 rollouts", "1000000 tokens", "3600 seconds", or several of them
    with commas between. `model` is a name on the server at `base_url`, or of `provider`. `serve_with` is a provider
    whose servers the run starts for itself. `tools` names exactly the tools to use, separated by commas, or is "none".
    `lessons` names the lessons in the prompts: a lesson run, one version of its lessons (`RUN@VERSION`), or a file.
    `strategy` runs the agent in several chains that verify and refine, and votes: "dser:K=8,T=4" (docs/evaluation.md).
    """

    settings: Mapping[str, object] | None
    overrides: Sequence[str]
    budget: str | None
    seed: int | None
    model: str | None
    base_url: str | None
    provider: str | None
    serve_with: str | None
    tools: str | None
    lessons: str | None
    strategy: str | None


class LearningChanges(AgentChanges, total=False):
    """What a caller changes in what a recipe learns from.

    `tasks` is a file of questions or `my_tasks.py:function`; it replaces the recipe's task source, also in the sets and
    the validation that are drawn from it. `reward` as in `EvaluationChanges`. `learner` is a type of learner: what
    samples from the trained weights and updates them, in place of this machine.
    """

    tasks: str | None
    reward: object
    learner: str | None


class EvaluationChanges(AgentChanges, total=False):
    """What a caller changes in what is evaluated.

    `benchmarks` (each `NAME` or `NAME=FILE`), `task_files` and `sets` (tables) replace the recipe's sets. `count` is
    the number of tasks of each set, drawn at random; `trials` the attempts at each task. `reward` scores the answers: a
    function, a type, `my_reward.py:function`, or a whole table; by default that which each task names, else the
    recipe's. `temperature` is that of the planner or policy.
    """

    benchmarks: Sequence[str]
    task_files: Sequence[str]
    sets: Sequence[Table]
    count: int | None
    trials: int | None
    reward: object
    temperature: float | None


def changes_in(kind: Callable[..., ChangesT], given: Mapping[str, object]) -> ChangesT:
    """The changes of one kind, such as `AgentChanges`, among arguments or options."""
    return kind(**{name: given[name] for name in kind.__annotations__ if given.get(name) is not None})


def changed_recipe(source: Source | Recipe, **changes: Unpack[LearningChanges]) -> Recipe:
    """A recipe, or that of a run, with `changes`; its settings [training] or [lessons] stay.

    A parsed one without changes is returned as it is: a run parses its recipe once.
    """
    return source if isinstance(source, Recipe) and not changes else _changed(source, changes)


def validation_recipe(place: EditableLessons, recipe: str | None, **changes: Unpack[LearningChanges]) -> Recipe:
    """The agent that a lesson set is tested for: that of `recipe`, or of the lesson set's own run."""
    source = recipe or place.run
    if source is None:
        # A file holds lessons, and no agent.
        raise UsageError(
            f"{place.path} names no agent that it should help",
            code="missing-option",
            fix=f"midstream lessons validate {place.path} --recipe RECIPE",
        )
    return changed_recipe(source, **changes)


def agent_recipe(source: Source, **changes: Unpack[AgentChanges]) -> Recipe:
    """The agent of a recipe or run, to answer questions: it learns nothing, and its servers stream their replies.

    Nothing is scored, so the recipe's reward and evaluation sets, which may need packages and judges, are left out.
    """
    recipe = _changed(source, changes, streams=True, last=lambda table: _frozen_agent(table, source))
    if is_dialogues(recipe.tasks):
        return recipe
    reward = parse_component("reward", {"type": "exact_match"}, "reward")
    evaluation = recipe.evaluation.model_copy(update={"sets": ()})
    return recipe.model_copy(update={"reward": reward, "evaluation": evaluation})


def evaluation_recipe(source: Source, **changes: Unpack[EvaluationChanges]) -> Recipe:
    """The agent of a recipe or run, with the sets and settings to evaluate it on.

    Sets other than the recipe's own are evaluated at the planner's own temperature where none is given.
    """

    def evaluated(table: Table) -> Table:
        _set_evaluation(table, changes)
        # A reward that the caller names goes before those of the questions.
        if changes.get("reward") is not None or any(name.startswith("reward") for name, _ in _settings(changes)):
            for chosen in table["evaluation"]["sets"]:
                chosen["reward"] = table["reward"]
        return _frozen_agent(table, source)

    recipe = _changed(source, changes, last=evaluated)
    evaluation = recipe.evaluation
    if _names_sets(changes) and "temperatures" not in evaluation.model_fields_set:
        module = recipe.modules[recipe.trained]
        sampling = None if module.config.asks == "never" else getattr(module.config, "sampling", None)
        # A program has no temperature: 0.
        usual: float | str = sampling.temperature if sampling else 0.0
        own = recipe.of_another_program and recipe.training is None
        evaluation = evaluation.model_copy(update={"temperatures": (OWN if own else usual,)})
    return recipe.model_copy(update={"evaluation": evaluation})


def _names_sets(changes: Mapping[str, object]) -> bool:
    return any(changes.get(key) for key in ("benchmarks", "task_files", "sets"))


def _settings(changes: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The settings by their names, of all three forms."""
    limits = parse_limits(budget) if (budget := changes.get("budget")) is not None else {}
    given = changes.get("settings") or {}
    return [
        *map(parse_override, changes.get("overrides", ())),
        *given.items(),
        *((f"budget.{name}", value) for name, value in limits.items()),
    ]


def _changed(
    source: Source | Recipe,
    changes: Mapping[str, Any],
    *,
    streams: bool = False,
    last: Callable[[Table], Table] = lambda table: table,
) -> Recipe:
    """The recipe of `source` with `changes` of any kind, and with `last` applied to its table.

    Settings come after what they win over, and before `tools`, which chooses among what they add.
    """
    if isinstance(source, RunDirectory):
        table = run_table(source)
        # Its limits were the run's own.
        table.pop("budget", None)
    elif isinstance(source, Recipe):
        table = source.table()
    else:
        table = read_table(source) if isinstance(source, str) else deepcopy(source)
    if (seed := changes.get("seed")) is not None:
        table["seed"] = seed
    for section, key in (("agent", "lessons"), ("evaluation", "strategy")):
        if (value := changes.get(key)) is not None:
            table = merge(table, {section: {key: value}})
    server = {key: value for key in ("base_url", "model", "provider") if (value := changes.get(key)) is not None}
    from_run = bool(server) and isinstance(source, RunDirectory) and has_weights(source)
    engine = set_server(table, server, planner_from_run=from_run) if server else ""
    for settings in table.get("engines", {}).values() if streams and isinstance(source, RunDirectory) else ():
        # A run's recipe holds every default, so nobody chose its `stream = false`.
        settings.pop("stream", None)
    if (tasks := changes.get("tasks")) is not None:
        table = with_tasks(table, _own_tasks(tasks))
    if (reward := changes.get("reward")) is not None:
        table["reward"] = _reward_table(table, reward)
    if _names_sets(changes) and table.get("evaluation", {}).get("temperatures") != [OWN]:
        # They are for the recipe's sets.
        table.get("evaluation", {}).pop("temperatures", None)
    if (provider := changes.get("serve_with")) is not None:
        set_served(table, provider)
    if (learner := changes.get("learner")) is not None:
        learner = located("learner", learner, "learner")
        table = cast("type[LearnerConfig]", config_class("learner", learner)).chosen(table, learner)
    table = with_settings(table, _settings(changes))
    for settings in table.get("engines", {}).values() if streams else ():
        if settings.get("type") == "openai_compatible":
            settings.setdefault("stream", True)
    known, names = table.get("tools", {}), changes.get("tools")
    if names is not None:
        table["tools"] = chosen_tools(known, names)
        if not table["tools"] and agent_type(table.get("agent")) == "agentflow":
            what, fix = "--tools none with an agent of type 'agentflow'", "use recipe direct: the model alone"
            raise UsageError(what, code="setting-conflict", fix=fix)
    recipe = parse_recipe(last(table))
    rewards = (recipe.reward, *(chosen.reward for chosen in recipe.evaluation.sets))
    asking = (*recipe.modules.values(), *recipe.tools.values(), *recipe.serve.models.values(), *filter(None, rewards))
    if engine and all(user.engine != engine for user in asking):
        # Another mistake, such as a misspelt engine, is reported as such.
        resolve(recipe)
        fix = f'choose a recipe that does, e.g. {RECIPE}, or give a module engine = "model"'
        raise UsageError(
            f"--{next(iter(server)).replace('_', '-')} does nothing with this recipe",
            code="option-without-effect",
            fix="leave it out: the whole agent comes from the run" if from_run else fix,
        )
    policy = recipe.engines.get(recipe.modules[recipe.trained].engine or "")
    if recipe.tools.keys() != known.keys() and policy is not None and policy.config.needs_world:
        raise UsageError(
            f"--tools {names!r} does not fit this planner, whose vocabulary has the tools {', '.join(known)}",
            code="setting-conflict",
            fix='leave out --tools, or choose a planner that reads the list of tools (type = "prompted")',
        )
    return recipe


def _frozen_agent(table: Table, source: Source) -> Table:
    """The table of an agent that learns nothing; the agent of a lesson run gets the lesson set of its run.

    It is without [lessons], and without what wraps tools in training alone.
    """
    wrappers = {}
    for tool, inner in table.pop("wrappers", {}).items():
        if isinstance(inner, Mapping):
            # The schema refuses a wrapper that is no table.
            kept = [name for name, each in inner.items() if not isinstance(each, Mapping) or each.get("everywhere")]
            inner = {name: inner[name] for name in kept}
        if inner:
            wrappers[tool] = inner
    if wrappers:
        table["wrappers"] = wrappers
    learned = table.pop("lessons", None) is not None
    if learned and isinstance(source, RunDirectory) and "lessons" not in table["agent"]:
        return merge(table, {"agent": {"lessons": str(source.root)}})
    return table


# --- tasks and rewards ------------------------------------------------------------------------------------------------


def _set_evaluation(table: Table, changes: EvaluationChanges) -> None:
    """Put sets, trials and temperature in [evaluation]."""
    settings = table.setdefault("evaluation", {})
    sets: list[Table] = []
    for name, sign, path in (text.partition("=") for text in changes.get("benchmarks", ())):
        file = {"file": os.path.abspath(path)} if sign else {}
        sets.append({"name": name, "tasks": {"type": "benchmark", "name": name, **file}})
    for path in changes.get("task_files", ()):
        tasks = _own_tasks(path)
        # The same file again keeps its name, which the check of the recipe refuses.
        taken = {"validation", *(other["name"].casefold() for other in sets if other["tasks"] != tasks)}
        # A set has the shortest part of its path that no other set has.
        names = (own.name_of(path),) if "path" not in tasks else (Path(path).stem, Path(path).name, path)
        sets.append({"name": next((name for name in names if name.casefold() not in taken), path), "tasks": tasks})
    sets += map(dict, changes.get("sets", ()))
    settings["sets"] = sets = sets or settings.get("sets", [])
    for chosen in sets:
        if (count := changes.get("count")) is not None:
            chosen.pop("per_family", None)
            chosen["count"] = count
    if (trials := changes.get("trials")) is not None:
        settings["trials"] = trials
    if (temperature := changes.get("temperature")) is not None:
        settings["temperatures"] = [temperature]


def with_tasks(table: Table, source: Table) -> Table:
    """The table with another task source; its sets and validation hold all tasks of their splits."""

    def drawn(chosen: Table) -> Table:
        sizes = () if "tasks" in chosen else ("families", "per_family", "count")
        return {key: value for key, value in chosen.items() if key not in sizes}

    evaluation = dict(table.get("evaluation", {}))
    evaluation["sets"] = [drawn(chosen) for chosen in evaluation.get("sets", ())]
    validation = drawn(evaluation.get("validation", {"name": "validation"}))
    if "tasks" not in validation:
        # A recipe may take it from "train", for want of another split of its tasks.
        validation["split"] = "validation"
    evaluation["validation"] = validation
    table = {**table, "tasks": source, "evaluation": evaluation}
    if isinstance(training := table.get("training"), Mapping):
        # They name families of the other tasks.
        table["training"] = {key: value for key, value in training.items() if key != "stages"}
    return table


def _own_tasks(named: str) -> Table:
    """The task source of a file of questions, or of a function that returns them."""
    is_function = own.is_reference(named) and not os.path.exists(named)
    return {"type": named} if is_function else {"type": "file", "path": os.path.abspath(named)}


def _reward_table(table: Table, reward: object) -> Table:
    """A table as it is; of a type the recipe's own, or one with defaults, and an engine if it asks a model."""
    if isinstance(reward, Mapping):
        return dict(reward)
    named = reward if isinstance(reward, str) else own.reference_of(reward)
    if (usual := table.get("reward", {})).get("type") == named:
        return usual
    if named not in registered("reward") or config_class("reward", named).asks == "never":
        return {"type": named}
    return {"type": named, "engine": "judge" if "judge" in table.get("engines", {}) else "model"}


# --- server -----------------------------------------------------------------------------------------------------------


def set_server(table: Table, server: Mapping[str, str], *, planner_from_run: bool = False) -> str:
    """Put `base_url`, `model` and `provider` in [engines.model]; returns the engine's name.

    If the planner is from a run, the other modules use this server instead of the run's. A model "local/NAME" is loaded
    into this process instead.
    """
    local = local_engine(server.get("model", ""))
    if local and len(server) > 1:
        other = next(key for key in server if key != "model").replace("_", "-")
        what = f"--model {server['model']} is loaded into this process, and --{other} names a server"
        raise UsageError(what, code="setting-conflict", fix=f"leave out --{other}, or name a model of the server")
    if "model" not in server and (planner_from_run or "provider" in server):
        raise UsageError("no model is named", code="missing-option", fix="add --model NAME")
    # The table need not be valid yet: overrides may add what it lacks.
    name, agent = "model", table.get("agent", {})
    if planner_from_run:
        trained, *others = modules_of(agent_type(agent))
        # An agent of your own is its one module.
        asked = agent.get(trained, agent).get("engine")
        name = "model" if "model" not in (asked, (table.get("training") or {}).get("weights")) else "frozen"
        for module in others:
            settings = agent[module] if agent[module].get("type") == "prompted" else {"type": "prompted"}
            agent[module] = {**settings, "engine": name}
    if local:
        return _set_local(table, local, "" if not planner_from_run else name)
    refuse_secrets(server)
    engines = table["engines"] = merge(table, {"engines": {name: {}}})["engines"]
    kept = engines[name]
    if "provider" in server:
        # It has its own address and key.
        kept = {key: value for key, value in kept.items() if key not in ("base_url", "api_key_env")}
    engines[name] = {"type": "openai_compatible", **kept, **server}
    return name


def local_engine(model: str) -> Table:
    """The table of an engine that loads "local/NAME" into this process; {} for any other model.

    NAME is a directory, a GGUF file, a short name (`midstream models`), or a name on the Hugging Face Hub.
    """
    place, slash, name = model.partition("/")
    if place != LOCAL or not slash:
        return {}
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if name and path.exists():
        name = str(path)
    elif name not in MODELS and (name.count("/") != 1 or name.startswith((".", "~")) or name.endswith(".gguf")):
        fix = f"{did_you_mean(name, MODELS)}name a directory, a .gguf file, OWNER/NAME on the Hugging Face Hub, or "
        fix += f"one that midstream models lists: {', '.join(MODELS)}"
        raise UsageError(f"there is no model {model!r} on this machine", code="unknown-name", fix=fix)
    return {"type": "transformers_local", "model": name}


def _set_local(table: Table, local: Table, name: str) -> str:
    """Give the modules that ask a server, or a model in this process, the local model; returns its engine's name.

    The trained policy's engine keeps its other settings. The engines of other modules become its `reference`: it has
    the same weights, and is not trained. `name`: the engine of the modules that are not from a run, if one is.
    """
    agent, engines, training = table.get("agent", {}), table.setdefault("engines", {}), table.get("training") or {}
    modules = [agent.get(module, agent) for module in modules_of(agent_type(agent))]
    if not name and "weights" in training:
        # The trained module asked a server of these weights.
        modules[0]["engine"] = training.pop("weights")
    kinds = ("openai_compatible", local["type"])
    asked = dict.fromkeys([name] if name else [module.get("engine") for module in modules])
    found = [engine for engine in asked if engine and engines.get(engine, {}).get("type", kinds[0]) in kinds]
    first, *others = found or ["model"]
    old, learner = engines.get(first, {}), table.get("learner", {})
    engines[first] = {**(old if old.get("type") == local["type"] else {}), **local}
    place, shape, cpu = Path(place_of(local["model"])), shape_of(local["model"]), Path("/proc/cpuinfo")
    # A GGUF file has about one byte a weight. A smaller model gains nothing.
    weights = shape.parameters if shape else place.stat().st_size if place.suffix == ".gguf" else 0
    narrow = not training or learner.get("lora")
    # Only a CPU that computes in bfloat16 is faster with it.
    faster = cpu.is_file() and re.search(r"\b(avx512_|amx_)?bf16\b", cpu.read_text())
    if narrow and engines[first].get("device", "cpu") == "cpu" and weights > 50_000_000 and faster:
        engines[first].setdefault("dtype", "bfloat16")
    engines.update({other: {"type": "reference", "engine": first} for other in others})
    return first


def set_served(table: Table, provider: str) -> None:
    """Have the run start a server of `provider` for each model that is asked on this machine, or at no named address.

    Engines without an address share one if they share a model; each further model gets the next port.
    """
    if provider not in SERVED:
        raise UsageError(
            f"--serve-with {provider!r} is no server that midstream starts",
            code="unknown-name",
            fix=f"{did_you_mean(provider, SERVED)}name one of: {', '.join(SERVED)}",
        )
    known = urlsplit(PROVIDERS[provider].base_url)
    ports: dict[str, int] = {}  # of models
    for settings in table.get("engines", {}).values():
        url = settings.get("base_url")
        if settings.get("type") == "openai_compatible" and (url is None or urlsplit(url).hostname in LOOPBACK):
            settings.pop("api_key_env", None)
            settings |= {"provider": provider, "serve": settings.get("serve") or ""}
            if url is None:
                port = ports.setdefault(settings.get("model", ""), (known.port or 80) + len(ports))
                settings["base_url"] = f"http://{known.hostname}:{port}/v1"
    if not any("serve" in settings for settings in table.get("engines", {}).values()):
        raise UsageError(
            f"--serve-with {provider} starts nothing",
            code="option-without-effect",
            fix="name a model: --model NAME, or leave the option out",
        )


# --- tools ------------------------------------------------------------------------------------------------------------


def chosen_tools(known: Mapping[str, Table], names: str) -> dict[str, Table]:
    """The tables of exactly the tools in `names`, separated by commas.

    Tools of the recipe (`known`) keep their settings; `my_tools.py:word_count` names a function; "none" is no tool.
    """
    if names.strip() == "none":
        return {}
    wanted = list(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))
    types = registered("tool")
    nameable = list(dict.fromkeys([*known, *types]))
    unknown = [name for name in wanted if name not in nameable and ":" not in name]
    if unknown or not wanted:
        raise UsageError(
            f"there is no tool {unknown[0]!r}" if unknown else f"no tool is named: {names!r}",
            code="unknown-tool" if unknown else "empty-value",
            fix="".join(did_you_mean(name, nameable) for name in unknown)
            + f"name some of: {', '.join(nameable)}; or your own function: my_tools.py:word_count; "
            + IN_A_PACKAGE,
        )
    chosen: dict[str, Table] = {}
    for name in wanted:
        if ":" in name:
            called = name.rpartition(":")[2].rpartition(".")[2]
            tool = {"type": "function", "function": name}
        else:
            called, tool = name, known.get(name, {})
            kind = tool.get("type", name)
            if kind in types and config_class("tool", kind).asks == "always":
                tool = {"engine": "model", **tool}
        if called in chosen:
            raise UsageError(
                f"two of the tools in {names!r} would have one name",
                code="name-clash",
                fix="rename one of them, or name it in a recipe as [tools.ANOTHER_NAME]",
            )
        chosen[called] = tool
    return chosen
