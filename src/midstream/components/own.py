"""Components of your own: a file, a module or an object in Python behind the `type` of a recipe's table.

    type = "rewards.py:exact"               a name in a file, relative to the recipe's file or to the working directory
    type = "my_package.rewards:exact"       a name in a module that can be imported
    type = "python:exact"                   an object that a running program has handed over (`reference_of`)

A run records each of them with the digest of its file, and keeps a copy of every file (`OwnComponent`), not of what
the file imports. Code in a run directory is imported only with `--trust`, which sets `TRUST` for this process and
those that it starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import reduce
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UsageError, did_you_mean

T = TypeVar("T")

EXAMPLE = 'e.g. "my_rewards.py:exact" or "my_package.rewards:exact"'

_REFERENCE = re.compile(r"[^:\x00-\x1f][^\x00-\x1f]*:[A-Za-z_][\w.-]*")
# The place of objects that a program hands over.
_HANDED_OVER = "python"
# Settings that are paths of what is read: midstream's, and by their names those of a component of your own.
PATHS = frozenset("path file prompt_file index lessons start cwd feedback files roots".split())
_OWN_PATH = re.compile(r"lessons|(?:\w+_)?(?:path|file)")
TRUST = "MIDSTREAM_TRUST"
# The objects that this process handed over, by reference: `load` cannot import what no file holds.
_live: dict[str, object] = {}
_importing: ContextVar[str] = ContextVar("importing", default="")


class OwnComponent(Frozen):
    """What a run used of your own: its reference, the digest of its file, and the name of the file's copy.

    An object of a program has no digest; it and a module have no copy.
    """

    reference: str
    digest: str = ""
    copy_name: str = ""


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


def references(table: Mapping[str, object] | Iterable[object]) -> Iterator[str]:
    """Every reference in a recipe's table, in order: values of the keys `type` and `function`."""
    for key, value in table.items() if isinstance(table, Mapping) else enumerate(table):
        if isinstance(value, Mapping | list):
            yield from references(value)
        elif key in ("type", "function") and isinstance(value, str) and is_reference(value):
            yield value


# --- paths in a recipe's table ----------------------------------------------------------------------------------------


def anchored(table: T, directory: Path) -> T:
    """A recipe's table, in which references to files in `directory` and paths to what is there are absolute."""

    def absolute(reference: str, path: Path) -> Path:
        there = directory / path
        if not os.path.exists(there):
            return path
        # The link of a data file stays: the name of its target may lack the ending, as in caches of downloads.
        return there.resolve() if reference else Path(os.path.abspath(there))

    return cast("T", _with_paths(table, absolute))


def portable(table: T) -> T:
    """A recipe's table to compare with another: the directory of code affects no result, that of data can."""
    return cast(
        "T", _with_paths(table, lambda reference, path: Path(path.name if reference else os.path.abspath(path)))
    )


def from_copies(table: T, recorded: Mapping[str, OwnComponent], directory: Path) -> T:
    """A run's table, in which the run's copy in `directory` stands for a file of code that is gone."""

    def present(reference: str, path: Path) -> Path:
        own = recorded.get(reference)
        if own is None or not own.copy_name or path.exists() or reference in _live:
            return path
        return (directory / own.copy_name).resolve()

    return cast("T", _with_paths(table, present))


def _with_paths(value: object, place: Callable[[str, Path], Path], key: str = "", own: bool = False) -> object:
    """A recipe's table, in which `place` gives the path in each reference to a file, or else the path itself.

    `own` is true in the table of a component of your own, and in tables inside it.
    """
    if isinstance(value, Mapping):
        own = is_reference(value["type"]) if "type" in value else own
        return {name: _with_paths(inner, place, name, own) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_paths(inner, place, key, own) for inner in value]
    if not isinstance(value, str) or not value or "://" in value:
        return value
    reference, path, rest = "", value, ""
    if is_reference(value) and file_of(value) is not None:
        reference, path, rest = value, value.rpartition(":")[0], f":{name_of(value)}"
    elif key == "template" and not own:
        if not value.endswith(".toml"):
            # The name of one that midstream has.
            return value
    elif not (_OWN_PATH.fullmatch(key) if own else key in PATHS):
        return value
    elif key == "lessons" and (version := re.search(r"@\d+$", value)):  # RUN@VERSION
        path, rest = value[: version.start()], version[0]
    placed = place(reference, Path(os.path.expanduser(path)))
    return value if placed == Path(path) else f"{placed}{rest}"


# --- objects of a program ---------------------------------------------------------------------------------------------


def reference_of(value: object) -> str:
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
    else:
        name = re.sub(r"[^\w.-]", "", name.rpartition("<locals>.")[2]) or "unnamed"
        number, reference = 2, f"{_HANDED_OVER}:{name}"

        def parts(of: object) -> list[object]:
            # A notebook's cell that runs again makes an equal function; those of one code differ by what they enclose.
            names = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
            return [type(of), *(getattr(of, name, of) for name in names)]

        while reference in _live and parts(_live[reference]) != parts(value):
            reference, number = f"{_HANDED_OVER}:{name}_{number}", number + 1
    _live[reference] = value
    return reference


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
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        public = {known: value for known, value in vars(module).items() if not known.startswith("_")}
        there = [known for known, value in public.items() if getattr(value, "__module__", "") == module.__name__]
        fix = f"name one of: {', '.join(there)}" if there else f"define it there; {example}"
        what = f"{place} has no {name!r}"
        raise RecipeError(what, code="name-not-found", fix=did_you_mean(name, there) + fix) from error


def import_place(place: str, example: str = EXAMPLE) -> ModuleType:
    """Import a module, or a file, whose objects share state in a process. Raises `RecipeError` if that fails."""
    path = Path(place).expanduser().absolute() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise RecipeError(f"no file {path}", code="file-not-found", fix=f"give its absolute path; {example}")
    try:
        if path is not None:
            return _import_file(path)
        top = place.partition(".")[0]
        spec = None if top in sys.modules else importlib.util.find_spec(top)
        for where in (spec.origin or "", *(spec.submodule_search_locations or ())) if spec else ():
            # Of a module that is frozen or built in, the origin is no path.
            if os.path.isabs(where):
                _require_trust(Path(where))
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        if getattr(error, "code", "") in ("work-while-importing", "code-not-trusted"):
            raise
        # The module itself is missing, and not one that it imports.
        missing = error.name if path is None and isinstance(error, ModuleNotFoundError) else None
        if missing and f"{place}.".startswith(f"{missing}."):
            raise RecipeError(
                f"no module {place!r}: {error}",
                code="module-not-found",
                fix=f"correct the name, install its package next to midstream, or name the file; {example}",
            ) from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        syntax = isinstance(error, SyntaxError)
        file, line = (error.filename, error.lineno) if syntax else (last.filename, last.lineno)
        raise RecipeError(
            f"{path or place} cannot be imported: {type(error).__name__}: {error}",
            code="import-failed",
            fix=f"correct {file or path or place}, line {line}, which raises it",
        ) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file, once for each content; it can import its neighbors, as if it were run."""
    _require_trust(path)
    content = path.read_bytes()
    name = f"midstream_own_{_digest(str(path).encode() + content)}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    token = _importing.set(str(path))
    # Its neighbors first.
    sys.path.insert(0, str(path.parent))
    try:
        # Not by a loader: it takes bytecode of a file with this size and second of change for this file's.
        exec(compile(content, path, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _importing.reset(token)
        sys.path.remove(str(path.parent))
    return module


def _require_trust(path: Path) -> None:
    """Raise `RecipeError` for code in a run directory, which may be that of others, without `--trust`."""
    places = path.resolve().parents
    in_run = any((place / "run.json").exists() and (place / "recipe.toml").exists() for place in places)
    if in_run and os.environ.get(TRUST) != "1":
        raise RecipeError(
            f"{path} came with a run, and its code would run here",
            code="code-not-trusted",
            fix="read it, then give the command with --trust",
        )


def refuse_while_importing(work: str) -> None:
    """Raise `UsageError` if a file is being imported for its components, and would start `work` again."""
    if file := _importing.get():
        raise UsageError(
            f"{file} calls {work} while it is imported",
            code="work-while-importing",
            fix='put the call under `if __name__ == "__main__":`',
        )


# --- what a run records -----------------------------------------------------------------------------------------------


def used(table: Mapping[str, object]) -> list[OwnComponent]:
    """What the references of a resolved recipe name, each once. Raises `RecipeError` for what cannot be found.

    Nothing is imported, so that changed code is refused before it runs.
    """
    found: list[OwnComponent] = []
    for reference in dict.fromkeys(references(table)):
        place, file = reference.rpartition(":")[0], file_of(reference)
        if reference.startswith("midstream."):
            continue
        if file is not None:
            if not file.is_file():
                raise RecipeError(f"no file {file}", code="file-not-found", fix="restore it, or correct the recipe")
            digest = _digest(file.read_bytes())
            copy_name = f"{file.stem}-{digest}/{file.name}"
            found.append(OwnComponent(reference=reference, digest=digest, copy_name=copy_name))
        elif place == _HANDED_OVER:
            # Raises if this process has not handed it over.
            load(reference)
            found.append(OwnComponent(reference=reference))
        else:
            try:
                spec = importlib.util.find_spec(place)
            except (ImportError, ValueError):
                spec = None
            source = Path(spec.origin).read_bytes() if spec is not None and spec.has_location and spec.origin else b""
            found.append(OwnComponent(reference=reference, digest=_digest(source)))
    return found


def _digest(source: bytes) -> str:
    return blake2b(source, digest_size=8).hexdigest()
