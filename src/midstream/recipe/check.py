"""The check of a whole recipe: every component by its own settings, and what they ask of one another.

It runs before anything is made. What only the objects can tell, `recipe/build.py` and `recipe/trainable.py` refuse.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.parts import table_of, weight_of
from midstream.core.stream_template import load_template
from midstream.evaluation import SetConfig
from midstream.practice.library import render_modules
from midstream.practice.settings import PracticeConfig
from midstream.recipe.library import check_shown, lessons_of, pinned, read
from midstream.recipe.registry import (
    ENGINES,
    IN_PROCESS,
    OF_A_STREAM,
    OF_DIALOGUES,
    PLAYED,
    REWARDS,
    ROOMS,
    RULES,
    TASKS,
    TOOLS,
    Component,
    draw,
    no_engine,
    no_world,
    resolve,
    set_reward,
    task_source,
)
from midstream.recipe.schema import InterleavedConfig, Recipe, Table
from midstream.worlds.gazetteer.scripted import scripted_marks


def check(recipe: Recipe) -> dict[str, Any]:
    """Validate every component and evaluation set; returns the recipe with all defaults filled in."""
    resolved = recipe.model_dump(mode="json", exclude_none=True, exclude={"study"})  # no part of a run
    resolved["tasks"] = _fill_tasks(recipe, recipe.tasks, "tasks")
    resolved["reward"] = _fill_reward(recipe, recipe.reward, "reward")
    evaluation = resolved["evaluation"]
    evaluation["validation"] = _fill_set(recipe, recipe.evaluation.validation, "evaluation.validation")
    evaluation["sets"] = [
        _fill_set(recipe, chosen, f"evaluation.sets.{place}") for place, chosen in enumerate(recipe.evaluation.sets)
    ]
    resolved["tools"] = {
        name: _fill(recipe, TOOLS, {"type": name, **table}, f"tools.{name}") for name, table in recipe.tools.items()
    }
    resolved["engines"] = {
        name: _fill(recipe, ENGINES, table, f"engines.{name}") for name, table in recipe.engines.items()
    }
    for module, table in recipe.modules.items():
        resolved["agent"][module] = _fill(recipe, ROOMS[module], table, f"agent.{module}")
    _check_agent(recipe)
    _check_rewards_fit(recipe)
    if recipe.agent.library is not None:
        resolved["agent"]["library"] = _checked_library(recipe, recipe.agent.library)
    if recipe.training:
        _check_training(recipe, resolved)
    if recipe.practice:
        _check_practice(recipe, recipe.practice, resolved)
    _fill_teacher(recipe, resolved)
    _check_imitated(recipe)
    _check_simulated(recipe)
    _check_world(recipe)
    _check_sets(recipe)
    return resolved


# -- components with their defaults ------------------------------------------------------------------------------------


def _fill(recipe: Recipe, room: Mapping[str, Component], table: Table, where: str) -> Table:
    component, config = resolve(room, table, where)
    engine = table.get("engine")
    asked = component.asks or (component.may_ask and engine is not None)
    if asked and (not isinstance(engine, str) or engine not in recipe.engines):
        raise no_engine(recipe, f"{where}.engine = {engine!r}")
    kept = {key: table[key] for key in ("type", "engine") if key in table}
    return {**kept, **config.model_dump(mode="json", exclude_none=True)}


def _fill_tasks(recipe: Recipe, table: Table, where: str) -> Table:
    task_source(table, where)  # a benchmark that does not exist is found here, before any work
    filled = _fill(recipe, TASKS, table, where)
    if "engine" in filled:
        _check_served(recipe, filled, where, "one whose user speaks")
    for name, part in filled.get("parts", {}).items():  # of a mixture
        inner = _fill_tasks(recipe, table_of(part), f"{where}.parts.{name}")
        if resolve(TASKS, table_of(part), where)[0].dialogues:
            raise RecipeError(
                f"{where}.parts.{name}.type = {inner['type']!r} cannot be mixed with others",
                cause="its tasks are dialogues, which their own source opens",
                fix="train on one source of dialogues",
            )
        filled["parts"][name] = {**inner, "weight": weight_of(part)}
    return filled


def _fill_reward(recipe: Recipe, table: Table, where: str) -> Table:
    filled = _fill(recipe, REWARDS, table, where)
    if filled["type"] == "judge":
        _check_judge(recipe, filled, where)
    if filled["type"] in OF_A_STREAM:
        _check_stream_reward(recipe, filled, where)
    if filled["type"] == "composite":
        for name, part in table["parts"].items():
            inner = _fill_reward(recipe, table_of(part), f"{where}.parts.{name}")
            filled["parts"][name] = {"weight": weight_of(part), **inner}
    return filled


def teacher_table(recipe: Recipe) -> Table | None:
    """The table of the module that is imitated where the recipe names no other; None if the tasks bring no teacher."""
    teacher = getattr(resolve(TASKS, recipe.tasks, "tasks")[1], "teacher", None)
    if teacher is None:
        return None
    return {**(recipe.warm_start.policy if recipe.warm_start else {}), "type": teacher}


def _fill_teacher(recipe: Recipe, resolved: Table) -> None:
    """The teacher's settings with their defaults, in the place where the recipe has them."""
    table = teacher_table(recipe)
    if recipe.warm_start and recipe.warm_start.file is None and table is not None:
        _, config = resolve(ROOMS[recipe.trained], table, "warm_start.policy")
        resolved["warm_start"]["policy"] = config.model_dump(mode="json", exclude_none=True)


def _fill_set(recipe: Recipe, chosen: SetConfig, where: str) -> Table:
    filled = chosen.model_dump(mode="json", exclude_none=True)
    if chosen.tasks is not None:
        filled["tasks"] = _fill_tasks(recipe, chosen.tasks, f"{where}.tasks")
    if chosen.tasks is not None or chosen.reward is not None:
        filled["reward"] = _fill_reward(recipe, set_reward(recipe, chosen), f"{where}.reward")
    return {key: filled[key] for key in SetConfig.model_fields if key in filled}  # as it will be read back


# -- what components ask of one another --------------------------------------------------------------------------------


def _check_agent(recipe: Recipe) -> None:
    agent = recipe.agent
    if isinstance(agent, InterleavedConfig):
        _check_stream(recipe, agent)
        return
    if agent.memory_update == "on_continue" and agent.generator["type"] == "verified_result":
        raise RecipeError(
            'agent.memory_update = "on_continue" with agent.generator.type = "verified_result" never answers',
            cause="the result that satisfies the verifier is then not in memory",
            fix='set memory_update = "every_turn"',
        )
    fix = 'set agent.type = "interleaved"'
    _refuse_dialogues(recipe, "an agent of type 'agentflow'", "AgentFlow answers questions", fix)


def _refuse_dialogues(recipe: Recipe, agent: str, cause: str, fix: str) -> None:
    sets = {f"evaluation.sets.{place}": one for place, one in enumerate(recipe.evaluation.sets)}
    sets["evaluation.validation"] = recipe.evaluation.validation
    sources = {"tasks": recipe.tasks} | {f"{where}.tasks": one.tasks for where, one in sets.items() if one.tasks}
    for where, table in sources.items():
        if resolve(TASKS, table, where)[0].dialogues:
            raise RecipeError(
                f"{where}.type = {table['type']!r} with {agent}",
                cause=f"its tasks are dialogues, with a user and functions of their own; {cause}",
                fix=fix,
            )


def _check_stream(recipe: Recipe, agent: InterleavedConfig) -> None:
    """The template suits its policy, and its tools are there: a call of one that is not could never be answered."""
    template = load_template(agent.template)
    if template.chat and recipe.engines.get(agent.policy.get("engine", ""), {}).get("type") == "tiny":
        raise RecipeError(
            f"agent.template = {agent.template!r} with a policy of engine type 'tiny'",
            cause="it writes chats in English, and a tiny policy reads the few words of its own world",
            fix='set agent.template = "tiny", or name a model',
        )
    if recipe.warm_start and recipe.warm_start.lessons:
        raise RecipeError(
            f"warm_start.lessons = {recipe.warm_start.lessons:g} with an interleaved agent",
            cause="the scripted policy reads none",
            fix="leave it out",
        )
    if template.appends == "inline":
        fix = 'choose one with appends = "message", such as artist-function-calling or native'
        _refuse_dialogues(recipe, f"agent.template = {agent.template!r}", "it writes one reply to one question", fix)
    for mark in dict.fromkeys([*filter(None, [template.tool]), *agent.tools]):
        tool = agent.tools.get(mark, mark)
        if tool not in recipe.tools and not any(table.get("type") == "mcp" for table in recipe.tools.values()):
            raise RecipeError(
                f"agent.template = {agent.template!r} calls the tool {tool!r}, which the recipe does not have",
                cause=f"the recipe's tools are {', '.join(recipe.tools) or 'none'}",
                fix=f'add [tools.{tool}], or say which tool is meant: agent.tools = {{ {mark} = "NAME" }}',
            )


def _checked_library(recipe: Recipe, named: Path) -> str:
    """The library's place, with the version that it has now."""
    if recipe.practice is not None:
        raise RecipeError(
            f"agent.library = {str(named)!r} with [practice]",
            cause="a recipe that practises has the library that it learns in its prompts, and no other",
            fix="set practice.start to begin with that library, and remove agent.library",
        )
    place = pinned(named)
    _check_heeds(recipe, lessons_of(recipe.agent, place), f"agent.library = {place!r}")
    return place


def _check_heeds(recipe: Recipe, modules: Container[str], where: str) -> None:
    """A tiny planner reads the lessons that its warm start taught it, and no others."""
    engine = recipe.engines.get(recipe.modules[recipe.trained].get("engine", ""), {})
    taught = recipe.warm_start is not None and recipe.warm_start.lessons > 0
    if recipe.trained in modules and engine.get("type") == "tiny" and not taught:
        raise RecipeError(
            f"{where} has lessons for a tiny planner, which cannot read them",
            cause="warm_start.lessons = 0: its vocabulary has none of their words",
            fix="set warm_start.lessons, as recipes/flow-grpo-tiny-lessons.toml does",
        )


def _check_practice(recipe: Recipe, config: PracticeConfig, resolved: Table) -> None:
    if recipe.training is not None:
        raise RecipeError(
            "the recipe has both [training] and [practice]",
            cause="a run changes the planner's weights or its lessons, so that it is known what helped",
            fix="remove one of them; weights are trained with lessons in the prompts by agent.library",
        )
    for role in ("reflector", "summariser", "critic", "merger"):
        named = getattr(config, role)
        if named is not None and named.engine not in recipe.engines:
            raise no_engine(recipe, f"practice.{role}.engine = {named.engine!r}")
        if named is not None and recipe.engines[named.engine].get("type") in IN_PROCESS:
            raise RecipeError(
                f"practice.{role}.engine = {named.engine!r} samples in process",
                cause="it answers one request a trajectory, in step with rollouts, and the reflector is no rollout",
                fix="give the role an engine of type openai_compatible",
            )
    check_shown(recipe.agent, config.modules, "practice.modules")
    _check_heeds(recipe, config.modules, "practice.modules")
    if config.group_size < 2 and config.skip_uniform and config.lessons_from == "rollouts":
        raise RecipeError(
            f"practice.group_size = {config.group_size} never teaches anything",
            cause="a group of one has no contrast, and groups without contrast are skipped",
            fix="set group_size to 2 or more, or skip_uniform = false",
        )
    if config.budget.cost_usd is not None and not any(map(_has_price, resolved["engines"].values())):
        raise RecipeError(
            f"practice.budget.cost_usd = {config.budget.cost_usd:g} limits nothing",
            cause="no engine has a price, so that all that is asked costs 0 dollars",
            fix="set price_prompt_usd and price_completion_usd under [engines.NAME], or limit tokens instead",
        )
    inside = [name for name, table in recipe.engines.items() if table.get("type") in IN_PROCESS]
    if config.cache is not None and inside:
        raise RecipeError(
            f"practice.cache with engine {inside[0]!r}, which samples in process",
            cause="it samples in batches, so that what a run gets from the cache would change the rest of a batch",
            fix="leave out `cache`: an engine in process costs nothing but time",
        )
    if config.start is not None:
        place = pinned(config.start)
        check_shown(recipe.agent, render_modules(read(place)), f"practice.start = {place!r}")
        resolved["practice"]["start"] = place


def _has_price(engine: Table) -> bool:
    return bool(engine.get("price_prompt_usd") or engine.get("price_completion_usd"))


def _check_training(recipe: Recipe, resolved: Table) -> None:
    training = recipe.training
    assert training is not None
    if training.weights not in (None, *recipe.engines):
        raise no_engine(recipe, f"training.weights = {training.weights!r}")
    if training.supervised.planner is not None:
        room = ROOMS[recipe.trained]
        table = _fill(recipe, room, training.supervised.planner, "training.supervised.planner")
        resolved["training"]["supervised"]["planner"] = table
    _check_others_frozen(recipe, {recipe.modules[recipe.trained].get("engine"), training.weights} - {None})
    _check_width(recipe, resolved)


def _check_width(recipe: Recipe, resolved: Table) -> None:
    """All weights are trained in float32: a small step on a 16-bit weight is rounded to none."""
    assert recipe.training is not None
    name = recipe.training.weights or recipe.modules[recipe.trained].get("engine")
    dtype = resolved["engines"].get(name, {}).get("dtype", "float32")
    if dtype != "float32" and recipe.learner.lora is None:
        raise RecipeError(
            f"engines.{name}.dtype = {dtype!r} cannot be trained in all its weights",
            cause="AdamW steps by about the learning rate, less than the distance of two such numbers: most is lost",
            fix='set dtype = "float32", or add [learner.lora], whose adapter is float32',
        )


def _imitated(recipe: Recipe) -> dict[str, str]:
    """The types of those whose transcripts are learnt, by the setting that says so."""
    imitated = {"warm_start": "clumsy"} if recipe.warm_start and recipe.warm_start.file is None else {}
    if recipe.training and recipe.training.algorithm == "supervised":
        imitated["training.supervised.planner"] = (recipe.training.supervised.planner or {"type": "clumsy"})["type"]
    return imitated


def _check_imitated(recipe: Recipe) -> None:
    """Transcripts are learnt with their prompts: whoever made them must be asked as the planner that learns is."""
    learns = recipe.modules[recipe.trained]["type"]
    if not ROOMS[recipe.trained][learns].asks:
        return  # a program; `recipe/trainable.py` refuses to train it
    imitated = _imitated(recipe)
    if isinstance(recipe.agent, InterleavedConfig) and "clumsy" in imitated.values():
        scripted_marks(load_template(recipe.agent.template))  # refuses a template that it cannot write
    for where, teacher in imitated.items():
        asked_as = {"planner": "compact", "policy": "model"}[recipe.trained] if teacher == "clumsy" else teacher
        if learns != asked_as:
            raise RecipeError(
                f"{where} would teach agent.{recipe.trained}, of type {learns!r}, from transcripts of type {teacher!r}",
                cause="their prompts are not the ones that it will be given",
                fix=f"set training.supervised.planner to a table of type {learns!r}"
                if learns != "compact"
                else 'choose a planner of type "clumsy" or "compact"',
            )


def _check_simulated(recipe: Recipe) -> None:
    """A simulated engine knows the tasks of one world."""
    tasks = recipe.tasks.get("type")
    known = "; ".join(f"{' or '.join(roles)} with tasks.type = {world!r}" for world, roles in PLAYED.items())
    for name, table in recipe.engines.items():
        if table.get("type") == "simulated" and table.get("plays") not in PLAYED.get(str(tasks), {}):
            raise RecipeError(
                f"engines.{name}.plays = {table['plays']!r} with tasks.type = {tasks!r}",
                cause="a simulated model is a program that knows one world's tasks",
                fix=f"it plays: {known}",
            )
        if table.get("type") == "simulated" and table.get("skill", 1) != 1 and tasks != "desks":
            raise RecipeError(
                f"engines.{name}.skill = {table['skill']!r} with tasks.type = {tasks!r}",
                cause="only the agent at the desks has one; elsewhere the tasks' settings say how well it goes",
                fix="take `skill` out",
            )


def _check_world(recipe: Recipe) -> None:
    """What is made from the offline world's facts or names needs that world."""
    searches = [table for name, table in recipe.tools.items() if table.get("type", name) == "local_search"]
    tiny = any(table.get("type") == "tiny" for table in recipe.engines.values())
    needed = tiny or "clumsy" in _imitated(recipe).values() or any("index" not in table for table in searches)
    if needed and recipe.tasks.get("type") != "gazetteer":
        raise no_world(recipe)


def _check_others_frozen(recipe: Recipe, trained: set[Any]) -> None:
    """Only the planner's weights may change: nothing else may ask an engine that training changes."""
    tables = {f"agent.{name}": table for name, table in recipe.modules.items() if name != recipe.trained}
    # A tool that asks an engine in process is refused anyway, by `Build.tool_engine`.
    served = {name for name, table in recipe.engines.items() if table.get("type") not in IN_PROCESS}
    tables |= {f"tools.{name}": table for name, table in recipe.tools.items() if table.get("engine") in served}
    sets = [("reward", recipe.reward), ("evaluation.validation.reward", recipe.evaluation.validation.reward)]
    sets += [(f"evaluation.sets.{place}.reward", one.reward) for place, one in enumerate(recipe.evaluation.sets)]
    for where, table in sets:
        tables |= _all_parts(table, where) if table else {}
    for where, table in tables.items():
        if table.get("engine") in trained:
            raise RecipeError(
                f"{where}.engine = {table['engine']!r} would be trained together with the planner",
                cause="it samples from the planner's weights, and only the planner may change",
                fix="give it an [engines.NAME] table of its own (the same server and model will do)",
            )


def _all_parts(table: Table, where: str) -> dict[str, Table]:
    """A reward's table and those of its parts, by where they stand."""
    found = {where: table}
    for name, part in table["parts"].items() if table.get("type") == "composite" else ():
        found |= _all_parts(part, f"{where}.parts.{name}")
    return found


def _check_rewards_fit(recipe: Recipe) -> None:
    """Dialogues are judged by what came of them, questions by their answers."""
    scored = [("reward", recipe.reward, recipe.tasks)]
    sets = {f"evaluation.sets.{place}": one for place, one in enumerate(recipe.evaluation.sets)}
    sets["evaluation.validation"] = recipe.evaluation.validation
    scored += [(f"{name}.reward", set_reward(recipe, one), one.tasks or recipe.tasks) for name, one in sets.items()]
    for where, reward, tasks in scored:
        dialogues = resolve(TASKS, tasks, "tasks")[0].dialogues
        for place, table in _all_parts(reward, where).items():
            named = table["type"]
            if named in OF_DIALOGUES and not dialogues:
                cause, fix = "it judges what came of a dialogue", "one that judges answers, such as exact_match"
            elif dialogues and named not in OF_DIALOGUES and named in (*RULES, *OF_A_STREAM):
                cause, fix = "they are dialogues, and have no answer that is right", " or ".join(OF_DIALOGUES)
            else:
                continue
            raise RecipeError(
                f"{place}.type = {named!r} with tasks of type {tasks['type']!r}", cause=cause, fix=f"choose {fix}"
            )


def _check_sets(recipe: Recipe) -> None:
    """Draw every evaluation set of an endless source once: one that cannot be made is found before any work."""
    validated = recipe.training or (recipe.practice and recipe.practice.gate.enabled)
    for chosen in (*recipe.evaluation.sets, *((recipe.evaluation.validation,) if validated else ())):
        table = chosen.tasks or recipe.tasks
        if resolve(TASKS, table, "tasks")[0].endless:
            draw(task_source(table), chosen)


def _check_stream_reward(recipe: Recipe, table: Table, where: str) -> None:
    if not isinstance(recipe.agent, InterleavedConfig):
        raise RecipeError(
            f"{where}.type = {table['type']!r} with an agent of type {recipe.agent.type!r}",
            cause="it scores the form of a stream, and only an interleaved agent writes one",
            fix='set agent.type = "interleaved", or choose another reward',
        )
    if table.get("answer", RULES[0]) not in RULES:
        raise RecipeError(
            f"{where}.answer = {table['answer']!r} is no rule-based reward",
            cause="it is misspelt, or it asks a model",
            fix=f"name one of: {', '.join(RULES)}",
        )


def _check_served(recipe: Recipe, table: Table, where: str, waiting: str) -> None:
    """What is asked while a trajectory is on, and not by its agent's modules, is asked of a server."""
    engine = table["engine"]
    if recipe.engines[engine].get("type") in IN_PROCESS:
        raise RecipeError(
            f"{where}.engine = {engine!r} samples in process",
            cause=f"it answers only when every live trajectory waits for it, and {waiting} does not",
            fix="name an engine of type openai_compatible there",
        )


def _check_judge(recipe: Recipe, table: Table, where: str) -> None:
    """A judge asks a server, and what is reported beside its verdict is no model's."""
    _check_served(recipe, table, where, "one that is judged")
    if table["rule"] not in ("", "per_task", *RULES):
        raise RecipeError(
            f"{where}.rule = {table['rule']!r} is no rule-based reward",
            cause="it is misspelt, or it asks a model",
            fix=f'name one of: per_task, {", ".join(RULES)}; or "" for none',
        )
