"""The agent of another program for the atlas: what it asks, which tools it calls, and when it ends."""

from __future__ import annotations

import json

import midstream as ms
from midstream.core.engine import Request
from midstream_worlds.atlas.loop import solve
from support.gateway_sessions import Model, run


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def local_search(query: str) -> str:
    """Search."""
    return f"found {query}"


def solved(replies: list[str]) -> tuple[Model, ms.Trajectory]:
    left = iter(replies)
    model = Model(lambda request: next(left))
    return model, run(solve, model, reference="midstream_worlds.atlas.loop:solve", tools=[ms.tool(local_search)])


def results(request: Request) -> list[str]:
    return [message.content for message in request.messages if message.role == "tool"]


def test_it_calls_what_the_model_names_until_the_model_answers():
    both = call("local_search", query="Oakfell") + call("python", code="1 + 1")
    model, trajectory = solved(["I search." + both, call("local_search", query="Mistdale"), "right"])
    assert (trajectory.answer, trajectory.reward.value) == ("right", 1.0)
    first, second, third = model.requests
    assert [tool["function"]["name"] for tool in first.tools] == ["local_search", "python"]
    assert [message.role for message in second.messages] == ["user", "assistant", "tool", "tool"]
    assert results(second) == ["found Oakfell", "no such tool"]
    assert results(third) == ["found Oakfell", "no such tool", "found Mistdale"]
    acted = [turn for turn in trajectory.turns if turn.action]
    assert [turn.action.tool for turn in acted] == ["local_search", "python", "local_search"]
    assert [turn.command.arguments for turn in acted] == [
        {"query": "Oakfell"},
        {"code": "1 + 1"},
        {"query": "Mistdale"},
    ]
    assert [turn.observation.text for turn in acted] == ["found Oakfell", "no such tool", "found Mistdale"]


def test_a_model_that_never_answers_is_asked_five_times():
    model, trajectory = solved([call("local_search", query=str(i)) for i in range(9)])
    assert trajectory.answer is None
    assert len(model.requests) == 5
