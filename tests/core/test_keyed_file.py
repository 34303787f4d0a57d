"""Texts by key: the first is kept; a file of another kind is refused, an older column is read."""

from __future__ import annotations

import sqlite3

import pytest

from midstream.core.errors import StorageError, UsageError
from midstream.core.keyed_file import KeyedFile


def keyed(path, application=7):
    return KeyedFile(path, application=application, version=1, table="kept", what="cache", setting="reward.cache")


def test_the_first_text_of_a_key_stays_and_others_see_it(tmp_path):
    first, second = keyed(tmp_path / "new" / "f"), keyed(tmp_path / "new" / "f")
    first.keep("a", "first")
    second.keep("a", "second")
    assert [file.find("a") for file in (first, second)] == ["first", "first"]
    assert first.find("b") is None
    first.close()
    first.close()
    with pytest.raises(StorageError) as failed:
        first.find("a")
    assert "reward.cache" in failed.value.fix
    second.close()


def test_a_file_of_another_kind_is_refused(tmp_path):
    keyed(tmp_path / "f").close()
    with pytest.raises(UsageError) as refused:
        keyed(tmp_path / "f", application=8)
    assert refused.value.code == "file-invalid"
    assert "reward.cache" in refused.value.fix


def test_what_the_value_column_is_called_does_not_matter(tmp_path):
    with sqlite3.connect(tmp_path / "f") as made:
        made.execute("CREATE TABLE kept (key TEXT PRIMARY KEY, verdict TEXT)")
        made.execute("INSERT INTO kept VALUES ('a', 'old')")
        made.execute("PRAGMA application_id = 7")
        made.execute("PRAGMA user_version = 1")
    made.close()
    file = keyed(tmp_path / "f")
    file.keep("b", "new")
    assert (file.find("a"), file.find("b")) == ("old", "new")
    file.close()
