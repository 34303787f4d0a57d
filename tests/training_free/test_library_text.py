import pytest
from hypothesis import given

from midstream.core.errors import RunError, UsageError
from midstream.training_free.commit import History, read_library
from midstream.training_free.library import Lesson, Library, Origin, proven, render_modules
from midstream.training_free.library_text import from_json, from_markdown, to_json, to_markdown
from support.errors import raises
from support.libraries import libraries

LIBRARY = Library(
    lessons=(Lesson(id="L1", text="Look first."), Lesson(id="L3", text="Act.", state="vetoed")), next_number=9
)


@given(libraries)
def test_json_is_exact_but_for_a_number_that_was_too_low(library: Library):
    again = from_json(to_json(library))
    assert (again.lessons, again.proven_for) == (library.lessons, library.proven_for)
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
    text = to_json(proven(LIBRARY, "agent"))
    assert old in text
    assert from_json(text).proven_for == "agent"
    assert from_json(text.replace(old, new, 1)).proven_for == agent


def test_a_file_of_a_windows_editor_is_read(tmp_path):
    for name, text in (("a.json", to_json(LIBRARY)), ("a.md", to_markdown(LIBRARY))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert render_modules(read_library(tmp_path / name)) == render_modules(LIBRARY)


@given(libraries)
def test_markdown_carries_what_prompts_hold(library: Library):
    again = from_markdown(to_markdown(library))
    assert render_modules(again) == render_modules(library)
    assert {(lesson.id, lesson.state) for lesson in again.lessons} == {
        (lesson.id, lesson.state) for lesson in library.lessons
    }
    assert all(lesson.origin == Origin(source="imported") for lesson in again.lessons)


def test_lessons_without_an_id_get_one_that_nobody_has():
    library = from_markdown("- Look first.\n- [L1] Act.\n- Rest.\n")
    assert [(lesson.id, lesson.text) for lesson in library.lessons] == [
        ("L2", "Look first."),
        ("L1", "Act."),
        ("L3", "Rest."),
    ]
    assert library.next_number == 4


def test_a_library_is_read_from_every_place(tmp_path):
    run = tmp_path / "run"
    History(run / "library").add(LIBRARY, by="start")
    assert read_library(run) == LIBRARY
    assert read_library(run / "library") == LIBRARY
    assert read_library(run / "library" / "library.json") == LIBRARY
    assert render_modules(read_library(run / "library" / "library.md")) == render_modules(LIBRARY)


def test_a_place_without_a_library_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    for path, code in (("none", "file-not-found"), ("empty", "no-library"), ("a.json", "file-unreadable")):
        with pytest.raises(RunError) as caught:
            read_library(tmp_path / path)
        assert caught.value.code == code
        assert str(tmp_path / path) in caught.value.what


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[1, 2", "Invalid JSON"),
        ("a.json", '{"lessons": [{"id": "L1"}]}', "lessons.0.text: Field required"),
        ("a.json", '{"lessons": [{"id": "L1", "text": "a"}, {"id": "L1", "text": "b"}]}', "two lessons have the id L1"),
        ("a.md", "- [L1] a\n- [L1] b\n", "line 2: L1 occurs twice"),
        ("a.md", "- [L1 frozen] a\n", "line 1: "),
    ],
)
def test_a_file_that_holds_no_library_says_where(tmp_path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read_library(tmp_path / name)
    assert caught.value.code == "library-text-invalid"
    assert message in caught.value.what
    assert name in caught.value.what


@pytest.mark.parametrize(
    "text", ["[]", "5", "null", "", "[" * 100_000], ids=["list", "number", "null", "empty", "deep"]
)
def test_json_that_is_no_library_is_refused(text):
    with raises("library-text-invalid"):
        from_json(text)
