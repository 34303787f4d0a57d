"""The lesson set in an agent's prompts (`agent.lessons` of a recipe): read it, render it, check the prompts.

All users of a lesson set render it by `lesson_set.render_modules`, so that its text is the same wherever the agent
runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.components.component import Table
from midstream.components.kinds import modules_of
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.stream_template import load_template
from midstream.core.task import task_keys
from midstream.core.text import PLACE
from midstream.core.texts import EXAMPLES, NO_LESSONS, PROMPT, TEXTS, TOOLS, Lessons, Text, kind_of
from midstream.core.tool import Tool
from midstream.evaluation.leakage import learned_tasks
from midstream.lessons.lesson_set import identity, render_modules, split
from midstream.recipe.schema import AgentConfig, InterleavedConfig, OwnAgentConfig
from midstream.runs import RunDirectory


def pinned(named: str | Path) -> str:
    """The value of `agent.lessons` in a resolved recipe: the file, or the current version of a run's lesson set.

    The run may continue to learn, but work that began with one version of its lesson set resumes with this version.
    """
    path, number = split(named)
    if path.is_dir() and number is None:
        from midstream.lessons.access import history

        current = history(path).current()
        number = current.number if current else None
    return os.path.abspath(path) + (f"@{number}" if number is not None else "")


def lessons_of(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, named: str | Path | None) -> Lessons:
    """A set's lessons for prompts, by module. Raises `RecipeError` if a module does not show them."""
    if named is None:
        return NO_LESSONS
    # Runs without lessons need none of this.
    from midstream.lessons.access import read

    lessons, where = render_modules(read(named)), f"agent.lessons = {str(named)!r}"
    check_shown(agent, lessons, where)
    for place, text in lessons.items():
        own = instructions_of(agent, place.removesuffix(PROMPT)) if place.endswith(PROMPT) else text
        if sorted(PLACE.findall(own)) != sorted(PLACE.findall(text)):
            raise RecipeError(
                f"{where} has instructions for {place} with the places {', '.join(PLACE.findall(text)) or 'none'}, and "
                f"this agent's have {', '.join(PLACE.findall(own)) or 'none'}",
                code="prompt-invalid",
                fix="take them out (midstream lessons edit), or use the agent that they were learned for",
            )
    return lessons


def one_texts(
    agent: AgentConfig | InterleavedConfig | OwnAgentConfig, tools: Sequence[Tool], places: Iterable[str], where: str
) -> dict[str, str]:
    """The texts that an agent has without learning, of all places with one text; of `places` those must be there.

    Raises `RecipeError` for one that this agent lacks.
    """
    known = {name + PROMPT: instructions_of(agent, name) for name in modules_of(agent.type)}
    known |= {TOOLS + tool.name: tool.description for tool in tools}
    known |= {TEXTS + marked.name: marked.default for marked in Text.marked.values()}
    known = {place: text for place, text in known.items() if text}
    for place in places:
        if kind_of(place) == "text" and place not in known:
            raise RecipeError(
                f"{where} names {place!r}, which this agent does not have",
                code="unknown-name",
                fix=f"{did_you_mean(place, known)}name one of: {', '.join(known) or 'none'}; ms.text marks one",
            )
    return known


def unproven(named: str | Path, resolved: Table, weights: str = "") -> str:
    """Return a warning if no test has accepted the lessons for exactly this agent; "" if one has.

    `named` is the set as `read` takes it, `resolved` the agent's recipe with every default, `weights` the digest of
    the checkpoint that the planner samples from, "" for the recipe's own.
    """
    from midstream.lessons.access import read

    lesson_set, agent = read(named), identity(resolved, weights)
    if not lesson_set.rendered or lesson_set.proven_for == agent:
        return ""
    other = f", only for {lesson_set.proven_for}" if lesson_set.proven_for else ""
    fix = f"midstream lessons validate {shlex.quote(str(split(named)[0]))}" + (" --recipe RECIPE" if other else "")
    return f"lesson set {named} is unproven for this agent, {agent}{other}: {fix}"


def shows_lessons(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, module: str) -> bool:
    """Whether the prompt of an agent's module has a place for lessons."""
    config = getattr(agent, module).config
    if isinstance(agent, InterleavedConfig):
        return config.asks != "never" and load_template(agent.template).shows_lessons
    # An agent's modules use no context.
    return getattr(config.build(None), "shows_lessons", False)


def instructions_of(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, module: str) -> str:
    """The instructions in a module's prompt, as the recipe has them; "" for a program."""
    config = getattr(agent, module).config
    if isinstance(agent, InterleavedConfig):
        return load_template(agent.template).instructions if config.asks != "never" else ""
    return getattr(config.build(None), "instructions", "")


def check_shown(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, modules: Iterable[str], where: str) -> None:
    """Check that prompts show the texts of these places; otherwise the agent would run without them.

    Raises `RecipeError` if a place's module does not exist, is a program, or has a prompt file without `{{lessons}}`.
    """
    own = modules_of(agent.type)
    places = [name + part for name in own for part in ("", PROMPT, EXAMPLES)]
    for place in modules:
        if place.startswith((TOOLS, TEXTS)):
            continue
        name = place.removesuffix(PROMPT).removesuffix(EXAMPLES)
        if name not in own:
            raise RecipeError(
                f"{where} has lessons for {place!r}, which is not a module of this agent",
                code="unknown-module",
                fix=f"{did_you_mean(name, own)}name one of: {', '.join(places)}, {TOOLS}NAME, {TEXTS}NAME",
            )
        if instructions_of(agent, name) if place.endswith(PROMPT) else shows_lessons(agent, name):
            continue
        table = getattr(agent, name).table()
        raise RecipeError(
            f"{where} has lessons for {place}, which shows none",
            code="lessons-not-shown",
            fix=f"put {{{{lessons}}}} before {{{{tools}}}} or {{{{query}}}} in {table['prompt_file']}"
            if "prompt_file" in table
            else f"choose a type or template that has one, or take the {name}'s lessons out",
        )


def learned_keys(resolved: Mapping[str, Any], run: RunDirectory | None) -> dict[str, str]:
    """The keys of all tasks that an agent learned from (`core.task.task_keys`), each with where and how.

    `resolved` is its recipe, `run` the run whose weights it has. Lessons, a model or lessons to begin with may be
    from other runs, which are followed. Of a lesson set in a file, the evidence of its lessons is known.
    """
    found: dict[str, str] = {}
    seen: set[Path] = set()

    def learned_by(root: Path) -> None:
        if root.resolve() in seen:
            return
        seen.add(root.resolve())
        origin = RunDirectory.open(root, report=lambda text: None)
        for key, purpose in learned_tasks(origin).items():
            found.setdefault(key, f"{purpose} of {root}")
        named_in(origin.info().resolved)

    def named_in(table: Mapping[str, Any]) -> None:
        sets = [table.get("agent", {}).get("lessons"), (table.get("lessons") or {}).get("start")]
        named = ("model", "weights")
        models = [engine.get(key) for engine in table.get("engines", {}).values() for key in named]
        for text in filter(None, (*sets, *models)):
            path, _ = split(str(text))
            places = (path, *path.absolute().parents) if path.exists() else ()
            if owner := next((place for place in places if (place / "run.json").exists()), None):
                learned_by(owner)
            elif path.is_file() and text in sets:
                from midstream.lessons.access import read

                for lesson in read(path).lessons:
                    for key in (key for task in lesson.origin.tasks for key in task_keys(task)):
                        found.setdefault(key, f"lesson {lesson.id} of {path}")

    if run is not None:
        learned_by(run.root)
    named_in(resolved)
    return found
