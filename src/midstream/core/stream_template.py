"""Templates of interleaved streams: the marks a policy writes, its prompt, and how the environment answers.

A template is a TOML file: one of those in `templates/`, by its name, or the user's own, by its path.

    think = { open = "<think>", close = "</think>" }
    call = { open = "<python>", close = "</python>" }     tool = "python"     body = "text"
    output = { open = "<output>", close = "</output>" }   answer = { open = "<answer>", close = "</answer>" }
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from midstream.core.data import Settings, problems_of
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.text import PLACE, fill, neutral
from midstream.core.text_file import read_toml

ANY_TOOL = "{tool}"  # placeholder of a tool's name in a mark
_TOOL_NAME = r"[A-Za-z_][\w.-]*"  # in its place


class Marks(Settings):
    """The marks at the start and end of a part of the stream."""

    open: str = Field(min_length=1)
    close: str = Field(min_length=1)


class Grammar:
    """A template's marks as patterns. Marks may overlap, hold a tool's name, or begin and end with line breaks.

    Attributes:
        opening: an opening mark; the group that matched (`lastgroup`) is its kind
        marks: any mark
        overlapping: any mark, also marks that overlap, as group 1 of an empty match
    """

    def __init__(self, tags: Mapping[str, Marks]) -> None:
        # A mark that holds any tool's name may match other marks too, so it is last.
        self._tags = dict(sorted(tags.items(), key=lambda tag: ANY_TOOL in tag[1].open))
        every = "|".join(_pattern(mark) for tag in self._tags.values() for mark in (tag.open, tag.close))
        self.opening = re.compile("|".join(f"(?P<{kind}>{_pattern(tag.open)})" for kind, tag in self._tags.items()))
        self.marks, self.overlapping = re.compile(every), re.compile(f"(?=({every}))")

    def neutral(self, text: str) -> str:
        """Escape the tokens of chat templates, as `core.text.neutral`, other than the marks."""
        found = [*self.marks.finditer(text)]
        starts, ends = [0, *(mark.end() for mark in found)], [*(mark.start() for mark in found), len(text)]
        between = [neutral(text[start:end]) for start, end in zip(starts, ends, strict=True)]
        return "".join(part for pair in zip(between, [*(mark[0] for mark in found), ""], strict=True) for part in pair)

    def closing(self, opened: re.Match[str]) -> tuple[str, str]:
        """The closing mark of an opening mark, and the tool that both name ("" if they name none)."""
        tag = self._tags[opened.lastgroup or ""]
        before, here, after = tag.open.partition(ANY_TOOL)
        tool = opened[0][len(before) : len(opened[0]) - len(after)] if here else ""
        return tag.close.replace(ANY_TOOL, tool), tool


def _pattern(mark: str) -> str:
    return _TOOL_NAME.join(re.escape(part) for part in mark.split(ANY_TOOL))


class Template(Settings):
    """The form in which a policy writes, and in which the environment answers."""

    name: str = ""
    source: str = ""  # where it is from
    think: Marks | None = None  # None if the template has no thoughts
    call: Marks  # with "{tool}" in them, each tool has its own marks, by its name
    tool: str = ""  # the tool that marks without "{tool}" call; "" if the call's body names the tool
    # How a call is written: "text", the tool's one required argument (a code fence around it is removed); "json", an
    # object or list of objects with `name` and `arguments`.
    body: Literal["text", "json"] = "text"
    output: Marks  # of tool output
    layout: str = "{open}{text}{close}"  # of tool output; {open} and {close} stand for its marks
    answer: Marks | None = None  # None: the answer is the text of the last reply outside of thoughts
    boxed: bool = False  # take the answer from the last \boxed{} in that text
    # "inline" inserts output into the reply, and sampling resumes; "message" sends it as a chat message after the
    # reply has ended with all its calls.
    appends: Literal["inline", "message"] = "inline"
    # Role of that message. "tool" uses the chat template's own marks, and its own way to offer tools.
    output_role: Literal["user", "tool"] = "user"
    chat: bool = True  # whether the prompt is a chat; false for the plain text of a base model
    system: str = ""  # system prompt, with the places {{tools}} and {{lessons}}
    user: str = "{{query}}"  # user prompt, with {{query}} and the same places
    opening: str = ""  # text that the environment writes at the start of the stream

    @property
    def tags(self) -> dict[str, Marks]:
        """The marks by kind, in the order of a stream."""
        found = {"think": self.think, "call": self.call, "output": self.output, "answer": self.answer}
        return {kind: marks for kind, marks in found.items() if marks is not None}

    @cached_property
    def grammar(self) -> Grammar:
        """The patterns of its marks."""
        # A copy of the template keeps them: none changes a mark.
        return Grammar(self.tags)

    @property
    def native(self) -> bool:
        """True if tools are offered in the model's own form instead of the prompt's text."""
        return self.output_role == "tool"

    @property
    def shows_lessons(self) -> bool:
        """True if the prompt has a place for lessons."""
        return "{{lessons}}" in self.system + self.user

    @property
    def instructions(self) -> str:
        """The part of the prompt that can be learned, with places: `system`, or `user` where that is empty."""
        return self.system or self.user

    def with_instructions(self, text: str) -> Template:
        """The same with other instructions, which have the same places; the same where they are ""."""
        # A learned text has no line break at its end, which a prompt of plain text needs.
        end = "\n" if self.instructions.endswith("\n") and not text.endswith("\n") else ""
        part, shown = "system" if self.system else "user", self.grammar.neutral(text) + end
        return self.model_copy(update={part: shown}) if text else self

    def mismatch(self, what: str, fix: str) -> RecipeError:
        """The error for an agent, tools or a task that the template does not fit."""
        return RecipeError(f"the template {self.name!r} {what}", code="template-mismatch", fix=fix)

    def filled(self, part: str, **values: str) -> str:
        """Fill the places of `system` or `user`; a place inside a value is left as text.

        Plain text keeps the line break at its end: in many vocabularies "?" and a line break are one token, so that
        after a prompt without it the model cannot continue as its examples do.
        """
        text = fill(part, values).strip()
        return text if self.chat or not part.endswith("\n") else text + "\n"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        per_tool = {ANY_TOOL in mark for mark in (self.call.open, self.call.close)}
        openings = [marks.open for marks in self.tags.values()]
        unknown = sorted(set(PLACE.findall(self.system + self.user)) - {"tools", "lessons", "query"})
        no_tool = per_tool == {False} and not self.tool and self.body == "text"
        message = self.appends == "message"
        in_layout = [self.layout.count(place) for place in ("{open}", "{text}", "{close}")]
        problems = [
            (len(set(openings)) < len(openings), f"two parts begin with the same mark: {', '.join(openings)}"),
            (len(per_tool) > 1, f"call: both marks hold {ANY_TOOL}, or neither does"),
            (
                per_tool == {True} and bool(self.tool),
                f"tool = {self.tool!r} with marks that hold {ANY_TOOL}: leave it out",
            ),
            (no_tool, 'a body = "text" names no tool: set tool, or put {tool} into the marks of call'),
            (
                self.output_role == "tool" and not message,
                'output_role = "tool" is the role of a message: set appends = "message"',
            ),
            (message and (self.opening != "" or not self.chat), 'appends = "message" needs a chat, and no opening'),
            (unknown != [], f"unknown places {', '.join(unknown)} in the prompt (known: tools, lessons, query)"),
            (
                self.user.count("{{query}}") != 1 or "{{query}}" in self.system,
                "user: {{query}} must be there once, and not in system",
            ),
            (in_layout != [1, 1, 1], "layout: {open}, {text} and {close} must be there once each"),
        ]
        for found, problem in problems:
            if found:
                raise ValueError(problem)
        return self


def load_template(name: str | Path) -> Template:
    """Load a template by name, or from a TOML file (a path, or a name that ends in ".toml").

    A file with `like = "artist-math"` inherits all settings of that template that it does not set itself. Raises
    `RecipeError` if there is no such template, or it is invalid.
    """
    try:
        return Template.model_validate(_table(name))
    except ValidationError as failure:
        raise RecipeError(
            f"the agent template {str(name)!r} is invalid",
            code="template-invalid",
            cause="; ".join(problems_of(failure))[:500],
            fix="correct the file; core/stream_template.py describes each setting",
        ) from failure


def _table(name: str | Path) -> dict[str, object]:
    """A template's settings, with those that it inherits."""
    shipped = Path(__file__).parent / "templates"
    path = Path(name) if isinstance(name, Path) or name.endswith(".toml") else shipped / f"{name}.toml"
    if not os.path.exists(path):
        known = sorted(file.stem for file in shipped.glob("*.toml"))
        raise RecipeError(
            f"there is no agent template {str(name)!r}",
            code="unknown-template",
            fix=f"{did_you_mean(name, known)}set agent.template to the path of a .toml file, or to one of "
            + ", ".join(known),
        )
    table = {"name": path.stem, **read_toml(path)}
    like = table.pop("like", None)
    # Only shipped templates can be inherited from: among users' files, two could inherit from each other.
    return table if like is None else {**_table(Path(str(like)).stem), **table}
