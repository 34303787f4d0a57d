"""Prompt files: fixed text with places for values, laid out so that prompts of successive turns are shared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from midstream.core.errors import RecipeError
from midstream.core.trajectory import Message

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_USER_PART = "<!-- user -->\n"


def prompt_text(role: str, override: Path | None = None, *, room: str = "midstream.agents") -> str:
    """The text of the prompt file that ships with a package for a role, or of a user's own."""
    shipped = resources.files(room) / "prompts" / f"{role}.md"
    try:
        return (override or shipped).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise RecipeError(
            f"the {role}'s prompt file {override} cannot be read", cause=str(failure), fix="correct prompt_file"
        ) from failure


class PromptTemplate:
    """A prompt file: a system part, a line `<!-- user -->`, a user part, with `{{name}}` where values go.

    Args:
        role: names the file that ships with midstream.
        layout: the values the prompt must hold, once each and in this order; `lessons` may stand before the query.
        override: a file of the user's own; without a place for lessons it shows none (`shows_lessons`).
        room: the package that the file ships with.
    """

    def __init__(
        self, role: str, layout: tuple[str, ...], override: Path | None = None, *, room: str = "midstream.agents"
    ) -> None:
        text = prompt_text(role, override, room=room)
        names = _PLACEHOLDER.findall(text)
        in_place = names.count("lessons") == 0 or (names[0] == "lessons" and names.count("lessons") == 1)
        if text.count(_USER_PART) != 1 or not in_place or tuple(n for n in names if n != "lessons") != layout:
            raise RecipeError(
                f"the {role}'s prompt file {override} holds {names or 'no placeholder'}",
                cause="prompts of successive turns are only shared if what changes comes last",
                fix=f"use {', '.join('{{' + name + '}}' for name in layout)} once each in this order, lessons (if at "
                f"all) first, and one line {_USER_PART.strip()} where the user message starts",
            )
        self.shows_lessons = "lessons" in names
        self._system, self._user = text.split(_USER_PART)

    def messages(self, values: Mapping[str, str]) -> tuple[Message, Message]:
        """The system and the user message. Values are put in as they are: a placeholder inside one stays text."""
        fill = {"lessons": "", **values}
        system, user = (_PLACEHOLDER.sub(lambda m: fill[m[1]], part) for part in (self._system, self._user))
        return Message(role="system", content=system.strip()), Message(role="user", content=user.rstrip("\n"))
