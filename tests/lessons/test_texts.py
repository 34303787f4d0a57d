"""Texts of other places than lessons in a lesson set: instructions, examples, descriptions, marked texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.agent import lessons_digest
from midstream.core.task import Task
from midstream.core.texts import kind_of
from midstream.lessons.commit import History
from midstream.lessons.editing import edited, from_json, to_draft, to_json
from midstream.lessons.lesson_set import (
    Lesson,
    LessonOrigin,
    LessonSet,
    fitted,
    proven,
    render_modules,
    size,
    tokens,
    with_bases,
)
from midstream.lessons.operations import Operation, Rules, applied, diff, screened
from midstream.lessons.similarity import leak_guard
from support.lesson_sets import HOSTILE

PLACES = ("planner", "planner.prompt", "planner.examples", "tools.search", "texts.system")
BASES = {
    "planner.prompt": "Plan.\n\n{{lessons}}Tools:\n{{tools}}",
    "tools.search": "Searches.",
    "texts.system": "Be kind.\nBe brief.",
}
RULES = Rules(modules=PLACES, max_tokens=120, lesson_tokens=20, repeats=False)
SET = with_bases(LessonSet(lessons=(Lesson(id="L1", text="Look first."),), next_number=2), BASES)
PERSON = LessonOrigin(source="person")


def refusal(operation, rules=RULES, lesson_set=SET):
    return screened(lesson_set, [operation], rules)[1][0].refused


def changed(*operations, lesson_set=SET, rules=RULES):
    moved, outcomes = screened(lesson_set, operations, rules)
    assert [outcome.refused for outcome in outcomes] == [""] * len(operations)
    return applied(moved, [outcome.operation for outcome in outcomes])


def modified(lesson_id, text, **more):
    return Operation(kind="modify", id=lesson_id, text=text, **more)


def added(place, text, **more):
    return Operation(kind="add", module=place, text=text, **more)


# --- what a text may look like ---


def test_a_lesson_is_one_line_and_other_texts_keep_theirs():
    text = "one\n  two\t3\r\n\nfour\x07 "
    assert fitted("planner", text) == "one two 3 four?"
    for place in PLACES[1:]:
        assert fitted(place, text) == "one\n  two\t3\n\nfour? "


texts = st.sampled_from(HOSTILE) | st.text(st.sampled_from("ab \\\"'n\n\r\t\x00\u2028{}<|_>"), max_size=20) | st.text()
places = st.sampled_from(PLACES)


@given(places, texts)
def test_fitting_again_changes_nothing(place, text):
    once = fitted(place, text)
    assert fitted(place, once) == once
    assert kind_of(place) != "lesson" or "\n" not in once


entries = st.builds(
    Lesson,
    id=st.integers(1, 99).map("L{}".format),
    module=places,
    text=texts,
    state=st.sampled_from(["active", "pinned", "vetoed"]),
    origin=st.builds(LessonOrigin, source=st.sampled_from(["learned", "person", "recipe"])),
)
sets = st.lists(
    entries,
    max_size=5,
    unique_by=(lambda one: one.id, lambda one: one.module if kind_of(one.module) == "text" else one.id),
).map(lambda found: LessonSet(lessons=tuple(found)))


@given(sets)
def test_json_and_the_draft_of_any_texts_are_read_back_as_they_are(lesson_set):
    lesson_set = from_json(to_json(proven(lesson_set, "agent")))
    assert lesson_set.proven_for == "agent"
    assert from_json(to_json(lesson_set)) == lesson_set
    again, outcomes = edited(lesson_set, to_draft(lesson_set), RULES)
    assert (again, outcomes) == (lesson_set, [])


# --- the texts that a recipe has ---


def test_what_the_recipe_has_is_not_rendered_and_costs_nothing():
    only = LessonSet(lessons=SET.lessons[:1])
    assert [lesson.id for lesson in SET.lessons] == ["L1", "L2", "L3", "L4"]
    assert render_modules(SET) == render_modules(only) == {"planner": "- Look first."}
    assert (SET.rendered, size(SET)) == (only.rendered, size(only))
    assert SET.find("L4").text == BASES["texts.system"]


def test_adding_what_the_recipe_has_unproves_nothing_and_takes_new_ids():
    before = proven(LessonSet(lessons=(Lesson(id="L1", text="Look first."),), next_number=9), "agent")
    after = with_bases(before, BASES)
    assert after.proven_for == "agent"
    assert [lesson.id for lesson in after.lessons] == ["L1", "L9", "L10", "L11"]
    assert after.next_number == 12
    assert with_bases(after, BASES) == after


def test_a_text_that_was_learned_is_kept_where_the_recipe_has_its_own():
    learned = changed(modified("L3", "Finds pages."))
    assert with_bases(learned, {**BASES, "tools.search": "Other."}) == learned


def test_a_lesson_set_that_begins_with_another_recipe_s_texts_has_this_one_s():
    """Nothing was learned for them: a proposer must see what prompts hold."""
    other = with_bases(SET, {**BASES, "tools.search": "Looks in pages."})
    assert other.find("L3").text == "Looks in pages."
    assert other.find("L3").origin.source == "recipe"
    assert (other.next_number, len(other.lessons)) == (SET.next_number, len(SET.lessons))


def test_a_modified_text_is_rendered_as_it_is_and_costs_nothing():
    after = changed(modified("L2", "Plan well.\n{{lessons}}{{tools}}"), modified("L3", "Finds pages."))
    assert render_modules(after) == {
        "planner": "- Look first.",
        "planner.prompt": "Plan well.\n{{lessons}}{{tools}}",
        "tools.search": "Finds pages.",
    }
    assert size(after) == size(SET)
    assert after.proven_for == ""


def test_examples_are_added_and_stand_apart_by_an_empty_line():
    after = changed(added("planner.examples", "Q: 1\nA: 2"), added("planner.examples", "Other: 3\nEnd: 4 and 5"))
    assert render_modules(after)["planner.examples"] == "Q: 1\nA: 2\n\nOther: 3\nEnd: 4 and 5"
    assert size(after) == size(SET) + tokens("Q: 1\nA: 2\n") + tokens("Other: 3\nEnd: 4 and 5\n")


# --- what is refused ---


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (added("planner.prompt", "Plan. {{lessons}}{{tools}}"), "planner.prompt has one text"),
        (added("tools.search", "x"), "tools.search has one text"),
        (Operation(kind="delete", id="L2"), "the only text of planner.prompt"),
        (Operation(kind="delete", id="L4", origin=PERSON), "the only text of texts.system"),
        (modified("L2", "Plan. {{tools}}"), "the places of L2, each once: lessons, tools; it has tools"),
        (modified("L2", "Plan. {{lessons}}{{tools}}{{tools}}"), "it has lessons, tools, tools"),
        (modified("L3", "Searches {{query}}."), "the places of L3, each once: none; it has query"),
        (modified("L3", "\n \n"), "it has no text"),
        (modified("L3", "Searches."), "has this text already"),
        (modified("L3", "Searches.\n"), "has this text already"),
        (modified("L3", "Kind.", module="texts.system"), "has one text"),
        (modified("L3", "Finds.", module="planner"), "tools.search has one text"),
        (modified("L3", "Finds.", module="planner.examples"), "tools.search has one text"),
        (modified("L1", "Plan. {{lessons}}{{tools}}", module="planner.prompt"), "planner.prompt has one text"),
        (added("tools.other", "x"), "no lessons for 'tools.other'"),
        (added("planner", "a" * 81), "too long: 21 tokens, lessons may have 20"),
        (added("planner.examples", "a" * 481), "too long: 121 tokens, examples may have 120"),
        (modified("L4", "a" * 481), "too long: 121 tokens, texts may have 120"),
    ],
)
def test_refused_with_the_reason(operation, reason):
    assert reason in refusal(operation)


def test_a_text_may_be_as_long_as_the_one_that_it_replaces():
    long = with_bases(LessonSet(), {"texts.system": "a" * 600})
    assert refusal(modified("L1", "b" * 600), lesson_set=long) == ""
    assert "texts may have 150" in refusal(modified("L1", "b" * 601), lesson_set=long)
    assert refusal(modified("L1", "b" * 601), Rules(modules=PLACES), lesson_set=long) == ""


def test_a_full_lesson_set_takes_other_texts_but_no_examples():
    full = changed(added("planner.examples", "abc " * 115))
    assert "the lesson set is full" in refusal(added("planner.examples", "one more"), lesson_set=full)
    assert refusal(modified("L3", "Finds pages."), lesson_set=full) == ""


@pytest.mark.parametrize("state", ["pinned", "vetoed"])
def test_a_text_that_a_person_marked_is_a_person_s(state):
    marked = SET.model_copy(
        update={"lessons": tuple(lesson.model_copy(update={"state": state}) for lesson in SET.lessons)}
    )
    assert refusal(modified("L3", "Finds."), lesson_set=marked) == f"L3 is {state} by a person"
    assert refusal(modified("L3", "Finds.", origin=PERSON), lesson_set=marked) == ""


# --- answers that leak ---

TRAIN = Task(id="a", question="How high is Mount Alba?", answer="4711 meters")
TEST = Task(id="b", question="How long is the Bering?", answer="8080 miles")
GUARDED = Rules(modules=PLACES, guards=[leak_guard([TEST])], lesson_guards=[leak_guard([TRAIN, TEST])])


def test_examples_may_hold_a_task_that_is_learned_from_and_never_one_of_the_gate_s():
    own, other = (f"Q: {task.question}\nA: {task.answer}" for task in (TRAIN, TEST))
    assert refusal(added("planner.examples", own), GUARDED) == ""
    assert refusal(modified("L4", own), GUARDED) == ""
    assert refusal(added("planner", own), GUARDED)
    for operation in (added("planner.examples", other), added("planner", other), modified("L4", other)):
        assert refusal(operation, GUARDED)


def test_what_a_text_held_before_it_was_learned_is_not_its_doing():
    held = with_bases(LessonSet(), {"texts.system": f"{TEST.question} {TEST.answer}. Be kind."})
    assert refusal(modified("L1", f"{TEST.question} {TEST.answer}. Be very kind."), GUARDED, held) == ""


# --- differences, versions, edits ---


def test_a_diff_names_a_text_that_was_learned(tmp_path):
    history = History(tmp_path)
    history.add(SET, by="start")
    learned = changed(modified("L2", "Plan well.\n{{lessons}}{{tools}}"), added("planner.examples", "Q\nA"))
    history.add(learned, by="learning", update=1)
    found = diff(history.get(1).lesson_set, history.get(2).lesson_set)
    assert [(one.text, other.text) for one, other in found.modified] == [
        (BASES["planner.prompt"], "Plan well.\n{{lessons}}{{tools}}")
    ]
    assert [lesson.text for lesson in found.added] == ["Q\nA"]
    assert (found.deleted, found.marked) == ((), ())
    assert history.get(2).lesson_set == learned
    history.rollback(1)
    assert render_modules(history.get().lesson_set) == render_modules(SET)


def edit(text, lesson_set=SET):
    after, outcomes = edited(lesson_set, text, RULES)
    return after, [outcome.refused for outcome in outcomes]


def test_a_person_s_edit_of_the_recipe_s_text_replaces_it():
    draft = to_draft(SET)
    assert '"""\nPlan.\n\n{{lessons}}Tools:\n{{tools}}"""' in draft
    after, refused = edit(draft.replace("Plan.\n", "Plan\\\\n \\u00e9.\n"))
    assert refused == [""]
    assert after.find("L2").text == "Plan\\n é.\n\n{{lessons}}Tools:\n{{tools}}"
    assert after.find("L2").origin.source == "person"
    assert render_modules(after)["planner.prompt"] == after.find("L2").text


def test_a_table_of_a_text_that_a_person_took_out_stays():
    draft = to_draft(SET)
    after, refused = edit(draft[: draft.index('[[lessons]]\nid = "L4"')])
    assert after == SET
    assert "the only text of texts.system" in refused[0]


def test_every_text_changes_the_digest_of_a_trajectory():
    operations = (
        modified("L1", "Look twice."),
        modified("L2", "{{lessons}}{{tools}}"),
        added("planner.examples", "Q\nA"),
        modified("L3", "Finds."),
        modified("L4", "Be rude."),
    )
    digests = {lessons_digest(render_modules(changed(operation))) for operation in operations}
    assert len({*digests, lessons_digest(render_modules(SET))}) == len(operations) + 1


def test_a_lesson_set_of_before_there_were_places_reads_as_it_was():
    old = {"lessons": [{"id": "L1", "module": "planner", "text": "Look\n first."}], "next_number": 2}
    assert from_json(json.dumps(old)).lessons == (Lesson(id="L1", text="Look first."),)
