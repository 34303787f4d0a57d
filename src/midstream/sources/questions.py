"""From the fields of a row to a task: its id, its options as the agent reads them, its gold answer as text."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from midstream.core.task import Task
from midstream.sources.records import BadRowError, json_excerpt

_LETTERED = re.compile(r"\s*\(?([A-Z])[.):]\s*(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Fields of a task. `options` are by letter, and `answer` is then one of the letters."""

    question: str
    answer: str
    aliases: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    family: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


def make_task(fields: Fields, *, prefix: str, reward: str, family: str = "", instruction: str = "") -> Task:
    """Make the task, with options listed below its question, and `instruction` at the end.

    Its id is a hash of the question and its options, whatever their order (`prefix`-12 hexadecimal digits), so that it
    is the same in every file and draw, and two evaluations pair the same questions.
    """
    asked = "\n".join([fields.question, *sorted(fields.options.values())])
    digest = hashlib.blake2b(asked.encode(), digest_size=6).hexdigest()
    lines = [fields.question, *(f"{letter}. {text}" for letter, text in fields.options.items())]
    aliases = fields.aliases
    if fields.options:
        # The option's text counts too, unless it reads as another option's letter.
        aliases = [text for text in [fields.options[fields.answer]] if text not in fields.options]
    metadata = {**fields.metadata, **({"options": dict(fields.options)} if fields.options else {})}
    return Task(
        id=f"{prefix}-{digest}",
        question="\n".join(lines) + (f"\n{instruction}" if instruction else ""),
        answer=fields.answer,
        aliases=tuple(dict.fromkeys(alias for alias in aliases if alias != fields.answer)),
        reward=reward,
        family=fields.family or family,
        metadata=metadata,
    )


def from_json(value: Any) -> Any:
    """Parse a list or table that is text of JSON, as in a cell of a CSV file; other values are returned unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"{json_excerpt(value)} is no JSON list or table: {error}") from error


def as_text(value: object, name: str) -> str:
    """Convert an answer to text, as JSON writes it. Raises `BadRowError` for a missing, empty or structured value."""
    if value is None:
        raise BadRowError(f"{name!r} is missing or null")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise BadRowError(f"{name!r} must be text or a number, not {json_excerpt(value)}")
    if not value.strip():
        raise BadRowError(f"{name!r} is empty")
    return value.strip()


def as_texts(value: object, name: str) -> list[str]:
    """Convert one answer or a list of them to texts."""
    if isinstance(value, list | tuple) and not value:
        raise BadRowError(f"{name!r} is an empty list")
    return [as_text(answer, name) for answer in (value if isinstance(value, list | tuple) else [value])]


def by_letter(options: object, name: str = "options") -> dict[str, str]:
    """Map letters to the texts of options, given as a table by letter or a list with or without letters.

    Raises `BadRowError` if they are fewer than two or more than 26, or neither a list nor a table.
    """
    if isinstance(options, Mapping):
        found = {str(letter).strip(): as_text(text, name) for letter, text in options.items() if text is not None}
        if not all(len(letter) == 1 and letter in string.ascii_uppercase for letter in found):
            raise BadRowError(f"{name!r} must be named by capital letters, not {json_excerpt(list(found))}")
    elif isinstance(options, list | tuple):
        texts = [as_text(option, name) for option in options]
        matches = [_LETTERED.fullmatch(text) for text in texts]
        letters = string.ascii_uppercase[: len(texts)]
        if all(match and match[1] == letter for match, letter in zip(matches, letters, strict=False)):
            texts = [match[2] for match in matches if match]
        found = dict(zip(letters, texts, strict=False))
        if len(texts) > len(letters):
            raise BadRowError(f"{name!r} are {len(texts)}, more than there are letters")
    else:
        raise BadRowError(f"{name!r} must be a list or a table by letter, not {json_excerpt(options)}")
    if len(found) < 2:
        raise BadRowError(f"{name!r} must be two or more, not {json_excerpt(options)}")
    return found


def letter_of(answer: str, options: Mapping[str, str]) -> str:
    """Letter of the one option that an answer names: by a letter, an option's text, or both ("B. Oral ulcers")."""
    lettered = _LETTERED.fullmatch(answer)
    if lettered and options.get(lettered[1]) == lettered[2]:
        return lettered[1]
    named = {letter for letter, text in options.items() if answer in (letter, text)}
    if len(named) != 1:
        raise BadRowError(
            f"the answer {json_excerpt(answer)} is {'more than one' if named else 'not one'} of the options"
        )
    return named.pop()


def whole(value: object, name: str) -> str:
    """Strip leading zeros and a fraction of zero off a number: "033" is 33, 27.0 is 27; keep other texts."""
    text = as_text(value, name)
    found = re.fullmatch(r"0*(\d+)(?:\.0*)?", text)
    return found[1] if found else text
