"""Prompts of modules: files with places for values, and the values as text (memory, tools, lessons).

Memory is a line of JSON for each record. Fields at their default are left out, so a short turn is a short text:

    {"turn":1,"action":{"sub_goal":"find height","tool":"search"},"result":"height 105"}

Two properties hold for any text that a tool or model may have produced:
- Append-only: the text of n records is a prefix of the text of n + 1, so turns of one trajectory share their prompt.
- No forgery: line breaks, control characters and whatever opens a chat-template token or a tag (`<|im_start|>`,
  `</s>`, `[INST]`, `<div>`) become unicode escapes, so no text can start a record or a chat turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.protocols import Tool
from midstream.core.text import PLACE, fill, neutral, to_json
from midstream.core.text_file import read_text
from midstream.core.trajectory import Memory, Message

ResultForm = Literal["json", "toon", "auto"]

# How tokenizers such as GPT-4's and Qwen's split text before they merge characters: words, digits, signs, spaces.
_PIECE = re.compile(r"[^\r\n\w]?[^\W\d_]+|\d| ?(?:_|[^\s\w])+[\r\n]*|\s*[\r\n]+|\s+")
_USER_PART = "<!-- user -->\n"


def prompt_text(role: str, override: Path | None = None, *, package: str = "midstream.agents") -> str:
    """The text of the prompt file that ships with a package for a role, or of the user's `override`."""
    if override is None:
        return (resources.files(package) / "prompts" / f"{role}.md").read_text(encoding="utf-8")
    return read_text(override, fix=f"correct prompt_file of the {role}")


class PromptTemplate:
    """A prompt file: a system part, a line `<!-- user -->`, a user part, with `{{name}}` where values go.

    Args:
        role: names the file that ships with midstream.
        layout: the values the prompt must hold, once each and in this order; `lessons` may stand before the query.
        override: a file of the user; without a place for lessons it shows none (`shows_lessons`).
        package: the package that the file ships with.
    """

    def __init__(
        self, role: str, layout: tuple[str, ...], override: Path | None = None, *, package: str = "midstream.agents"
    ) -> None:
        text = prompt_text(role, override, package=package)
        names = PLACE.findall(text)
        in_place = names.count("lessons") == 0 or (names[0] == "lessons" and names.count("lessons") == 1)
        if text.count(_USER_PART) != 1 or not in_place or tuple(name for name in names if name != "lessons") != layout:
            raise RecipeError(
                f"the {role}'s prompt file {override} holds {names or 'no placeholder'}",
                code="prompt-invalid",
                cause="prompts of successive turns are only shared if what changes comes last",
                fix=f"use {', '.join('{{' + name + '}}' for name in layout)} once each in this order, lessons (if at "
                f"all) first, and one line {_USER_PART.strip()} where the user message starts",
            )
        self.shows_lessons = "lessons" in names
        self._system, self._user = text.split(_USER_PART)

    def messages(self, values: Mapping[str, str]) -> tuple[Message, Message]:
        """The system and the user message. Values are inserted as they are: a placeholder inside one stays text."""
        values = {"lessons": "", **values}
        system, user = fill(self._system, values), fill(self._user, values)
        return Message(role="system", content=system.strip()), Message(role="user", content=user.rstrip("\n"))


def render_memory(memory: Memory) -> str:
    """A line of JSON for each record, "" without records."""
    return "".join(to_json(record.model_dump(exclude_defaults=True)) + "\n" for record in memory.records)


def render_lessons(lessons: str) -> str:
    """The part of a prompt that holds lessons; "" without any, so that the prompt is unchanged."""
    text = neutral(lessons.strip())
    return f"# Lessons from earlier tasks\n\n{text}\n\n" if text else ""


def render_tools(tools: Sequence[Tool]) -> str:
    """A line of JSON for each tool: name, description, parameters. Escaped like memory: a tool may be anyone's."""
    fields = ("name", "description", "parameters")
    return "\n".join(to_json({field: getattr(tool, field) for field in fields}) for tool in tools)


def result_writer(form: ResultForm) -> Callable[[str], str]:
    """The function that writes a tool's result for prompts: JSON objects and lists in `form`, other text unchanged.

    `json` leaves the tool's text; `toon` is token-oriented object notation; `auto` is the shortest of the tool's text,
    JSON without spaces, and TOON. It counts the pieces into which tokenizers split text first: fewer characters are
    often more tokens, as in TOON of nested objects (benchmarks/toon.py).

    Raises `UnsupportedError` if TOON's library is not installed.
    """
    if form == "json":
        return str
    try:
        import toon_format
    except ImportError as failure:
        raise UnsupportedError(
            f"agent.observation_format = {form!r} needs the library toon-format, which is not installed",
            code="missing-extra",
            fix="pip install 'midstream[toon]', or set observation_format = \"json\"",
        ) from failure

    def write(text: str) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = json.loads(text)
            toon = toon_format.encode(value)
            if toon_format.decode(toon) != value:  # it holds NaN or an infinite number
                return text
        except (ValueError, RecursionError):  # not JSON, or too deep
            return text
        if form == "toon":
            return toon
        # Not `to_json`: where the text is put into a prompt, it is escaped as any other.
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return min(text, compact, toon, key=lambda written: len(_PIECE.findall(written)))

    return write
