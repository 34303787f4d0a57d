"""The desks for a tiny model that learns function calling from nothing: what it reads and writes, and its teacher.

The model gets the chat that any model would be sent, in the template of the recipe's agent, without the system prompt:
it reads no English, and learns from outcomes which function does what. Each of the agent's phrases is one token, and in
a call each stretch of syntax, each name and each word of a value:

    [{"name": "  fill_tank  ", "arguments": {"  liters  ":   12  }}]
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from midstream.agents.stream_policy import Stream
from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.stream import POLICY
from midstream.core.stream_template import Template
from midstream.core.trajectory import Call
from midstream_worlds.desks import files, vehicle
from midstream_worlds.desks.agent import SAID, THOUGHTS, agent_reply
from midstream_worlds.desks.dialogue import DESKS, GOALS
from midstream_worlds.tiny_model import EOS, Vocabulary, pieces_of

CHAT = (
    "{% for message in messages if message.role != 'system' %}<{{ message.role }}>{{ message.content }}"
    f"{{% if message.role == 'assistant' %}}{EOS}{{% endif %}}{{% endfor %}}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SYNTAX = ('[{"name": "', '", "arguments": {"', '", "arguments": {', '}}, {"name": "', "}}]", '":')
VALUES = (*vehicle.TOWNS, *files.FOLDERS, *files.FILES, *files.THINGS, *files.DEEDS)
VALUES += ("true", "false", "something", "two", "now")


def vocabulary(desks: Sequence[str], template: Template, user_words: Sequence[str]) -> Vocabulary:
    """Everything that the user and the agent say at these desks; `user_words` stand around the user's goals.

    Of results it has the names of fields and the values; a refusal, or what is wrong with a call, is partly unknown.
    """
    marks = [mark for pair in template.tags.values() for mark in (pair.open, pair.close)]
    phrases = [part.rstrip() for phrase in (*SAID.values(), *THOUGHTS.values()) for part in phrase.split("{}") if part]
    texts = [*user_words, *VALUES, *marks, "<user><assistant>\n", *"\"'{}[]:,."]
    for desk in desks:
        texts += DESKS[desk]().state()
        texts += [text for goal in GOALS[desk] for wording in goal.wordings for text in (wording.text, wording.then)]
        for function in DESKS[desk].functions().values():
            texts += [function.name, f"{function.name}_now"]  # the second is a mistake of the teacher
            for parameter, schema in function.parameters["properties"].items():
                texts += [parameter, *schema.get("enum", ())]
    # A word may begin a text or a value, or follow another.
    pieces = {piece for text in texts for piece in (*pieces_of(text), *pieces_of(f" {text}"))}
    return Vocabulary(bare=[*SYNTAX, *phrases, *sorted(pieces)], chat_template=CHAT)


class DeskTeacher:
    """The program that plays the agent at the desks, as a policy."""

    def __init__(self, config: DeskTeacherConfig) -> None:
        self.skill = config.skill

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Write a thought, and calls or words for the user."""
        text = agent_reply(stream.template, self.skill)(stream.messages, context.seed)
        return Call(role=POLICY, engine="desk_agent", messages=stream.messages, completion=text, finish_reason="stop")


class DeskTeacherConfig(ComponentConfig):
    """A program that calls the desks' functions, and errs.

    Attributes:
        skill: the probability that a call, or the decision to ask, is right; else it is a mistake that models make
    """

    teaches = "model"
    component = DeskTeacher

    skill: float = Field(default=0.5, ge=0, le=1)

    @property
    def needs_world(self) -> bool:
        """It knows the desks' functions."""
        return True

    def check_template(self, template: Template) -> None:
        """Refuse a template with other marks than the teacher can write."""
        agent_reply(template, self.skill)
