from hypothesis import given

from midstream.practice.changes import merged
from midstream.practice.library import Effect, Lesson, Library, marked, next_number
from midstream.practice.operations import Diff, Operation, applied, diff
from support.libraries import libraries

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


def texts(library: Library) -> dict[str, str]:
    return {one.id: one.text for one in library.lessons}


# --- diff ----------------------------------------------------------------------------------------------------------


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
    said = [{(x.id, x.text, x.module, x.state) for x in library.lessons} for library in (one, other)]
    assert diff(one, other).empty == (said[0] == said[1])


@given(libraries, libraries)
def test_a_diff_backwards_is_the_other_way_round(one: Library, other: Library):
    there, back = diff(one, other), diff(other, one)
    assert {x.id for x in there.added} == {x.id for x in back.deleted}
    assert {x.id for x, _ in there.modified} == {x.id for x, _ in back.modified}


# --- merge ---------------------------------------------------------------------------------------------------------


def test_what_only_one_side_changed_is_taken():
    one = changed(BASE, modify("L1", "Look twice."), add("L4", "Breathe."))
    other = marked(changed(BASE, delete("L2")), "L3", "pinned")
    library, notes = merged(BASE, one, other)
    assert texts(library) == {"L1": "Look twice.", "L3": "Ask for units.", "L4": "Breathe."}
    assert library.lessons[1].state == "pinned"
    assert notes == ["L2 is deleted, as the other has it"]


def test_where_both_changed_a_lesson_the_first_goes_first():
    library, notes = merged(BASE, changed(BASE, modify("L1", "Look up.")), changed(BASE, modify("L1", "Look down.")))
    assert texts(library)["L1"] == "Look up."
    assert notes == ["L1 was changed by both: the first's text stays"]


def test_a_change_goes_before_a_deletion():
    for one, other in ((delete("L1"), modify("L1", "Look up.")), (modify("L1", "Look up."), delete("L1"))):
        library, notes = merged(BASE, changed(BASE, one), changed(BASE, other))
        assert texts(library)["L1"] == "Look up."
        assert notes[0].startswith("L1 was deleted by the")


def test_new_lessons_of_one_id_both_stay():
    library, notes = merged(BASE, changed(BASE, add("L4", "Breathe.")), changed(BASE, add("L4", "Smile.")))
    assert texts(library) == {**texts(BASE), "L4": "Breathe.", "L5": "Smile."}
    assert library.next_number == 6
    assert notes == ["L4 of the other is L5 here"]


def test_near_duplicates_are_joined_and_a_veto_wins():
    one = Library(lessons=(Lesson(id="L1", text="Look first.", used=3, helped=1, state="pinned"),), next_number=2)
    other = Library(lessons=(Lesson(id="L7", text="look FIRST", used=4, harmed=2, state="vetoed"),), next_number=8)
    library, notes = merged(None, one, other)
    assert library.lessons == (Lesson(id="L1", text="Look first.", used=7, helped=1, harmed=2, state="vetoed"),)
    assert notes == ["L7 of the other repeats L1: joined"]
    assert library.next_number == 8


def test_counts_since_the_base_add_up():
    one, other = (
        BASE.model_copy(update={"lessons": (BASE.lessons[0].model_copy(update={"used": used}), *BASE.lessons[1:])})
        for used in (15, 12)
    )
    assert [one.used for one in merged(BASE, one, other)[0].lessons] == [17, 4, 0]


def test_an_effect_measured_on_either_side_is_kept():
    effect = Effect(mean=0.1, interval=(0.0, 0.2), pairs=9)
    other = BASE.model_copy(
        update={"lessons": (BASE.lessons[0].model_copy(update={"effect": effect}), *BASE.lessons[1:])}
    )
    assert merged(BASE, BASE, other)[0].lessons[0].effect == effect
    assert merged(BASE, other, BASE)[0].lessons[0].effect == effect


def test_the_proof_holds_only_where_prompts_are_the_firsts():
    assert merged(BASE, BASE, BASE)[0].proven_for == "agent"
    assert merged(BASE, BASE, changed(BASE, delete("L1")))[0].proven_for == ""


@given(libraries, libraries, libraries)
def test_merging_is_total_and_never_reuses_an_id(base: Library, one: Library, other: Library):
    for before in (None, base):
        library, _ = merged(before, one, other)
        assert len({x.id for x in library.lessons}) == len(library.lessons)
        assert library.next_number >= max(next_number(x) for x in (before or one, one, other))
        assert merged(before, one, other)[0] == library
        for mine in one.lessons:  # a person's veto of the first side is never lost
            after = library.find(mine.id)
            if before is None and mine.state == "vetoed":
                assert after is not None
                assert after.state == "vetoed"


@given(libraries, libraries)
def test_a_side_that_changed_nothing_takes_all_of_the_other(base: Library, other: Library):
    def never(one: str, two: str) -> float:
        return 0.0

    for library in (merged(base, base, other, likeness=never)[0], merged(base, other, base, likeness=never)[0]):
        assert {one.id: one for one in library.lessons} == {one.id: one for one in other.lessons}


@given(libraries)
def test_a_library_merged_with_itself_is_itself(library: Library):
    again, notes = merged(library, library, library)
    assert (again.lessons, notes) == (library.lessons, [])
    assert merged(None, library, library)[0].lessons == library.lessons
