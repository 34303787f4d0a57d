"""The desks' agent as a pure function of (messages, seed): what a simulated engine plays.

It reads the chat as it is sent, finds the goals that the newest user turn names (`planning.wanted`) and what their
calls gave so far, and writes the next calls in a template whose calls are JSON between marks. A call, or the decision
to ask, comes out right with probability `skill`; otherwise it makes one of the mistakes that models make:

    wrong_argument      another value than the user's
    missing_call        it says that all is done
    unknown_function    a name that no desk has
    bad_json            a call that cannot be read
    made_up_value       a call where it should have asked; or one of a function that it does not have

It has no wit: a text that is worded otherwise it does not understand. What it proves is that dialogues, checks, rewards
and tables work.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream import Piece, Template, blocks
from midstream.core.trajectory import Message
from midstream.worlds.desks.desk import Function
from midstream.worlds.desks.goals import Goal, Step, Values, Wording
from midstream.worlds.desks.planning import wanted
from midstream.worlds.desks.session import DESKS

Reply = Callable[[Sequence[Message], int], str]

FUNCTIONS: dict[str, Function] = {name: one for desk in DESKS.values() for name, one in desk.functions().items()}
MISTAKES = ("wrong_argument", "missing_call", "unknown_function", "bad_json")
_DONE, _FAILED = "All of that is done.", "I could not do all of that."
_ASK, _LACK = "Something is missing: please tell me more about that.", "I do not have the function {} for that."


@dataclass
class _Turn:
    """One user turn of the chat: what is wanted, what was called, what came back."""

    text: str
    called: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # functions that gave no result


@dataclass
class _Chat:
    """What the agent knows: the user turns, the newest value of every key of results, and what it was told."""

    turns: list[_Turn] = field(default_factory=list)
    seen: dict[str, JsonValue] = field(default_factory=dict)
    told: str = ""


@dataclass(frozen=True)
class _Want:
    """A goal with the values that are known."""

    goal: Goal
    values: Values
    wording: Wording | None = None  # the vague one that still has to be completed


def agent_reply(template: Template, skill: float) -> Reply:
    """The model that plays a policy. `skill` is the chance that a call of its is right."""
    if template.body != "json" or template.appends != "message" or "{tool}" in template.call.open:
        raise RecipeError(
            f"a simulated agent cannot write in the template {template.name!r}",
            cause="it writes JSON calls between marks and reads results in messages",
            fix='set agent.template = "artist-function-calling", or give the policy another engine',
        )

    def reply(messages: Sequence[Message], seed: int) -> str:
        chat = _read(messages, template)
        draws = Random(derive_seed(seed, "desk agent", *(message.content for message in messages)))
        thought, said = _decide(chat, draws, skill)
        return _written(thought, said, template)

    return reply


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(messages: Sequence[Message], template: Template) -> _Chat:
    chat = _Chat()
    asked: list[str] = []  # the functions whose results are due
    for message in messages:
        if message.role == "assistant":
            found = _parts(message.content, template, "call", sampled=True)
            asked = [name for body in found for name in _names(body)]
        elif asked:
            results = _parts(message.content, template, "output", sampled=False)
            for name, text in zip(asked, results, strict=False):
                _note(chat, name, text)
            asked = []
        else:
            chat.told += f"\n{message.content}"
            if message.role == "user":
                chat.turns.append(_Turn(message.content))
    if not chat.turns:
        raise RecipeError(
            "a simulated agent was asked about nothing",
            cause="it plays the policy in dialogues at the desks",
            fix="give other modules another engine",
        )
    return chat


def _parts(text: str, template: Template, kind: str, *, sampled: bool) -> list[str]:
    found = blocks([Piece(text=text, sampled=sampled, turn=1)], template)
    return [block.body for block in found if block.kind == kind]


def _names(body: str) -> list[str]:
    """The functions that a call of the agent's own names; "" for one that cannot be read."""
    try:
        calls = json.loads(body)
    except json.JSONDecodeError:
        return [""]
    return [str(one["name"]) for one in calls]


def _note(chat: _Chat, name: str, text: str) -> None:
    """Take a result in; what is no JSON says that there was no call."""
    try:
        result: Any = json.loads(text)
    except json.JSONDecodeError:
        chat.turns[-1].refused.add(name)
        return
    chat.turns[-1].called.append(name)
    chat.seen.update(result)


def _wants(turns: Sequence[_Turn]) -> list[_Want]:
    """What the newest turn wants; one that only completes the turn before wants what that did."""
    wants: list[_Want] = []
    for turn in turns:
        found = [_Want(goal, values, wording if wording.then else None) for goal, wording, values in wanted(turn.text)]
        wants = found or [_completed(one, turn.text) for one in wants]
    return wants


def _completed(want: _Want, text: str) -> _Want:
    values = want.wording.complete(text) if want.wording else None
    return _Want(want.goal, {**want.values, **values}) if values else want


# --- deciding ---------------------------------------------------------------------------------------------------------

Said = str | list[dict[str, JsonValue]]  # words for the user, or calls


def _decide(chat: _Chat, draws: Random, skill: float) -> tuple[str, Said]:
    """A thought, and what to say."""
    turn, wants = chat.turns[-1], _wants(chat.turns)
    made = Counter(turn.called)
    left: list[tuple[_Want, Step]] = []
    for want in wants:
        for step in want.goal.steps:
            if made[step.function]:
                made[step.function] -= 1
            else:
                left.append((want, step))
    if any(want.wording for want, _ in left) and draws.random() < skill:
        return "The user has left something out, so I ask.", _ASK
    lacking = [step.function for _, step in left if not re.search(rf"\b{step.function}\b", chat.told)]
    if lacking and (lacking[0] in turn.refused or draws.random() < skill):
        return f"{lacking[0]} would do that, and it is not among my functions.", _LACK.format(lacking[0])
    if not left:
        return "Nothing is left to be done.", _DONE
    return _act(left, chat.seen, draws, skill)


def _act(
    left: Sequence[tuple[_Want, Step]], seen: Mapping[str, JsonValue], draws: Random, skill: float
) -> tuple[str, Said]:
    """The next calls: as many as need no result that is not there yet."""
    calls: list[dict[str, JsonValue]] = []
    for want, step in left:
        if step.needs and calls:
            break
        try:
            arguments = step.filled({**_made_up(step), **want.values}, seen)
        except KeyError:
            return "An earlier call gave nothing to go on with.", _FAILED
        mistake = "" if draws.random() < skill else draws.choice(MISTAKES)
        if mistake == "missing_call":
            return "That should be enough.", _DONE
        name = f"{step.function}_now" if mistake == "unknown_function" else step.function
        if mistake == "wrong_argument":
            arguments = _wrong(arguments, draws)
        if mistake == "bad_json":
            return "This is one call.", [*calls, {"name": name, "arguments": "{"}]
        calls.append({"name": name, "arguments": arguments})
    return f"The user wants {left[0][1].function}.", calls


def _made_up(step: Step) -> Values:
    """A value for every place of a step, of the kind that its function takes."""
    properties = FUNCTIONS[step.function].parameters["properties"]
    kinds = {"integer": 7, "number": 7, "string": "something"}
    return {
        str(place)[1:-1]: properties[name].get("enum", [kinds.get(properties[name]["type"])])[0]
        for name, place in step.arguments.items()
        if isinstance(place, str) and place.startswith("{")
    }


def _wrong(arguments: Mapping[str, JsonValue], draws: Random) -> dict[str, JsonValue]:
    """The arguments with one changed; where there are none, with one too many."""
    if not arguments:
        return {"now": True}
    name = draws.choice(sorted(arguments))
    value = arguments[name]
    if isinstance(value, bool):
        return {**arguments, name: not value}
    return {**arguments, name: value + draws.choice((1, 2, 10)) if isinstance(value, int | float) else f"{value} two"}


def _written(thought: str, said: Said, template: Template) -> str:
    think = f"{template.think.open}{thought}{template.think.close}\n" if template.think else ""
    if isinstance(said, str):
        return f"{think}{said}"
    body = json.dumps(said)
    broken = body.replace('"arguments": "{"', '"arguments": {')
    return f"{think}{template.call.open}{broken}{template.call.close}"
