"""Made-up plans: what a user wants at the desks, turn after turn, with the calls that do it.

    base                 every turn asks for one or more goals in full
    missing_parameters   one turn leaves a value out; the agent should ask, and the next turn gives it
    missing_functions    one turn wants a function that is not offered; the next turn brings it
    long_context         base, and every result comes with thousands of characters of other things
    composite            all three

A plan is drawn goal by goal on desks that live through it, so every goal can be reached when it is wanted, and later
ones build on what earlier calls gave ("cancel that order"). In a plan that is `tight`, no call can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from midstream.core.data import Frozen
from midstream.worlds.desks import files, tickets, trading, travel, vehicle
from midstream.worlds.desks.desk import State
from midstream.worlds.desks.goals import Goal, Values, Wording
from midstream.worlds.desks.session import DESKS, Plan, PlannedCall, PlannedTurn, Room, replayed

GOALS: dict[str, tuple[Goal, ...]] = {
    "vehicle": vehicle.GOALS,
    "trading": trading.GOALS,
    "travel": travel.GOALS,
    "files": files.GOALS,
    "tickets": tickets.GOALS,
}
CATEGORIES = ("base", "missing_parameters", "missing_functions", "long_context", "composite")
LONG = 6000  # characters beside each result of a long context

_ASKING = ("", "", "Hello. ", "Please help me. ", "Good morning. ")
_GOING_ON = ("", "", "Thank you. ", "Next. ", "Good. ", "Now the next thing. ")
_JOINING = (" ", " Then: ", " After that: ", " And one more thing. ")
_BROUGHT = (
    "You have the function {name} from now on, so please do what I asked for.",
    "Sorry, now {name} is there as well. Please go on with that.",
)


class Difficulty(Frozen):
    """How much a plan holds: desks, user turns (those that only complete another not counted), goals of one turn."""

    desks: int
    turns: tuple[int, int]
    goals: tuple[int, int]


DIFFICULTIES = {
    "easy": Difficulty(desks=1, turns=(1, 2), goals=(1, 1)),
    "standard": Difficulty(desks=1, turns=(2, 3), goals=(1, 2)),
    "hard": Difficulty(desks=2, turns=(3, 5), goals=(2, 3)),
}


class _Infeasible(Exception):
    """No such goal can be reached from here: the plan is begun anew."""


@dataclass
class _Draft:
    """A plan in the making, on a room that lives through it."""

    room: Room
    draws: Random
    seen: State
    turns: list[PlannedTurn]

    def calls(self, goal: Goal, values: Values) -> list[PlannedCall]:
        """Carry a goal out."""
        made: list[PlannedCall] = []
        for step in goal.steps:
            call = PlannedCall(name=step.function, arguments=step.filled(values, self.seen))
            result = self.room.call(call.name, call.arguments)
            if "error" in result:
                raise _Infeasible(f"{goal.texts[0]}: {result['error']}")
            self.seen.update(result)
            made.append(call)
        return made

    def draw(self, goals: Sequence[tuple[str, Goal]]) -> tuple[Goal, Values]:
        """One of these goals that can be reached from here, and its values."""
        for desk, goal in self.draws.sample(goals, len(goals)):
            if all(key in self.seen for key in goal.after):
                values = goal.draw(self.room.desks[desk], self.draws)
                if values is not None:
                    return goal, values
        raise _Infeasible("no goal is left")

    def ask(self, text: str, calls: Sequence[PlannedCall]) -> None:
        """Add a user turn that wants something new."""
        self.say(self.draws.choice(_GOING_ON if self.turns else _ASKING) + text, calls)

    def say(self, text: str, calls: Sequence[PlannedCall]) -> None:
        """Add a user turn."""
        self.turns.append(PlannedTurn(user=text, calls=tuple(calls)))


def make_plan(category: str, difficulty: str, desks: Sequence[str], draws: Random) -> Plan:
    """A plan of one category, on some of `desks`; the same for the same state of `draws`."""
    size = DIFFICULTIES[difficulty]
    while True:
        chosen = draws.sample(list(desks), min(size.desks, len(desks)))
        states = {name: DESKS[name].stocked(draws).state() for name in chosen}
        try:
            turns = _turns(category, size, states, draws)
        except _Infeasible:
            continue
        return Plan(desks=states, turns=turns, long=LONG if category in ("long_context", "composite") else 0)


def tight(plan: Plan) -> bool:
    """Whether its calls are a success, and are none where any one of them is left out."""
    whole = replayed(plan, [turn.calls for turn in plan.turns])["success"]
    return bool(whole) and not any(replayed(plan, calls)["success"] for calls in without_one(plan))


def without_one(plan: Plan) -> Iterator[list[list[PlannedCall]]]:
    """The plan's calls turn by turn, each time without another one; that without the last call comes last."""
    for i, turn in enumerate(plan.turns):
        for j in range(len(turn.calls)):
            calls = [list(one.calls) for one in plan.turns]
            del calls[i][j]
            yield calls


def _turns(category: str, size: Difficulty, states: dict[str, Any], draws: Random) -> tuple[PlannedTurn, ...]:
    draft = _Draft(Room(states), draws, {}, [])
    goals = [(desk, goal) for desk in states for goal in GOALS[desk]]
    count = draws.randint(*size.turns)
    kinds: list[str] = [""] * count
    special = [one for one in ("missing_parameters", "missing_functions") if category in (one, "composite")]
    for place, kind in zip(draws.sample(range(count), min(len(special), count)), special, strict=False):
        kinds[place] = kind
    if len(special) > count:
        kinds.append(special[-1])
    for kind in kinds:
        if kind == "missing_parameters":
            _vague(draft, [(desk, goal) for desk, goal in goals if goal.vague])
        elif kind == "missing_functions":
            _held_back(draft, [(desk, goal) for desk, goal in goals if goal.hold])
        else:
            _plain(draft, goals, draws.randint(*size.goals))
    return tuple(draft.turns)


def _plain(draft: _Draft, goals: Sequence[tuple[str, Goal]], count: int) -> None:
    """A turn of goals that are asked for in full."""
    texts: list[str] = []
    calls: list[PlannedCall] = []
    for _ in range(count):
        goal, values = draft.draw(goals)
        calls += draft.calls(goal, values)
        texts.append(draft.draws.choice(goal.texts).format(**values))
    text = texts[0] + "".join(draft.draws.choice(_JOINING) + one for one in texts[1:])
    draft.ask(text, calls)


def _vague(draft: _Draft, goals: Sequence[tuple[str, Goal]]) -> None:
    """A turn that leaves a value out, and one that gives it."""
    goal, values = draft.draw(goals)
    text, then = draft.draws.choice(goal.vague)
    draft.ask(text.format(**values), ())
    draft.say(then.format(**values), draft.calls(goal, values))


def _held_back(draft: _Draft, goals: Sequence[tuple[str, Goal]]) -> None:
    """A turn that wants a function which was not there from the start, and one that brings it."""
    used = {call.name for turn in draft.turns for call in turn.calls}
    goal, values = draft.draw([(desk, one) for desk, one in goals if one.hold not in used])
    draft.ask(draft.draws.choice(goal.texts).format(**values), ())
    draft.turns = [one.model_copy(update={"withheld": (goal.hold,)}) for one in draft.turns]
    draft.say(draft.draws.choice(_BROUGHT).format(name=goal.hold), draft.calls(goal, values))


def wanted(text: str) -> list[tuple[Goal, Wording, Values]]:
    """The goals that a user's text names, in its order; vague ones lack a value."""
    found: list[tuple[int, Goal, Wording, Values]] = [
        (place, goal, wording, values)
        for goals in GOALS.values()
        for goal in goals
        for wording in goal.wordings
        for place, values in wording.find(text)
    ]
    return [(goal, wording, values) for _, goal, wording, values in sorted(found, key=lambda one: one[0])]
