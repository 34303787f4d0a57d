"""What stands in an agent's prompts, for use in a program without midstream: `midstream lessons export`.

Each module's prompt is the messages of its first request, with its tools and lessons as midstream writes them. What
changes from request to request is a place: `query`, `memory`, `action`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points

from pydantic import JsonValue

from midstream.agents.calls import tools_by_name
from midstream.agents.interleaved import render_opening
from midstream.agents.prompted import PromptedModule
from midstream.agents.stream_policy import POLICY, Stream, offered
from midstream.components.component import Context
from midstream.core.agent import RunContext
from midstream.core.data import Frozen, JsonObject
from midstream.core.errors import UnsupportedError
from midstream.core.stream_template import load_template
from midstream.core.text import render_lessons
from midstream.core.texts import EXAMPLES, PROMPT, TEXTS, TOOLS, Text
from midstream.core.tool import described
from midstream.core.trajectory import Message
from midstream.recipe.build import Build
from midstream.recipe.schema import InterleavedConfig, OwnAgentConfig

# Private characters around a place's name: a lesson or a tool may hold "{query}" as text.
_PLACE = re.compile("\ue000(\\w+)\ue001")


class Prompt(Frozen):
    """The messages of a module, with marked places; its tools in the form of the API; the texts that stop a reply."""

    marked: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    stop: tuple[str, ...] = ()

    @property
    def options(self) -> JsonObject:
        """The other fields of a request."""
        found: JsonObject = {}
        if self.tools:
            found["tools"] = [*self.tools]
        if self.stop:
            found["stop"] = [*self.stop]
        return found

    def messages(self, **values: str) -> list[dict[str, str]]:
        """The messages as an API takes them, with the values in their places; one without a value is `{name}`."""
        return [
            {
                "role": message.role,
                # A place at the end may be empty, as the memory is in the first turn.
                "content": _PLACE.sub(lambda at: values.get(at[1], f"{{{at[1]}}}"), message.content).rstrip("\n"),
            }
            for message in self.marked
        ]

    def pieces(self) -> list[tuple[str, list[str]]]:
        """Role and content of each message; in the content text and names of places take turns."""
        return [(message.role, _PLACE.split(message.content)) for message in self.marked]


def prompts_of(build: Build) -> dict[str, Prompt]:
    """The prompt of each module that asks a model; of an agent of your own, the message of its lessons, and its texts.

    A module that writes its prompts itself is left out. Raises `UnsupportedError` if none is left, and for a template
    of plain text, which no chat client sends.
    """

    def place(name: str) -> str:
        return f"\ue000{name}\ue001"

    agent, lessons = build.recipe.agent, build.lessons
    offers, context = described(build.tools, lessons), RunContext(lessons=lessons)
    if isinstance(agent, InterleavedConfig):
        template = load_template(agent.template).with_instructions(lessons.get(POLICY + PROMPT, ""))
        tools = tools_by_name(offers, template, agent.tools)
        if not template.chat:
            what, fix = f"template {agent.template!r} is plain text, not the messages of a chat", "export another agent"
            raise UnsupportedError(what, code="prompt-invalid", fix=fix)
        messages = render_opening(template, tools, lessons, place("query"))
        stream = Stream(template=template, messages=messages, tools=tools, max_tokens=agent.max_tokens)
        return {POLICY: Prompt(marked=messages, tools=offered(tools) if template.native else (), stop=(*stream.stops,))}
    found: dict[str, Prompt] = {}
    for name, component in build.recipe.modules.items():
        module = component.config.build(Context(build, component, name))
        if isinstance(module, PromptedModule):
            found[name] = Prompt(marked=module.prompt_form(offers, context.begin(name, 1), place))
        elif text := render_lessons(lessons.get(name, ""), lessons.get(name + EXAMPLES, "")).strip():
            found[name] = Prompt(marked=(Message(role="system", content=text),))
    texts: dict[str, str] = {}
    if isinstance(agent, OwnAgentConfig):
        # Such an agent writes its prompts itself, of these.
        texts = {TEXTS + marked.name: marked.default for marked in Text.marked.values()}
        texts |= {name: text for name, text in lessons.items() if name.startswith((TEXTS, TOOLS))}
    found |= {name: Prompt(marked=(Message(role="system", content=text),)) for name, text in texts.items()}
    if not found:
        what = f"no module of {build.recipe.name!r} has a prompt of messages: they write their own, or are programs"
        raise UnsupportedError(what, code="prompt-invalid", fix="export an agent whose modules are prompted")
    return found


def _as_text(prompts: Mapping[str, Prompt]) -> str:
    parts = []
    for name, prompt in prompts.items():
        parts += [f"--- {name}, {message['role']} ---\n{message['content']}\n" for message in prompt.messages()]
        parts += [f"--- {name}, {key} ---\n{json.dumps(value, indent=2)}\n" for key, value in prompt.options.items()]
    return "\n".join(parts)


def _as_json(prompts: Mapping[str, Prompt]) -> str:
    bodies: dict[str, JsonObject] = {}
    for name, prompt in prompts.items():
        messages: list[JsonValue] = [{**message} for message in prompt.messages()]
        bodies[name] = {"messages": messages, **prompt.options}
    return json.dumps(bodies, ensure_ascii=False, indent=2) + "\n"


_FORMATS: dict[str, Callable[[Mapping[str, Prompt]], str]] = {"text": _as_text, "json": _as_json}


@cache
def formats() -> dict[str, Callable[[Mapping[str, Prompt]], str]]:
    """The formats of midstream and of installed packages, by name: functions from the modules' prompts to a text.

    A package offers a format as an entry point:

        [project.entry-points."midstream.prompts"]
        mine = "my_package.formats:as_mine"
    """
    points = entry_points(group="midstream.prompts")
    return _FORMATS | {point.name: point.load() for point in points if point.name not in _FORMATS}
