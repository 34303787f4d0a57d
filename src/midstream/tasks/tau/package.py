"""The user's own clone of tau-bench: its two domains' data, functions, rules and tasks, without what its package needs.

tau-bench (MIT, https://github.com/sierra-research/tau-bench, arXiv 2406.12045) imports litellm as soon as any part of
it is imported. Its functions, tasks and data don't need that; so they are imported with empty stand-ins for the
packages around them, and all of it leaves `sys.modules` again: a tau-bench that is installed stays what it was.
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
from midstream.tasks.functions import Invocation

# Our splits and theirs; the airline has tests alone.
SPLITS = {"train": "tasks_train", "validation": "tasks_dev", "test": "tasks_test"}
# What hands a conversation over to a person, and so ends it.
TRANSFER = "transfer_to_human_agents"
_ROOT = "tau_bench"
_CLONE = "git clone https://github.com/sierra-research/tau-bench"
# What reading a clone may run into.
_BROKEN = (ImportError, AttributeError, OSError, ValueError, TypeError, LookupError, SyntaxError)


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """One task: what its user wants, the calls that do it, and the texts that the agent must say."""

    instruction: str
    actions: tuple[Invocation, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TauFunction:
    """A function of a domain: `invoke` takes the database as `data` and the arguments by name, and answers text."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    invoke: Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: rules for the agent, functions by name, tasks by split of ours, and its database as JSON text.

    `start` are the digests of the database's tables.
    """

    name: str
    rules: str
    functions: Mapping[str, TauFunction]
    tasks: Mapping[str, tuple[Scripted, ...]]
    data: str
    start: Mapping[str, str]

    def database(self) -> dict[str, Any]:
        """The database as it is at the start, new every time."""
        return json.loads(self.data)


def load_domain(path: Path, name: str) -> Domain:
    """Read a domain of the clone at `path`. Raises `RecipeError` where there is none."""
    package = path.expanduser().absolute() / _ROOT
    directory = package / "envs" / name
    if not directory.is_dir():
        raise RecipeError(
            f"no tau-bench domain {name!r} at {path}",
            cause=f"there is no directory {directory}",
            fix=f"run `{_CLONE}`, and name its directory as `path`",
        )
    with _stand_ins(package, name):
        own = f"{_ROOT}.envs.{name}"
        try:
            tools = _module(f"{own}.tools").ALL_TOOLS
            functions = {one.name: one for one in map(_function, tools)}
            rules = _module(f"{own}.wiki").WIKI
            data = _module(f"{own}.data").load_data()
            there = [split for split in SPLITS if split == "test" or (directory / f"{SPLITS[split]}.py").is_file()]
            tasks = {split: _tasks(_module(f"{own}.{SPLITS[split]}")) for split in there}
        except _BROKEN as error:
            raise RecipeError(
                f"tau-bench's {name} at {path} cannot be read: {type(error).__name__}: {error}",
                cause="files are missing or broken, or this version of it is laid out in another way",
                fix=f"clone it again: {_CLONE}",
            ) from error
    return Domain(name=name, rules=rules, functions=functions, tasks=tasks, data=json.dumps(data), start=digests(data))


def digests(database: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each table: equal for equal tables, whatever the order of their keys."""
    return {
        table: hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest() for table, rows in database.items()
    }


@contextmanager
def _stand_ins(package: Path, domain: str) -> Iterator[None]:
    """Let the clone's modules be imported as `tau_bench...`, and take them out of `sys.modules` afterwards."""
    kept = {name: module for name, module in sys.modules.items() if _is_of_tau(name)}
    for name in kept:
        del sys.modules[name]
    for name in (_ROOT, f"{_ROOT}.envs", f"{_ROOT}.envs.{domain}"):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_of_tau(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_of_tau(name: str) -> bool:
    return f"{name}.".startswith(f"{_ROOT}.")


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _tasks(module: Any) -> tuple[Scripted, ...]:
    """The tasks of a module, whose list is called TASKS, TASKS_TEST or the like."""
    [listed, *_] = [value for name, value in vars(module).items() if name.startswith("TASKS")]
    return tuple(
        Scripted(
            instruction=task.instruction,
            actions=tuple(Invocation(name=one.name, arguments=one.kwargs) for one in task.actions),
            outputs=tuple(task.outputs),
        )
        for task in listed
    )


def _function(tool: Any) -> TauFunction:
    told = tool.get_info()["function"]
    return TauFunction(
        name=told["name"], description=told["description"], parameters=told["parameters"], invoke=tool.invoke
    )
