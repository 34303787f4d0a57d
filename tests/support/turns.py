"""Turns of a planner, as tests of its counts need them: a tool call, and an answer that nobody could read."""

from __future__ import annotations

from midstream.core.trajectory import Action, Call, Command, Observation, Turn


def called(query: str, *, failed: bool = False, goal: str = "find") -> Turn:
    return Turn(
        index=1,
        action=Action(sub_goal=goal, tool="search", context=query),
        command=Command(tool="search", arguments={"query": query}),
        observation=Observation(status="error" if failed else "ok", text=""),
    )


def malformed(text: str) -> Turn:
    return Turn(
        index=1,
        action=Action(error="unreadable"),
        observation=Observation(status="error", text="unreadable"),
        calls=(Call(role="planner", completion=text), Call(role="verifier", completion="no")),
    )
