"""Prompts of modules: files with places for values, and the values as text (memory, tools, lessons).

Memory is a line of JSON for each record. Fields at their default are left out, so a short turn is a short text:

    {"turn":1,"action":{"sub_goal":"find height","tool":"search"},"result":"height 105"}

Two properties hold for any text that a tool or model may have produced:
- Append-only: the text of n records is a prefix of the text of n + 1, so turns of one trajectory share their prompt.
- No forgery: line breaks, control characters and whatever opens a chat-template token or a tag (`<|im_start|>`,
  `</s>`, `[INST]`, `<div>`) become unicode escapes, so no text can start a record or a chat turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path

from midstream.core.errors import RecipeError
from midstream.core.text import PLACE, fill, neutral, to_json
from midstream.core.text_file import read_text, shipped_prompt
from midstream.core.tool import Tool
from midstream.core.tool_calls import cut_result
from midstream.core.trajectory import Action, Memory, MemoryRecord, Message

_USER_PART = re.compile(r"<!-- user -->[ \t]*\n")
# Characters: shorter results are not cut further, their turns are left out.
_SHORTEST_RESULT = 200


def prompt_text(role: str, override: Path | None = None, *, package: str = "midstream.agents") -> str:
    """The text of the prompt file that ships with a package for a role, or of the user's `override`."""
    if override is None:
        return shipped_prompt(package, role)
    return read_text(override, fix=f"correct prompt_file of the {role}")


class PromptTemplate:
    """A prompt file: a system part, a line `<!-- user -->`, a user part, with `{{name}}` where values go.

    Values may stand in any order and in either part; an empty part is not sent. An engine computes only the beginning
    that two prompts have in common once, so what differs belongs at the end.

    Args:
        role: names the file that ships with midstream.
        layout: the values the prompt must hold, once each. `lessons` may stand in any prompt, `analysis` in one with
            `memory`.
        override: a file of the user; without a place for lessons it shows none (`shows_lessons`).
        package: the package that the file ships with.
    """

    def __init__(
        self, role: str, layout: tuple[str, ...], override: Path | None = None, *, package: str = "midstream.agents"
    ) -> None:
        text = prompt_text(role, override, package=package)
        names = PLACE.findall(text)
        optional = ("lessons", "analysis") if "memory" in layout else ("lessons",)
        right = len(set(names)) == len(names) and set(layout) <= set(names) <= {*layout, *optional}
        parts = _USER_PART.split(text)
        if len(parts) != 2 or not right:
            raise RecipeError(
                f"the {role}'s prompt file {override} holds {_places(names) or 'no placeholder'}"
                + (f" and {len(parts) - 1} lines <!-- user -->" if len(parts) != 2 else ""),
                code="prompt-invalid",
                fix=f"use {_places(layout)} once each, {_places(optional)} at most once, no other, and one line "
                "<!-- user --> where the user message starts",
            )
        self.shows_lessons = "lessons" in names
        self.instructions, self._user = parts

    def with_instructions(self, text: str) -> PromptTemplate:
        """The same with another system part, which has its places; the same where it is ""."""
        if not text:
            return self
        changed = copy(self)
        changed.instructions = neutral(text)
        return changed

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The system and the user message. Values are inserted as they are: a placeholder inside one stays text."""
        values = {"lessons": "", "analysis": "", **values}
        system = Message(role="system", content=fill(self.instructions, values).strip())
        user = Message(role="user", content=fill(self._user, values).rstrip("\n"))
        return tuple(message for message in (system, user) if message.content)


def _places(names: Sequence[str]) -> str:
    return ", ".join(f"{{{{{name}}}}}" for name in names)


def render_memory(memory: Memory) -> str:
    """A line of JSON for each record, "" without records."""
    return "".join(to_json(record.model_dump(exclude_defaults=True)) + "\n" for record in memory.records)


def render_analysis(analysis: str) -> str:
    """The part of a prompt that holds the query analysis; "" without one, so that the prompt is unchanged."""
    text = neutral(analysis.strip())
    return f"# Query analysis\n\n{text}\n\n" if text else ""


def render_tools(tools: Sequence[Tool]) -> str:
    """A line of JSON for each tool: name, description, parameters. Escaped like memory: a tool may be anyone's."""
    fields = ("name", "description", "parameters")
    return "\n".join(to_json({field: getattr(tool, field) for field in fields}) for tool in tools)


# -- what of a run fits its prompts ------------------------------------------------------------------------------------
#
# What is cut says so, and depends on the memory alone: prompts repeat exactly. The trajectory keeps every result whole.


def smaller_memories(memory: Memory) -> Iterator[Memory]:
    """Ever smaller versions of a memory, to try one after the other, until the prompt with it fits the model's context.

    First the longest results are cut to half of their length, a quarter, and so on; then the older half of the turns
    keeps nothing but "[cut]", then three quarters, and so on.
    """
    records = memory.records
    longest = max((len(record.result or record.error or "") for record in records), default=0) // 2
    while longest >= _SHORTEST_RESULT:
        cut = []
        for record in memory.records:
            texts = {"result": record.result, "error": record.error}
            shorter = {name: text and cut_result(text, longest) for name, text in texts.items()}
            cut.append(record.model_copy(update=shorter))
        records = tuple(cut)
        yield memory.model_copy(update={"records": records})
        longest //= 2
    gone = 0
    while gone < len(records):
        gone += -(-(len(records) - gone) // 2)
        empty = tuple(MemoryRecord(turn=record.turn, action=Action(), result="[cut]") for record in records[:gone])
        yield memory.model_copy(update={"records": (*empty, *records[gone:])})
