"""Validate arguments under JSON schemas that others write, with a bound on the work.

A check must end: of 40 definitions that each refer to the next one twice (3 kB), a validator looks at 2^40 nodes. So
the nodes of the schema, with all references expanded as deep as the arguments are, are counted first. Patterns are
matched without backtracking, or with a limit on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import jsonschema_rs

from midstream.core.errors import ToolServerError, did_you_mean

UNFINISHED = "they take too many checks; write shorter or simpler values"
_MOST_VISITS = 5_000_000  # nodes of a schema x nodes of the arguments: about a second
_MOST_EXPLAINED = 3000  # nodes of a schema whose errors are explained: 0.1 ms each
_DEEPEST = 50  # levels of arguments
_LONGEST_NAME = 100  # characters of a misspelt value that is compared with the possible ones
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000, size_limit=1 << 20)
# Keywords that hold schemas for members of the value, by name or not, and keywords that hold none to check by.
_NAMED = ("properties", "patternProperties")
_BELOW = (
    "additionalProperties propertyNames items prefixItems additionalItems contains unevaluatedProperties "
    "unevaluatedItems"
).split()
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_APART = ("$defs", "definitions", "default", "examples")
_Verdict: TypeAlias = tuple[str, str]  # "fits", "wrong" (the arguments) or "unusable" (the schema), and why


def schema_error(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `arguments` under a JSON schema, in words, or None. Remote references are never fetched.

    Arguments that take too many checks are wrong (`UNFINISHED`).

    Raises:
        ToolServerError: the schema is invalid, which is not the model's fault.
    """
    kind, why = _verdict(arguments, schema)
    if kind == "unusable":
        raise ToolServerError(
            f"a tool's schema cannot be used: {why}",
            code="tool-schema-invalid",
            cause=f"it is not a JSON schema that is complete in itself: {str(schema)[:300]}",
            fix="correct the tool's `parameters`",
        )
    return why or None


def unusable_schema(schema: Mapping[str, Any]) -> str | None:
    """The reason why arguments cannot be checked under a schema, or None."""
    kind, why = _verdict({}, schema)
    return why if kind == "unusable" else "it takes too many checks" if why == UNFINISHED else None


def _verdict(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> _Verdict:
    try:
        text = json.dumps(schema)
        depth, size = _measured(arguments)
        nodes = _nodes(text, min(depth, _DEEPEST))
        if depth > _DEEPEST or nodes * size > _MOST_VISITS:
            return "wrong", UNFINISHED
        validator = _validator(text)
    except (TypeError, ValueError, RecursionError) as failure:
        why = failure.message if isinstance(failure, jsonschema_rs.ValidationError) else str(failure)
        return "unusable", why[:300]
    if not validator.is_valid(arguments := dict(arguments)):
        return "wrong", _explained(validator, arguments) if nodes <= _MOST_EXPLAINED else "they do not fit the schema"
    known = schema.get("properties", {})
    open_ended = "properties" not in schema or "additionalProperties" in schema or "patternProperties" in schema
    if extra := [] if open_ended else sorted(set(arguments) - set(known)):
        return "wrong", f"unknown arguments {', '.join(extra)[:200]} (known: {', '.join(known)})"
    return "fits", ""


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """The validator of a schema's JSON text; an invalid schema raises `jsonschema_rs.ValidationError`."""
    return jsonschema_rs.validator_for(json.loads(text), offline=True, pattern_options=_PATTERNS)


@lru_cache(maxsize=1024)
def _nodes(text: str, depth: int) -> int:
    """The nodes of a schema, with references expanded as far as a value of this depth leads; lists count by size.

    Raises `ValueError` for a reference that is not a pointer into the schema, or that leads to itself.
    """
    schema, counts = json.loads(text), {}

    def count(node: Any, depth: int) -> int:
        if isinstance(node, list):
            return sum(count(item, depth) for item in node)
        if not isinstance(node, dict) or depth < 0:
            return 1
        place = id(node), depth
        if place not in counts:
            counts[place] = None
            counts[place] = 1 + sum(expanded(key, value, depth) for key, value in node.items() if key not in _APART)
        if (known := counts[place]) is None:
            raise ValueError("a reference leads to itself")
        return known

    def expanded(key: str, value: Any, depth: int) -> int:
        if key in _REFERENCES and isinstance(value, str):
            return count(_target(schema, value), depth)
        if key in _NAMED and isinstance(value, dict):
            return sum(count(member, depth - 1) for member in value.values())
        return count(value, depth - (key in _BELOW))

    return count(schema, depth)


def _target(schema: Any, reference: str) -> Any:
    """What a reference points to."""
    path, node = reference.removeprefix("#"), schema
    if not reference.startswith("#") or path[:1] not in ("", "/"):
        raise ValueError(f"the reference {reference!r} is not a pointer into the schema")
    for part in path.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"the reference {reference!r} leads nowhere") from None
    return node


def _measured(value: Any) -> tuple[int, int]:
    """The depth and the size of a JSON value: its nodes and keys; a long text counts as one node in 64 characters."""
    depth = size = 0
    level: list[Any] = [value]
    while level:
        size += sum(1 + (len(item) >> 6 if isinstance(item, str) else 0) for item in level)
        level = [inner for item in level for inner in _members(item)]
        depth += bool(level)
    return depth, size


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _explained(validator: Any, arguments: Mapping[str, Any]) -> str:
    """The first error, with its place, and the word that a misspelt one may mean."""
    try:
        validator.validate(arguments)
    except jsonschema_rs.ValidationError as error:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        where = f"at ${path}: " if path else ""
        options, value = getattr(error.kind, "options", ()), error.instance
        misspelt = isinstance(value, str) and len(value) <= _LONGEST_NAME
        return where + (did_you_mean(value, map(str, options)) if misspelt else "") + error.message[:300]
    return "they do not fit the schema"
