"""How planner turns were spent."""

from __future__ import annotations

import pytest

from midstream.core.metrics import ToolUse, tool_use
from midstream.core.trajectory import Action, Observation, Trajectory, Turn


def turn(tool: str, *, failed: bool = False, malformed: bool = False) -> Turn:
    action = Action(tool=tool, error="unreadable" if malformed else None)
    return Turn(index=1, action=action, observation=Observation(status="error" if failed else "ok", text=""))


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(id="a", task_id="a", turns=turns)


def test_counts_tools_malformed_turns_and_errors():
    first = trajectory(turn("python"), turn("python", failed=True), turn("guess"))
    second = trajectory(turn("", failed=True, malformed=True), turn("guess", failed=True, malformed=True))
    use = tool_use([first, second])
    assert use == ToolUse(turns=5, errors=3, error_rate=0.6, share={"guess": 0.2, "malformed": 0.4, "python": 0.4})
    assert sum(use.share.values()) == pytest.approx(1)


def test_no_turns():
    assert tool_use([]) == tool_use([trajectory()]) == ToolUse()


def test_a_turn_that_ended_before_its_observation_is_no_error():
    unfinished = Turn(index=1, action=Action(tool="python"))
    assert tool_use([trajectory(unfinished)]) == ToolUse(turns=1, share={"python": 1.0})
