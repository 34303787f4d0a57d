"""The user's own copy of BFCL: its multi-turn data, its function descriptions, and the classes that calls act on.

The package `bfcl-eval` (Apache-2.0, https://github.com/ShishirPatil/gorilla) is read where it is installed. Nothing of
it is copied, and of its code no more is imported than the classes and two modules of constants: it asks for some fifty
packages, and these need none of them but mpmath.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from midstream.core.errors import RecipeError
from midstream.tasks.functions import Act, StateFunction

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath"
# The types that BFCL writes in a way of its own; the others are those of JSON schema.
_TYPES = {"dict": "object", "float": "number"}
# Scenario 173 closes ticket "ticket_001", and its tickets are named by text.
_WIDER = {("close_ticket", "ticket_id"): ["integer", "string"]}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One task of BFCL: what users say in each turn, the functions, the start of the state, the expected calls.

    `held_out` maps a turn (counted from 0) to the functions that are not there before it. `classes` are those of the
    objects that make up the state, `initial` says how each starts.
    """

    id: str
    category: str
    scenario: int
    users: tuple[str, ...]
    classes: tuple[str, ...]
    initial: Mapping[str, Any]
    held_out: Mapping[int, tuple[str, ...]]
    truth: tuple[tuple[str, ...], ...]

    @property
    def long_context(self) -> bool:
        """Whether results are filled up with much that is of no use."""
        return self.category == "long_context"


@dataclass(frozen=True, kw_only=True)
class Document:
    """What BFCL says of one function, its parameters as a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def tool(self, act: Act, output_tokens: int) -> StateFunction:
        """The function as a tool that acts by `act`."""
        return StateFunction(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            act=act,
            output_tokens=output_tokens,
        )


class Package:
    """The installed package. Raises `RecipeError` where it is missing or laid out in another way."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("bfcl_eval")
        if spec is None or spec.origin is None:
            raise RecipeError(
                "BFCL's data is not installed", cause="there is no package bfcl_eval", fix=f"run: {INSTALL}"
            )
        self._read_documents: dict[str, dict[str, Document]] = {}
        self._data = Path(spec.origin).parent / "data"
        with _reading("constants"):
            constants = importlib.import_module("bfcl_eval.constants.executable_backend_config")
            self._modules: Mapping[str, str] = constants.CLASS_FILE_PATH_MAPPING
            self._documents: Mapping[str, str] = constants.MULTI_TURN_FUNC_DOC_FILE_MAPPING
            self.stateless: frozenset[str] = frozenset(constants.STATELESS_CLASSES)
            # What its user says when functions come that were held back.
            prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
            self.more_functions: str = prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC

    def entries(self, category: str) -> list[Entry]:
        """All tasks of a category, in their order."""
        name = f"BFCL_v4_multi_turn_{category}.json"
        with _reading(f"tasks ({category})"):
            truths = {row["id"]: row["ground_truth"] for row in self._rows(f"possible_answer/{name}")}
            return [self._entry(row, category, truths[row["id"]]) for row in self._rows(name)]

    def documents(self, of_class: str) -> dict[str, Document]:
        """The functions of a class by name, in their order; they are public methods of its objects."""
        if of_class not in self._read_documents:
            with _reading(f"functions of {of_class}"):
                rows = self._rows(f"multi_turn_func_doc/{self._documents[of_class]}")
                self._read_documents[of_class] = {row["name"]: _document(row) for row in rows}
        return self._read_documents[of_class]

    def make(self, of_class: str) -> Any:
        """A new object of a class, its state not loaded yet."""
        with _reading(of_class):
            return getattr(importlib.import_module(self._modules[of_class]), of_class)()

    def _rows(self, name: str) -> list[dict[str, Any]]:
        text = (self._data / name).read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def _entry(self, row: Mapping[str, Any], category: str, truth: list[list[str]]) -> Entry:
        return Entry(
            id=row["id"],
            category=category,
            scenario=int(row["id"].rsplit("_", 1)[1]),
            users=tuple("\n".join(said["content"] for said in turn) or self.more_functions for turn in row["question"]),
            classes=tuple(row["involved_classes"]),
            initial=row["initial_config"],
            held_out={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
            truth=tuple(tuple(calls) for calls in truth),
        )


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Whatever is missing there, or is written in another way, is one `RecipeError`."""
    try:
        yield
    except (ImportError, AttributeError, OSError, ValueError, TypeError, LookupError, SyntaxError) as error:
        raise RecipeError(
            f"BFCL's {what} cannot be read: {type(error).__name__}: {error}",
            cause="files or packages are missing, or this version of bfcl-eval is laid out in another way",
            fix=f"run: {INSTALL}",
        ) from error


@cache
def package() -> Package:
    """The package, found and read once."""
    return Package()


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """An expected call such as `cd(folder='temp')`: its function, arguments by place, arguments by name.

    Literals alone are read, and nothing is run; raises `ValueError` for any other text.
    """
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a call: {text!r}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not a call: {text!r}")
    named = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
    if len(named) < len(call.keywords):
        raise ValueError(f"not a call with names of its own: {text!r}")
    return call.func.id, [ast.literal_eval(value) for value in call.args], named


def _document(row: Mapping[str, Any]) -> Document:
    parameters = _schema(row["parameters"])
    for name, one in parameters["properties"].items():
        one["type"] = _WIDER.get((row["name"], name), one["type"])
    return Document(name=row["name"], description=row["description"], parameters=parameters)


def _schema(written: Mapping[str, Any]) -> dict[str, Any]:
    """BFCL's description of a value as JSON schema."""
    schema = {**written, "type": _TYPES.get(written["type"], written["type"])}
    if "items" in written:
        schema["items"] = _schema(written["items"])
    if "properties" in written:
        schema["properties"] = {name: _schema(one) for name, one in written["properties"].items()}
    return schema
