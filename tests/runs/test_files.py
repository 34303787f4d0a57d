import errno
import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from midstream.core.errors import StorageError
from midstream.core.trajectory import Observation
from midstream.runs.files import (
    atomic_write,
    encode_record,
    fsync_directory,
    open_file,
    storage_error,
)
from midstream.runs.journal import Journal, read_records
from support.errors import raises


def test_atomic_write_replaces_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "a.json"
    atomic_write(target, b"old")
    atomic_write(target, b"new")
    assert target.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced there")
def test_a_reader_in_the_middle_of_the_old_file_keeps_reading_it(tmp_path):
    target = tmp_path / "a.json"
    atomic_write(target, b"old content")
    with target.open("rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        atomic_write(target, b"new")
        assert reader.read() == b" content"


def test_a_failed_atomic_write_keeps_the_old_file(tmp_path, file_size_limit):
    target = tmp_path / "a.json"
    atomic_write(target, b"old")
    with file_size_limit(1000), raises("disk-full", "a.json", "EFBIG", "ulimit -f"):
        atomic_write(target, b"x" * 5000)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_atomic_write_into_a_missing_directory(tmp_path):
    with raises("write-failed", "ENOENT"):
        atomic_write(tmp_path / "gone" / "a", b"x")


def test_full_disk_is_named_with_its_fix(tmp_path):
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal, mock.patch.object(journal, "_file") as file:
        file.closed, file.seek.return_value, file.write.side_effect = True, 0, OSError(errno.ENOSPC, "No space left")
        with pytest.raises(StorageError) as caught:
            journal.append({"a": 1})
    assert str(caught.value).splitlines() == [
        f"cannot write {path}: No space left (ENOSPC)",
        "  fix: free space on that disk, or raise the quota or the limit (`ulimit -f`), "
        "then give the command again, or `midstream resume` the run",
    ]


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EFBIG", "EBADF"])
def test_every_refusal_has_a_fix(name):
    number = getattr(errno, name)
    error = storage_error(OSError(number, os.strerror(number)), Path("x"))
    assert name in error.what
    assert "midstream resume" in error.fix


def test_an_os_error_without_a_number():
    assert "odd" in storage_error(OSError("odd"), Path("x")).what


def test_append_is_one_write_per_record(tmp_path):
    path = tmp_path / "a.jsonl"
    writes = []
    with (
        Journal(path) as journal,
        path.open("ab", buffering=0) as file,
        mock.patch.object(journal, "_file") as counting,
    ):
        counting.write = lambda data: writes.append(bytes(data)) or file.write(data)
        journal.append({"a": 1})
        journal.append_many([{"b": 2}, {"c": 3}])
    assert len(writes) == 2
    assert path.read_bytes() == b"".join(writes)
    assert [record for _, _, record in read_records(path)] == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_a_partly_written_record_is_cut_off_again(tmp_path, file_size_limit):
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.append({"a": 1})
        # The system takes the first 992 bytes of the record and refuses the rest.
        with file_size_limit(1000), raises("disk-full", "EFBIG"):
            journal.append({"text": "x" * 5000})
        assert path.read_bytes().count(b"\n") == 1
        journal.append({"b": 2})
    assert [record for _, _, record in read_records(path)] == [{"a": 1}, {"b": 2}]


def test_half_a_surrogate_pair_does_not_stop_a_run():
    broken = Observation(status="ok", text="a\ud83db", duration_s=float("inf"))
    back = Observation.model_validate_json(encode_record(broken))
    assert back == Observation(status="ok", text="a?b", duration_s=float("inf"))
    assert encode_record({"a": "\ud800"}) == b'{"a":"?"}\n'


def test_a_record_is_one_line_whatever_it_holds():
    record = {"text": "a\nb\r\x0b\u2028\x00é", "nan": float("nan"), "inf": float("-inf")}
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert b'"NaN"' in line
    assert b'"-Infinity"' in line


@pytest.mark.skipif(sys.platform == "win32", reason="directories are not synced there")
def test_fsync_of_a_missing_directory_raises(tmp_path):
    fsync_directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_directory(tmp_path / "gone")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, make, mode):
    make(tmp_path / "a")
    with raises("file-damaged", "a"):
        open_file(tmp_path / "a", mode)


def test_a_link_is_refused_and_its_target_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"torn")
    link.symlink_to(target)
    with raises("file-damaged", link):
        Journal(link)
    assert target.read_bytes() == b"torn"
