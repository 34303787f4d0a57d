"""The user's copy of BFCL: its multi-turn data, its function descriptions, and the classes that calls act on.

The package `bfcl-eval` (Apache-2.0, https://github.com/ShishirPatil/gorilla) is read where it is installed. Nothing of
it is copied, and of its code only the classes and two modules of constants are imported: the package depends on some
fifty others, and these parts only on mpmath.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from midstream.core.errors import RecipeError
from midstream_benchmarks.reading import reading
from midstream_worlds.functions import FunctionSpec

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath"
_FIX = f"run: {INSTALL}"
# BFCL's own names of types; the others are those of JSON schema.
_TYPES = {"dict": "object", "float": "number"}
# Scenario 173 closes ticket "ticket_001": its tickets have names instead of numbers.
_WIDER = {("close_ticket", "ticket_id"): ["integer", "string"]}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One task of BFCL: the user's texts in each turn, the functions, the first state, the expected calls.

    `held_out` maps a turn (counted from 0) to the functions that do not exist before it. `classes` are the classes of
    the objects that make up the state, `initial` their first states.
    """

    id: str
    category: str
    scenario: int
    users: tuple[str, ...]
    classes: tuple[str, ...]
    initial: Mapping[str, Any]
    held_out: Mapping[int, tuple[str, ...]]
    truth: tuple[tuple[str, ...], ...]


class Package:
    """The installed package. Raises `RecipeError` if it is missing or has another layout."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("bfcl_eval")
        if spec is None or spec.origin is None:
            raise RecipeError(
                "BFCL's data is not installed: there is no package bfcl_eval", code="data-not-found", fix=_FIX
            )
        self._read_documents: dict[str, dict[str, FunctionSpec]] = {}
        self._data = Path(spec.origin).parent / "data"
        with reading("BFCL's constants", _FIX):
            constants = importlib.import_module("bfcl_eval.constants.executable_backend_config")
            self._modules: Mapping[str, str] = constants.CLASS_FILE_PATH_MAPPING
            self._documents: Mapping[str, str] = constants.MULTI_TURN_FUNC_DOC_FILE_MAPPING
            self.stateless: frozenset[str] = frozenset(constants.STATELESS_CLASSES)
            # The user's text when functions are added that were held back.
            prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
            self.more_functions: str = prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC

    def entries(self, category: str) -> list[Entry]:
        """Read all tasks of a category, in their order."""
        name = f"BFCL_v4_multi_turn_{category}.json"
        with reading(f"BFCL's tasks ({category})", _FIX):
            truths = {row["id"]: row["ground_truth"] for row in self._rows(f"possible_answer/{name}")}
            return [
                Entry(
                    id=row["id"],
                    category=category,
                    scenario=int(row["id"].rsplit("_", 1)[1]),
                    users=tuple(
                        "\n".join(message["content"] for message in turn) or self.more_functions
                        for turn in row["question"]
                    ),
                    classes=tuple(row["involved_classes"]),
                    initial=row["initial_config"],
                    held_out={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
                    truth=tuple(tuple(calls) for calls in truths[row["id"]]),
                )
                for row in self._rows(name)
            ]

    def documents(self, of_class: str) -> dict[str, FunctionSpec]:
        """Read the functions of a class by name, in their order; they are public methods of its objects."""
        if of_class not in self._read_documents:
            found: dict[str, FunctionSpec] = {}
            with reading(f"BFCL's functions of {of_class}", _FIX):
                for row in self._rows(f"multi_turn_func_doc/{self._documents[of_class]}"):
                    parameters = _schema(row["parameters"])
                    for name, schema in parameters["properties"].items():
                        schema["type"] = _WIDER.get((row["name"], name), schema["type"])
                    found[row["name"]] = FunctionSpec(
                        name=row["name"], description=row["description"], parameters=parameters
                    )
            self._read_documents[of_class] = found
        return self._read_documents[of_class]

    def make(self, of_class: str) -> Any:
        """Make an object of a class, its state not loaded yet."""
        with reading(f"BFCL's {of_class}", _FIX):
            return getattr(importlib.import_module(self._modules[of_class]), of_class)()

    def _rows(self, name: str) -> list[dict[str, Any]]:
        text = (self._data / name).read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]


@cache
def package() -> Package:
    """Find and read the package, once."""
    return Package()


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Parse an expected call such as `cd(folder='temp')`: its function, positional arguments, named arguments.

    Only literals are parsed, and nothing is run; raises `ValueError` for any other text.
    """
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a call: {text!r}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not a call: {text!r}")
    named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
    if len(named) < len(call.keywords):
        raise ValueError(f"not a call with names of its own: {text!r}")
    return call.func.id, [ast.literal_eval(value) for value in call.args], named


def _schema(written: Mapping[str, Any]) -> dict[str, Any]:
    """Convert BFCL's description of a value to a JSON schema."""
    schema = {**written, "type": _TYPES.get(written["type"], written["type"])}
    if "items" in written:
        schema["items"] = _schema(written["items"])
    if "properties" in written:
        schema["properties"] = {name: _schema(inner) for name, inner in written["properties"].items()}
    return schema
