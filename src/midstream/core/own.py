"""Components of your own: a file, a module or an object in Python behind the `type` of a recipe's table.

    type = "rewards.py:exact"               a name in a file, relative to the recipe's file or to the working directory
    type = "my_package.rewards:exact"       a name in a module that can be imported
    type = "python:exact"                   an object that a running program has handed over (`reference_of`)

A run records each of them with the digest of its source, and keeps a copy of every file and of the neighbors that it
imports (`OwnComponent`).
"""

from __future__ import annotations

import ast
import filecmp
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import reduce
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UsageError, did_you_mean

EXAMPLE = 'e.g. "my_rewards.py:exact" or "my_package.rewards:exact"'

_REFERENCE = re.compile(r"[^:\x00-\x1f][^\x00-\x1f]*:[A-Za-z_][\w.-]*")
_HANDED_OVER = "python"  # the place of objects that a program hands over
# Settings that are paths of what is read: midstream's, and by their names those of a component of your own.
PATHS = frozenset("path file prompt_file index library start adapter cwd filter votes graphs".split())
_OWN_PATH = re.compile(r"library|(?:\w+_)?(?:path|file)")
_live: dict[str, Any] = {}  # by reference, the objects that this process handed over
_taken: dict[str, dict[str, str]] = {}  # by reference or module, digests of its file and neighbors when imported
_states: dict[str, str] = {}  # by reference, the digest of what an object held when it was handed over
_sources: dict[str, bytes] = {}  # by digest, the source of what was imported: its file can change while it is used
_originals: dict[str, Path] = {}  # by a run's copy that stands in for it, the file that is gone
_importing: ContextVar[str] = ContextVar("importing", default="")


class OwnComponent(Frozen):
    """What a run used of your own: its reference, the digest of its source, and the name of its file's copy.

    `copy_name` is "" for a module and for an object of a program, of which a run keeps no copy. `imports` are the
    digests of what the file imports from its directory, by their paths there, which are copied with it. `state` is the
    digest of what an object of a program holds (`_held`); None in runs of older versions.
    """

    reference: str
    digest: str
    copy_name: str = ""
    imports: dict[str, str] = {}
    state: str | None = None

    def changed_since(self, began: OwnComponent) -> list[str]:
        """What has another digest than when a run began: the reference itself, and files that it imports."""
        imports = [name for name, digest in began.imports.items() if self.imports.get(name) != digest]
        other = self.digest != began.digest or (began.state is not None and self.state != began.state)
        return [self.reference] * other + imports

    def copies(self) -> dict[str, bytes]:
        """The source of its file and of its imports as this process imported them, by the names of the copies."""
        if not self.copy_name:
            return {}
        directory = Path(self.copy_name).parent
        digests = {self.copy_name: self.digest} | {f"{directory}/{name}": own for name, own in self.imports.items()}
        return {name: _sources[digest] for name, digest in digests.items()}


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


def alike(began: Any, now: Any) -> tuple[Any, Any]:
    """Two recipes' tables to compare: code without its directory, which a digest stands for (`OwnComponent`).

    A data file of `now` that is a copy of one of the same name in `began` has the place of that one.
    """
    held: list[Path] = []

    def of_began(reference: str, path: Path) -> Path:
        held.append(path)
        return Path(path.name) if reference else path

    def of_now(reference: str, path: Path) -> Path:
        if reference or path in held or not path.is_file():
            return Path(path.name) if reference else path
        same = (other for other in held if other.name == path.name and other.is_file())
        return next((other for other in same if filecmp.cmp(other, path, shallow=False)), path)

    return _renamed(began, of_began), _renamed(now, of_now)


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
            _taken[reference] = _digests(Path(file).resolve(), neighbors=not importable)
    else:
        name = re.sub(r"[^\w.-]", "", name.rpartition("<locals>.")[2]) or "unnamed"
        number, reference = 2, f"{_HANDED_OVER}:{name}"
        while reference in _live and not _same(_live[reference], value):
            reference, number = f"{_HANDED_OVER}:{name}_{number}", number + 1
        if reference not in _live:
            _taken[reference], _states[reference] = {"": _digest(_source(inner))}, _state(value)
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


def _state(value: Any) -> str:
    """The digest of what an object holds; a connection, which cannot be written down, equals no other."""
    try:
        return _digest(json.dumps(value, sort_keys=True, default=_held).encode())
    except Exception:  # noqa: BLE001 - how an object is copied is its own code
        return _digest(os.urandom(16))


def _held(value: Any) -> Any:
    """What JSON lacks, as lists: a function's source, closure and defaults, and what Python copies of other objects."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        source = _source(value).decode() or value.__code__.co_code.hex()
        return [source, cells, value.__defaults__, value.__kwdefaults__, vars(value).get("__wrapped__")]
    if isinstance(value, type) or inspect.isbuiltin(value):
        in_program = value.__module__ == "__main__" or "<locals>" in value.__qualname__
        return [value.__module__, value.__qualname__, _source(value).decode() if in_program else ""]
    if isinstance(value, bytes | bytearray):
        return _digest(bytes(value))
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(item, sort_keys=True, default=_held) for item in value)
    reduced: Any = value.__reduce_ex__(2)  # a name, or (function, arguments, state, iterators over items)
    if isinstance(reduced, str):
        return reduced
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]


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
    name, path = place, Path(place).expanduser().absolute() if place.endswith(".py") else None
    if path is not None:
        if not path.is_file():
            raise RecipeError(f"no file {path}", code="file-not-found", fix=f"give its absolute path; {example}")
        name = f"midstream_own_{blake2b(str(path).encode(), digest_size=6).hexdigest()}_{path.stem}"
        digests, before = _digests(path), _taken.get(name, {})
        if name in sys.modules and before == digests:
            return sys.modules[name]
        _forget(path.parent, digests, before)
        _taken[name] = digests
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
    try:
        if path is None:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, "a file that ends in .py has a loader"
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        token = _importing.set(str(path))
        sys.path.insert(0, str(path.parent))  # its neighbors first, as if it were run
        try:
            spec.loader.exec_module(module)
        finally:
            _importing.reset(token)
            sys.path.remove(str(path.parent))
        _check_neighbors(path)
        return module
    except (Exception, SystemExit) as error:
        if path is not None:
            sys.modules.pop(name, None)
            if getattr(error, "code", "") in ("work-while-importing", "name-clash"):
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
                cause="a run copies the file that its recipe names, and of what this imports only what lies next to it",
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


def _forget(directory: Path, digests: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Have neighbors imported again that changed since `before`, or that came from a file that is gone."""
    for near, digest in digests.items():
        known = getattr(sys.modules.get(_module_name(near)), "__file__", None) or ""
        changed = known == str(directory / near) and before.get(near, digest) != digest
        if changed or (known and not os.path.exists(known)):
            del sys.modules[_module_name(near)]


def _check_neighbors(path: Path) -> None:
    """Raise `RecipeError` if a neighbor that a run will record is not what its name imports here."""
    for near, digest in list(_digests(path).items())[1:]:
        name = _module_name(near)
        if name in sys.modules:
            file = getattr(sys.modules[name], "__file__", None)
        else:  # imported when a function is called, if ever
            spec = importlib.util.find_spec(name) if "." not in name else None
            file = spec.origin if spec else None
        there = file is not None and os.path.isfile(file) and name.partition(".")[0] not in sys.stdlib_module_names
        if there and _digest(Path(str(file)).read_bytes()) != digest:
            raise RecipeError(
                f"{path} imports {name!r}, which is {file} in this process, and not {path.parent / near}",
                code="name-clash",
                fix="rename one of the two files, or run each in its own process",
            )


def _module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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
    file = file_of(reference)
    if reference in _live:  # as it was when it was handed over
        digests = _taken[reference]
    elif file is not None:
        if not file.is_file():
            raise RecipeError(f"no file {file}", code="file-not-found", fix="restore it, or correct the recipe")
        digests = _digests(file)
    else:  # the whole module: a function uses its neighbors
        load(reference)
        module = getattr(import_place(reference.rpartition(":")[0]), "__file__", None)
        digests = _digests(Path(module), neighbors=False) if module else {"": _digest(b"")}
    (_, digest), *imports = digests.items()
    copy_name = f"{file.stem}-{digest}/{file.name}" if file is not None else ""
    state = _states.get(reference, "") if reference in _live else ""
    return OwnComponent(reference=reference, digest=digest, copy_name=copy_name, imports=dict(imports), state=state)


def _digests(file: Path, neighbors: bool = True) -> dict[str, str]:
    """The digests of a file and of what it imports from its directory, by their paths there, the file's own first."""
    sources = {file.name: file.read_bytes()} | (_imports(file) if neighbors else {})
    digests = {name: _digest(source) for name, source in sources.items()}
    _sources.update(zip(digests.values(), sources.values(), strict=True))
    return digests


def _imports(file: Path) -> dict[str, bytes]:
    """The files in its directory that a file imports, and what these import in turn, by their paths there."""
    found, waiting = dict[Path, bytes](), [file]
    for path in waiting:  # grows
        found[path] = path.read_bytes()
        try:
            nodes = list(ast.walk(ast.parse(found[path])))
        except (SyntaxError, ValueError):  # it fails when it is imported, if ever
            continue
        for node in nodes:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            base = file.parent
            if isinstance(node, ast.ImportFrom):
                base = path.parents[min(node.level, len(path.parents)) - 1] if node.level else base
                names = [f"{node.module}.{name}" if node.module else name for name in names]
            for name in names:
                parts = name.split(".")
                stems = [base.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
                places = [place for stem in stems for place in (Path(f"{stem}.py"), stem / "__init__.py")]
                waiting += [
                    place
                    for place in places
                    if place.is_file() and place not in waiting and place.is_relative_to(file.parent)
                ]
    return {path.relative_to(file.parent).as_posix(): source for path, source in found.items() if path != file}


def _digest(source: bytes) -> str:
    return blake2b(source, digest_size=8).hexdigest()


def from_copies(table: Any, recorded: Mapping[str, OwnComponent], directory: Path) -> Any:
    """A run's table with what is gone from its place, where it now is: the project of the run may have been moved.

    A file is looked for by the end of its old path, from the directories around the run, data from the working
    directory too. Code that is not there is the run's copy in `directory`.
    """
    around = directory.absolute().parents[1:]

    def present(reference: str, path: Path) -> Path:
        if os.path.exists(path) or reference in _live:
            return path
        bases = around if reference else (*around, Path.cwd())
        ends = (base / Path(*path.parts[start:]) for start in range(1, len(path.parts)) for base in bases)
        if found := next(filter(os.path.exists, ends), None):
            return found
        own = recorded.get(reference)
        if own is None or not own.copy_name:
            return path
        copied = (directory / own.copy_name).resolve()
        _originals[str(copied)] = path
        return copied

    return _renamed(table, present)
