"""Validate arguments under JSON schemas that others write, with a bound on the work.

A check must end: of 40 definitions that each refer to the next one twice (3 kB), a validator looks at 2^40 nodes. So
the visits of schemas to values are counted first, by a walk through both that stops at a limit. Patterns are matched in
linear time, so they have no look-around and no references to groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

import jsonschema_rs

from midstream.core.data import JsonSchema
from midstream.core.errors import ToolServerError, did_you_mean

UNFINISHED = "they take too many checks; write shorter or simpler values"
_MOST_VISITS = 20_000  # of schemas to values: at most 0.1 s to count, and less to check
_MOST_EXPLAINED = 3000  # visits of a check whose errors are explained: 0.1 ms each
_MOST_PATTERNS = 50
_LONGEST_NAME = 100  # characters of a misspelt value that is compared with the possible ones
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1 << 18)

# Keywords by what their schemas are for: the value itself, each of its members, or members by name.
_SAME = ("not", "if", "then", "else")
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_NAMED = ("dependentSchemas", "dependencies")
_EACH = ("additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "unevaluatedItems", "items")
_EACH_LISTS = ("prefixItems", "items", "additionalItems")
_NAMED = ("properties", "patternProperties")
_PLACES = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_Verdict: TypeAlias = tuple[str, str]  # "fits", "wrong" (the arguments) or "unusable" (the schema), and why


class _TooManyError(Exception):
    """The visits passed their limit."""


def schema_error(arguments: Mapping[str, object], schema: JsonSchema) -> str | None:
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
            fix="correct the tool's `parameters`",
        )
    return why or None


def unusable_schema(schema: JsonSchema) -> str | None:
    """The reason why arguments cannot be checked under a schema, or None."""
    kind, why = _verdict({}, schema)
    return why if kind == "unusable" else None


def _verdict(arguments: Mapping[str, object], schema: JsonSchema) -> _Verdict:
    try:
        compiled = _compiled(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as failure:
        return "unusable", str(failure)[:300]
    if isinstance(compiled, str):
        return "unusable", compiled
    root, validator = compiled
    try:
        visits = _visits(root, arguments)
        if not validator.is_valid(dict(arguments)):
            return "wrong", _explained(validator, arguments) if visits <= _MOST_EXPLAINED else "they do not fit"
    except _TooManyError:
        return "wrong", UNFINISHED
    except (TypeError, ValueError, RecursionError) as failure:
        # The arguments are no JSON.
        return "wrong", str(failure)[:300]
    known = schema.get("properties", {})
    open_ended = "properties" not in schema or "additionalProperties" in schema or "patternProperties" in schema
    if extra := [] if open_ended else sorted(set(arguments) - set(known)):
        return "wrong", f"unknown arguments {', '.join(extra)[:200]} (known: {', '.join(known)})"
    return "fits", ""


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[Any, Any] | str:
    """A schema from its JSON text, and its validator; or the reason why it cannot be used."""
    try:
        return _compile(json.loads(text))
    except jsonschema_rs.ValidationError as failure:
        return failure.message[:300]
    except (TypeError, ValueError, RecursionError) as failure:
        return str(failure)[:300]


def _compile(schema: Any) -> tuple[Any, Any]:
    if not isinstance(schema, dict):
        raise ValueError("it is no object")
    if isinstance(named := schema.get("$schema"), str) and "json-schema.org" not in named:
        # A dialect of somebody's own is read as the newest.
        del schema["$schema"]
    patterns = visits = 0
    for node in _schemas(schema):
        if node is not schema and ("$id" in node or "id" in node):
            raise ValueError("a part of it has an id, from which references would count")
        patterns += ("pattern" in node) + len(node.get("patternProperties", ()))
        try:
            # This raises for references that lead nowhere or to themselves.
            visits += _visits(schema, None, node)
            if visits > _MOST_VISITS:
                raise _TooManyError
        except _TooManyError:
            raise ValueError("it takes too many checks") from None
    if patterns > _MOST_PATTERNS:
        raise ValueError(f"it has more than {_MOST_PATTERNS} patterns")
    return schema, jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema, itself first."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        for key in (*_SAME, *_EACH):
            waiting.append(node.get(key))
        for key in (*_SAME_LISTS, *_EACH_LISTS):
            waiting += found if isinstance(found := node.get(key), list) else ()
        for key in (*_SAME_NAMED, *_NAMED, *_PLACES):
            waiting += found.values() if isinstance(found := node.get(key), dict) else ()


def _visits(root: JsonSchema, value: object, start: JsonSchema | None = None) -> int:
    """How often a check of `value` would look at a schema, at most. Raises `_TooManyError` above the limit.

    Raises `ValueError` for a reference that is not a pointer into the schema, or leads back to where it stands.
    """
    count, begun = 0, set[tuple[int, int]]()

    def visit(node: Any, value: object) -> None:
        nonlocal count
        if not isinstance(node, dict):
            count += 1
            return
        place = id(node), id(value)
        if place in begun:
            raise ValueError("a reference leads to itself")
        begun.add(place)
        count += 1 + len(node.get("enum", ())) + (len(value) >> 6 if isinstance(value, str) else 0)
        if count > _MOST_VISITS:
            raise _TooManyError
        for key in _REFERENCES:
            if isinstance(reference := node.get(key), str):
                visit(_target(root, reference), value)
        for key in _SAME:
            if key in node:
                visit(node[key], value)
        for key in _SAME_LISTS:
            for inner in node.get(key, ()):
                visit(inner, value)
        for key in _SAME_NAMED:
            for inner in node.get(key, {}).values():
                visit(inner, value)
        members = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        for member in members:
            for key in _EACH:
                if key in node:
                    visit(node[key], member)
            for key in _EACH_LISTS:
                for inner in found if isinstance(found := node.get(key), list) else ():
                    visit(inner, member)
        if isinstance(value, Mapping):
            for name, inner in node.get("properties", {}).items():
                if name in value:
                    visit(inner, value[name])
            for inner in node.get("patternProperties", {}).values():
                for member in members:
                    visit(inner, member)
        begun.discard(place)

    try:
        visit(root if start is None else start, value)
    except (AttributeError, TypeError):
        # A keyword has another type, which the validator names.
        return 1
    return count


def _target(schema: Any, reference: str) -> Any:
    """What a reference points to."""
    own = schema.get("$id") if isinstance(schema, dict) else None
    path = reference.removeprefix(own) if isinstance(own, str) else reference
    if not path.startswith("#") or path[1:2] not in ("", "/"):
        raise ValueError(f"the reference {reference!r} is not a pointer into the schema")
    node = schema
    for part in path[1:].split("/")[1:]:
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"the reference {reference!r} leads nowhere") from None
    return node


def _explained(validator: Any, arguments: Mapping[str, object]) -> str:
    """The first error, with its place, and the word that a misspelt one may mean."""
    try:
        validator.validate(dict(arguments))
    except jsonschema_rs.ValidationError as error:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        where = f"at ${path}: " if path else ""
        options, value = getattr(error.kind, "options", ()), error.instance
        misspelt = isinstance(value, str) and len(value) <= _LONGEST_NAME
        return where + (did_you_mean(value, map(str, options)) if misspelt else "") + error.message[:300]
    return "they do not fit"
