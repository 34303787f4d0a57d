"""What differs between two libraries."""

from hypothesis import given

from midstream.practice.library import Lesson, Library
from midstream.practice.operations import Diff, Operation, applied, diff
from support.libraries import libraries, marked

BASE = Library(
    lessons=(
        Lesson(id="L1", text="Look first.", used=10),
        Lesson(id="L2", text="Count twice.", used=4),
        Lesson(id="L3", text="Ask for units.", module="executor"),
    ),
    next_number=4,
    proven_for="agent",
)


def changed(library: Library, *operations: Operation) -> Library:
    return applied(library, operations)


def modify(lesson_id: str, text: str) -> Operation:
    return Operation(kind="modify", id=lesson_id, text=text)


def delete(lesson_id: str) -> Operation:
    return Operation(kind="delete", id=lesson_id)


def add(lesson_id: str, text: str) -> Operation:
    return Operation(kind="add", id=lesson_id, text=text, module="planner")


def test_a_diff_names_each_kind_of_change():
    after = marked(changed(BASE, delete("L2"), modify("L1", "Look twice."), add("L4", "Breathe.")), "L1", "vetoed")
    found = diff(BASE, after)
    assert [one.id for one in found.added] == ["L4"]
    assert [one.text for one in found.deleted] == ["Count twice."]
    assert [(old.text, new.text) for old, new in found.modified] == [("Look first.", "Look twice.")]
    assert [(old.state, new.state) for old, new in found.marked] == [("active", "vetoed")]
    assert not found.empty


@given(libraries, libraries)
def test_a_diff_is_empty_exactly_where_nothing_differs(one: Library, other: Library):
    assert diff(one, one) == Diff()
    contents = [{(x.id, x.text, x.module, x.state) for x in library.lessons} for library in (one, other)]
    assert diff(one, other).empty == (contents[0] == contents[1])


@given(libraries, libraries)
def test_a_diff_backwards_is_the_other_way_round(one: Library, other: Library):
    there, back = diff(one, other), diff(other, one)
    assert {x.id for x in there.added} == {x.id for x in back.deleted}
    assert {x.id for x, _ in there.modified} == {x.id for x, _ in back.modified}
