"""Rows of files: every format, and every way in which a row can be bad."""

from __future__ import annotations

import gzip
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UnsupportedError, UsageError
from midstream.sources.records import SHOWN, Faults, read_records
from support.errors import coded

ROWS = [{"question": "How high is Oak Hill?", "answer": 12}, {"question": "Wie hoch? “é”", "answer": "yes, or\nno"}]


def rows_of(path, columns=()):
    faults = Faults(str(path))
    found = list(read_records(path, faults, columns))
    return [record.fields for record in found], [record.place for record in found], faults.shown


def write(path, data):
    data = data if isinstance(data, bytes) else data.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
LIST = json.dumps(ROWS, indent=1)
CSV = 'question,answer,note\nHow high is Oak Hill?,12,\n"Wie hoch? “é”","yes, or\nno",\n'


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("a.jsonl", LINES, ["line 1", "line 2"]),
        ("a.ndjson", "\ufeff" + LINES.replace("\n", "\r\n\r\n"), ["line 1", "line 3"]),
        ("a.JSON", LIST, ["entry 1", "entry 2"]),
        ("a.json", LINES, ["line 1", "line 2"]),
        ("a.csv", "\ufeff" + CSV, ["line 2", "line 3"]),
        ("a.tsv", CSV.replace(",,", "\t\t").replace("question,answer,note", "question\tanswer\tnote"), None),
    ],
)
def test_formats(tmp_path, name, text, places, ending):
    if name == "a.tsv":
        text = 'question\tanswer\tnote\nHow high is Oak Hill?\t12\t\n"Wie hoch? “é”"\t"yes, or\nno"\t\n'
    found, where, faults = rows_of(write(tmp_path / (name + ending), text))
    as_read = [{name: str(value) for name, value in row.items()} for row in ROWS] if "sv" in name else ROWS
    assert (found, faults) == (as_read, [])
    assert where == (places or ["line 2", "line 3"])


def test_parquet_reads_the_columns_that_are_wanted(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"q": ["a", "b"], "a": [["x"], ["y", "z"]], "huge": ["-", "-"]}), path)
    assert rows_of(path, ("q", "a", "other"))[:2] == (
        [{"q": "a", "a": ["x"]}, {"q": "b", "a": ["y", "z"]}],
        ["row 1", "row 2"],
    )
    assert rows_of(path)[0][0]["huge"] == "-"
    parquet.write_table(arrow.table({"q": [b"\xff"]}), path)
    assert rows_of(path)[2] == ["row 1: it cannot be kept: Object of type bytes is not JSON serializable"]
    with pytest.raises(UsageError, check=coded("file-invalid")):
        rows_of(write(tmp_path / "b.parquet", "question"))


def test_parquet_needs_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, check=coded("missing-extra")):
        rows_of(write(tmp_path / "a.parquet", "PAR1"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "a"', "it is no JSON"),
        (b"\xff\xfe", "it is no JSON: expected value at line 1 column 1"),
        (b'["a"]', 'it is no object but ["a"]'),
        (b"null", "it is no object but null"),
        (b'{"answer": NaN}', "it is no JSON: "),
        (b'{"answer": "\\ud800"}', "it is no JSON: "),
        (b"[" * 100_000, "it is no JSON: recursion limit exceeded"),
        (b'{"answer": ' + b"1" * 5000 + b"}", "it "),
    ],
)
def test_bad_lines_are_named(tmp_path, line, reason):
    found, _, faults = rows_of(
        write(tmp_path / "a.jsonl", b'{"question": "good"}\n' + line + b'\n{"question": "last"}')
    )
    assert [row["question"] for row in found] == ["good", "last"]
    assert len(faults) == 1
    assert faults[0].startswith(f"line 2: {reason}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b\n1,2,3\n", "line 2: it has 3 cells, and the first line names 2 columns"),
        ("a,b\n\n1\n", "line 3: it has 1 cells, and the first line names 2 columns"),
        ("a,a\n1,2\n", "line 1: two columns have the same name"),
        ('a,b\n"1,2\n', "line 2: it is no CSV: unexpected end of data"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, fault):
    assert rows_of(write(tmp_path / "a.csv", text))[2] == [fault]


def test_files_that_cannot_be_read_at_all(tmp_path):
    with pytest.raises(UsageError, check=coded("file-not-found")):
        rows_of(tmp_path / "a.jsonl")
    with pytest.raises(UsageError, check=coded("file-unreadable", "File name too long")):
        rows_of(tmp_path / f"{'a' * 300}.jsonl")
    (tmp_path / "d.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, check=coded("file-unreadable")):
        rows_of(tmp_path / "d.jsonl")
    with pytest.raises(UsageError, check=coded("file-format")):
        rows_of(write(tmp_path / "a.txt", LINES))
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, check=coded("file-invalid")):
        rows_of(tmp_path / "b.jsonl.gz")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(LINES.encode())[:-9])
    with pytest.raises(UsageError, check=coded("file-invalid")):
        rows_of(tmp_path / "c.jsonl.gz")


def test_a_row_of_a_table_that_is_no_utf_8_is_named(tmp_path):
    [fault] = rows_of(write(tmp_path / "a.csv", b"a,b\n1,2\n\xff,2\n"))[2]
    assert fault.startswith("line 3: it cannot be kept: 'utf-8' codec")


def test_a_list_that_cannot_be_parsed_is_one_fault(tmp_path):
    [fault] = rows_of(write(tmp_path / "a.json", LIST[:-2]))[2]
    assert fault.startswith("the whole file: it is no JSON")


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", LIST), ("a.json", json.dumps({"data": ROWS}, indent=1))])
def test_one_value_over_many_lines_is_reported_once(tmp_path, name, text):
    [fault] = rows_of(write(tmp_path / name, text))[2]
    assert fault.startswith("the whole file: it is one value over many lines")


def test_many_faults_are_counted_and_the_first_ten_shown():
    faults = Faults("a.jsonl")
    faults.refuse("", "")
    for number in range(SHOWN + 3):
        faults.add(f"line {number}", "bad")
    with pytest.raises(UsageError) as caught:
        faults.refuse("why", "how")
    text = caught.value.what
    assert caught.value.code == "bad-rows"
    assert "a.jsonl has 13 bad rows:" in text
    assert "line 9: bad" in text
    assert "line 10: bad" not in text
    assert "and 3 more" in text


@given(data=st.binary(max_size=300), ending=st.sampled_from(["jsonl", "json", "csv", "tsv"]))
def test_every_line_is_a_row_or_a_fault(tmp_path_factory, data, ending):
    """Whatever the bytes, nothing else is raised; of JSON lines, none goes missing."""
    path = write(tmp_path_factory.mktemp("x") / f"a.{ending}", data)
    faults = Faults("a")
    found = list(read_records(path, faults))
    if ending == "jsonl" and not any("the whole file" in fault for fault in faults.shown):
        written = [line for line in path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
        assert len(found) + faults.total == len(written)
