"""The user's clone of tau-bench: its two domains' data, functions, rules and tasks, without its dependencies.

tau-bench (MIT, https://github.com/sierra-research/tau-bench, arXiv 2406.12045) imports litellm as soon as any part of
it is imported. Its functions, tasks and data don't need that; so they are imported with empty stand-ins for the
packages around them, and all of it is removed from `sys.modules` again: an installed tau-bench is not affected.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from midstream.core.errors import RecipeError
from midstream.sources.functions import FunctionSpec, Invocation, reading

# Our splits and theirs; the airline has tests alone.
SPLITS = {"train": "tasks_train", "validation": "tasks_dev", "test": "tasks_test"}
# The function that hands a conversation over to a person, which ends it.
TRANSFER = "transfer_to_human_agents"
_ROOT = "tau_bench"
_CLONE = "git clone https://github.com/sierra-research/tau-bench"


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """One task: what its user wants, the calls that do it, and the texts that the agent must write."""

    instruction: str
    actions: tuple[Invocation, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TauFunction(FunctionSpec):
    """A function of a domain: `invoke` takes the database as `data` and the arguments by name, and returns text."""

    invoke: Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: rules for the agent, functions by name, tasks by our split names, and its database as JSON text.

    `start` are the digests of the database's tables.
    """

    name: str
    rules: str
    functions: Mapping[str, TauFunction]
    tasks: Mapping[str, tuple[Scripted, ...]]
    data: str
    start: Mapping[str, str]


def load_domain(path: Path, name: str) -> Domain:
    """Read a domain of the clone at `path`. Raises `RecipeError` if there is no clone, or it cannot be read."""
    package = path.expanduser().absolute() / _ROOT
    directory = package / "envs" / name
    if not directory.is_dir():
        raise RecipeError(
            f"no tau-bench domain {name!r} at {path}",
            code="data-not-found",
            cause=f"there is no directory {directory}",
            fix=f"run `{_CLONE}`, and name its directory as `path`",
        )
    own = f"{_ROOT}.envs.{name}"
    with reading(f"tau-bench's {name} at {path}", f"clone it again: {_CLONE}"), _stand_ins(package, name):
        functions: dict[str, TauFunction] = {}
        for tool in importlib.import_module(f"{own}.tools").ALL_TOOLS:
            info = tool.get_info()["function"]
            about = {key: info[key] for key in ("name", "description", "parameters")}
            functions[info["name"]] = TauFunction(**about, invoke=tool.invoke)
        rules = importlib.import_module(f"{own}.wiki").WIKI
        data = importlib.import_module(f"{own}.data").load_data()
        tasks: dict[str, tuple[Scripted, ...]] = {}
        for split, file in SPLITS.items():
            if split != "test" and not (directory / f"{file}.py").is_file():
                continue
            # The list of a module's tasks is called TASKS, TASKS_TEST or the like.
            module = importlib.import_module(f"{own}.{file}")
            [listed, *_] = [value for key, value in vars(module).items() if key.startswith("TASKS")]
            tasks[split] = tuple(
                Scripted(
                    instruction=task.instruction,
                    actions=tuple(Invocation(name=call.name, arguments=call.kwargs) for call in task.actions),
                    outputs=tuple(task.outputs),
                )
                for task in listed
            )
    return Domain(name=name, rules=rules, functions=functions, tasks=tasks, data=json.dumps(data), start=digests(data))


def digests(database: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each table: equal for equal tables, whatever the order of their keys."""
    return {
        table: hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest() for table, rows in database.items()
    }


@contextmanager
def _stand_ins(package: Path, domain: str) -> Iterator[None]:
    """Make the clone's modules importable as `tau_bench...`, and remove them from `sys.modules` afterwards."""

    def imported() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if f"{name}.".startswith(f"{_ROOT}.")}

    kept = imported()
    for name in kept:
        del sys.modules[name]
    for name in (_ROOT, f"{_ROOT}.envs", f"{_ROOT}.envs.{domain}"):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in imported():
            del sys.modules[name]
        sys.modules.update(kept)
