"""Text files of a user: what is no regular file, too large or no text is refused at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from midstream.core.errors import RunError
from midstream.core.text_file import MAX_CHARACTERS, parse_toml, read_text, read_toml
from support.errors import coded, raises


def test_a_text_is_read_without_its_byte_order_mark(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n")
    assert read_text(path) == "naïve\n"


def test_what_is_no_text_file_of_bounded_size_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**31)
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in {
        "pipe": "pipe",
        "huge": f"{MAX_CHARACTERS:,}",
        "bytes": "utf-8",
        "loop": "links",
        "": "directory",
        "/dev/zero": "device",
        "a\0b": "null",
        "x" * 300: "too long",
    }.items():
        with raises("file-unreadable", reason):
            read_text(tmp_path / name)
    with pytest.raises(RunError, check=coded("file-not-found", "none", fix="look there")):
        read_text(tmp_path / "none", error=RunError, fix="look there")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = = 1", "line 1"),
        ("a = " + "[" * 10_000, "nested too deeply"),
        ("a = " + "[" * 40 + "]" * 40, "a.0.0.*more than 32 levels"),
        ("a = " + "9" * 5_000, "4300 digits"),
        ("[t]\na = [0x" + "f" * 5_000 + "]", "t.a.0: an integer"),
        (".".join("a" * 20_000) + " = 1", "32 parts"),
        ("[" + " . ".join(["'a b'", '"c"'] * 10_000) + "]", "32 parts"),
        ('a.b = "\\u0000"', "a.b: a null character"),
        ('"\\u0000" = 1', "a null character"),
    ],
    ids=range(9),
)
def test_toml_that_nothing_could_handle_is_refused_at_once(tmp_path: Path, text: str, problem: str):
    with pytest.raises(ValueError, match=re.compile(problem, re.DOTALL)):
        parse_toml(text)
    path = tmp_path / "a.toml"
    path.write_text(text)
    with raises("file-invalid", path):
        read_toml(path)


def test_ordinary_toml_is_read():
    text = 'a.b.c = -9223372036854775808\nd = [[[1.5, inf]]]\ne = "x.y.z, 1.2.3 and so on..."\n' + "f = 1\n[g.h]\n"
    assert parse_toml(text)["a"] == {"b": {"c": -(2**63)}}
    assert parse_toml('x = "' + "a." * 31 + '"') == {"x": "a." * 31}
