import json
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.errors import StorageError
from midstream.core.metrics import StepTiming
from midstream.runs.journal import Journal, Records, filter_records, read_records
from support.errors import raises

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)

records = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), values, max_size=4)


def write(path, *items):
    with Journal(path) as journal:
        journal.append_many(items)


def read(path):
    return [record for _, _, record in read_records(path)]


@settings(deadline=None)
@given(items=st.lists(records, max_size=6), data=st.data())
def test_any_truncation_leaves_exactly_the_whole_records(items, data):
    with tempfile.TemporaryDirectory() as directory, mock.patch("os.fsync"):
        path = Path(directory) / "a.jsonl"
        with Journal(path) as journal:
            for item in items:
                journal.append(item)
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:cut])
        whole = items[: content[:cut].count(b"\n")]
        torn = not content[:cut].endswith(b"\n") and cut > 0
        assert read(path) == whole

        reports = []
        with Journal(path, report=reports.append) as journal:
            journal.append({"after": 1})
        assert read(path) == [*whole, {"after": 1}]
        assert len(reports) == torn


@settings(deadline=None, max_examples=30)
@given(st.lists(records, max_size=6))
def test_append_many_equals_appending_one_by_one(items):
    with tempfile.TemporaryDirectory() as directory, mock.patch("os.fsync"):
        many, single = Path(directory) / "many", Path(directory) / "single"
        write(many, *items)
        with Journal(single) as journal:
            for item in items:
                journal.append(item)
        assert many.read_bytes() == single.read_bytes()


@pytest.mark.parametrize("tail", [b'{"b": 2', b'{"b": 2}', b"\0\0\0\0", b"garbage\n", b"\xff\n", b"\n", b"17\n", b'"x'])
def test_a_bad_tail_is_passed_over_and_cut_loudly(tmp_path, tail):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' + tail)
    assert read(path) == [{"a": 1}]
    reports = []
    Journal(path, report=reports.append).close()
    assert path.read_bytes() == b'{"a":1}\n'
    assert len(reports) == 1
    assert str(path) in reports[0]
    assert f"({len(tail)} bytes)" in reports[0]


def test_a_torn_tail_longer_than_a_block(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"a": "x" * 200_000})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"b": "' + b"y" * 300_000)
    Journal(path, report=lambda line: None).close()
    assert path.read_bytes() == whole


def test_the_default_report_is_a_logged_warning(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{")
    Journal(path).close()
    assert "torn last record (1 bytes)" in caplog.text


def test_damage_in_the_middle_names_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')
    with raises("file-damaged", "a.jsonl", "line 2 "):
        read(path)


def test_a_missing_journal_is_empty(tmp_path):
    assert read(tmp_path / "none") == []


def test_models_round_trip_and_a_wrong_one_is_located(tmp_path):
    path = tmp_path / "timings.jsonl"
    timings = [StepTiming(step=1, duration_s=float("inf")), StepTiming(step=2, duration_s=0.5)]
    write(path, *timings)
    assert Records(path, StepTiming).read() == timings
    write(path, {"step": 3, "duration_s": 1, "news": 1})
    with raises("file-damaged", "line 3", "StepTiming", "news"):
        Records(path, StepTiming).read()


def test_filter_keeps_other_lines_byte_for_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step":2 }\n{"step":3}\n')
    filter_records(path, lambda record: record["step"] != 2)
    assert path.read_bytes() == b'{"step": 1}\n{"step":3}\n'


def test_a_failed_append_leaves_whole_records(tmp_path, file_size_limit):
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.append({"a": 1})
        with file_size_limit(5000), pytest.raises(StorageError):
            journal.append_many([{"i": index, "text": "x" * 300} for index in range(50)])
        journal.append({"a": 2})
    assert read(path) == [{"a": 1}, {"a": 2}]
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_journal_that_cannot_be_opened(tmp_path):
    with raises("write-failed", "ENOENT"):
        Journal(tmp_path / "gone" / "a.jsonl")


def test_appended_records_are_readable_before_close(tmp_path):
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.append({"a": 1})
        assert read(path) == [{"a": 1}]
        journal.append_many([])
    assert path.read_bytes().count(b"\n") == 1
    journal.close()


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, *({"i": index} for index in range(5)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:3], *lines[3:]]))
    damage = []
    assert [record["i"] for _, _, record in read_records(path, damage.append)] == [0, 1, 4]
    assert [error.what.split("line ")[1].split()[0] for error in damage] == ["3"]


def test_reading_keeps_one_block_in_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, *({"i": index, "text": "x" * 1000} for index in range(10_000)))
    tracemalloc.start()
    assert sum(1 for _ in read_records(path)) == 10_000
    filter_records(path, lambda record: record["i"] % 2 == 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
