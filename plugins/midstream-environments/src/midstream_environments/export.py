"""Write a recipe's tasks, tools and reward as an environment of another project, or its tasks as rows.

Everything is checked, and every task drawn, before anything is written: what cannot be exported is refused by name.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from string import Template as Text
from typing import Any, Literal

from pydantic import JsonValue

from midstream.components.component import Component, ToolConfig, wrapper_config
from midstream.components.own import file_of, is_reference, name_of
from midstream.core.errors import RecipeError, UnsupportedError, UsageError
from midstream.core.task import Task
from midstream.process import event_loop
from midstream.recipe.build import Build, require_scored
from midstream.recipe.check import is_dialogues, reward_components, tasks_config
from midstream.recipe.files import to_toml
from midstream.recipe.schema import Recipe
from midstream.rewards.own import FunctionReward
from midstream.sources.finite import DRAW_SEED, SPLITS, Split
from midstream_environments.exported import RECIPE, TASKS
from midstream_environments.library import LibraryConfig

Form = Literal["verifiers", "openenv", "jsonl"]
FORMS: tuple[Form, ...] = ("verifiers", "openenv", "jsonl")
# The files of an exported package, in a folder for each project; those that end in `.in` have places for words.
_TEMPLATES = Path(__file__).parent / "templates"
# verifiers 0.4 makes the interpreter of its harness with uv.
_NEEDS = {
    "verifiers": {"uv>=0.5", "verifiers>=0.1.14,!=0.2.*,!=0.3.*,<0.5"},
    "openenv": {"openenv>=0.10,<0.11"},
}
_A_RULE = "choose a rule: --reward NAME"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Fields of a row that `tasks.type = "file"` reads in a way of its own; where the row was.
_NO_METADATA = frozenset({"question", "answer", "aliases", "id", "family", "split", "reward", "row"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written: its folder, and the number of tasks by split."""

    path: Path
    form: Form
    tasks: Mapping[str, int]
    tools: Sequence[str] = ()


@dataclass
class _Files:
    """Files of the recipe that the package gets copies of, by their places in `world/`."""

    copies: dict[str, Path] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)

    def placed(self, path: Path, folder: str) -> str:
        """The place of a file's or folder's copy. Two of one name are in two folders."""
        number = 1
        while (place := f"{folder}{number if number > 1 else ''}/{path.name}") in self.copies:
            if self.copies[place] == path:
                return place
            number += 1
        self.copies[place] = path
        return place

    def code(self, path: Path) -> str:
        """The place of a Python file, next to those of its neighbors that it imports."""
        place = self.placed(path, "own")
        for neighbor in _neighbors(path):
            other = f"{place.rpartition('/')[0]}/{neighbor.name}"
            if self.copies.setdefault(other, neighbor) != neighbor:
                raise _cannot(f"{path} and another file import different files called {neighbor.name}", "rename one")
        return place

    def write(self, directory: Path) -> None:
        """Copy them."""
        for place, path in self.copies.items():
            target = directory / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target)
            else:
                shutil.copyfile(path, target)


def export(recipe: Recipe, *, form: Form, out: Path, split: Split | None = None, count: int | None = None) -> Exported:
    """Export a recipe to a new folder.

    Args:
        recipe: its tasks, tools, reward and sandbox are exported; its agent, engines, training and lessons are not.
        form: `verifiers` and `openenv` make a Python package whose name is that of the folder, `jsonl` only rows.
        out: the folder, which must not be there.
        split: only this one; by default every split that the tasks have.
        count: tasks of each split, drawn at random; by default all, or 60 of each family where tasks are made.

    Raises:
        UsageError: `out` is there already, its name is not that of a Python package, or there are too few tasks.
        UnsupportedError: something in the recipe cannot be exported.
    """
    if out.exists():
        raise UsageError(f"{out} is there already", code="file-exists", fix="name a new folder: --out DIR")
    name = out.resolve().name.replace("-", "_")
    if form != "jsonl":
        _check_name(name, out)
    if is_dialogues(recipe.tasks):
        raise _cannot(
            f"tasks of type {recipe.tasks.type!r} are dialogues, whose user and state are midstream's own",
            "choose a recipe whose tasks are questions",
            "dialogues-not-supported",
        )
    if form != "jsonl" and isinstance(recipe.tasks.config, LibraryConfig):
        raise _cannot(
            f"tasks of type {recipe.tasks.type!r} are those of another library, which scores them itself",
            "use that library there; --format jsonl writes the questions",
        )
    if form != "jsonl":
        _check_components(recipe)
    build = Build(recipe)
    with event_loop(build):
        tasks = _drawn(build, split, count)
        if form == "jsonl":
            out.mkdir(parents=True)
            _write_rows(out, tasks)
            return Exported(path=out, form=form, tasks={name: len(found) for name, found in tasks.items()})
        require_scored(build, recipe.reward, [task for found in tasks.values() for task in found])
        _check_rewards(build)
        tools = [tool.name for tool in build.tools]
    files = _Files()
    table = _table(recipe, files)
    needs = sorted(_distributions(recipe, table, files) | _NEEDS[form])
    package = out / name
    for source in sorted((_TEMPLATES / form).rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            inside, text = source.relative_to(_TEMPLATES / form), source.read_text(encoding="utf-8")
            if source.suffix == ".in":
                target, text = out / inside.with_suffix(""), Text(text).substitute(_words(recipe, name, needs))
            else:
                target = package / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    world = package / "world"
    world.mkdir()
    (world / RECIPE).write_text(to_toml(table), encoding="utf-8")
    with (world / TASKS).open("w", encoding="utf-8") as lines:
        for part, found in tasks.items():
            lines.writelines(f"{_line({'split': part, 'task': task.model_dump(mode='json')})}\n" for task in found)
    files.write(world)
    return Exported(path=out, form=form, tasks={name: len(found) for name, found in tasks.items()}, tools=tools)


# -- what cannot be exported -------------------------------------------------------------------------------------------


def _cannot(what: str, fix: str, code: str = "export-not-supported") -> UnsupportedError:
    return UnsupportedError(what, code=code, fix=fix)


def _check_name(name: str, out: Path) -> None:
    """The folder's name is that of a package, which hides no other one."""
    if not _NAME.fullmatch(name):
        fix = "name a folder in small letters, digits and _, e.g. --out my_world"
        raise UsageError(f"{out}: {name!r} is no name of a package", code="name-invalid", fix=fix)
    found = find_spec(name)
    # A mere folder in the working directory is found, too.
    if name in sys.stdlib_module_names or (found is not None and found.origin is not None):
        fix = f"name another folder, e.g. --out {name}_world"
        raise UsageError(f"{out}: a module {name!r} is installed already", code="name-clash", fix=fix)


def _check_components(recipe: Recipe) -> None:
    """Nothing that is exported asks a model, reads an agent's stream, or is a server."""
    for where, component, _ in reward_components(recipe):
        config: Any = component.config
        if where.startswith("reward") and (component.engine is not None or config.asks == "always"):
            raise _cannot(f"{where}.type = {component.type!r} asks a model to judge", _A_RULE)
        if where.startswith("reward") and config.of_stream:
            raise _cannot(f"{where}.type = {component.type!r} scores an agent's stream", _A_RULE)
    tools = [(f"tools.{name}", component) for name, component in recipe.tools.items()]
    for tool, parts in _wrappers(recipe).items():
        tools += [(f"wrappers.{tool}.{name}", part) for name, part in parts.items()]
    for where, component in tools:
        if component.engine is not None or component.config.asks == "always":
            raise _cannot(f"{where}.type = {component.type!r} asks a model", "leave it out of the recipe")
        if isinstance(component.config, ToolConfig) and component.config.several:
            raise _cannot(f"{where} is a server of tools", "leave it out, and start it next to the environment")


def _wrappers(recipe: Recipe) -> dict[str, dict[str, Component]]:
    """What wraps tools outside of midstream's own training, too."""
    found = {
        tool: {name: part for name, part in parts.items() if wrapper_config(part).everywhere}
        for tool, parts in recipe.wrappers.items()
    }
    return {tool: parts for tool, parts in found.items() if parts}


def _check_rewards(build: Build) -> None:
    """No reward wants more than the answer, or asks a model itself."""
    for where, component, _ in reward_components(build.recipe):
        if not where.startswith("reward"):
            continue
        reward = build.reward(component)
        if reward.judged:
            raise _cannot(f"the reward {reward.name!r} asks a model to judge", _A_RULE)
        if isinstance(reward, FunctionReward) and "trajectory" in reward._function.takes:
            raise _cannot(
                f"the reward {reward.name!r} takes `trajectory`, which midstream does not record there",
                "take `answer` and `gold` instead",
            )


# -- tasks -------------------------------------------------------------------------------------------------------------


def _drawn(build: Build, split: Split | None, count: int | None) -> dict[str, list[Task]]:
    """The tasks by split."""
    found: dict[str, list[Task]] = {}
    for name in (split,) if split else SPLITS:
        try:
            found[name] = build.source.fixed(name, seed=DRAW_SEED, count=count)
        except RecipeError as error:
            # Without a named split, those that are there.
            if split or error.code not in ("unknown-split", "no-questions"):
                raise
    if not found:
        raise RecipeError("the recipe's tasks have no split", code="no-tasks", fix="name tasks in the recipe's [tasks]")
    return found


def _write_rows(out: Path, tasks: Mapping[str, Sequence[Task]]) -> None:
    """`tasks.jsonl` for midstream, and a file of each split with the columns that trainers read."""
    with (out / TASKS).open("w", encoding="utf-8") as lines:
        for split, found in tasks.items():
            lines.writelines(f"{_line(_row(split, task))}\n" for task in found)
    for split, found in tasks.items():
        with (out / f"{split}.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(f"{_line(_trainer_row(split, number, task))}\n" for number, task in enumerate(found))


def _row(split: str, task: Task) -> dict[str, JsonValue]:
    """A task as `tasks.type = "file"` reads it, which lists the options below the question again."""
    options = task.metadata.get("options")
    named = {"aliases": [] if options else list(task.aliases), "family": task.family, "reward": task.reward}
    listed = "".join(f"\n{letter}. {text}" for letter, text in options.items()) if isinstance(options, dict) else ""
    return {
        "id": task.id,
        "question": task.question.replace(listed, "", 1),
        "answer": task.answer,
        **{key: value for key, value in named.items() if value},
        "split": split,
        **{key: value for key, value in task.metadata.items() if key not in _NO_METADATA},
    }


def _trainer_row(split: str, number: int, task: Task) -> dict[str, JsonValue]:
    """A task in columns of the field: `prompt` and `answer` of TRL, and those of verl's data files."""
    return {
        "prompt": [{"role": "user", "content": task.question}],
        "answer": task.answer,
        "data_source": task.family or "midstream",
        "ability": task.family or "midstream",
        "reward_model": {"style": "rule", "ground_truth": task.answer},
        "extra_info": {"split": split, "index": number, "id": task.id, "aliases": list(task.aliases)},
    }


def _line(row: Mapping[str, JsonValue]) -> str:
    return json.dumps(row, ensure_ascii=False)


# -- the package -------------------------------------------------------------------------------------------------------


def _table(recipe: Recipe, files: _Files) -> dict[str, Any]:
    """The table of the exported recipe, whose files are copies."""
    whole = recipe.table()
    config = tasks_config(recipe.tasks)
    wrappers = _wrappers(recipe)
    needs_world = config.world or any(tool.config.needs_world for tool in recipe.tools.values())
    table = {
        "extends": "direct",
        "name": recipe.name,
        "description": recipe.description,
        "seed": recipe.seed,
        "agent": {"max_turns": getattr(recipe.agent, "max_turns", 10)},
        # The tasks themselves are in a file; a world's facts come from their source.
        **({"tasks": whole["tasks"]} if needs_world else {}),
        "tools": whole["tools"],
        "wrappers": {tool: {name: part.table() for name, part in parts.items()} for tool, parts in wrappers.items()},
        "reward": whole["reward"],
        "sandbox": whole["sandbox"],
    }
    return _with_copies(table, files)


def _with_copies(value: Any, files: _Files, key: str = "") -> Any:
    """A recipe's table in which files are named by the places of their copies."""
    if isinstance(value, Mapping):
        return {name: _with_copies(inner, files, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_copies(inner, files, key) for inner in value]
    if not isinstance(value, str):
        return value
    if key in ("type", "function") and is_reference(value):
        if (path := file_of(value)) is not None:
            return f"{files.code(path)}:{name_of(value)}"
        files.modules.add(value.rpartition(":")[0])
    elif os.path.isabs(value) and os.path.exists(value):
        return files.placed(Path(value), "data")
    return value


def _neighbors(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """The files next to a Python file that it imports, and those that they import."""
    for top in _imported(path):
        file, folder = path.with_name(f"{top}.py"), path.with_name(top)
        if file.is_file() and file not in seen | {path}:
            yield file
            yield from _neighbors(file, seen | {path, file})
        elif (folder / "__init__.py").exists():
            fix = "install that package, or put what it needs into one file"
            raise _cannot(f"{path} imports the package {top}/ next to it", fix)


def _imported(path: Path) -> Iterator[str]:
    """The modules that a Python file imports, by the first parts of their names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _distributions(recipe: Recipe, table: Mapping[str, Any], files: _Files) -> set[str]:
    """The requirements of the package: midstream's own packages that its recipe uses, and those of your own modules."""
    components = [recipe.reward, *recipe.tools.values(), *([recipe.tasks] if "tasks" in table else [])]
    components += [part for parts in _wrappers(recipe).values() for part in parts.values()]
    named = {type(part.config).__module__ for part in components if not is_reference(part.type)} | files.modules
    # The package itself imports a module next to this one.
    return {_requirement(module) for module in {*named, __name__} if not module.startswith("midstream.")}


def _requirement(module: str) -> str:
    """The installed package that has a module, as a requirement."""
    top = module.partition(".")[0]
    found = next((package for package in distributions() if top in _tops(package)), None)
    if found is None:
        raise _cannot(f"the module {module!r} belongs to no installed package", 'name its file: "my_tools.py:NAME"')
    return f"{found.metadata['Name']}>={found.version}"


def _tops(package: Distribution) -> set[str]:
    """The modules of a package. One that is installed as a link to its source lists no files, but its entry points."""
    points = {point.value.partition(".")[0].partition(":")[0] for point in package.entry_points}
    return points | {Path(file.parts[0]).stem for file in package.files or () if file.suffix == ".py"}


def _words(recipe: Recipe, name: str, needs: Iterable[str]) -> dict[str, str]:
    """What stands in the places of the templates."""
    return {
        "name": name,
        "package": name.replace("_", "-"),
        "description": json.dumps(recipe.description or f"The tasks of {recipe.name}", ensure_ascii=False),
        "recipe": recipe.name,
        "dependencies": "\n".join(f'  "{need}",' for need in needs),
    }
