"""From a reply to a summary or to operations: what is accepted, what is refused, that nothing is lost in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.lessons.lesson_set import LessonOrigin
from midstream.lessons.operations import Operation
from midstream.lessons.replies import Change, read_operations, read_summary

ADD = {"kind": "add", "text": "When asked, look it up.", "module": "planner", "why": "rollout 1 did"}
MODIFY = {"kind": "modify", "id": "L3", "text": "When asked twice, look it up."}
DELETE, KEEP = {"kind": "delete", "id": "L5"}, {"kind": "keep", "id": "L1"}
ORIGIN = LessonOrigin(update=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def changes(reply: str, **more: Any) -> list[Operation]:
    value = read_operations(reply, **more).value
    assert value is not None
    return [one.operation(ORIGIN, ("planner", "executor")) for one in value]


def test_every_kind_arrives_as_it_was_written():
    assert changes(json.dumps({"operations": [ADD, MODIFY, DELETE, KEEP]})) == [
        Operation(kind="add", text="When asked, look it up.", module="planner", origin=ORIGIN),
        Operation(kind="modify", id="L3", text="When asked twice, look it up.", origin=ORIGIN),
        Operation(kind="delete", id="L5", origin=ORIGIN),
        Operation(kind="keep", id="L1", origin=ORIGIN),
    ]


@pytest.mark.parametrize(
    "reply",
    [
        "```json\n{}\n```",
        "I compared them.\n```\n{}\n```\nThat is all.",
        "<think>perhaps {{not}}</think> {}",
        'The form is {{"operations": []}}. Here it is: {}',
    ],
)
def test_the_json_may_be_fenced_or_stand_in_prose_and_the_last_counts(reply: str):
    (one,) = changes(reply.replace("{{", "<<").replace("{}", json.dumps({"operations": [DELETE]})).replace("<<", "{"))
    assert (one.kind, one.id) == ("delete", "L5")


@pytest.mark.parametrize(
    ("written", "operation"),
    [
        ({"kind": "ADD", "text": " a \n"}, {"kind": "add", "text": "a", "module": "planner"}),
        (
            {"kind": "add", "id": "L9", "text": "a", "module": "executor"},
            {"kind": "add", "text": "a", "module": "executor"},
        ),
        ({"kind": "delete", "id": " [L5] ", "text": "", "module": ""}, {"kind": "delete", "id": "L5"}),
        ({"kind": "keep", "id": "L1", "text": None, "module": None, "confidence": 3}, {"kind": "keep", "id": "L1"}),
    ],
)
def test_small_liberties_are_taken_as_meant(written: dict[str, Any], operation: dict[str, Any]):
    assert changes(json.dumps({"operations": [written]})) == [Operation(origin=ORIGIN, **operation)]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"kind": "add", "text": "  "}, "needs a text"),
        ({"kind": "modify", "id": "L1"}, "needs a text"),
        ({"kind": "delete", "text": "L1"}, "needs the id"),
        ({"kind": "replace", "id": "L1", "text": "a"}, "kind"),
        ({"id": "L1"}, "kind: Field required"),
        ({"kind": "delete", "id": 5}, "id: Input should be a valid string"),
        ("delete L5", "Input should be"),
    ],
)
def test_a_sound_part_is_used_and_the_rest_is_reported(broken: object, said: str):
    found = read_operations(json.dumps({"operations": [KEEP, broken]}))
    assert found.value == (Change.model_validate(KEEP),)
    (flaw,) = found.flaws
    assert flaw.startswith("operation 2: ")
    assert said in flaw
    alone = read_operations(json.dumps({"operations": [broken]}))
    assert alone.value is None
    assert said in alone.problem


@pytest.mark.parametrize(
    "reply", ["", "nothing to change", '{"operations": [', '[{"kind": "keep"}]', '{"operations": {}}']
)
def test_what_holds_no_list_of_operations_is_a_problem(reply: str):
    assert read_operations(reply).value is None
    assert '"operations"' in read_operations(reply).problem


def test_no_change_is_a_reply():
    assert read_operations('{"operations": []}').value == ()


def test_json_that_is_almost_json_is_repaired_on_request():
    reply = "{'operations': [{'kind': 'delete', 'id': 'L5'},]}"
    assert read_operations(reply).value is None
    assert [change.id for change in changes(reply, repair=True)] == ["L5"]


@pytest.mark.parametrize(
    ("said", "sources"), [([2, 1, 2], (2, 1, 2)), (3, (3,)), (["1", None, True, 2], (2,)), ("all", ())]
)
def test_where_it_came_from_never_costs_a_change(said: object, sources: tuple[int, ...]):
    assert Change.model_validate({**ADD, "from": said}).sources == sources


def test_a_summary_is_a_text():
    assert read_summary('{"summary": " Turn 1 ... "}').value == "Turn 1 ..."
    for reply in ("", "Turn 1 ...", '{"summary": ""}', '{"summary": 3}', '{"text": "a"}'):
        found = read_summary(reply)
        assert found.value is None
        assert "summary" in found.problem


@given(st.text() | JSON.map(json.dumps) | st.lists(JSON).map(lambda listed: json.dumps({"operations": listed})))
def test_no_reply_raises_and_every_part_is_used_or_reported(reply: str):
    found = read_operations(reply)
    assert (found.value is None) == bool(found.problem)
    if found.value is not None:
        assert len(found.value) + len(found.flaws) == len(json.loads(reply)["operations"])
    assert (read_summary(reply).value is None) == bool(read_summary(reply).problem)
