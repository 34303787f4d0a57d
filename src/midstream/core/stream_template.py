"""Templates of interleaved streams: which marks a policy writes, what its prompt says, how the environment answers.

A template is data, a TOML file: one of those in `templates/`, by its name, or the user's own, by its path.

    think = { open = "<think>", close = "</think>" }
    call = { open = "<python>", close = "</python>" }     tool = "python"     body = "text"
    output = { open = "<output>", close = "</output>" }   answer = { open = "<answer>", close = "</answer>" }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError

ANY_TOOL = "{tool}"  # where a mark holds the tool's name
_PLACES = re.compile(r"\{\{(\w+)\}\}")


class Marks(Frozen):
    """What a part of the stream begins and ends with."""

    open: str = Field(min_length=1)
    close: str = Field(min_length=1)


class Template(Frozen):
    """How a policy writes, and how the environment answers.

    `call` may hold "{tool}": each tool then has marks of its own, by its name. Marks without it belong to the tool
    called `tool`, or, where that is "", the call's body names its tool. `body` is how a call is written: "text", the
    tool's one required argument (a code fence around it is taken off); "json", an object or a list of objects with
    `name` and `arguments`; "python", a call or a list of calls in Python, with literal arguments. `appends` says where
    output goes: "inline", into the reply that sampling then resumes, or "message", as a chat message of `output_role`
    after the reply has ended with all its calls. `layout` is what is put in, with {open} and {close} for the marks of
    `output`; a chat template has marks of its own for messages of the role "tool", and a model's native form its own
    way to offer tools. `answer` None: the answer is what the last reply says outside of thoughts; where `boxed`, the
    last \\boxed{} in that or between the answer's marks.
    `system` and `user` are the prompt, with places {{tools}}, {{lessons}} and, in `user`, {{query}}; `opening` is what
    the environment writes at the start of the stream. `chat` False: the prompt is plain text, for a base model.
    """

    name: str = ""
    source: str = ""
    think: Marks | None = None
    call: Marks
    tool: str = ""
    body: Literal["text", "json", "python"] = "text"
    output: Marks
    layout: str = "{open}{text}{close}"
    answer: Marks | None = None
    boxed: bool = False
    appends: Literal["inline", "message"] = "inline"
    output_role: Literal["user", "tool"] = "user"
    chat: bool = True
    system: str = ""
    user: str = "{{query}}"
    opening: str = ""

    @property
    def tags(self) -> dict[str, Marks]:
        """Its marks by what stands between them, in the order of a stream."""
        found = {"think": self.think, "call": self.call, "output": self.output, "answer": self.answer}
        return {kind: marks for kind, marks in found.items() if marks is not None}

    @property
    def native(self) -> bool:
        """Whether tools are offered in the model's own form, not in the prompt's words."""
        return self.output_role == "tool"

    @property
    def shows_lessons(self) -> bool:
        """Whether the prompt has a place for lessons."""
        return "{{lessons}}" in self.system + self.user

    def filled(self, part: str, **values: str) -> str:
        """`system` or `user` with values in its places; a place inside a value stays text."""
        return _PLACES.sub(lambda found: values[found[1]], part).strip()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problem = next(_problems(self), None)
        if problem is not None:
            raise ValueError(problem)
        return self


def _problems(template: Template) -> Iterator[str]:
    """What is wrong with a template, in words."""
    per_tool = {ANY_TOOL in mark for mark in (template.call.open, template.call.close)}
    places = _PLACES.findall(template.system + template.user)
    openings = [marks.open for marks in template.tags.values()]
    unknown = sorted(set(places) - {"tools", "lessons", "query"})
    if len(set(openings)) < len(openings):
        yield f"two parts begin with the same mark: {', '.join(openings)}"
    if len(per_tool) > 1:
        yield f"call: both marks hold {ANY_TOOL}, or none does"
    if per_tool == {True} and template.tool:
        yield f"tool = {template.tool!r} with marks that hold {ANY_TOOL}: leave it out"
    if per_tool == {False} and not template.tool and template.body == "text":
        yield 'a body = "text" names no tool: set tool, or put {tool} into the marks of call'
    if template.output_role == "tool" and template.appends != "message":
        yield 'output_role = "tool" is the role of a message: set appends = "message"'
    if template.appends == "message" and (template.opening or not template.chat):
        yield 'appends = "message" needs a chat, and no opening'
    if unknown:
        yield f"unknown places {', '.join(unknown)} in the prompt (known: tools, lessons, query)"
    if template.user.count("{{query}}") != 1 or "{{query}}" in template.system:
        yield "user: {{query}} stands there once, and not in system"
    if any(template.layout.count(place) != 1 for place in ("{open}", "{text}", "{close}")):
        yield "layout: {open}, {text} and {close} stand there once each"


def load_template(name: str | Path) -> Template:
    """The template of that name, or of a TOML file (a path, or a name that ends in ".toml").

    A file with `like = "artist-math"` has all of that template that it does not set itself. Raises `RecipeError`.
    """
    try:
        return Template.model_validate(_table(name))
    except (tomllib.TOMLDecodeError, ValidationError) as failure:
        raise RecipeError(
            f"the agent template {str(name)!r} is not sound",
            cause=_said(failure),
            fix="correct the file; core/stream_template.py says what each setting is",
        ) from failure


def _said(failure: tomllib.TOMLDecodeError | ValidationError) -> str:
    if isinstance(failure, tomllib.TOMLDecodeError):
        return str(failure)
    problems = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in failure.errors()]
    return "; ".join(f"{where}: {what}" if where else what for where, what in problems)[:500]


def _table(name: str | Path) -> dict[str, Any]:
    """A template's settings, those of the one that it is like among them."""
    shipped = resources.files("midstream.core") / "templates"
    own = isinstance(name, Path) or name.endswith(".toml")
    try:
        text = (Path(name) if own else shipped / f"{name}.toml").read_text(encoding="utf-8")
    except (OSError, ValueError) as failure:  # of a path with a null character, or a file that is no UTF-8
        known = ", ".join(sorted(Path(one.name).stem for one in shipped.iterdir()))
        raise RecipeError(
            f"there is no agent template {str(name)!r}",
            cause=str(failure) if own else "it is neither the path of a .toml file nor a name that midstream has",
            fix=f"set agent.template to one of {known}, or to the path of your own",
        ) from failure
    table = {"name": Path(name).stem, **tomllib.loads(text)}
    like = table.pop("like", None)
    # Of those that ship only: a file of one's own that is like another could be like itself.
    return table if like is None else {**_table(Path(str(like)).stem), **table}
