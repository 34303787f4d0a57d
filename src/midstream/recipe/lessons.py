"""The lesson set in an agent's prompts (`agent.lessons` of a recipe): read it, render it, check the prompts.

All users of a lesson set render it by `lesson_set.render_modules`, so that its text is the same wherever the agent
runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midstream.components.component import Table
from midstream.components.kinds import modules_of
from midstream.core.agent import NO_LESSONS, Lessons
from midstream.core.errors import RecipeError, UsageError, did_you_mean
from midstream.core.stream_template import load_template
from midstream.core.task import task_keys
from midstream.evaluation.leakage import learned_tasks
from midstream.lessons.commit import VERSIONS, History, name_damage, read_lessons
from midstream.lessons.editing import to_json
from midstream.lessons.feedback import Vote, VoteFile
from midstream.lessons.lesson_set import Lesson, LessonSet, identity, render_modules
from midstream.lessons.operations import Operation
from midstream.lessons.settings import FeedbackConfig
from midstream.recipe.schema import AgentConfig, InterleavedConfig, OwnAgentConfig
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write

_DIRECTORY = "lessons"  # of a lesson run's directory: what holds its versions


def read(named: str | Path) -> LessonSet:
    """The lesson set of a run, of a version (`RUN@VERSION`), or in a file. Raises `RunError` if it is missing."""
    path, number = split(named)
    return read_lessons(path) if number is None else history(path).get(number).lesson_set


def split(named: str | Path) -> tuple[Path, int | None]:
    """Split `RUN@VERSION` into path and version; any other path has no version."""
    path, _, wanted = str(named).rpartition("@")
    if Path(path).is_dir() and wanted.isdecimal() and not Path(named).exists():
        return Path(path), int(wanted)
    return Path(named), None


def history(path: Path) -> History:
    """The versions of a lesson run's lesson set; `path` is the run, or the lesson set's directory in it."""
    name_damage(path)
    own = path / _DIRECTORY
    return History(path if (path / VERSIONS).exists() else own)


def pinned(named: str | Path) -> str:
    """The value of `agent.lessons` in a resolved recipe: the file, or the current version of a run's lesson set.

    The run may continue to learn, but work that began with one version of its lesson set resumes with this version.
    """
    path, number = split(named)
    if path.is_dir() and number is None:
        current = history(path).current()
        number = current.number if current else None
    return os.path.abspath(path) + (f"@{number}" if number is not None else "")


def lessons_of(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, named: str | Path | None) -> Lessons:
    """A set's lessons for prompts, by module. Raises `RecipeError` if a module does not show them."""
    if named is None:
        return NO_LESSONS
    lessons = render_modules(read(named))
    check_shown(agent, lessons, f"agent.lessons = {str(named)!r}")
    return lessons


def unproven(named: str | Path, resolved: Table, weights: str = "") -> str:
    """Return a warning if no test has accepted the lessons for exactly this agent; "" if one has.

    `named` is the set as `read` takes it, `resolved` the agent's recipe with every default, `weights` the digest of
    the checkpoint that the planner samples from, "" for the recipe's own.
    """
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
    return getattr(config.build(None), "shows_lessons", False)  # an agent's modules use no context


def check_shown(agent: AgentConfig | InterleavedConfig | OwnAgentConfig, modules: Iterable[str], where: str) -> None:
    """Check that prompts show the lessons of `modules`; otherwise the agent would run without them.

    Raises `RecipeError` if one of `modules` does not exist, is a program, or has a prompt file without `{{lessons}}`.
    """
    own = modules_of(agent.type)
    for name in modules:
        if name not in own:
            raise RecipeError(
                f"{where} has lessons for {name!r}, which is not a module of this agent",
                code="unknown-module",
                fix=f"{did_you_mean(name, own)}name one of: {', '.join(own)}",
            )
        if shows_lessons(agent, name):
            continue
        table = getattr(agent, name).table()
        raise RecipeError(
            f"{where} has lessons for the {name}, which shows none",
            code="lessons-not-shown",
            fix=f"put {{{{lessons}}}} before {{{{tools}}}} or {{{{query}}}} in {table['prompt_file']}"
            if "prompt_file" in table
            else f"choose a type or template that has one, or take the {name}'s lessons out",
        )


# --- changing a lesson set --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EditableLessons:
    """A lesson set that can be changed, and its place: a run's versions or a JSON file."""

    path: Path
    lesson_set: LessonSet
    run: RunDirectory | None = None

    def save(self, changed: LessonSet, *, by: str, operations: Sequence[Operation] = (), note: str = "") -> str:
        """Save the changed lesson set; returns the name of what was written, `RUN@VERSION` or the file.

        Raises `UsageError` if the lesson set was changed since it was read (only a run is locked while it is edited).
        """
        if read_lessons(self.path) != self.lesson_set:
            raise UsageError(
                f"nothing is changed: {self.path} was changed by another process",
                code="lessons-changed",
                fix="make the change again",
            )
        if self.path.is_dir():
            version = history(self.path).add(changed, by=by, operations=tuple(operations), note=note)
            return f"{self.path}@{version.number}"
        atomic_write(self.path, to_json(changed).encode())
        return str(self.path)


@contextmanager
def editable_lessons(named: str) -> Iterator[EditableLessons]:
    """Open the lesson set of a lesson run, which stays locked until the context ends, or of a JSON file."""
    path, number = split(named)
    if number is not None or (path.suffix != ".json" and path.is_file()):
        raise UsageError(
            f"{named} cannot be changed",
            code="lessons-read-only",
            fix=f"name the run: {path}" if number is not None else "name a lesson run or a .json file",
        )
    if path.name == "lessons.json" and (path.parent / VERSIONS).exists():  # a copy to read, written from the versions
        path = path.parent
    path = path.parent if (path.parent / "run.json").exists() else path  # its lessons/
    if not (path / "run.json").exists():
        yield EditableLessons(path=path, lesson_set=read_lessons(path))
        return
    run = RunDirectory.open(path)
    with run.lock():
        yield EditableLessons(path=path, lesson_set=read_lessons(path), run=run)


# --- votes ------------------------------------------------------------------------------------------------------------


def find_lesson(named: str, lesson: str) -> Lesson:
    """A lesson of the lesson set `named`. Raises `RunError` without the lesson set, `UsageError` without the lesson."""
    found = read(named).find(lesson)
    if found is None:
        raise UsageError(
            f"{named} has no lesson {lesson!r}",
            code="unknown-name",
            fix=f"midstream lessons show {shlex.quote(named)} lists them; vote on any other text as it is",
        )
    return found


def cast_vote(
    named: str, lesson: str, value: Literal["for", "against", "none"], project: Path | None = None
) -> tuple[Vote, Path]:
    """Vote on a lesson of the set `named`, or, with `lesson` "", on the text `named` itself; "none" takes it back.

    Returns the vote and its file: `project`, by default that of the set's run, else that of the working directory.
    Raises `RunError` without the lesson set, `UsageError` without the lesson or for an empty text.
    """
    where, found = "", None
    if lesson:
        path, _ = split(named)
        where, found = os.path.abspath(path), find_lesson(named, lesson)
    elif Path(named).exists():
        what, fix = f"{named} is a lesson set, and no lesson is named", f"midstream lessons show {shlex.quote(named)}"
        raise UsageError(what, code="missing-option", fix=f"{fix} lists its lessons; name one after it")
    text = found.text if found else named
    if not text.strip():
        raise UsageError("the text to vote on is empty", code="empty-value", fix="write what you vote on")
    given = Vote(text=text, value=value, run=where, lesson=lesson)
    place = votes_path(named if lesson else None, project)
    file = VoteFile(place)
    try:
        file.add([given])
    finally:
        file.close()
    return given, place


def votes_path(named: str | None, project: Path | None) -> Path:
    """The file of votes: `project`, else what the run of the lessons `named` uses, else that of the working directory.

    A run without `lessons.feedback` uses none.
    """
    path, _ = split(named or "")
    if named is not None and project is None and not (path / "run.json").exists() and not path.is_file():
        raise UsageError(f"{named} is no run", code="file-not-found", fix="name a run, or the file: --project FILE")
    if project is None and named is not None and (path / "run.json").exists():
        resolved: Any = RunDirectory.open(path).info().resolved
        if feedback := (resolved.get("lessons") or {}).get("feedback"):
            return Path(feedback["votes"])
    return project or FeedbackConfig().votes


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
        named = ("model", "adapter", "weights")
        models = [engine.get(key) for engine in table.get("engines", {}).values() for key in named]
        for text in filter(None, (*sets, *models)):
            path, _ = split(str(text))
            places = (path, *path.absolute().parents) if path.exists() else ()
            if owner := next((place for place in places if (place / "run.json").exists()), None):
                learned_by(owner)
            elif path.is_file() and text in sets:
                for lesson in read(path).lessons:
                    for key in (key for task in lesson.origin.tasks for key in task_keys(task)):
                        found.setdefault(key, f"lesson {lesson.id} of {path}")

    if run is not None:
        learned_by(run.root)
    named_in(resolved)
    return found
