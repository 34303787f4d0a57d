import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UsageError
from midstream.training_free.library import Lesson, Library, Origin
from midstream.training_free.library_text import Entry, edited, entries, parse, to_markdown
from midstream.training_free.operations import Rules
from midstream.training_free.similarity import ngram_similarity
from support.libraries import MODULES, libraries

RULES = Rules(modules=MODULES, lesson_tokens=20, similarity=ngram_similarity, threshold=0.85)
LIBRARY = Library(
    lessons=(
        Lesson(id="L1", text="Look first.", used=3),
        Lesson(id="L2", text="Ask for units.", module="executor", state="pinned"),
        Lesson(id="L4", text="Shout.", state="vetoed"),
    ),
    next_number=6,
    proven_for="agent",
)
TEXT = to_markdown(LIBRARY)


def edit(*changes: tuple[str, str]) -> tuple[Library, list[str]]:
    text = TEXT
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    library, outcomes = edited(LIBRARY, text, RULES)
    return library, [outcome.refused for outcome in outcomes]


def test_how_it_looks():
    body = TEXT.partition("\n\n## ")[2]
    assert (
        body == "planner\n\n- [L1] Look first.\n- [L4 vetoed] Shout.\n\n## executor\n\n- [L2 pinned] Ask for units.\n"
    )


@given(libraries)
def test_what_is_written_is_read_back(library: Library):
    assert parse(to_markdown(library)) == entries(library)


@given(libraries)
def test_an_edit_that_changes_nothing_changes_nothing(library: Library):
    again, outcomes = edited(library, to_markdown(library), RULES)
    assert (again.lessons, again.proven_for, outcomes) == (library.lessons, library.proven_for, [])


@given(st.text() | st.lists(st.sampled_from(["- ", "[L1", " pinned", "]", "\n", "## ", "x", " "])).map("".join))
def test_any_text_is_read_or_refused_with_its_line(text: str):
    refused = ""
    try:
        parse(text)
    except UsageError as error:
        refused = error.what
    assert not refused or refused.startswith("line ")


def test_a_changed_text_is_a_persons_modification():
    library, refused = edit(("Look first.", "Look twice,\nthen  act."))
    assert library.find("L1") == Lesson(id="L1", text="Look twice, then act.", origin=Origin(source="person"))
    assert library.proven_for == ""
    assert refused == [""]


def test_a_bullet_taken_out_is_a_deletion_and_a_new_one_an_addition():
    library, _ = edit(("- [L2 pinned] Ask for units.", "- [pinned] Ask for scales.\n* Breathe."))
    assert [(lesson.id, lesson.text, lesson.module, lesson.state) for lesson in library.lessons[2:]] == [
        ("L6", "Ask for scales.", "executor", "pinned"),
        ("L7", "Breathe.", "executor", "active"),
    ]
    assert library.find("L2") is None
    assert library.next_number == 8


def test_marks_are_set_and_taken_away():
    library, refused = edit(("[L1]", "[L1, vetoed]"), ("[L4 vetoed]", "[L4]"), ("[L2 pinned]", "[L2]"))
    assert [lesson.state for lesson in library.lessons] == ["vetoed", "active", "active"]
    assert library.find("L1") == LIBRARY.lessons[0].model_copy(update={"state": "vetoed"})
    assert refused == []


def test_a_bullet_under_another_heading_moves_the_lesson():
    library, _ = edit(("- [L1] Look first.\n", ""), ("- [L2 pinned]", "- [L1] Look first.\n- [L2 pinned]"))
    assert library.find("L1") == Lesson(id="L1", text="Look first.", module="executor", origin=Origin(source="person"))


def test_what_the_rules_refuse_stays_as_it_was():
    library, refused = edit(("Look first.", ""), ("## executor", "- ask for units!\n\n## executor\n\n- ask for units!"))
    assert library.find("L1") == LIBRARY.find("L1")
    assert refused == ["it has no text", "", "repeats L2"]


def test_bullets_above_all_headings_are_for_the_first_module():
    library, outcomes = edited(Library(), "A few of mine:\n\n- Look first.\n- Breathe.\n", RULES)
    assert [(lesson.id, lesson.module) for lesson in library.lessons] == [("L1", "planner"), ("L2", "planner")]
    assert [outcome.refused for outcome in outcomes] == ["", ""]


def test_windows_line_ends_and_wrapped_bullets():
    text = "## planner\r\n\r\n- [L1] Look\r\n  first.\r\n\r\n+ [see below] Act.\r\n"
    assert parse(text) == [
        Entry(id="L1", module="planner", text="Look first."),
        Entry(module="planner", text="[see below] Act."),
    ]


@pytest.mark.parametrize("text", ["", "\n", "Notes of my own.\n", "## planner\n"])
def test_a_text_without_any_lesson_takes_out_none(text: str):
    with pytest.raises(UsageError) as caught:
        edited(LIBRARY, text, RULES)
    assert caught.value.code == "library-text-invalid"


@pytest.mark.parametrize(
    ("change", "line", "value"),
    [
        (("[L1]", "[L9]"), 8, "L9"),
        (("[L4 vetoed]", "[L1]"), 9, "L1 occurs twice"),
        (("[L4 vetoed]", "[L4 frozen]"), 9, "[L4 frozen]"),
        (("[L4 vetoed]", "[L04]"), 9, "L04"),
        (("\n\n## executor", "\n\nA word.\n\n## executor"), 11, "'A word.'"),
        (("\n\n## executor", "\n##executor"), 10, "'##executor'"),
        (("[L1]", "[l1]"), 8, "[l1]"),
        (("[L1]", "[ L1 ]"), 8, "[ L1 ]"),
    ],
)
def test_text_that_means_nothing_is_refused_with_its_line(change: tuple[str, str], line: int, value: str):
    with pytest.raises(UsageError) as caught:
        edit(change)
    assert caught.value.code == "library-text-invalid"
    assert caught.value.what.startswith(f"line {line}: ")
    assert value in caught.value.what
