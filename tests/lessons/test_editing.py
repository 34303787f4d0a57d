import pytest
from hypothesis import given

from midstream.core.errors import RunError, UsageError
from midstream.lessons.access import read
from midstream.lessons.editing import edited, from_json, to_draft, to_json
from midstream.lessons.lesson_set import Lesson, LessonOrigin, LessonSet, proven
from midstream.lessons.operations import Rules
from support.errors import raises
from support.lesson_sets import MODULES, lesson_sets

LESSONS = LessonSet(
    lessons=(Lesson(id="L1", text="Look first."), Lesson(id="L3", text="Act.", state="vetoed")), next_number=9
)


@given(lesson_sets)
def test_json_is_exact_but_for_a_number_that_was_too_low(lesson_set: LessonSet):
    again = from_json(to_json(lesson_set))
    assert (again.lessons, again.proven_for) == (lesson_set.lessons, lesson_set.proven_for)
    assert from_json(to_json(again)) == again


@pytest.mark.parametrize(
    ("old", "new", "agent"),
    [
        ("Look first.", "Look last.", ""),
        ('"module": "planner"', '"module": "verifier"', ""),
        ('"state": "vetoed"', '"state": "active"', ""),
        ("Act.", "Wait.", "agent"),  # vetoed: no prompt holds it
    ],
)
def test_a_file_whose_prompts_were_changed_by_hand_is_no_longer_proven(old: str, new: str, agent: str):
    text = to_json(proven(LESSONS, "agent"))
    assert old in text
    assert from_json(text).proven_for == "agent"
    assert from_json(text.replace(old, new, 1)).proven_for == agent


def test_a_file_of_a_windows_editor_is_read(tmp_path):
    (tmp_path / "a.json").write_text(to_json(LESSONS), encoding="utf-8-sig")
    assert read(tmp_path / "a.json") == LESSONS


def test_a_place_without_a_lesson_set_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    for path, code in (("none", "file-not-found"), ("empty", "not-a-run"), ("a.json", "file-unreadable")):
        with pytest.raises(RunError) as caught:
            read(tmp_path / path)
        assert caught.value.code == code
        assert str(tmp_path / path) in caught.value.what


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[1, 2", "Invalid JSON"),
        ("a.json", '{"lessons": [{"id": "L1"}]}', "lessons.0.text: Field required"),
        ("a.json", '{"lessons": [{"id": "L1", "text": "a"}, {"id": "L1", "text": "b"}]}', "two lessons have the id L1"),
    ],
)
def test_a_file_that_holds_no_lesson_set_says_where(tmp_path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / name)
    assert caught.value.code == "lessons-text-invalid"
    assert message in caught.value.what
    assert name in caught.value.what


@pytest.mark.parametrize(
    "text", ["[]", "5", "null", "", "[" * 100_000], ids=["list", "number", "null", "empty", "deep"]
)
def test_json_that_is_no_lesson_set_is_refused(text):
    with raises("lessons-text-invalid"):
        from_json(text)


# --- a person's edit --------------------------------------------------------------------------------------------------

RULES = Rules(modules=MODULES, lesson_tokens=20, repeats=False)
EDITED = LessonSet(
    lessons=(
        Lesson(id="L1", text="Look first.", used=3),
        Lesson(id="L2", text="Ask for units.", module="executor", state="pinned"),
        Lesson(id="L4", text="Shout.", state="vetoed"),
    ),
    next_number=6,
    proven_for="agent",
)
SECOND = '[[lessons]]\nid = "L2"\nmodule = "executor"\nstate = "pinned"\ntext = "Ask for units."\n'


def edit(*changes: tuple[str, str]) -> tuple[LessonSet, list[str]]:
    text = to_draft(EDITED).partition("\n\n")[2]
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    lesson_set, outcomes = edited(EDITED, text, RULES)
    return lesson_set, [outcome.refused for outcome in outcomes]


@given(lesson_sets)
def test_an_edit_that_changes_nothing_changes_nothing(lesson_set: LessonSet):
    again, outcomes = edited(lesson_set, to_draft(lesson_set), RULES)
    assert (again.lessons, again.proven_for, outcomes) == (lesson_set.lessons, lesson_set.proven_for, [])


def test_a_changed_text_is_a_persons_modification():
    lesson_set, refused = edit(('"Look first."', '"""Look twice,\nthen  act."""'))
    assert lesson_set.find("L1") == Lesson(id="L1", text="Look twice, then act.", origin=LessonOrigin(source="person"))
    assert lesson_set.proven_for == ""
    assert refused == [""]


def test_a_table_taken_out_is_a_deletion_and_a_new_one_an_addition():
    scales = '[[lessons]]\nmodule = "executor"\nstate = "pinned"\ntext = "Ask for scales."\n'
    lesson_set, _ = edit((SECOND, f'{scales}[[lessons]]\ntext = "Breathe."\n'))
    assert [(lesson.id, lesson.text, lesson.module, lesson.state) for lesson in lesson_set.lessons[2:]] == [
        ("L6", "Ask for scales.", "executor", "pinned"),
        ("L7", "Breathe.", "planner", "active"),
    ]
    assert lesson_set.find("L2") is None
    assert lesson_set.next_number == 8


def test_a_state_and_a_module_are_changed():
    lesson_set, refused = edit(("pinned", "active"), ("vetoed", "active"), ('state = "active"', 'state = "vetoed"'))
    assert [lesson.state for lesson in lesson_set.lessons] == ["vetoed", "active", "active"]
    assert lesson_set.find("L1") == EDITED.lessons[0].model_copy(update={"state": "vetoed"})
    assert refused == []
    lesson_set, _ = edit(('module = "planner"', 'module = "executor"'))
    assert lesson_set.find("L1") == Lesson(
        id="L1", text="Look first.", module="executor", origin=LessonOrigin(source="person")
    )


def test_what_the_rules_refuse_stays_as_it_was():
    new = '[[lessons]]\ntext = "{}"\n'
    lesson_set, refused = edit(("Look first.", ""), (SECOND, SECOND + new.format("ask for units!")))
    assert lesson_set.find("L1") == EDITED.find("L1")
    assert refused == ["it has no text", ""]


def test_all_lessons_go_only_where_that_is_written():
    assert edited(EDITED, "lessons = []", RULES)[0].lessons == ()
    with raises("lessons-text-invalid", "empty"):
        edited(EDITED, "", RULES)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("L4", "L1"), "L1 occurs twice"),
        (("L1", "L01"), "lessons.0.id"),
        (("vetoed", "frozen"), "lessons.2.state"),
        (("text = ", "txt = "), "lessons.0"),
        (("[[lessons]]", "[[lessons]"), "line 1"),
    ],
)
def test_an_edit_that_is_no_lesson_set_is_refused_with_its_place(change: tuple[str, str], value: str):
    with raises("lessons-text-invalid", value):
        edit(change)


def test_a_lesson_that_is_not_there_is_refused():
    assert edit(("L1", "L9"))[1] == ["", "there is no lesson 'L9'"]
