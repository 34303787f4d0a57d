"""The desks as tools, and their user, for an agent (`core.dialogue.Dialogue`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random

from pydantic import JsonValue

from midstream.core.dialogue import OVER, UserTurn
from midstream.core.protocols import ToolResult
from midstream.core.seeds import derive_seed
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.tasks.functions import Invocation, StateFunction
from midstream.worlds.desks.desk import Function
from midstream.worlds.desks.names import CURES, DAYS, FAULTS, PEOPLE, TOWNS
from midstream.worlds.desks.session import Plan, Session

RULES = (
    "You serve a user at desks with functions. Do what is asked, no more and no less. Where a value or a function is "
    "missing, change nothing and say what you lack."
)
_RESULT_TOKENS = 2000  # of a result alone; the longest of any desk has a quarter of them
_NOISE = "noise"  # the key of what has nothing to do with a result


class DeskDialogue:
    """The user of one plan, who says one thing after the other, and the desks of this rollout alone."""

    system = RULES

    def __init__(self, plan: Plan) -> None:
        self._session, self._long = Session(plan), plan.long
        self._made = 0

    async def begin(self) -> UserTurn:
        """What the user wants first."""
        return self._said()

    async def reply(self, text: str) -> UserTurn:
        """What the user wants next, whatever the reply says: only what was done is compared."""
        self._session.end_turn()
        return self._said() if self._session.turn else OVER

    def outcome(self) -> dict[str, JsonValue]:
        """How each turn compares with the plan."""
        return self._session.outcome()

    async def close(self) -> None:
        """Nothing to release."""

    def _said(self) -> UserTurn:
        turn = self._session.turn
        assert turn is not None, "a plan has a turn"
        return UserTurn(text=turn.user, tools=[self._tool(one) for one in self._session.offered(turn)])

    def _tool(self, function: Function) -> StateFunction:
        return StateFunction(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            act=self._call,
            output_tokens=_RESULT_TOKENS + self._long // CHARACTERS_PER_TOKEN,
        )

    def _call(self, invocation: Invocation) -> ToolResult:
        """The function's result as JSON; what it refuses is no result (`ok=False`)."""
        result = self._session.call(invocation.name, invocation.arguments)
        self._made += 1
        more = {_NOISE: noise(self._long, invocation.name, self._made)} if self._long else {}
        return ToolResult(text=json.dumps({**result, **more}), ok="error" not in result)


def noise(characters: int, *of: int | str) -> list[JsonValue]:
    """About so many characters of made-up entries, the same ones for the same call."""
    draws = Random(derive_seed("desk noise", *of))
    lines: list[JsonValue] = []
    while characters > 0:
        line = (
            f"{draws.choice(DAYS)}, {draws.choice(TOWNS)}: {draws.choice(FAULTS)} {draws.choice(CURES)} by "
            f"{draws.choice(PEOPLE)}, number {draws.randint(100, 9999)}"
        )
        lines.append(line)
        characters -= len(line)
    return lines


def calls_text(plan: Plan) -> str:
    """The plan's calls for people, one user turn a line."""
    lines = [", ".join(f"{one.name}({_arguments(one.arguments)})" for one in turn.calls) for turn in plan.turns]
    return "\n".join(line or "(asks)" for line in lines)


def _arguments(arguments: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
