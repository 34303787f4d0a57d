"""Trajectories survive the disk unchanged, whatever is in them."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import JsonValue, ValidationError

from midstream.core.data import Frozen
from midstream.core.task import Task
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    Memory,
    MemoryRecord,
    Message,
    Observation,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
    Turn,
    Usage,
    Verdict,
    without_clocks,
)

TEXT = st.text(max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)  # JSON arguments: a model cannot write other numbers
JSON: SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def any_of(kind: type[Frozen]) -> SearchStrategy[Any]:
    """Any valid object of a class, drawn from its fields' annotations."""
    fields = {name: field.annotation for name, field in kind.model_fields.items()}
    holds_json = {
        name: st.dictionaries(TEXT, JSON, max_size=3)
        for name in fields
        if name in ("arguments", "metadata", "sent", "reply", "outcome", "fields")
    }
    return st.builds(kind, **{**{name: st.from_type(of) for name, of in fields.items()}, **holds_json})  # type: ignore[arg-type]


st.register_type_strategy(
    Sampling,
    st.builds(
        Sampling,
        temperature=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
        top_p=st.floats(min_value=0, max_value=1, exclude_min=True),
        max_tokens=st.integers(min_value=1),
        stop=st.lists(TEXT).map(tuple),
    ),
)
for part in (
    Usage,
    Message,
    ErrorInfo,
    Call,
    Action,
    Command,
    ToolCall,
    Observation,
    Verdict,
    Turn,
    Score,
    MemoryRecord,
):
    st.register_type_strategy(part, any_of(part))


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("kind", "examples"),
    [(Trajectory, 1), (Turn, 3), pytest.param(Trajectory, 40, marks=pytest.mark.slow), (Memory, 40), (Task, 40)],
)
def test_json_round_trip(kind, examples):
    @settings(derandomize=True, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(any_of(kind))
    def check(thing: Frozen):
        # Compared by repr: equal to the last bit of every float, and not-a-number is itself.
        assert repr(kind.model_validate_json(thing.model_dump_json())) == repr(thing)

    check()


def test_calls_are_in_order():
    turns = tuple(Turn(index=i, calls=(Call(role=f"planner {i}"), Call(role=f"verifier {i}"))) for i in (1, 2))
    trajectory = Trajectory(id="a", task_id="a", turns=turns, closing_calls=(Call(role="generator"),))
    roles = ["planner 1", "verifier 1", "planner 2", "verifier 2", "generator"]
    assert [call.role for call in trajectory.calls] == roles


def test_signal_is_the_papers():
    assert Verdict(result_valid=False, memory_sufficient=True).signal == "STOP"
    assert Verdict(result_valid=True, memory_sufficient=False).signal == "CONTINUE"


def test_clocks_and_nothing_else_are_taken_away():
    def at(started: float, took: float) -> Trajectory:
        times = {"started_at": started, "duration_s": took}
        made = (ToolCall(tool="t", arguments={"started_at": 1}, status="ok", text="x", **times),)
        observation = Observation(status="ok", text="x", tool_calls=made, **times)
        call = Call(role="planner", completion_ids=(1, 2), **times)
        turns = (Turn(index=1, observation=observation, calls=(call,)), Turn(index=2))
        return Trajectory(id="a", task_id="a", turns=turns, closing_calls=(call,), answer="7", **times)

    assert without_clocks(at(1e9, 3.5)) == without_clocks(at(2e9, 0.1)) == at(0, 0)


def test_data_is_frozen_and_strict():
    action = Action(tool="python")
    with pytest.raises(ValidationError, match="frozen"):
        action.tool = "guess"
    with pytest.raises(ValidationError, match="Extra inputs"):
        Action(tol="python")  # type: ignore[call-arg]


def test_memory_append_leaves_the_old_memory_alone():
    empty = Memory()
    first = empty.append(MemoryRecord(turn=1, action=Action()))
    second = first.append(MemoryRecord(turn=2, action=Action()))
    assert (len(empty), len(first), len(second)) == (0, 1, 2)
    assert [record.turn for record in second.records] == [1, 2]


def test_a_task_without_its_answer_is_its_id_and_question():
    metadata = {"hint": "gold", "solution": "It is gold.", "rubric": "gold counts", "level": 3}
    metadata |= {
        "ground_truth": 1,
        "steps": ["so", {"then": " Gold "}],
        "correct_option": "A",
        "options": ["Gold", "tin"],
    }
    task = Task(id="1", question="Who ?", answer="gold", family="hop", reward="f1", metadata=metadata)
    assert task.without_answer() == Task(id="1", question="Who ?", answer="", metadata={"level": 3})


def test_the_summary_of_a_foreign_error_is_the_line_that_names_it():
    def failing():
        raise LookupError("no such thing\n  File: two lines")

    try:
        try:
            int("x")
        except ValueError:
            failing()
    except LookupError:
        text = traceback.format_exc(limit=-3)
    assert ErrorInfo(type="LookupError", message=text).summary == "LookupError: no such thing"
    assert ErrorInfo(type="LookupError", message=text).text == (
        f'File "{__file__}", line {failing.__code__.co_firstlineno + 1}, in failing: LookupError: no such thing'
    )
    own = ErrorInfo(type="EngineError", message="nothing answers\n  fix: start it")
    assert (own.summary, own.text) == ("nothing answers", "EngineError: nothing answers\n  fix: start it")
