"""One rollout at the desks: its plan, its state, the comparison of both after each user turn, and its user.

After every user turn three things are compared with a replay of the plan's calls on separate desks:

    state     every public field of every desk equals the replay's
    results   every result of the turn's planned calls was seen in this turn or an earlier one
    calls     the planned calls, name and arguments, as a multiset

The rollout is a success if state and results are right after every turn; `calls` is for rewards alone: there may be
several ways to the same state.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pydantic import JsonValue

from midstream.core.data import Frozen, whole
from midstream.core.seeds import derive_seed
from midstream.core.source import OVER, Dialogue, UserTurn
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream_worlds.desks import files, vehicle
from midstream_worlds.desks.desk import Desk, Goal, Result, State
from midstream_worlds.functions import Invocation, StateFunction

DESKS: dict[str, type[Desk]] = {"vehicle": vehicle.Vehicle, "files": files.Files}
GOALS: dict[str, tuple[Goal, ...]] = {"vehicle": vehicle.GOALS, "files": files.GOALS}
RULES = (
    "You serve a user at desks with functions. Do what is asked, no more and no less. Where a value or a function is "
    "missing, change nothing and say what you lack."
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_RESULT_TOKENS = 2000  # of a result without noise; the longest of any desk has a quarter of them


class PlannedCall(Frozen):
    """A call of the plan."""

    name: str
    arguments: dict[str, JsonValue] = {}


class PlannedTurn(Frozen):
    """The user's text, the calls that do what it asks, and the functions that are not offered yet."""

    user: str
    calls: tuple[PlannedCall, ...] = ()
    withheld: tuple[str, ...] = ()


class Plan(Frozen):
    """A task: the desks in their first state, and its user turns. Results have about `long` irrelevant characters."""

    desks: dict[str, dict[str, Any]]
    turns: tuple[PlannedTurn, ...]
    long: int = 0


class Room:
    """Desks in use; no two rooms share state."""

    def __init__(self, states: Mapping[str, State]) -> None:
        self.desks = {name: DESKS[name].load(state) for name, state in states.items()}
        self.functions = {name: function for desk in self.desks.values() for name, function in desk.functions().items()}

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """Call a function with arguments that satisfy its schema."""
        [desk] = [desk for desk in self.desks.values() if name in desk.functions()]
        return desk.call(name, arguments)

    def state(self) -> State:
        """Every public field, by "desk.field"."""
        return {f"{name}.{key}": value for name, desk in self.desks.items() for key, value in desk.state().items()}


class DeskDialogue(Dialogue):
    """The desks of one rollout, the desks on which the plan is replayed turn by turn, and the user of the plan."""

    system = RULES

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.room, self._replay = Room(plan.desks), Room(plan.desks)
        self.results: set[str] = set()
        self._calls: Counter[str] = Counter()
        self._made = 0  # calls in all turns
        self._turns: list[dict[str, JsonValue]] = []

    async def begin(self) -> UserTurn:
        """Return the plan's next user turn; `OVER` after the last."""
        if len(self._turns) == len(self.plan.turns):
            return OVER
        turn, output_tokens = self.plan.turns[len(self._turns)], _RESULT_TOKENS + self.plan.long // CHARACTERS_PER_TOKEN
        tools = [
            StateFunction(function, self._answer, output_tokens)
            for name, function in self.room.functions.items()
            if name not in turn.withheld
        ]
        return UserTurn(text=turn.user, tools=tools)

    async def reply(self, text: str) -> UserTurn:
        """Return what the user wants next, whatever the reply is: only the calls are compared."""
        self.end_turn()
        return await self.begin()

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """Call a function in the rollout's room."""
        result = self.room.call(name, arguments)
        self._calls[self._key(name, arguments)] += 1
        self.results.add(_text(result))
        return result

    def end_turn(self) -> None:
        """End the agent's work on the current user turn: compare it with the plan."""
        turn = self.plan.turns[len(self._turns)]
        results = {_text(self._replay.call(call.name, call.arguments)) for call in turn.calls}
        planned = Counter(self._key(call.name, call.arguments) for call in turn.calls)
        state, wanted = self.room.state(), self._replay.state()
        self._turns.append(
            {
                "state": [sum(state[name] == value for name, value in wanted.items()), len(wanted)],
                "calls": [(planned & self._calls).total(), planned.total()],
                "results": [len(results & self.results), len(results)],
            }
        )
        self._calls.clear()

    def outcome(self) -> dict[str, JsonValue]:
        """Compare all turns; in a turn that did not end, nothing is right."""
        left = self.plan.turns[len(self._turns) :]
        fields = len(self._replay.state())
        missed: list[Any] = [
            {"state": [0, fields], "calls": [0, len(turn.calls)], "results": [0, len(turn.calls)]} for turn in left
        ]
        turns: list[Any] = [*self._turns, *missed]
        right = all(turn[what][0] == turn[what][1] for turn in turns for what in ("state", "results"))
        return {"success": right and not left, "turns": turns}

    def _key(self, name: str, arguments: Mapping[str, JsonValue]) -> str:
        return _text({"name": name, "arguments": self.room.functions[name].complete(arguments)})

    def _answer(self, invocation: Invocation) -> ToolResult:
        """Return the function's result as JSON; a refusal is no result (`ok=False`)."""
        result = self.call(invocation.name, invocation.arguments)
        self._made += 1
        more = {"noise": noise(self.plan.long, invocation.name, self._made)} if self.plan.long else {}
        return ToolResult(text=json.dumps({**result, **more}), ok="error" not in result)


def replay(plan: Plan, calls: Sequence[Sequence[PlannedCall]]) -> dict[str, JsonValue]:
    """The outcome of these calls, turn by turn."""
    dialogue = DeskDialogue(plan)
    for turn in calls:
        for call in turn:
            dialogue.call(call.name, call.arguments)
        dialogue.end_turn()
    return dialogue.outcome()


def noise(characters: int, *of: int | str) -> list[JsonValue]:
    """About that many characters of made-up entries, the same for the same call."""
    draws = Random(derive_seed("desk noise", *of))
    lines: list[JsonValue] = []
    while characters > 0:
        day, town, deed = draws.choice(DAYS), draws.choice(vehicle.TOWNS), draws.choice(files.DEEDS)
        line = f"{day}, {town}: {deed}, number {draws.randint(100, 9999)}"
        lines.append(line)
        characters -= len(line)
    return lines


def _text(value: JsonValue) -> str:
    """The same text for the same JSON."""
    return json.dumps(whole(value), sort_keys=True)
