"""Proposals and what the merger makes of them: where each operation came from, and what became of the others."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from midstream.lessons.lesson_set import LessonOrigin
from midstream.lessons.operations import Operation
from midstream.lessons.replies import Change, Merged, Proposals


def proposal(task: str, kind: Any = "add", **more: Any) -> Operation:
    origin = LessonOrigin(
        update=2, tasks=(task,), trajectories=(f"{task}#0", f"{task}#1"), model="critic", why=f"as in {task}"
    )
    module = "planner" if kind == "add" else ""
    return Operation.model_validate({"kind": kind, "module": module, "origin": origin, **more})


ONE, TWO = proposal("t1", text="When a, do b."), proposal("t2", text="When a, do c.")
GONE = proposal("t3", "delete", id="L4")


def merged(proposed: list[Operation], *changes: dict[str, Any]) -> Merged:
    made = [Change.model_validate(change) for change in changes]
    return Proposals(proposed).merged(made, ("planner",), "merger")


def test_equal_proposals_are_shown_once_with_the_number_of_groups():
    again = ONE.model_copy(update={"origin": proposal("t4").origin})
    lines = [json.loads(line) for line in Proposals([ONE, GONE, again]).shown().splitlines()]
    assert lines == [
        {"proposal": 1, "groups": 2, "kind": "add", "text": "When a, do b.", "module": "planner", "why": "as in t1"},
        {"proposal": 2, "groups": 1, "kind": "delete", "id": "L4", "why": "as in t3"},
    ]


def test_a_merged_operation_has_the_origins_of_those_it_names():
    made = merged([ONE, TWO, GONE], {"kind": "add", "text": "When a, do b or c.", "from": [1, 2], "why": "both"})
    (operation,) = made.operations
    assert operation.origin == LessonOrigin(
        update=2, tasks=("t1", "t2"), trajectories=("t1#0", "t1#1", "t2#0", "t2#1"), model="merger", why="both"
    )
    assert [(outcome.operation, outcome.refused) for outcome in made.left_out] == [
        (ONE, "merged into: add When a, do b or c."),
        (TWO, "merged into: add When a, do b or c."),
        (GONE, "left out by the merger"),
    ]


def test_what_passes_as_it_was_keeps_its_origin_and_is_not_left_out():
    made = merged(
        [ONE, GONE], {"kind": "add", "text": ONE.text, "module": "planner", "from": [1]}, {"kind": "delete", "id": "L4"}
    )
    assert made == Merged(operations=(ONE, GONE))


def test_without_numbers_the_same_lesson_or_text_says_where_it_came_from():
    better = proposal("t5", "modify", id="L4", text="When x, do y.")
    made = merged(
        [ONE, TWO, GONE, better], {"kind": "add", "text": TWO.text}, {"kind": "modify", "id": "L4", "text": "z"}
    )
    assert [operation.origin.tasks for operation in made.operations] == [("t2",), ("t3", "t5")]


def test_without_any_clue_it_came_from_the_whole_batch():
    made = merged([ONE, GONE], {"kind": "add", "text": "something new", "from": [0, 9, -1]})
    assert made.operations[0].origin.tasks == ("t1", "t3")
    assert [outcome.refused for outcome in made.left_out] == ["left out by the merger"] * 2


KINDS = st.sampled_from(["add", "modify", "delete", "keep"])
CHANGES = st.builds(
    lambda kind, lesson, text, sources: {"kind": kind, "id": lesson, "text": text, "from": sources},
    KINDS,
    st.sampled_from(["L1", "L2"]),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(-2, 9), max_size=3),
)


@given(st.lists(CHANGES, min_size=1, max_size=6), st.lists(CHANGES, max_size=6))
def test_no_proposal_is_lost_whatever_the_merger_says(proposed: list[dict], changes: list[dict]):
    operations = [
        Change.model_validate(one).operation(LessonOrigin(tasks=(f"t{i}",)), ("planner",))
        for i, one in enumerate(proposed)
    ]
    made = merged(operations, *changes)
    content = {(one.kind, one.id, one.text) for one in (*made.operations, *(out.operation for out in made.left_out))}
    assert {(operation.kind, operation.id, operation.text) for operation in operations} <= content
    assert len(made.operations) == len(changes)
    assert all(operation.origin.tasks for operation in made.operations)
