"""How interleaved policies reason and call tools, counted by hand."""

from __future__ import annotations

import pytest

from midstream.core.metrics import StreamMetrics, Tally
from midstream.core.trajectory import Action, Call, Observation, Trajectory, Turn


def call(text: str, tokens: int = 0) -> Call:
    return Call(role="policy", completion=text, completion_ids=tuple(range(tokens)))


def turn(body: str, *calls: Call, ok: bool = True) -> Turn:
    observation = Observation(status="ok" if ok else "error", text="")
    return Turn(index=1, action=Action(tool="python", context=body), observation=observation, calls=calls)


def run(*turns: Turn, closing: str = "done", stop: str = "answered", **more: object) -> Trajectory:
    named = {"id": "t", "task_id": "t", "turns": turns, "closing_calls": (call(closing, 4),), "stop_reason": stop}
    return Trajectory.model_validate(named | more)


def measured(*runs: Trajectory) -> StreamMetrics:
    found = Tally(runs).streams()
    assert found is not None
    return found


def test_calls_and_steps_are_counted_and_means_are_over_trajectories():
    first = run(turn("a", call("a", 1)), turn("b", call("b", 1), ok=False), turn("c", call("c", 1)))
    second = run(turn("a", call("a", 1)))
    third = run(turn("a", call("a", 1), ok=False), stop="ended")
    found = measured(first, second, third)
    assert (found.trajectories, found.replies, found.calls, found.correct) == (3, 8, 5, 3)
    assert (found.answered, found.steps_to_answer) == (2, 2.0)
    assert (found.correct, found.calls, found.trajectories) == (3, 5, 3)


def test_reasoning_in_words_leaves_out_calls_and_marks():
    reply = call("<think>first look, then <b> add</think>\n<python>print(2 + 3)</python>")
    found = measured(run(turn("print(2 + 3)", reply)))
    assert (found.unit, found.reasoning_per_call) == ("words", 4)


def test_tokens_are_shared_out_by_characters():
    reply = call("<think>twelve chars</think><python>8 chars.</python>", tokens=13)  # 52 characters, 4 a token
    found = measured(run(turn("8 chars.", reply)))
    assert (found.unit, found.reasoning_per_call) == ("tokens", 3)


def test_one_reply_without_token_ids_makes_it_words_for_all():
    found = measured(run(turn("x", call("one two x", 9)), turn("y", call("three y"))))
    assert (found.unit, found.reasoning_per_call) == ("words", 1.5)


def test_a_reply_with_two_calls_is_read_once():
    both = call('<reasoning>fill and look</reasoning><tool>[{"a": 1}, {"b": 2}]</tool>')
    found = measured(run(turn('[{"a": 1},', both), turn('{"b": 2}]')))
    assert (found.calls, found.replies, found.reasoning_per_call) == (2, 2, 1.5)


def test_a_reply_that_was_sampled_in_two_requests_is_one():
    begun, ended = call("<think>is </think> it</think>", 7), call(" so<python>1</python>", 5)
    found = measured(run(turn("1", begun, ended)))
    assert (found.calls, found.replies) == (1, 3)
    assert found.reasoning_per_call == pytest.approx(
        12 * len("is  it so") / len("<think>is </think> it</think> so<python>1</python>")
    )


def test_words_to_a_user_are_replies_and_no_calls():
    said = Turn(index=2, user="Continue.", calls=(Call(role="user", completion="Continue."), call("Which one?", 3)))
    found = measured(run(turn("x", call("one x", 5)), said))
    assert (found.calls, found.replies, found.steps_to_answer) == (1, 3, 1)


def test_calls_that_are_longer_than_the_reply_leave_no_reasoning():
    assert measured(run(turn("much longer than that", call("short", 2)))).reasoning_per_call == 0


def test_without_a_call_there_is_no_mean():
    found = measured(run(stop="ended"))
    assert (found.calls, found.reasoning_per_call, found.steps_to_answer) == (0, None, None)


def test_other_agents_and_broken_runs_are_not_measured():
    planner = Call(role="planner", completion="x")
    assert Tally([Trajectory(id="t", task_id="t", turns=(turn("x", planner),))]).streams() is None
    assert Tally([run(turn("x", call("x", 1)), status="error")]).streams() is None
    assert Tally([]).streams() is None
