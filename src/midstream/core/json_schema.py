"""Validate arguments under JSON schemas that others write, with a bound on the work.

A check must end: of 40 definitions that each refer to the next one twice (3 kB), a validator looks at 2^40 nodes. So
the visits of schemas to values are counted first, each pair of a schema and a value once. Patterns are matched in
linear time, so they have no look-around and no references to groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from midstream.core.data import JsonSchema
from midstream.core.errors import ToolServerError, did_you_mean

UNFINISHED = "they take too many checks; write shorter or simpler values"
_MOST_VISITS = 20_000  # of schemas to values: at most 0.1 s to check
_MOST_EXPLAINED = 3000  # visits of a check whose errors are explained: 0.1 ms each
_MOST_PATTERNS = 50
_LONGEST_NAME = 100  # characters of a misspelt value that is compared with the possible ones
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1 << 18)

# Keywords by what their schemas are for: the value itself, each of its members, the member of a name, nothing yet.
_SAME = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_EACH = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "patternProperties", "contains", "items",
    "prefixItems", "additionalItems", "unevaluatedItems",
)  # fmt: skip
_NAMED = ("properties",)
_PLACES = ("$defs", "definitions")
_BY_NAME = ("dependentSchemas", "dependencies", "patternProperties", *_NAMED, *_PLACES)  # objects of schemas
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def schema_error(arguments: Mapping[str, object], schema: JsonSchema) -> str | None:
    """Return the problem of `arguments` under a JSON schema, in words, or None. Remote references are never fetched.

    Arguments that take too many checks are wrong (`UNFINISHED`).

    Raises:
        ToolServerError: the schema is invalid, which is not the model's fault.
    """
    if reason := unusable_schema(schema):
        raise ToolServerError(
            f"a tool's schema cannot be used: {reason}",
            code="tool-schema-invalid",
            fix="correct the tool's `parameters`",
        )
    root, validator = _compiled(json.dumps(schema))
    try:
        visits = _counter(root)(root, arguments)
        if visits > _MOST_VISITS:
            return UNFINISHED
        if not validator.is_valid(dict(arguments)):
            return _explained(validator, arguments) if visits <= _MOST_EXPLAINED else "they do not fit"
    except (TypeError, ValueError, RecursionError) as failure:
        # The arguments are no JSON.
        return str(failure)[:300]
    known = schema.get("properties", {})
    open_ended = "properties" not in schema or "additionalProperties" in schema or "patternProperties" in schema
    extra = [] if open_ended else sorted(set(arguments) - set(known))
    return f"unknown arguments {', '.join(extra)[:200]} (known: {', '.join(known)})" if extra else None


def unusable_schema(schema: JsonSchema) -> str | None:
    """The reason why arguments cannot be checked under a schema, or None."""
    try:
        _compiled(json.dumps(schema))
    except jsonschema_rs.ValidationError as failure:
        # Its text would quote the whole schema.
        return failure.message[:300]
    except (TypeError, ValueError, RecursionError) as failure:
        return str(failure)[:300]
    return None


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[JsonSchema, jsonschema_rs.Validator]:
    """A schema with its validator.

    Raises `ValueError` if its checks may not end, or a reference leads out of it, and as `json.loads` and the library.
    """
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("it is no object")
    if isinstance(named := schema.get("$schema"), str) and "json-schema.org" not in named:
        # A dialect of somebody's own is read as the newest.
        del schema["$schema"]
    patterns, visits, count, waiting = 0, 0, _counter(schema), [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        if node is not schema and ("$id" in node or "id" in node):
            raise ValueError("a part of it has an id, from which references would count")
        patterns += ("pattern" in node) + len(node.get("patternProperties", ()))
        visits += count(node, None)
        waiting += _under(node, (*_SAME, *_EACH, *_NAMED, *_PLACES))
    if visits > _MOST_VISITS:
        raise ValueError("it takes too many checks")
    if patterns > _MOST_PATTERNS:
        raise ValueError(f"it has more than {_MOST_PATTERNS} patterns")
    return schema, jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)


def _under(node: JsonSchema, keywords: tuple[str, ...]) -> list[object]:
    found: list[object] = []
    for key in keywords:
        value = node.get(key)
        if key in _BY_NAME:
            found += value.values() if isinstance(value, dict) else ()
        elif value is not None:
            found += value if isinstance(value, list) else [value]
    return found


def _counter(root: JsonSchema) -> Callable[[object, object], int]:
    """A function of a schema in `root` and a value: how often a check looks at a schema, at most.

    It raises `ValueError` for a reference that is not a pointer into `root`, or leads back to where it stands.
    """
    counts: dict[tuple[int, int], int | None] = {}  # None while it is counted

    def visits(node: object, value: object) -> int:
        if not isinstance(node, dict):
            return 1
        place = id(node), id(value)
        if place not in counts:
            # There are no fewer visits than pairs.
            if len(counts) > _MOST_VISITS:
                return _MOST_VISITS + 1
            counts[place] = None
            references = [node[key] for key in _REFERENCES if isinstance(node.get(key), str)]
            same = [*_under(node, _SAME), *(_target(root, reference) for reference in references)]
            count = 1 + sum(visits(inner, value) for inner in same)
            count += len(node["enum"]) if isinstance(node.get("enum"), list) else 0
            count += len(value) >> 6 if isinstance(value, str) else 0
            members = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            count += sum(visits(inner, member) for member in members for inner in _under(node, _EACH))
            named = node.get("properties")
            if isinstance(value, Mapping) and isinstance(named, dict):
                count += sum(visits(inner, value[name]) for name, inner in named.items() if name in value)
            counts[place] = count
        found = counts[place]
        if found is None:
            raise ValueError("a reference leads to itself")
        return found

    return visits


def _target(schema: JsonSchema, reference: str) -> object:
    own = schema.get("$id")
    path = reference.removeprefix(own) if isinstance(own, str) else reference
    if not path.startswith("#") or path[1:2] not in ("", "/"):
        raise ValueError(f"the reference {reference!r} is not a pointer into the schema")
    node: Any = schema
    for part in path[1:].split("/")[1:]:
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"the reference {reference!r} leads nowhere") from None
    return node


def _explained(validator: jsonschema_rs.Validator, arguments: Mapping[str, object]) -> str:
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
