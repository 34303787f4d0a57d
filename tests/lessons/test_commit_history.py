import json

import pytest

from midstream.core.errors import RunError, StorageError
from midstream.lessons.access import read
from midstream.lessons.commit import History
from midstream.lessons.editing import from_json
from midstream.lessons.lesson_set import Lesson, LessonSet, proven
from midstream.lessons.operations import Operation, applied

FIRST = LessonSet(lessons=(Lesson(id="L1", text="Look first."),), next_number=2)
ADD = Operation(kind="add", id="L2", text="Act.", module="planner")
SECOND = proven(applied(FIRST, [ADD]), "agent")


@pytest.fixture
def history(tmp_path) -> History:
    history = History(tmp_path / "run" / "lessons")
    history.add(FIRST, by="start")
    history.add(SECOND, by="learning", update=1, operations=(ADD,), note="accepted")
    return history


def test_versions_are_numbered_and_read_back(history):
    again = History(history.directory)
    assert again.all() == history.all()
    assert [(version.number, version.parent, version.by, version.update) for version in again.all()] == [
        (1, None, "start", 0),
        (2, 1, "learning", 1),
    ]
    assert again.current() == again.get(2)
    assert again.get(2).operations == (ADD,)


def test_a_new_directory_has_none(tmp_path):
    assert History(tmp_path / "new").current() is None
    assert not (tmp_path / "new").exists()
    with pytest.raises(RunError) as caught:
        History(tmp_path / "new").get(1)
    assert caught.value.code == "no-lessons"
    assert "holds no lesson set" in caught.value.what


def test_the_current_lesson_set_is_also_written_for_people(history):
    assert from_json((history.directory / "lessons.json").read_text()) == SECOND


def test_a_rollback_is_a_new_version_and_no_id_is_used_again(history):
    version = history.rollback(1)
    assert (version.number, version.parent, version.by) == (3, 2, "rollback")
    assert version.lesson_set.lessons == FIRST.lessons
    assert version.lesson_set.next_number == 3  # L2 was given
    assert version.lesson_set.proven_for == ""
    assert history.rollback(2).lesson_set == SECOND  # which was proven as it is
    assert [version.number for version in History(history.directory).all()] == [1, 2, 3, 4]


def test_a_rollback_to_a_version_that_is_not_there_is_refused(history):
    for number in (0, 3, -1):
        with pytest.raises(RunError) as caught:
            history.rollback(number)
        assert caught.value.code == "no-lessons"
        assert f"version {number}" in caught.value.what
    assert len(history.all()) == 2


def test_a_torn_last_record_is_cut_off(history):
    with history.path.open("ab") as file:
        file.write(b'{"number":3,"libr')
    again = History(history.directory)
    assert len(again.all()) == 2
    assert again.add(FIRST, by="edit").number == 3
    assert [version.by for version in History(history.directory).all()] == ["start", "learning", "edit"]


def test_files_that_a_crash_left_behind_are_made_again(history):
    (history.directory / "lessons.json").write_text("{}")
    History(history.directory).write_files()
    assert read(history.directory / "lessons.json") == SECOND


def test_records_hold_no_clock(tmp_path, history):
    other = History(tmp_path / "other")
    other.add(FIRST, by="start")
    other.add(SECOND, by="learning", update=1, operations=(ADD,), note="accepted")
    assert other.path.read_bytes() == history.path.read_bytes()


def test_lines_taken_out_by_hand_are_noticed(history):
    lines = history.path.read_bytes().splitlines(keepends=True)
    history.path.write_bytes(lines[1])
    with pytest.raises(RunError) as caught:
        history.all()
    assert caught.value.code == "file-damaged"
    assert "line 1" in caught.value.what


def test_a_damaged_version_is_named(history):
    lines = history.path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[0])
    record["lesson_set"]["lessons"][0]["id"] = "nonsense"
    history.path.write_bytes(json.dumps(record).encode() + b"\n" + lines[1])
    with pytest.raises(RunError) as caught:
        History(history.directory).current()
    assert caught.value.code == "file-damaged"
    assert "line 1" in caught.value.what


def test_a_disk_that_refuses_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        History(tmp_path / "file" / "lessons").add(FIRST, by="start")
