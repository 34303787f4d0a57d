"""One rollout at the desks: its state, what was called in each user turn, and how that compares with the plan.

After every user turn three things are compared with a replay of the plan's calls on desks of its own:

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
from typing import Any

from pydantic import JsonValue

from midstream.core.data import Frozen
from midstream.worlds.desks.desk import Desk, Function, Result, State, whole
from midstream.worlds.desks.files import Files
from midstream.worlds.desks.tickets import Tickets
from midstream.worlds.desks.trading import Trading
from midstream.worlds.desks.travel import Travel
from midstream.worlds.desks.vehicle import Vehicle

DESKS: dict[str, type[Desk]] = {
    "vehicle": Vehicle,
    "trading": Trading,
    "travel": Travel,
    "files": Files,
    "tickets": Tickets,
}


class PlannedCall(Frozen):
    """A call that the plan makes."""

    name: str
    arguments: dict[str, JsonValue] = {}


class PlannedTurn(Frozen):
    """What the user says, the calls that do it, and the functions that are not offered yet."""

    user: str
    calls: tuple[PlannedCall, ...] = ()
    withheld: tuple[str, ...] = ()


class Plan(Frozen):
    """A task: the desks as they stand at its beginning, and its user turns.

    Every result comes with about `long` characters of what has nothing to do with it.
    """

    desks: dict[str, dict[str, Any]]
    turns: tuple[PlannedTurn, ...]
    long: int = 0


class Room:
    """Desks in use. Each room has its own: nothing is shared."""

    def __init__(self, states: Mapping[str, State]) -> None:
        self.desks = {name: DESKS[name].load(state) for name, state in states.items()}
        self.functions = {name: one for desk in self.desks.values() for name, one in desk.functions().items()}

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """The result of a function with arguments that satisfy its schema."""
        [desk] = [desk for desk in self.desks.values() if name in desk.functions()]
        return desk.call(name, arguments)

    def state(self) -> State:
        """Every public field, by "desk.field"."""
        return {f"{name}.{key}": value for name, desk in self.desks.items() for key, value in desk.state().items()}


class Session:
    """A room, and beside it the one in which the plan is replayed, turn by turn."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.room, self._replay = Room(plan.desks), Room(plan.desks)
        self.results: set[str] = set()
        self._calls: Counter[str] = Counter()
        self._turns: list[dict[str, JsonValue]] = []

    @property
    def turn(self) -> PlannedTurn | None:
        """The user turn that is on, None after the last."""
        return self.plan.turns[len(self._turns)] if len(self._turns) < len(self.plan.turns) else None

    def offered(self, turn: PlannedTurn) -> list[Function]:
        """The functions that the agent has in that turn."""
        return [one for name, one in self.room.functions.items() if name not in turn.withheld]

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Result:
        """Call a function in the rollout's room."""
        result = self.room.call(name, arguments)
        self._calls[self._key(name, arguments)] += 1
        self.results.add(_text(result))
        return result

    def end_turn(self) -> None:
        """The agent is done with what the user wanted: compare, and go on to what the user wants next."""
        turn = self.turn
        assert turn is not None, "the dialogue is over"
        results = {_text(self._replay.call(one.name, one.arguments)) for one in turn.calls}
        planned = Counter(self._key(one.name, one.arguments) for one in turn.calls)
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
        """The facts; of a turn that did not end, nothing is right."""
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


def replayed(plan: Plan, calls: Sequence[Sequence[PlannedCall]]) -> dict[str, JsonValue]:
    """The outcome of these calls, turn by turn."""
    session = Session(plan)
    for turn in calls:
        for one in turn:
            session.call(one.name, one.arguments)
        session.end_turn()
    return session.outcome()


def _text(value: JsonValue) -> str:
    """The same text for the same JSON."""
    return json.dumps(whole(value), sort_keys=True)
