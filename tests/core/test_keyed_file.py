"""Texts by key: the first is kept; a file of another kind is refused."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from midstream.core.errors import StorageError, UsageError
from midstream.core.keyed_file import KeyedFile

TEXT = TypeAdapter(str)


def keyed(path, application=7):
    return KeyedFile(path, application=application, version=1, table="kept", what="cache", setting="reward.cache")


def test_the_first_text_of_a_key_stays_and_others_see_it(tmp_path):
    first, second = keyed(tmp_path / "new" / "f"), keyed(tmp_path / "new" / "f")
    first.keep("a", '"first"')
    second.keep("a", '"second"')
    assert [file.find("a", TEXT) for file in (first, second)] == ["first", "first"]
    assert first.find("b", TEXT) is None
    first.close()
    first.close()
    with pytest.raises(StorageError) as failed:
        first.find("a", TEXT)
    assert "reward.cache" in failed.value.fix
    second.close()


def test_a_file_of_another_kind_is_refused(tmp_path):
    keyed(tmp_path / "f").close()
    with pytest.raises(UsageError) as refused:
        keyed(tmp_path / "f", application=8)
    assert refused.value.code == "file-invalid"
    assert "reward.cache" in refused.value.fix
