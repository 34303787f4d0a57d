"""A typed Python function of your own: `my_tools.py:word_count`, after `--tools`, or in a recipe.

    [tools.word_count]
    type = "function"
    function = "my_tools.py:word_count"

The file or module is imported when the tool is made, never to check a recipe.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import JsonValue, field_validator

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.protocols import Tool, ToolResult
from midstream.tools import signatures
from midstream.tools.function import FunctionTool, tool

_NAMED = re.compile(r"[^:\x00-\x1f][^\x00-\x1f]*:[A-Za-z_][\w.]*")
_EXAMPLE = 'e.g. function = "my_tools.py:word_count" or "my_package.tools:word_count"'


class Config(Frozen):
    """Where the function is: `FILE.py:NAME`, relative to the directory in which midstream runs, or `MODULE:NAME`."""

    function: str

    @field_validator("function")
    @classmethod
    def _names_both(cls, function: str) -> str:
        if not _NAMED.fullmatch(function):
            raise ValueError("not of the form my_tools.py:word_count or my_package.tools:word_count")
        return function


def load(config: Config, name: str) -> Tool:
    """The function as a tool called `name`.

    It may be decorated with `@tool` or not, an object's method, or any object or class that is a `Tool` already.

    Raises:
        UsageError: there is no such file, module or name, its import fails, or it cannot be a tool.
    """
    place, _, attribute = config.function.rpartition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _not_there(config, module) from error
    if isinstance(found, FunctionTool):
        return found.renamed(name)
    if inspect.isfunction(found) or inspect.ismethod(found):
        return tool(found, name=name)
    return _Renamed(_as_it_is(config, found), signatures.checked_name(name))


class _Renamed:
    """A tool under the recipe's name for it."""

    def __init__(self, inner: Tool, name: str) -> None:
        self._inner, self.name = inner, name
        self.description, self.parameters = inner.description, inner.parameters
        self.timeout_s, self.output_tokens = inner.timeout_s, inner.output_tokens

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return await self._inner.call(arguments)

    async def close(self) -> None:
        await self._inner.close()


def _as_it_is(config: Config, found: Any) -> Tool:
    """An object that is a tool, or one made from a class of tools."""
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise RecipeError(
                f"{config.function} cannot be made without arguments: {error}",
                cause="it is a class whose objects need some",
                fix="make the object in its module, and name the object",
            ) from error
    if not isinstance(found, Tool):
        raise RecipeError(
            f"{config.function} is no function and no tool: {found!r:.100}",
            cause="a tool has name, description, parameters, timeout_s, output_tokens, call and close",
            fix="name a typed function with a docstring: docs/own-tool.md",
        )
    return found


def _from_file(path: Path) -> ModuleType:
    """The file as a module, imported once a process: its tools share its state. Files beside it can be imported."""
    path = path.expanduser().absolute()
    if not path.is_file():
        raise RecipeError(
            f"no file {path}",
            cause=f"a path in a recipe is relative to the directory in which midstream runs, now {Path.cwd()}",
            fix=f"run midstream where the file is, or give its whole path; {_EXAMPLE}",
        )
    known_as = f"midstream_tools_{blake2b(str(path).encode(), digest_size=6).hexdigest()}_{path.stem}"
    if known_as in sys.modules:
        return sys.modules[known_as]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(known_as, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = sys.modules[known_as] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[known_as]
        raise _broken(str(path), error) from error
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error  # it is there, and something that it imports is not
        raise RecipeError(
            f"no module {name!r}: {error}",
            cause="it is misspelt or not installed beside midstream",
            fix=f"install its package, or name the file; {_EXAMPLE}",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(what: str, error: BaseException) -> RecipeError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    return RecipeError(
        f"{what} cannot be imported: {type(error).__name__}: {error}",
        cause=f"{place}, line {line}, raises it" if place and line else f"{place or what} raises it",
        fix=f"correct it until `{Path(sys.executable).name} {what}` runs" if what.endswith(".py") else "correct it",
    )


def _not_there(config: Config, module: ModuleType) -> RecipeError:
    own = [name for name, value in vars(module).items() if isinstance(value, FunctionTool) or _is_own(value, module)]
    place, _, attribute = config.function.rpartition(":")
    return RecipeError(
        f"{place} has no {attribute!r}",
        cause="it is misspelt or not at the top of the module",
        fix=f"name one of: {', '.join(own)}" if own else f"define it there; {_EXAMPLE}",
    )


def _is_own(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__
