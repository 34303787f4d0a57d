"""Components of your own: a file, a module or an object in Python behind the `type` of a recipe's table.

    type = "rewards.py:exact"               a name in a file, relative to the recipe's file or to the working directory
    type = "my_package.rewards:exact"       a name in a module that can be imported
    type = "python:exact"                   an object that a running program has handed over (`reference_of`)

A run records each of them with the digest of its source, and keeps a copy of every file (`OwnComponent`), not of what
the file imports.

Code that came with a run of others, and in a dry run code from elsewhere, is imported only with `--trust`, which sets
`TRUST` for this process and those that it starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UsageError, did_you_mean

EXAMPLE = 'e.g. "my_rewards.py:exact" or "my_package.rewards:exact"'

_REFERENCE = re.compile(r"[^:\x00-\x1f][^\x00-\x1f]*:[A-Za-z_][\w.-]*")
_HANDED_OVER = "python"  # the place of objects that a program hands over
# Settings that are paths of what is read: midstream's, and by their names those of a component of your own.
PATHS = frozenset("path file prompt_file index library start adapter cwd filter votes files".split())
_OWN_PATH = re.compile(r"library|(?:\w+_)?(?:path|file)")
TRUST = "MIDSTREAM_TRUST"
_live: dict[str, Any] = {}  # by reference, the objects that this process handed over
_taken: dict[str, str] = {}  # by reference or module, the digest of its file when imported
_sources: dict[str, bytes] = {}  # by digest, the source of what was imported: its file can change while it is used
_originals: dict[str, Path] = {}  # by a run's copy that stands in for it, the file that is gone
_importing: ContextVar[str] = ContextVar("importing", default="")
_below: ContextVar[Path | None] = ContextVar("below", default=None)  # the directory that code may come from


class OwnComponent(Frozen):
    """What a run used of your own: its reference, the digest of its source, and the name of its file's copy.

    `copy_name` is "" for a module and for an object of a program, of which a run keeps no copy.
    """

    reference: str
    digest: str
    copy_name: str = ""

    def source(self) -> bytes:
        """The source of its file as this process imported it."""
        return _sources[self.digest]


def is_reference(name: object) -> bool:
    """Whether `name` is of the form "PLACE:NAME"."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def name_of(reference: str) -> str:
    """The name in a reference."""
    return reference.rpartition(":")[2]


def file_of(reference: str) -> Path | None:
    """The file that a reference names; None for a module or an object of a program."""
    place = reference.rpartition(":")[0]
    return Path(os.path.expanduser(place)) if place.endswith(".py") else None


def anchored(table: Any, directory: Path) -> Any:
    """A recipe's table, in which references to files in `directory` and paths to what is there are absolute."""

    def absolute(reference: str, path: Path) -> Path:
        there = directory / path
        if not os.path.exists(there):
            return path
        # The link of a data file stays: the name of its target may lack the ending, as in caches of downloads.
        return there.resolve() if reference else Path(os.path.abspath(there))

    return _renamed(table, absolute)


def portable(table: Any) -> Any:
    """A recipe's table to compare with another: the directory of code affects no result, that of data can."""
    return _renamed(table, lambda reference, path: Path(path.name if reference else os.path.abspath(path)))


def paths(table: Any) -> list[Path]:
    """Every path in a recipe's table, of code and of data, each once."""
    found: dict[Path, Path] = {}
    _renamed(table, lambda _, path: found.setdefault(path, path))
    return list(found)


def _renamed(value: Any, place: Callable[[str, Path], Path], key: str = "", own: bool = False) -> Any:
    """A recipe's table, in which `place` gives the path in each reference to a file, or else the path itself.

    `own` says whether the table, or the one around it, is that of a component of your own.
    """
    if isinstance(value, Mapping):
        own = is_reference(value["type"]) if "type" in value else own
        return {name: _renamed(inner, place, name, own) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(inner, place, key, own) for inner in value]
    if not isinstance(value, str) or not value or "://" in value:
        return value
    reference, path, rest = "", value, ""
    if is_reference(value) and file_of(value) is not None:
        reference, path, rest = value, value.rpartition(":")[0], f":{name_of(value)}"
    elif key == "template" and not own:
        if not value.endswith(".toml"):  # the name of one that midstream has
            return value
    elif not (_OWN_PATH.fullmatch(key) if own else key in PATHS):
        return value
    elif key == "library" and (version := re.search(r"@\d+$", value)):  # RUN@VERSION
        path, rest = value[: version.start()], version[0]
    placed = place(reference, Path(os.path.expanduser(path)))
    return value if placed == Path(path) else f"{placed}{rest}"


def references(table: Any) -> Iterator[str]:
    """Every reference in a recipe's table, in order: values of the keys `type` and `function`."""
    for key, value in table.items() if isinstance(table, Mapping) else enumerate(table):
        if isinstance(value, Mapping | list):
            yield from references(value)
        elif key in ("type", "function") and is_reference(value):
            yield value


# --- objects of a program ---------------------------------------------------------------------------------------------


def reference_of(value: Any) -> str:
    """The reference of an object of the running program; `load` returns this very object.

    Something that a file or module defines by its name has the reference that a recipe would give it, so that its run
    can be resumed from the command line; what a notebook or a function made has none but "python:NAME".
    """
    inner = inspect.unwrap(value) if callable(value) else value
    name = getattr(inner, "__qualname__", None) or type(value).__qualname__
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    defined = reduce(lambda found, part: getattr(found, part, None), name.split("."), module)
    if module is not None and file and "<" not in name and defined is value:
        # A module on the path of this program alone would not be found from another directory.
        importable = module.__name__ != "__main__" and not Path(file).resolve().is_relative_to(Path.cwd())
        reference = f"{module.__name__ if importable else Path(file).resolve()}:{name}"
        if _live.get(reference) is not value:
            _taken[reference] = _digest(Path(file).read_bytes())
    else:
        name = re.sub(r"[^\w.-]", "", name.rpartition("<locals>.")[2]) or "unnamed"
        number, reference = 2, f"{_HANDED_OVER}:{name}"
        while reference in _live and not _same(_live[reference], value):
            reference, number = f"{_HANDED_OVER}:{name}_{number}", number + 1
        if reference not in _live:
            _taken[reference] = _digest(_source(inner))
    _live[reference] = value
    return reference


def _same(first: Any, other: Any) -> bool:
    """Whether two objects are one, or one function that a notebook's cell made twice."""
    if first is other or (type(first) is type(other) and first == other):
        return True
    functions = [inspect.unwrap(value) if callable(value) else value for value in (first, other)]
    if not all(isinstance(function, FunctionType) for function in functions):
        return False
    return all(
        getattr(functions[0], part) == getattr(functions[1], part)
        for part in ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
    )


def _source(value: Any) -> bytes:
    try:
        return inspect.getsource(value).encode()
    except (OSError, TypeError):  # typed into an interpreter, compiled, or an object
        return b""


# --- loading ----------------------------------------------------------------------------------------------------------


def load(reference: str, example: str = EXAMPLE) -> Any:
    """The object that a reference names. Raises `RecipeError` if it cannot be imported, or is not there."""
    if reference in _live:
        return _live[reference]
    place, _, name = reference.rpartition(":")
    if place == _HANDED_OVER:
        raise RecipeError(
            f"{reference} is an object of the program that started this run",
            code="component-not-here",
            fix="run the program or notebook again, with the same `out`; or define the object in a file",
        )
    module = import_place(place, example)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            own = [
                known
                for known, value in vars(module).items()
                if not known.startswith("_") and getattr(value, "__module__", "") == module.__name__
            ]
            raise RecipeError(
                f"{place} has no {name!r}",
                code="name-not-found",
                fix=f"{did_you_mean(part, own)}use one of: {', '.join(own)}" if own else f"define it there; {example}",
            ) from error
    return found


def import_place(place: str, example: str = EXAMPLE) -> ModuleType:
    """Import a module, or a file once in a process, because its objects share state; it can import its neighbors."""
    name, path, content = place, Path(place).expanduser().absolute() if place.endswith(".py") else None, b""
    if path is not None:
        if not path.is_file():
            raise RecipeError(f"no file {path}", code="file-not-found", fix=f"give its absolute path; {example}")
        _require_trust(path)
        name = f"midstream_own_{blake2b(str(path).encode(), digest_size=6).hexdigest()}_{path.stem}"
        content = path.read_bytes()
        digest = _digest(content)
        if name in sys.modules and _taken.get(name) == digest:
            return sys.modules[name]
        _taken[name] = digest
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
    elif (top := name.partition(".")[0]) not in sys.modules and (found := importlib.util.find_spec(top)):
        for where in (found.origin or "", *(found.submodule_search_locations or ())):
            if os.path.isabs(where):
                _require_trust(Path(where), installed=True)
    try:
        if path is None:
            return importlib.import_module(name)
        loader = SourceFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None, "a file that ends in .py has a loader"
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        token = _importing.set(str(path))
        sys.path.insert(0, str(path.parent))  # its neighbors first, as if it were run
        try:
            # Not `exec_module`: it takes bytecode of a file with this size and second of change for this file's.
            exec(loader.source_to_code(content, str(path)), vars(module))
        finally:
            _importing.reset(token)
            sys.path.remove(str(path.parent))
        return module
    except (Exception, SystemExit) as error:
        if path is not None:
            sys.modules.pop(name, None)
            if getattr(error, "code", "") == "work-while-importing":
                raise
        # The module itself is missing, and not one that it imports.
        elif isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise RecipeError(
                f"no module {name!r}: {error}",
                code="module-not-found",
                fix=f"correct the name, install its package next to midstream, or name the file; {example}",
            ) from error
        if path is not None and (original := _originals.get(str(path))):
            raise RecipeError(
                f"{original} is gone, and the run's copy of it cannot be imported: {type(error).__name__}: {error}",
                code="import-failed",
                cause="a run copies the file that its recipe names, and not what this imports",
                fix=f"put {original} back, with the files that it imports",
            ) from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        syntax = isinstance(error, SyntaxError)
        file, line = (error.filename, error.lineno) if syntax else (last.filename, last.lineno)
        raise RecipeError(
            f"{path or name} cannot be imported: {type(error).__name__}: {error}",
            code="import-failed",
            cause=f"{file}, line {line}, raises it" if file and line else f"{file or path or name} raises it",
            fix=f"correct it until `{Path(sys.executable).name} {path}` runs" if path else "correct it",
        ) from error


def _require_trust(path: Path, *, installed: bool = False) -> None:
    """Raise `RecipeError` for code of others: in a run directory, or, unless `installed`, outside of `only_below`."""
    if os.environ.get(TRUST) == "1":
        return
    place, below = path.resolve(), None if installed else _below.get()
    in_run = any((parent / "run.json").exists() and (parent / "recipe.toml").exists() for parent in place.parents)
    if in_run or (below is not None and not place.is_relative_to(below)):
        original = _originals.get(str(path))
        back = f", or put {original} back" if original else ""
        what = f"{path} {'came with a run' if in_run else f'is not below {below}'}, and its code would run here"
        raise RecipeError(what, code="code-not-trusted", fix=f"read it, then give the command with --trust{back}")


@contextmanager
def only_below(directory: Path | None) -> Iterator[None]:
    """Import no file from outside of a directory, unless code is trusted; None: no limit."""
    token = _below.set(directory and directory.resolve())
    try:
        yield
    finally:
        _below.reset(token)


def refuse_while_importing(work: str) -> None:
    """Raise `UsageError` if a file is being imported for its components, and would start `work` again."""
    if file := _importing.get():
        raise UsageError(
            f"{file} calls {work} while it is imported",
            code="work-while-importing",
            fix='put the call under `if __name__ == "__main__":`',
        )


# --- what a run records -----------------------------------------------------------------------------------------------


def used(table: Mapping[str, Any]) -> list[OwnComponent]:
    """What the references of a resolved recipe name, each once. Raises `RecipeError` for what cannot be found."""
    own = (reference for reference in dict.fromkeys(references(table)) if not reference.startswith("midstream."))
    return [_recorded(reference) for reference in own]


def _recorded(reference: str) -> OwnComponent:
    """What a run records of a reference; nothing is imported, so that changed code is refused before it runs."""
    file = file_of(reference)
    copy_name = ""
    if file is not None:
        if not file.is_file() and reference not in _live:
            raise RecipeError(f"no file {file}", code="file-not-found", fix="restore it, or correct the recipe")
        # A live object is recorded as it was when it was handed over.
        digest = _taken[reference] if reference in _live else _digest(file.read_bytes())
        copy_name = f"{file.stem}-{digest}/{file.name}"
    elif reference in _live or reference.startswith(f"{_HANDED_OVER}:"):
        load(reference)
        digest = _taken[reference]
    else:
        digest = _digest(_module_source(reference.rpartition(":")[0]))
    return OwnComponent(reference=reference, digest=digest, copy_name=copy_name)


def _module_source(name: str) -> bytes:
    """The source of a module that can be imported; b"" without one."""
    try:
        spec = importlib.util.find_spec(name)
        return Path(spec.origin).read_bytes() if spec is not None and spec.has_location and spec.origin else b""
    except (ImportError, ValueError, OSError):
        return b""


def _digest(source: bytes) -> str:
    digest = blake2b(source, digest_size=8).hexdigest()
    _sources[digest] = source
    return digest


def from_copies(table: Any, recorded: Mapping[str, OwnComponent], directory: Path) -> Any:
    """A run's table, in which the run's copy in `directory` stands for a file of code that is gone.

    Raises `RecipeError` for a copy that is not as the run recorded it.
    """

    def present(reference: str, path: Path) -> Path:
        own = recorded.get(reference)
        if own is None or not own.copy_name or os.path.exists(path) or reference in _live:
            return path
        copied = (directory / own.copy_name).resolve()
        if copied.is_file() and _digest(copied.read_bytes()) != own.digest:
            raise RecipeError(
                f"{copied} is damaged: it is not as the run recorded it",
                code="file-damaged",
                fix=f"restore it from a copy, or put {path} back",
            )
        _originals[str(copied)] = path
        return copied

    return _renamed(table, present)
