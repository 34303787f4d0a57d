"""Which of a server's tools an agent gets, with names, descriptions and schemas that fit into prompts.

All three are written by others. Names become identifiers, descriptions lose control characters and are cut, a schema
must be a JSON schema for an object, without references to other documents and of bounded size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for
from mcp_types import Tool
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from midstream.core.data import Frozen, unfit

MAX_NAME = 64  # characters: what model servers allow for a function's name
MAX_DESCRIPTION = 1000  # of a tool; of a parameter half of it
MAX_SCHEMA = 20_000  # as JSON
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")  # and direction marks
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Offered(Frozen):
    """A tool as an agent sees it, and `original`, its name on the server."""

    original: str
    name: str
    description: str
    parameters: dict[str, Any]


def offer(wanted: Sequence[Tool], prefix: str) -> tuple[list[Offered], dict[str, str]]:
    """(usable tools in the server's order, {name on the server: reason} of the others)."""
    names = Counter(identifier(prefix + tool.name) for tool in wanted)
    offered: list[Offered] = []
    refused: dict[str, str] = {}
    for tool in wanted:
        name = identifier(prefix + tool.name)
        if not re.search(r"[A-Za-z0-9]", tool.name):
            reason = "its name has no letter and no digit"
        elif len(name) > MAX_NAME:
            reason = f"its name is longer than {MAX_NAME} characters"
        elif names[name] > 1:
            reason = "another has the same name"
        else:
            reason = bad_schema(tool.input_schema)
        if reason:
            refused[tool.name] = reason
            continue
        description = clean(tool.description or tool.title or tool.name, MAX_DESCRIPTION)
        parameters = _with_clean_texts(tool.input_schema)
        offered.append(Offered(original=tool.name, name=name, description=description, parameters=parameters))
    return offered, refused


def identifier(name: str) -> str:
    """`name` with every character that an identifier cannot hold replaced by "_"."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{word}" if word[:1].isdigit() else word


def clean(text: str, limit: int) -> str:
    """`text` on one line, without control characters, at most `limit` characters and an ellipsis."""
    line = " ".join(_CONTROL.sub(" ", text[: 10 * limit]).split())
    return line if len(line) <= limit else line[:limit] + " ..."


def bad_schema(schema: dict[str, Any]) -> str | None:
    """The reason why a schema cannot be used for a tool's arguments, or None."""
    if why := unfit(schema):
        return f"its schema: {why}"
    if len(json.dumps(schema)) > MAX_SCHEMA:
        return f"its schema is longer than {MAX_SCHEMA} characters"
    if schema.get("type") != "object":
        return f"its schema is of type {schema.get('type')!r}, not object"
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
        for reference in _references(schema):
            resolver.lookup(reference)
        kind(schema, registry=Registry()).is_valid({})
    except SchemaError as failure:
        return f"its schema is not a JSON schema: {failure.message[:200]}"
    except (Unresolvable, RecursionError) as failure:
        return f"its schema has an unresolved reference: {str(failure)[:200] or type(failure).__name__}"
    return None


def _references(value: Any) -> Iterator[str]:
    """All references of a schema, and texts of examples that look like references."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in _REFERENCES and isinstance(item, str):
                yield item
            else:
                yield from _references(item)


def _with_clean_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_clean_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    texts = ("description", "title", "$comment")
    return {
        key: clean(item, MAX_DESCRIPTION // 2) if key in texts and isinstance(item, str) else _with_clean_texts(item)
        for key, item in value.items()
    }
