from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.lessons.lesson_set import (
    Effect,
    Lesson,
    LessonOrigin,
    LessonSet,
    number,
    one_line,
    render_modules,
    size,
    tokens,
)
from midstream.lessons.operations import Diff, Operation, OperationOutcome, Rules, applied, diff, screened
from support.lesson_sets import MODULES, lesson_sets, marked, operations

PERSON = LessonOrigin(source="person")
OPEN = Rules(modules=MODULES)
STRICT = Rules(
    modules=MODULES,
    max_tokens=60,
    lesson_tokens=20,
    repeats=False,
    guards=[lambda text: "it holds an answer" if "42" in text else None],
)
LESSONS = LessonSet(
    lessons=(
        Lesson(id="L1", text="Look numbers up first.", used=3, effect=Effect(mean=0.1, interval=(0, 0.2), pairs=9)),
        Lesson(id="L2", text="Keep units.", state="pinned"),
        Lesson(id="L3", text="Always shout.", state="vetoed"),
        Lesson(id="L4", text="Call the tool once.", module="executor"),
    ),
    next_number=6,
    proven_for="agent",
)
batches = st.lists(operations, max_size=6)
all_rules = st.builds(
    Rules,
    modules=st.sampled_from([(), ("planner",), MODULES]),
    max_tokens=st.none() | st.integers(1, 80),
    lesson_tokens=st.none() | st.integers(1, 20),
    repeats=st.booleans(),
    subsets=st.booleans(),
)


def add(text: str, module: str = "", **more) -> Operation:
    return Operation(kind="add", text=text, module=module, **more)


def sound(outcomes: Sequence[OperationOutcome]) -> list[Operation]:
    return [outcome.operation for outcome in outcomes if not outcome.refused]


def refusal(operation: Operation, rules: Rules = STRICT) -> str:
    return screened(LESSONS, [operation], rules)[1][0].refused


# --- what arrives --------------------------------------------------------------------------------------------------


def test_add_delete_modify_and_keep_arrive_exactly():
    origin = LessonOrigin(update=2, tasks=("t1",), model="m", why="it helped")
    asked = [
        add("Check the sign.", origin=origin),
        Operation(kind="delete", id="L4"),
        Operation(kind="modify", id="L1", text="Look every number up first.", origin=origin),
        Operation(kind="keep", id="L2"),
    ]
    moved, outcomes = screened(LESSONS, asked, OPEN)
    assert moved == LESSONS.model_copy(update={"next_number": 7})
    assert [outcome.refused for outcome in outcomes] == [""] * 4
    lesson_set = applied(moved, sound(outcomes))
    assert (
        lesson_set.lessons
        == (
            Lesson(
                id="L1", text="Look every number up first.", origin=origin
            ),  # what was measured spoke of the old text
            *LESSONS.lessons[1:3],
            Lesson(id="L6", text="Check the sign.", origin=origin),
        )
    )
    assert lesson_set.proven_for == ""


def test_a_modified_lesson_may_move_to_another_module():
    moved, outcomes = screened(LESSONS, [Operation(kind="modify", id="L4", text="Call once.", module="planner")], OPEN)
    assert applied(moved, sound(outcomes)).find("L4") == Lesson(id="L4", text="Call once.")


def test_keeping_changes_nothing():
    keeps = [Operation(kind="keep", id=lesson.id) for lesson in LESSONS.lessons]
    moved, outcomes = screened(LESSONS, keeps, STRICT)
    assert len(sound(outcomes)) == 4
    assert applied(moved, sound(outcomes)) == LESSONS


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Operation(kind="delete", id="L9"), "there is no lesson 'L9'"),
        (Operation(kind="keep", id="L9"), "there is no lesson 'L9'"),
        (Operation(kind="delete", id="L2"), "L2 is pinned by a person"),
        (Operation(kind="modify", id="L2", text="Drop units."), "L2 is pinned by a person"),
        (Operation(kind="delete", id="L3"), "L3 is vetoed by a person"),
        (Operation(kind="modify", id="L1", text="Look numbers up  first."), "L1 has this text already"),
        (Operation(kind="modify", id="L1", text=" \n"), "it has no text"),
        (Operation(kind="modify", id="L1", text="Keep the units!"), "repeats L2"),
        (Operation(kind="modify", id="L1", text="ALWAYS, shout!"), "like the vetoed L3"),
        (add(""), "it has no text"),
        (add("Be kind.", "verifier"), "no lessons for 'verifier', only for planner, executor"),
        (add("word " * 30), "too long: 38 tokens, lessons may have 20"),
        (add("Look the numbers up first"), "repeats L1"),
        (add("Always shout", "executor"), "like the vetoed L3"),
        (add("The answer is 42"), "it holds an answer"),
    ],
)
def test_refused_with_the_reason(operation: Operation, reason: str):
    assert refusal(operation) == reason


def test_a_full_lesson_set_takes_nothing_that_makes_it_longer():
    full = LessonSet(lessons=(Lesson(id="L1", text="x" * 77), Lesson(id="L2", text="y" * 77)), next_number=3)
    batch = [
        add("z" * 37),
        add("z"),
        Operation(kind="modify", id="L1", text="x" * 80),
        Operation(kind="modify", id="L2", text="y" * 70),
    ]
    outcomes = screened(full, batch, Rules(modules=MODULES, max_tokens=50))[1]
    reason = "the lesson set is full: 50 of 50 tokens, this needs 1 more"
    assert [outcome.refused for outcome in outcomes] == ["", reason, reason, ""]


def test_one_operation_a_lesson_and_batch():
    batch = [
        Operation(kind="delete", id="L1"),
        Operation(kind="modify", id="L1", text="Anything."),
        add("Check the sign."),
        Operation(kind="delete", id="L6"),  # the id that the add was given
    ]
    outcomes = screened(LESSONS, batch, OPEN)[1]
    assert [outcome.refused for outcome in outcomes] == ["", "a second operation on L1", "", "a second operation on L6"]


def test_a_repetition_inside_a_batch_is_found():
    outcomes = screened(LESSONS, [add("Check the sign."), add("check sign")], STRICT)[1]
    assert [outcome.refused for outcome in outcomes] == ["", "repeats L6"]


def test_another_module_may_have_the_same_lesson():
    assert refusal(add("Look numbers up first.", "executor")) == ""


def test_what_waits_for_a_person_or_was_rejected_is_not_proposed_again():
    """Nor a second change of a lesson while one waits; a rejected change of it leaves others sound."""
    places = ("planner", "executor", "planner.prompt")
    prompt = Lesson(id="L3", module="planner.prompt", text="Plan {query}.")
    lesson_set = LessonSet(lessons=(Lesson(id="L1", text="look first"), Lesson(id="L2", text="guess"), prompt))
    decided = [
        add("write the units down", "planner", id="L7"),
        Operation(kind="modify", id="L3", text="Plan {query} well.", module="planner.prompt"),
        Operation(kind="delete", id="L2"),
    ]
    proposed = {
        "near": add("Write the units down!", "planner"),
        "elsewhere": add("write the units down", "executor"),
        "same": decided[1],
        "other": Operation(kind="modify", id="L3", text="Plan {query} twice.", module="planner.prompt"),
        "delete": Operation(kind="delete", id="L2", origin=LessonOrigin(update=4)),
        "modify": Operation(kind="modify", id="L2", text="never guess"),
        "named": add("count the clasps", "planner", id="L7"),
    }

    def refused(rules: Rules) -> dict[str, str]:
        found = {name: screened(lesson_set, [one], rules)[1][0].refused for name, one in proposed.items()}
        return {name: why for name, why in found.items() if why}

    rules = replace(STRICT, modules=places)
    assert refused(rules) == {}
    names = {"near": "L7", "same": "L3", "other": "L3", "delete": "L2", "modify": "L2"}
    assert refused(replace(rules, waiting=decided)) == {
        name: f"like {lesson}, which waits for a person" for name, lesson in names.items()
    }
    assert refused(replace(rules, rejected=decided)) == {
        name: f"like {names[name]}, which a person rejected" for name in ("near", "same", "delete")
    }


def test_the_opposite_of_a_lesson_is_no_repetition():
    assert refusal(add("Never look numbers up first.")) == ""


def test_a_veto_holds_without_any_similarity():
    assert refusal(add("ALWAYS shout."), OPEN) == "like the vetoed L3"
    assert refusal(add("Look numbers up first."), OPEN) == ""


def test_a_person_may_change_what_a_person_marked():
    batch = [
        Operation(kind="modify", id="L2", text="Keep units, always.", origin=PERSON),
        Operation(kind="delete", id="L3", origin=PERSON),
        add("Always shout.", origin=PERSON),
    ]
    moved, outcomes = screened(LESSONS, batch, STRICT)
    lesson_set = applied(moved, sound(outcomes))
    assert [outcome.refused for outcome in outcomes] == ["", "", ""]
    assert [(lesson.id, lesson.state) for lesson in lesson_set.lessons] == [
        ("L1", "active"),
        ("L2", "pinned"),
        ("L4", "active"),
        ("L6", "active"),
    ]


def test_a_delete_makes_room_only_where_all_is_carried_out():
    full = LessonSet(lessons=(Lesson(id="L1", text="x" * 80), Lesson(id="L2", text="y" * 80)), next_number=3)
    batch = [Operation(kind="delete", id="L1"), add("z" * 80)]
    outcomes = screened(full, batch, Rules(modules=MODULES, max_tokens=50))[1]
    assert [bool(outcome.refused) for outcome in outcomes] == [False, True]
    outcomes = screened(full, batch, Rules(modules=MODULES, max_tokens=50, subsets=False))[1]
    assert [bool(outcome.refused) for outcome in outcomes] == [False, False]


# --- ids -----------------------------------------------------------------------------------------------------------


def test_an_id_that_a_model_names_for_a_new_lesson_counts_for_nothing():
    assert screened(LESSONS, [add("Check the sign.", id="L5")], OPEN)[1][0].operation.id == "L6"


def test_a_pending_lesson_keeps_its_id():
    moved, outcomes = screened(LESSONS, [add("Check the sign."), add("Check the scale.")], OPEN)
    pending = [outcomes[1].operation]
    after = applied(moved, [outcomes[0].operation])
    again, outcomes = screened(after, [*pending, add("Third.")], OPEN, pending=1)
    assert [outcome.operation.id for outcome in outcomes] == ["L7", "L8"]
    assert again.next_number == 9


@given(st.lists(batches, min_size=1, max_size=4), lesson_sets, all_rules, st.randoms(use_true_random=False))
def test_over_a_whole_run_no_id_is_given_twice(run, lesson_set, rules, chance):
    given_ids: set[str] = {lesson.id for lesson in lesson_set.lessons}
    pending: list[Operation] = []
    for batch in run:
        moved, outcomes = screened(lesson_set, [*pending, *batch], rules, pending=len(pending))
        old = {one.id for one in pending}
        new = [one.id for one in sound(outcomes) if one.kind == "add" and one.id not in old]
        assert len(set(new)) == len(new)
        assert given_ids.isdisjoint(new)
        given_ids |= set(new)
        changes = [one for one in sound(outcomes) if one.kind != "keep"]
        accepted = [change for change in changes if chance.random() < 0.5]
        pending = [change for change in changes if change not in accepted and chance.random() < 0.5]
        lesson_set = applied(moved, accepted)
        assert all(number(one) < lesson_set.next_number for one in given_ids)


# --- any operations on any lesson set ---------------------------------------------------------------------------------


@given(lesson_sets, batches, all_rules, st.integers(0, 3))
def test_screening_is_total_and_leaves_the_lessons(lesson_set, batch, rules, pending):
    moved, outcomes = screened(lesson_set, batch, rules, pending=pending)
    assert moved.lessons == lesson_set.lessons
    assert moved.proven_for == lesson_set.proven_for
    assert moved.next_number >= lesson_set.next_number
    assert len(outcomes) == len(batch)
    for asked, outcome in zip(batch, outcomes, strict=True):
        assert outcome.operation.kind == asked.kind
        assert outcome.operation.text == one_line(asked.text)
        assert outcome.operation.origin == asked.origin


@given(lesson_sets, batches, all_rules, st.data())
def test_any_subset_of_sound_operations_keeps_the_promises(lesson_set, batch, rules, data):
    moved, outcomes = screened(lesson_set, batch, rules)
    everything = sound(outcomes)
    subset = [one for one in everything if not rules.subsets or data.draw(st.booleans())]
    after = applied(moved, subset)
    assert len({lesson.id for lesson in after.lessons}) == len(after.lessons)
    # adds have the ids that screening gave them, in order behind the others, which stay in order
    added = [one.id for one in subset if one.kind == "add"]
    kept = [
        lesson.id
        for lesson in lesson_set.lessons
        if ("delete", lesson.id) not in {(two.kind, two.id) for two in subset}
    ]
    assert [lesson.id for lesson in after.lessons] == kept + added
    if rules.max_tokens is not None:
        bound = max(rules.max_tokens, size(lesson_set))  # one that is over it already grows no more
        assert size(after) <= bound
        assert sum(tokens(text) for text in render_modules(after).values()) <= bound
    untouched = {lesson.id: lesson for lesson in lesson_set.lessons if lesson.id not in {two.id for two in subset}}
    assert all(after.find(name) == lesson for name, lesson in untouched.items())


@given(lesson_sets, batches, batches)
def test_applying_is_total_even_without_screening(lesson_set, batch, more):
    after = applied(applied(lesson_set, batch), more)
    assert len({lesson.id for lesson in after.lessons}) == len(after.lessons)
    assert all(number(lesson.id) < after.next_number for lesson in after.lessons)


@given(lesson_sets, batches, all_rules)
def test_learning_never_touches_what_a_person_marked(lesson_set, batch, rules):
    learned = [one.model_copy(update={"origin": LessonOrigin()}) for one in batch]
    moved, outcomes = screened(lesson_set, learned, rules)
    for after in (applied(moved, sound(outcomes)), applied(lesson_set, learned)):
        for lesson in lesson_set.lessons:
            if lesson.state != "active":
                assert after.find(lesson.id) == lesson


@given(lesson_sets, batches, all_rules)
def test_the_proof_stays_only_with_the_same_prompts(lesson_set, batch, rules):
    moved, outcomes = screened(lesson_set, batch, rules)
    after = applied(moved, sound(outcomes))
    same = render_modules(after) == render_modules(lesson_set)
    assert after.proven_for == (lesson_set.proven_for if same else "")


# -- what differs between two lesson sets ----------------------------------------------------------------------------

BASE = LessonSet(
    lessons=(
        Lesson(id="L1", text="Look first.", used=10),
        Lesson(id="L2", text="Count twice.", used=4),
        Lesson(id="L3", text="Ask for units.", module="executor"),
    ),
    next_number=4,
    proven_for="agent",
)


def test_a_diff_names_each_kind_of_change():
    operations = (
        Operation(kind="delete", id="L2"),
        Operation(kind="modify", id="L1", text="Look twice."),
        Operation(kind="add", id="L4", text="Breathe.", module="planner"),
    )
    after = marked(applied(BASE, operations), "L1", "vetoed")
    found = diff(BASE, after)
    assert [one.id for one in found.added] == ["L4"]
    assert [one.text for one in found.deleted] == ["Count twice."]
    assert [(old.text, new.text) for old, new in found.modified] == [("Look first.", "Look twice.")]
    assert [(old.state, new.state) for old, new in found.marked] == [("active", "vetoed")]
    assert not found.empty


@given(lesson_sets, lesson_sets)
def test_a_diff_is_empty_exactly_where_nothing_differs(one: LessonSet, other: LessonSet):
    assert diff(one, one) == Diff()
    contents = [{(x.id, x.text, x.module, x.state) for x in lesson_set.lessons} for lesson_set in (one, other)]
    assert diff(one, other).empty == (contents[0] == contents[1])


@given(lesson_sets, lesson_sets)
def test_a_diff_backwards_is_the_other_way_round(one: LessonSet, other: LessonSet):
    there, back = diff(one, other), diff(other, one)
    assert {x.id for x in there.added} == {x.id for x in back.deleted}
    assert {x.id for x, _ in there.modified} == {x.id for x, _ in back.modified}
