"""Resolve a whole recipe: check that its components fit each other, and write every default. Nothing is built.

Parsing (`schema.py`) has validated each component's settings, and a component checks how it fits its recipe
(`ComponentConfig.check_recipe`); here is what concerns several. `build.py` and `sessions.py` check what only built
objects show.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from midstream.components.component import Component, EngineConfig, RewardConfig, Table, TasksConfig
from midstream.components.kinds import config_class, registered
from midstream.components.tables import parse_component
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.source import TaskSource
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.evaluation.settings import SetConfig
from midstream.lessons.settings import ROLES
from midstream.recipe.lessons import check_shown, lessons_of, pinned
from midstream.recipe.schema import InterleavedConfig, OwnAgentConfig, Recipe


def resolve(recipe: Recipe) -> Table:
    """Return the resolved recipe: its table with every default, and lessons with their current version.

    Raises `RecipeError` if its components do not fit each other.
    """
    _check_engines(recipe)
    _check_dialogues(recipe)
    _check_template(recipe)
    for where, component in _components(recipe):
        component.config.check_recipe(where, recipe)
    _check_imitated(recipe)
    if recipe.training is not None:
        _check_trained_engine(recipe, recipe.training.weights)
        recipe.learner.check_recipe("learner", recipe)
    if recipe.lessons is not None and recipe.training is not None and recipe.learner.elsewhere:
        raise RecipeError(
            f"both [training] and [lessons] with learner.type = {recipe.learner.type!r}, which trains elsewhere",
            code="setting-conflict",
            fix='set learn = ["weights"] or ["lessons"]: both are learned by turns on this machine only',
        )
    if (
        recipe.lessons is not None
        and recipe.training is not None
        and recipe.budget
        and recipe.budget.updates is not None
    ):
        raise RecipeError(
            f"budget.updates = {recipe.budget.updates} with both [training] and [lessons], which take turns",
            code="setting-conflict",
            fix="set lessons.epochs instead",
        )
    if recipe.lessons is not None and recipe.agent.lessons is not None:
        raise RecipeError(
            f"agent.lessons = {str(recipe.agent.lessons)!r} with [lessons], which shows the lesson set that it learns",
            code="setting-conflict",
            fix="set lessons.start to begin with that lesson set, and remove agent.lessons",
        )
    if recipe.lessons is not None:
        check_shown(recipe.agent, recipe.lessons.modules, "lessons.modules")
    # What is made from a world's facts or names needs tasks of a world.
    tasks = tasks_config(recipe.tasks)
    searched = [f"tools.{name}" for name, tool in recipe.tools.items() if tool.config.needs_world]
    learned = [f"engines.{name}" for name, engine in recipe.engines.items() if engine.config.needs_world]
    learned += [where for where, module in _imitated(recipe).items() if module is None or module.config.needs_world]
    if needed := (searched if not tasks.world else []) + (learned if not tasks.teacher else []):
        raise no_world(recipe, needed[0])
    return _with_defaults(recipe)


def _with_defaults(recipe: Recipe) -> Table:
    """The table with every default. Files that may change or be named relatively are pinned."""
    resolved = recipe.table()
    evaluation, agent = resolved["evaluation"], recipe.agent
    for chosen, table in zip(
        (*recipe.evaluation.sets, recipe.evaluation.validation),
        (*evaluation["sets"], evaluation["validation"]),
        strict=True,
    ):
        if chosen.tasks is not None:
            # A set with its own tasks has its own reward, which is written explicitly, at its place among the keys.
            whole = {**table, "reward": set_reward(recipe, chosen).table()}
            table.clear()
            table.update({key: whole[key] for key in SetConfig.model_fields if key in whole})
    imitated = teacher(recipe)
    if recipe.warm_start is not None and recipe.warm_start.file is None and imitated is not None:
        resolved["warm_start"]["policy"] = imitated.config.model_dump(mode="json", exclude_none=True)
    if agent.lessons is not None:
        resolved["agent"]["lessons"] = place = pinned(agent.lessons)
        # Raises if a module shows none.
        lessons_of(agent, place)
    lessons = recipe.lessons
    if lessons is not None and lessons.feedback is not None:
        from midstream.lessons.feedback import required

        required()
        # A run that is resumed elsewhere has the same file.
        resolved["lessons"]["feedback"] = os.path.abspath(lessons.feedback)
    if lessons is not None and lessons.start is not None:
        from midstream.lessons.access import read
        from midstream.lessons.lesson_set import render_modules

        resolved["lessons"]["start"] = place = pinned(lessons.start)
        check_shown(agent, render_modules(read(place)), f"lessons.start = {place!r}")
    return resolved


# -- task sets and rewards, which the build uses too -----------------------------------------------------------------


def set_reward(recipe: Recipe, chosen: SetConfig) -> Component:
    """The reward of an evaluation set: its own, or that which its tasks name, or the recipe's."""
    if chosen.reward is not None or chosen.tasks is None:
        return chosen.reward or recipe.reward
    if recipe.reward.type == "per_task":
        return recipe.reward
    # The recipe's reward may be for dialogues, and these tasks be questions, or the other way round.
    dialogues = is_dialogues(chosen.tasks)
    fits = not dialogues and not getattr(recipe.reward.config, "of_dialogues", False)
    parts = {"parts": {"otherwise": recipe.reward.table()}} if fits else {}
    return parse_component("reward", {"type": "per_task", **parts}, "reward")


def teacher(recipe: Recipe) -> Component | None:
    """What a warm start imitates: the world's teacher, with the settings of `warm_start.policy`.

    It is a module or, where the world has none for the trained module, an engine that answers in the model's place.
    """
    named = tasks_config(recipe.tasks).teacher
    settings = recipe.warm_start.policy if recipe.warm_start else {}
    kind = recipe.trained if named in registered(recipe.trained) else "engine"
    return parse_component(kind, {**settings, "type": named}, "warm_start.policy") if named else None


def draw(source: TaskSource, chosen: SetConfig) -> list[Task]:
    """Draw the tasks of an evaluation set."""
    return source.fixed(
        chosen.split, seed=chosen.seed, families=chosen.families, per_family=chosen.per_family, count=chosen.count
    )


def task_source(component: Component) -> TaskSource:
    """Build only a task source. Without an engine, a source that needs one can list its tasks but not run them."""
    context: Any = SimpleNamespace(name="tasks", engine=None, tasks=task_source)
    return component.config.build(context)


def no_engine(recipe: Recipe, what: str, name: str) -> RecipeError:
    """The error for a `name` that is not an engine's."""
    return RecipeError(
        f"{what} does not exist; the recipe's engines are: {', '.join(recipe.engines) or 'none'}",
        code="unknown-engine",
        fix=f"{did_you_mean(name, recipe.engines)}name one of them, or add its [engines.NAME] table",
    )


def in_process(recipe: Recipe, engine: str | None) -> bool:
    """Whether an engine of that name exists and samples in this process."""
    config = recipe.engines[engine].config if engine in recipe.engines else None
    return isinstance(config, EngineConfig) and config.in_process


# -- the components of a recipe, with their places -------------------------------------------------------------------


def _evaluation_sets(recipe: Recipe) -> dict[str, SetConfig]:
    sets = {f"evaluation.sets.{number}": chosen for number, chosen in enumerate(recipe.evaluation.sets)}
    return sets | {"evaluation.validation": recipe.evaluation.validation}


def with_parts(where: str, component: Component) -> Iterator[tuple[str, Component]]:
    """A component, and those that it is made of."""
    yield where, component
    for name, part in (getattr(component.config, "parts", None) or {}).items():
        yield from with_parts(f"{where}.parts.{name}", part)


def _task_components(recipe: Recipe) -> Iterator[tuple[str, Component]]:
    yield from with_parts("tasks", recipe.tasks)
    for where, chosen in _evaluation_sets(recipe).items():
        if chosen.tasks is not None:
            yield from with_parts(f"{where}.tasks", chosen.tasks)


def reward_components(recipe: Recipe) -> Iterator[tuple[str, Component, Component]]:
    """(place, reward, the tasks that it scores)."""
    for where, component in with_parts("reward", recipe.reward):
        yield where, component, recipe.tasks
    for where, chosen in _evaluation_sets(recipe).items():
        if chosen.reward is not None or chosen.tasks is not None:
            for place, component in with_parts(f"{where}.reward", set_reward(recipe, chosen)):
                yield place, component, chosen.tasks or recipe.tasks


def _components(recipe: Recipe) -> Iterator[tuple[str, Component]]:
    yield from _task_components(recipe)
    for where, component, _ in reward_components(recipe):
        yield where, component
    own = isinstance(recipe.agent, OwnAgentConfig)
    for name, component in recipe.modules.items():
        yield "agent" if own else f"agent.{name}", component
    for name, component in recipe.tools.items():
        yield f"tools.{name}", component
    yield from wrappers_of(recipe)
    if recipe.training is not None and recipe.training.supervised.planner is not None:
        yield "training.supervised.planner", recipe.training.supervised.planner
    if recipe.training is not None and recipe.training.branching is not None:
        yield "training.branching", recipe.training.branching
    if recipe.training is not None and recipe.training.asynchrony is not None:
        yield "training.asynchrony", recipe.training.asynchrony
    for name, component in recipe.engines.items():
        yield f"engines.{name}", component
    for place, component in enumerate(recipe.lessons.proposers if recipe.lessons else ()):
        yield f"lessons.proposers.{place}", component


def wrappers_of(recipe: Recipe) -> Iterator[tuple[str, Component]]:
    """The wrappers of tools with their places. Raises `RecipeError` for one of a tool that the recipe does not have."""
    tables = {"wrappers": recipe.wrappers}
    if recipe.warm_start is not None:
        tables["warm_start.wrappers"] = recipe.warm_start.wrappers
    tables |= {f"{where}.wrappers": chosen.wrappers for where, chosen in _evaluation_sets(recipe).items()}
    for where, wrappers in tables.items():
        for tool, components in wrappers.items():
            if tool not in recipe.tools:
                raise RecipeError(
                    f"{where}.{tool}: the recipe has no tool {tool!r}",
                    code="unknown-tool",
                    fix=f"{did_you_mean(tool, recipe.tools)}name one of: {', '.join(recipe.tools) or 'none'}",
                )
            for name, component in components.items():
                yield f"{where}.{tool}.{name}", component


def is_dialogues(tasks: Component) -> bool:
    """Whether the tasks of a source are dialogues."""
    return tasks_config(tasks).dialogues


def tasks_config(tasks: Component) -> TasksConfig:
    """The settings of a task source, whose class variables describe it."""
    assert isinstance(tasks.config, TasksConfig)
    return tasks.config


# -- whether components fit each other -------------------------------------------------------------------------------


def _check_engines(recipe: Recipe) -> None:
    """Every engine that is named exists, and can answer the requests that it will get."""
    for name, engine in recipe.engines.items():
        if engine.type == "reference" and (engine.engine == name or not in_process(recipe, engine.engine)):
            raise RecipeError(
                f"engines.{name}.engine = {engine.engine!r} has no reference policy",
                code="setting-conflict",
                fix="name another engine, whose weights midstream holds: of type tiny, tiny_text or transformers_local",
            )
    # An engine in process waits for modules of all live trajectories; requests from outside are never answered.
    outside = ("tasks", "reward", "tool", "role")
    named = [
        (f"{where}.engine", component.engine, component.kind)
        for where, component in _components(recipe)
        if component.kind != "engine" and (component.config.asks == "always" or component.engine is not None)
    ]
    named += [(f"serve.models.{name}.engine", model.engine, "agent") for name, model in recipe.serve.models.items()]
    if recipe.training is not None and recipe.training.weights is not None:
        named.append(("training.weights", recipe.training.weights, "agent"))
    for role in ("reflector", *ROLES) if recipe.lessons is not None else ():
        if (config := getattr(recipe.lessons, role)) is not None:
            named.append((f"lessons.{role}.engine", config.engine, "role"))
    for where, engine, kind in named:
        if engine is None or engine not in recipe.engines:
            raise no_engine(recipe, f"{where} = {engine!r}", str(engine))
        # A role of the reflector asks between rollouts, also where weights are trained.
        answers_at_once = recipe.continuous and (recipe.training is None or kind == "role")
        # A tool may ask the reference of trained weights, which stays as it is.
        frozen = kind == "tool" and recipe.engines[engine].type == "reference"
        if kind in outside and in_process(recipe, engine) and not answers_at_once and not frozen:
            other = f', or [engines.frozen] type = "reference", engine = "{engine}"' if kind == "tool" else ""
            raise RecipeError(
                f"{where} = {engine!r} samples in process: it answers only when every live trajectory waits for it",
                code="engine-in-process",
                fix=f"name an engine of type openai_compatible there{other}",
            )
    limit = recipe.budget.cost_usd if recipe.budget else None
    for name, component in recipe.engines.items() if limit is not None else ():
        config = component.config
        if isinstance(config, EngineConfig) and not config.priced:
            model = getattr(config, "model", component.type)
            raise RecipeError(
                f"budget.cost_usd = {limit:g} does not limit engines.{name}: {model!r} has no price",
                code="setting-conflict",
                fix=f"set engines.{name}.price_prompt_usd and price_completion_usd (dollars per million tokens; 0 for "
                "a model or function of your own), or limit tokens or rollouts instead",
            )


def _check_dialogues(recipe: Recipe) -> None:
    """Dialogues go to an agent that can hold them, and are scored by outcome; questions are scored by answer."""
    holds = recipe.holds_dialogues and recipe.evaluation.strategy is None
    for where, component in _task_components(recipe):
        if is_dialogues(component) and (not holds or ".parts." in where):
            raise RecipeError(
                f"{where}.type = {component.type!r} has dialogues as tasks: not in a mixture, and not with this agent",
                code="dialogues-not-supported",
                fix='set agent.type = "interleaved" and a template with appends = "message", such as native, or '
                "`dialogues = True` in the class of your own agent; without evaluation.strategy",
            )
    for where, reward, tasks in reward_components(recipe):
        config, dialogues, other = reward.config, is_dialogues(tasks), f"tasks of type {tasks.type!r}"
        assert isinstance(config, RewardConfig)
        if config.of_stream and not isinstance(recipe.agent, InterleavedConfig):
            other = f"an agent of type {recipe.agent.type!r}, which writes no stream"
            needed = 'set agent.type = "interleaved", or choose another reward'
        elif config.of_dialogues and not dialogues:
            needed = "choose one that compares answers, such as exact_match"
        elif dialogues and (config.rule_based or config.of_stream) and not config.of_dialogues:
            needed = "choose dialogue (of plugins/midstream-worlds), or one of your own"
        else:
            continue
        what = f"{where}.type = {reward.type!r} with {other}"
        raise RecipeError(what, code="reward-does-not-fit", fix=needed)


def _check_template(recipe: Recipe) -> None:
    """The tools that a stream's template calls are the recipe's."""
    agent = recipe.agent
    if not isinstance(agent, InterleavedConfig):
        return
    template = load_template(agent.template)
    # A call of a missing tool could never be answered.
    names = [component.alias or name for name, component in recipe.tools.items()]
    for mark in dict.fromkeys([*filter(None, [template.tool]), *agent.tools]):
        tool = agent.tools.get(mark, mark)
        if tool not in names and not recipe.tool_servers:
            raise RecipeError(
                f"agent.template = {agent.template!r} calls the tool {tool!r}, not one of {', '.join(names) or 'none'}",
                code="unknown-tool",
                fix=f'add [tools.{tool}], or name the one that is meant: agent.tools = {{ {mark} = "NAME" }}; '
                "the model alone is recipe direct",
            )


def _check_trained_engine(recipe: Recipe, weights: str | None) -> None:
    """The trained engine is the policy's only, and one that the learner can reach."""
    asked = recipe.modules[recipe.trained].engine
    # Only the policy's weights may change: nothing else may ask an engine that training changes.
    roles, modules = recipe.trained_modules, recipe.modules
    # Another program's roles are names by which it asks its one module.
    trained = (recipe.trained,) if recipe.of_another_program else roles
    if recipe.trained not in trained:
        raise RecipeError(
            f"training.roles leaves out {recipe.trained!r}, the first module that is trained",
            code="setting-conflict",
            fix=f"name {recipe.trained!r} too",
        )
    for role in trained:
        if role not in modules or modules[role].engine != asked:
            raise RecipeError(
                f"training.roles names {role!r}, which is no module of this agent that asks engine {asked!r}",
                code="setting-conflict",
                fix=f"name modules of {', '.join(modules)}, and give each engine = {asked!r}",
            )
    for name, model in recipe.serve.models.items():
        # A call whose name is no role would sample from the weights, and be left out.
        if recipe.training and recipe.training.roles and model.train != (name in roles):
            raise RecipeError(
                f"serve.models.{name}.train = {str(model.train).lower()} with training.roles = {[*roles]}",
                code="setting-conflict",
                fix="set train = true for the names in training.roles and for no other",
            )
    others = {f"agent.{name}": component for name, component in modules.items() if name not in trained}
    others |= {f"tools.{name}": component for name, component in recipe.tools.items()}
    others |= {where: component for where, component, _ in reward_components(recipe)}
    for where, component in others.items():
        if component.engine is not None and component.engine in (asked, weights):
            raise RecipeError(
                f"{where}.engine = {component.engine!r} would be trained together with the planner",
                code="setting-conflict",
                fix="give it an [engines.NAME] table of its own (the same server and model will do)",
            )
    name = recipe.trained_engine
    learner, engine = recipe.learner, recipe.engines.get(name or "")
    if engine is not None and getattr(engine.config, "service", "") != learner.service:
        raise RecipeError(
            f"learner.type = {learner.type!r} with the trained engine {name!r} of type {engine.type!r}",
            code="setting-conflict",
            fix="set both types to that of the server, as midstream train RECIPE --learner NAME does, or neither",
        )


def _imitated(recipe: Recipe) -> dict[str, Component | None]:
    """The modules whose transcripts are learned, by the setting that names them; None for tasks without a teacher."""
    imitated = {"warm_start": teacher(recipe)} if recipe.warm_start and recipe.warm_start.file is None else {}
    if recipe.training and recipe.training.algorithm == "supervised":
        imitated["training.supervised.planner"] = recipe.training.supervised.planner or teacher(recipe)
    return imitated


def _check_imitated(recipe: Recipe) -> None:
    """Transcripts are learned with their prompts, so these must be the prompts of the trained policy."""
    kind, learner, agent = recipe.trained, recipe.modules[recipe.trained], recipe.agent
    if learner.config.asks == "never":
        # A program; `sessions.py` refuses to train it.
        return
    for where, imitated in _imitated(recipe).items():
        if imitated is not None and isinstance(agent, InterleavedConfig):
            imitated.config.check_template(load_template(agent.template))
        if imitated is None or (imitated.config.teaches or imitated.type) != learner.type:
            shown = f"transcripts of type {imitated.type!r}" if imitated else "tasks that have no teacher"
            fit = [name for name in registered(kind) if (config_class(kind, name).teaches or name) == learner.type]
            raise RecipeError(
                f"{where} would teach agent.{kind}, of type {learner.type!r}, from {shown}: other prompts than its own",
                code="setting-conflict",
                fix=f"set training.supervised.planner to a table of type {' or '.join(fit)}",
            )


def no_world(recipe: Recipe, user: str) -> RecipeError:
    """The error for a component that is made from the facts or names of a world, with other tasks."""
    return RecipeError(
        f"{user} is made from the facts and names of a world, and tasks of type {recipe.tasks.type!r} have none",
        code="world-missing",
        fix="take the tasks of a world; give local_search an `index`; or leave it out, local_search = false in [tools]",
    )
