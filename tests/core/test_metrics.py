"""How planner turns were spent: tools and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.metrics import StepMetrics, StreamMetrics, Tally, ToolUse, malformed_example, waits_of
from midstream.core.trajectory import Action, Call, Command, ErrorInfo, Observation, ToolCall, Trajectory, Turn
from support.turns import called, malformed


def turn(tool: str, *, failed: bool = False, malformed: bool = False) -> Turn:
    action = Action(tool=tool, error="unreadable" if malformed else None)
    return Turn(index=1, action=action, observation=Observation(status="error" if failed else "ok", text=""))


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(id="a", task_id="a", turns=turns)


def tool_use(trajectories: list[Trajectory]) -> ToolUse:
    return Tally(trajectories).tools()


def test_counts_tools_malformed_turns_and_errors():
    first = trajectory(turn("python"), turn("python", failed=True), turn("guess"))
    second = trajectory(turn("", failed=True, malformed=True), turn("guess", failed=True, malformed=True))
    use = tool_use([first, second])
    assert (use.turns, use.errors, use.error_rate) == (5, 3, 0.6)
    assert use.share == {"guess": 0.2, "malformed": 0.4, "python": 0.4}
    assert sum(use.share.values()) == pytest.approx(1)


def test_no_turns():
    assert tool_use([]) == tool_use([trajectory()]) == ToolUse()


def test_a_turn_that_ended_before_its_observation_is_no_error():
    unfinished = Turn(index=1, action=Action(tool="python"))
    use = tool_use([trajectory(called("a", failed=True), unfinished)])
    assert use.errors == 1


def test_calls_count_what_reached_a_tool():
    call = ToolCall(tool="search", arguments={}, status="ok", text="")
    program = Turn(
        index=1,
        action=Action(tool="search"),
        command=Command(tool="search", code="search('a'); search('b')"),
        observation=Observation(status="ok", text="", tool_calls=(call, call)),
    )
    invalid = Turn(
        index=2,
        action=Action(tool="search"),
        command=Command(tool="search", error="wants a query"),
        observation=Observation(status="error", text="wants a query"),
    )
    use = tool_use([trajectory(program, invalid, called("a"), malformed("x"))])
    assert use.calls == {"search": 3}
    assert use.share == {"malformed": 0.25, "search": 0.75}


def test_what_broke_around_the_model_is_left_out():
    broken = called("b", failed=True).model_copy(update={"error": ErrorInfo(type="ToolServerError", message="down")})
    assert tool_use([trajectory(called("a", failed=True), broken)]) == tool_use([trajectory(called("a", failed=True))])


def stream_call(body: str, *, thought: str, failed: bool = False, error: str | None = None) -> Turn:
    """A call of an interleaved policy."""
    return Turn(
        index=1,
        action=Action(tool="search", context=body, error=error),
        command=None if error else Command(tool="search", arguments={"query": body}),
        observation=Observation(status="error" if failed or error else "ok", text=error or ""),
        calls=(Call(role="policy", completion=f"<think>{thought}</think><search>{body}</search>"),),
    )


def test_malformed_calls_of_an_interleaved_policy_are_errors():
    malformed = [stream_call(body, thought=body * 2, error="no JSON") for body in ("{", "{", "[")]
    use = tool_use([trajectory(*malformed, stream_call("a", thought="z"))])
    assert (use.turns, use.errors) == (4, 3)
    assert use.share == {"malformed": 0.75, "search": 0.25}
    assert use.calls == {"search": 1}


def test_what_a_policy_says_to_a_user_is_no_turn_with_an_action():
    reply = Turn(index=2, user="Continue.", calls=(Call(role="policy", completion="Which one?"),))
    use = tool_use([trajectory(stream_call("a", thought="x", failed=True), reply, stream_call("b", thought="x"))])
    assert (use.turns, use.share) == (2, {"search": 1.0})


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=6), max_size=5))
def test_counts_agree_with_each_other(runs: list[list[tuple[str, bool]]]):
    use = tool_use([trajectory(*(called(query, failed=failed) for query, failed in run)) for run in runs])
    assert use.turns == sum(map(len, runs)) == use.calls.get("search", 0)
    assert use.errors == sum(failed for run in runs for _, failed in run)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "all rewards are 0"),
        ({"reward_mean": 1.0}, "all rewards are 1"),
        ({"reward_mean": 0.5}, "the rewards of each group are equal"),
        ({"groups_uniform": 3, "groups_broken": 1}, "all rewards are 0"),
        ({"tool_use": ToolUse(turns=9, share={"malformed": 1.0})}, "all 9 replies that should act are malformed"),
        ({"tool_use": ToolUse(turns=9, share={"malformed": 1.0}), "groups_uniform": 0}, "all 9 replies"),
        ({"streams": StreamMetrics(trajectories=8)}, "no reply holds an answer"),
        ({"groups_uniform": 3}, ""),
        ({"groups": 0, "groups_uniform": 0}, ""),
    ],
)
def test_why_a_step_has_nothing_to_learn_from(changes, words):
    fields = {"step": 1, "policy_version": 0, "reward_mean": 0.0, "groups": 4, "groups_uniform": 4, **changes}
    found = StepMetrics(**fields).no_contrast
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_a_malformed_reply_is_quoted():
    runs = [
        Trajectory(id="a#0", task_id="a", turns=(called("x"),)),
        Trajectory(id="b#0", task_id="b", turns=(malformed("??"),)),
    ]
    example = malformed_example(runs, Path("my runs/a"))
    assert "b#0, turn 1: unreadable: '??'" in example
    assert example.endswith("midstream show 'my runs/a' b#0")
    assert malformed_example(runs[:1], Path("a")) == ""


def test_waits_are_those_for_the_slowest_rollouts():
    def ended(*spans: tuple[float, float]) -> Trajectory:
        calls = [Call(role="planner", engine="e", started_at=start, duration_s=end - start) for start, end in spans]
        turns = tuple(Turn(index=place, calls=(call,)) for place, call in enumerate(calls))
        return Trajectory(id="t", task_id="t", question="q", turns=turns)

    found = waits_of([ended((1, 2), (3, 5)), ended((1, 3)), ended((1, 3)), ended((2, 11))])
    assert found["tail_s"] == pytest.approx(6)
    assert found["busy"] == pytest.approx((4 + 2 + 2 + 9) / (4 * 10))
    assert waits_of([ended()]) == waits_of([]) == {}
