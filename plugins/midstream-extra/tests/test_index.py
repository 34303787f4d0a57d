"""`midstream index build`, by the command line, and what the tool then finds."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.cli import main as cli
from midstream.core.errors import UsageError
from midstream.tools.local_search import LocalSearch, LocalSearchConfig
from midstream_extra.index import read_documents
from support.errors import coded, printed

DOCUMENTS = [
    {"id": "1", "text": "The lighthouse is 105 metres high.", "title": "Amberbank"},
    {"id": 2, "text": "Coldmere has 77 lamps."},
    {"id": "3", "text": "  \n", "title": "Nothing"},
    {"id": "vier", "text": "Höhe: 42\x00", "title": None, "more": [1]},
]


def written(path: Path, lines: Iterable[object]) -> Path:
    text = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    path.write_bytes(b"\n".join(text) + b"\n")
    return path


def build(*arguments: object) -> int:
    return cli.main(["index", "build", *map(str, arguments), "--quiet"])


def search(index: Path, query: str, **settings: object) -> str:
    async def go() -> str:
        tool = LocalSearch(LocalSearchConfig.model_validate({"index": index, **settings}))
        try:
            return (await tool.call({"query": query})).text
        finally:
            await tool.close()

    return asyncio.run(go())


def test_builds_and_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = written(tmp_path / "my docs.jsonl", DOCUMENTS)
    assert build(source) == 0
    index = tmp_path / "my docs.db"
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"3 documents in {index} (" in printed.out
    assert "1 had no text and were left out" in printed.out
    assert f"--set tools.local_search.index={index}" in printed.out
    assert search(index, "lighthouse") == "Amberbank: The lighthouse is 105 metres high."
    assert search(index, "coldmere lamps") == "Coldmere has 77 lamps."
    assert search(index, "hohe").startswith("Höhe: 42")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["my docs.db", "my docs.jsonl"]


def test_json_and_other_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = written(tmp_path / "a.jsonl", [{"key": "k", "the body": "herons nest", "name": "Birds", "text": 5}])
    assert build(source, "--fields", "key,body") == 2
    assert coded("setting-range")(printed(capsys.readouterr().err))
    assert build(source, "--json", "--out", tmp_path / "b.idx", "--fields", "key, the body,name") == 0
    result = json.loads(capsys.readouterr().out)
    assert result.pop("seconds") >= 0
    assert result.pop("bytes") == (tmp_path / "b.idx").stat().st_size
    assert result == {"documents": 1, "passages": 1, "without_text": 0, "index": str(tmp_path / "b.idx")}
    assert search(tmp_path / "b.idx", "herons") == "Birds: herons nest"


@pytest.mark.parametrize("name", ["", "."])
def test_a_folder_is_no_file_of_documents(name: str, capsys: pytest.CaptureFixture[str]):
    assert build(name) == 2
    assert coded("file-unreadable")(printed(capsys.readouterr().err))


def test_a_table_of_documents(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,text\n1,Coldmere has 77 lamps.\n")
    assert build(tmp_path / "a.csv") == 0
    assert search(tmp_path / "a.db", "lamps") == "Coldmere has 77 lamps."


def test_long_documents_in_passages(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    long = " ".join(f"Sentence {number} speaks of hay." for number in range(200)) + " The tower is 9 metres high."
    source = written(tmp_path / "a.jsonl", [{"id": "1", "text": long, "title": "Hay"}, DOCUMENTS[1]])
    assert build(source, "--passage-characters", 300, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["documents"] == 2
    assert result["passages"] > 20
    found = search(tmp_path / "a.db", "tower")
    assert found.startswith("Hay: ")
    assert found.endswith("The tower is 9 metres high.")
    assert len(found) <= 305
    assert build(source, "--passage-characters", 10) == 2


@pytest.mark.matrix(6)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id": "9", "text": ', "line 2: it is no JSON"),
        (b"[1]", "line 2: it is no object but [1]"),
        (b'{"id": "9"}', "line 2: 'text' must be text, not null"),
        (b'{"text": "a"}', "line 2: 'id' must be text or a whole number, not null"),
        (b'{"id": true, "text": "a"}', "line 2: 'id' must be text or a whole number, not true"),
        (b'{"id": 1.5, "text": "a"}', "line 2: 'id' must be text or a whole number, not 1.5"),
        (b'{"id": "9", "text": ["a"]}', "line 2: 'text' must be text, not [\"a\"]"),
        (b'{"id": "9", "text": "a", "title": 7}', "line 2: 'title' must be text, not 7"),
        (b'{"id": "1", "text": "a"}', "line 2: id '1' was on line 1 already"),
        (b'{"id": 1, "text": "a"}', "line 2: id '1' was on line 1 already"),
        (b'{"id": "9", "text": "\xff"}', "line 2: it is no JSON"),
        (b'{"id": "9", "text": "\\ud800"}', "line 2: it"),
        (b'{"id": ' + b"9" * 5000 + b', "text": ""}', "line 2: it is no JSON"),
        (b"[" * 100_000, "line 2: it is no JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, why: str
):
    source = written(tmp_path / "a.jsonl", [DOCUMENTS[0], line, DOCUMENTS[1]])
    (tmp_path / "kept").mkdir()
    old = tmp_path / "kept" / "old.db"
    assert build(written(tmp_path / "good.jsonl", DOCUMENTS), "--out", old) == 0
    before = old.read_bytes()
    for out in (tmp_path / "new.db", old):
        assert build(source, "--out", out) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error[bad-rows]: {source} has 1 bad row:\n    {why}")
        assert error.count("\n") == 4
    assert not (tmp_path / "new.db").exists()
    assert old.read_bytes() == before
    assert [one.name for one in old.parent.iterdir()] == ["old.db"]


def test_several_bad_lines_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = written(tmp_path / "a.jsonl", [b"{x", DOCUMENTS[0], *[b"7"] * 10])
    assert build(source) == 2
    error = capsys.readouterr().err
    assert "has 11 bad rows:\n    line 1: " in error
    assert "\n    line 11: it is no object but 7\n    and 1 more\n" in error


def test_other_files_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = written(tmp_path / "a.jsonl", DOCUMENTS)
    for name in ("a.jsonl", "notes.txt", "folder"):
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "folder").mkdir(exist_ok=True)
        assert build(source, "--out", tmp_path / name) == 2
        assert coded("file-exists", tmp_path / name)(printed(capsys.readouterr().err))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert build(source, "--out", tmp_path / "no" / "a.db") == 2
    assert build(tmp_path / "none.jsonl") == 2
    assert build(source) == build(source) == 0  # an index of before is


@pytest.mark.parametrize(("lines", "value"), [([], ""), ([b'{"id": 1, "text": " "}'], "empty 'text'")])
def test_without_documents_there_is_no_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes], value: str
):
    assert build(written(tmp_path / "a.jsonl", lines)) == 2
    assert coded("file-invalid", value)(printed(capsys.readouterr().err))
    assert not (tmp_path / "a.db").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    """Many documents are built by a process that may have little memory."""
    source = tmp_path / "a.jsonl"
    with source.open("w") as file:
        for number in range(20_000):
            file.write(json.dumps({"id": number, "text": f"word{number} " + "hay and harbours " * 100}) + "\n")
    code = (
        "import resource, sys; from midstream.cli import main; from midstream_extra import index;"
        "resource.setrlimit(resource.RLIMIT_DATA, (64 << 20, 64 << 20));"
        "sys.exit(main.main(['index', 'build', sys.argv[1], '--quiet']))"
    )
    assert source.stat().st_size > 30e6
    subprocess.run([sys.executable, "-c", code, str(source)], check=True, timeout=120, capture_output=True)
    assert search(tmp_path / "a.db", "word19999").startswith("word19999")


@given(st.lists(st.binary(max_size=40) | st.sampled_from([json.dumps(one).encode() for one in DOCUMENTS]), max_size=6))
def test_no_line_is_another_error(lines: list[bytes]):
    counts = Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.jsonl")
        path.write_bytes(b"\n".join(lines))
        with suppress(UsageError):
            found = list(read_documents(path, counts))
            assert len(found) == counts["documents"] == counts["passages"]
            assert len({one.id for one in found}) == len(found)
