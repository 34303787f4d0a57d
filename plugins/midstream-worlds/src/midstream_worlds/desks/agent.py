"""The desks' agent as a pure function of (messages, seed), for a simulated engine.

It reads the chat as it is sent, finds the goals that the newest user turn names (`wanted`) and the results of
their calls so far, and writes the next calls in a template whose calls are JSON between marks. A call, or the decision
to ask, is right with probability `skill`; otherwise it makes one of the mistakes that models make:

    wrong_argument      another value than the user's
    missing_call        it says that all is done
    unknown_function    a name that no desk has
    bad_json            a call that cannot be parsed
    made_up_value       a call where it should have asked; or one of a function that it does not have

It understands the texts of `goals` alone. It shows that dialogues, checks, rewards and tables work, nothing of a
model's ability.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream import Piece, blocks
from midstream.core.stream_template import Template
from midstream.core.trajectory import Message
from midstream_worlds.desks.desk import Function, Goal, Step, Values, Wording
from midstream_worlds.desks.dialogue import DESKS, GOALS
from midstream_worlds.simulated import Reply

Said = str | list[dict[str, JsonValue]]  # words for the user, or calls

FUNCTIONS: dict[str, Function] = {
    name: function for desk in DESKS.values() for name, function in desk.functions().items()
}
MISTAKES = ("wrong_argument", "missing_call", "unknown_function", "bad_json")
SAID = {
    "done": "All of that is done.",
    "failed": "I could not do all of that.",
    "ask": "Something is missing: please say more about that.",
    "lack": "I do not have the function {} for that.",
}
THOUGHTS = {
    "done": "Nothing is left to be done.",
    "enough": "That should be enough.",
    "failed": "An earlier call gave no result that I could use.",
    "ask": "The user has left something out, so I ask.",
    "lack": "{} would do that, and it is not among my functions.",
    "call": "The user wants {}.",
    "bad_json": "This is one call.",
}


@dataclass
class _Turn:
    """One user turn of the chat: its text, the functions that were called, and those that gave no result."""

    text: str
    called: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)


@dataclass
class _Chat:
    """The user turns, the newest value of every key of results, and all that system and user have written."""

    turns: list[_Turn] = field(default_factory=list)
    seen: dict[str, JsonValue] = field(default_factory=dict)
    read: str = ""


@dataclass(frozen=True)
class _Want:
    """A goal with the values that are known; `wording` is a vague one that still has to be completed."""

    goal: Goal
    values: Values
    wording: Wording | None = None


def agent_reply(template: Template, skill: float) -> Reply:
    """Make the model that plays a policy; `skill` of its calls are right. Raises `RecipeError` for other templates."""
    if template.body != "json" or template.appends != "message" or "{tool}" in template.call.open:
        raise RecipeError(
            f"a simulated agent cannot write in the template {template.name!r}",
            code="template-mismatch",
            fix='set agent.template = "artist-function-calling", or give the policy another engine',
        )

    def reply(messages: Sequence[Message], seed: int) -> str:
        chat = _read(messages, template)
        draws = Random(derive_seed(seed, "desk agent", *(message.content for message in messages)))
        thought, said = _decide(chat, draws, skill)
        think = f"{template.think.open}{thought}{template.think.close}\n" if template.think else ""
        if isinstance(said, str):
            return f"{think}{said}"
        body = json.dumps(said).replace('"arguments": "{"', '"arguments": {')  # the mistake bad_json
        return f"{think}{template.call.open}{body}{template.call.close}"

    return reply


def _read(messages: Sequence[Message], template: Template) -> _Chat:
    def bodies(text: str, kind: str, *, sampled: bool) -> list[str]:
        found = blocks([Piece(text=text, sampled=sampled)], template)
        return [block.body for block in found if block.kind == kind]

    chat = _Chat()
    awaited: list[str] = []  # functions whose results the next message holds; "" for a call that cannot be parsed
    for message in messages:
        if message.role == "assistant":
            awaited = []
            for body in bodies(message.content, "call", sampled=True):
                try:
                    awaited += [str(call["name"]) for call in json.loads(body)]
                except json.JSONDecodeError:
                    awaited.append("")
        elif awaited:
            turn = chat.turns[-1]
            for name, text in zip(awaited, bodies(message.content, "output", sampled=False), strict=False):
                try:
                    result = json.loads(text)
                except json.JSONDecodeError:  # a message that there was no call
                    turn.refused.add(name)
                else:
                    turn.called.append(name)
                    chat.seen.update(result)
            awaited = []
        else:
            chat.read += f"\n{message.content}"
            if message.role == "user":
                chat.turns.append(_Turn(message.content))
    if not chat.turns:
        raise RecipeError(
            "a simulated agent of the desks got a chat without a user turn",
            code="foreign-prompt",
            fix="give other modules another engine",
        )
    return chat


def _decide(chat: _Chat, draws: Random, skill: float) -> tuple[str, Said]:
    """Return a thought, and words or calls: as many calls as need no result that is not there yet."""
    turn, seen = chat.turns[-1], chat.seen
    made = Counter(turn.called)
    left: list[tuple[_Want, Step]] = []
    for want in _wants(chat.turns):
        for step in want.goal.steps:
            if made[step.function]:
                made[step.function] -= 1
            else:
                left.append((want, step))
    if any(want.wording for want, _ in left) and draws.random() < skill:
        return THOUGHTS["ask"], SAID["ask"]
    lacking = [step.function for _, step in left if not re.search(rf"\b{step.function}\b", chat.read)]
    if lacking and (lacking[0] in turn.refused or draws.random() < skill):
        return THOUGHTS["lack"].format(lacking[0]), SAID["lack"].format(lacking[0])
    if not left:
        return THOUGHTS["done"], SAID["done"]
    calls: list[dict[str, JsonValue]] = []
    for want, step in left:
        if calls and any(str(value).startswith("$") for value in step.arguments.values()):
            break  # an argument is the value of an earlier result
        try:
            arguments = step.fill({**_made_up(step), **want.values}, seen)
        except KeyError:
            return THOUGHTS["failed"], SAID["failed"]
        mistake = "" if draws.random() < skill else draws.choice(MISTAKES)
        if mistake == "missing_call":
            return THOUGHTS["enough"], SAID["done"]
        name = f"{step.function}_now" if mistake == "unknown_function" else step.function
        if mistake == "wrong_argument":
            arguments = _wrong(arguments, draws)
        if mistake == "bad_json":
            return THOUGHTS["bad_json"], [*calls, {"name": name, "arguments": "{"}]
        calls.append({"name": name, "arguments": arguments})
    return THOUGHTS["call"].format(left[0][1].function), calls


def _wants(turns: Sequence[_Turn]) -> list[_Want]:
    """The goals of the newest turn; one that only completes the turn before has the goals of that."""
    wants: list[_Want] = []
    for turn in turns:
        found = [_Want(goal, values, wording if wording.then else None) for goal, wording, values in wanted(turn.text)]
        if not found:
            for want in wants:
                values = want.wording.complete(turn.text) if want.wording else None
                found.append(_Want(want.goal, {**want.values, **values}) if values else want)
        wants = found
    return wants


def wanted(text: str) -> list[tuple[Goal, Wording, Values]]:
    """The goals that a user's text names, in its order; vague ones lack a value."""
    found: list[tuple[int, Goal, Wording, Values]] = [
        (place, goal, wording, values)
        for goals in GOALS.values()
        for goal in goals
        for wording in goal.wordings
        for place, values in wording.find(text)
    ]
    return [(goal, wording, values) for _, goal, wording, values in sorted(found, key=lambda item: item[0])]


def _made_up(step: Step) -> Values:
    """A value for every place of a step, of the type that its function takes."""
    properties = FUNCTIONS[step.function].parameters["properties"]
    kinds = {"integer": 7, "number": 7, "string": "something"}
    return {
        str(place)[1:-1]: properties[name].get("enum", [kinds.get(properties[name]["type"])])[0]
        for name, place in step.arguments.items()
        if isinstance(place, str) and place.startswith("{")
    }


def _wrong(arguments: Mapping[str, JsonValue], draws: Random) -> dict[str, JsonValue]:
    """The arguments with one changed, or with one added where there is no argument."""
    if not arguments:
        return {"now": True}
    name = draws.choice(sorted(arguments))
    value: Any = arguments[name]
    if isinstance(value, bool):
        return {**arguments, name: not value}
    return {**arguments, name: value + draws.choice((1, 2, 10)) if isinstance(value, int | float) else f"{value} two"}
