"""`midstream benchmarks` as people see it: in 80 columns, as JSON, with files and without."""

from __future__ import annotations

import json

import pytest

from midstream.cli.main import main
from midstream.sources.benchmarks import BENCHMARKS


@pytest.fixture(autouse=True)
def _apart(monkeypatch, tmp_path):
    """A terminal of 80 columns, and nothing downloaded before."""
    import huggingface_hub.constants

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the command sets it; this puts it back
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "none"))


def output(capsys, *arguments, code=0):
    assert main(["benchmarks", *map(str, arguments)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_the_list_names_each_with_size_reward_and_licence(capsys):
    text = output(capsys)
    assert max(map(len, text.splitlines())) <= 80
    for one in BENCHMARKS.values():
        line = next(line for line in text.splitlines() if line.split()[:1] == [one.name])
        size = one.sizes.get(one.main_split)
        assert f" {size:,} " in line if size else " - " in line
        assert one.reward in line
        assert (one.repository or "made here") in line
    assert "access on request" in " ".join(text.split())


def test_one_in_full(capsys):
    text = " ".join(output(capsys, "gpqa").split())
    for part in ("GPQA (diamond)", "test 198 (there: train)", "CC BY 4.0", "republish no", "then: hf auth login"):
        assert part in text
    assert "Its questions are not here" in text
    assert "more than diamond's 198" in text


def test_one_with_a_file(capsys, tmp_path):
    rows = [{"Question": f"Which {n}?", "Final answer": "elm", "Level": 1 + n % 2, "file_name": ""} for n in range(4)]
    rows.append(rows[0] | {"file_name": "a.png"})
    path = write(tmp_path / "gaia.jsonl", rows)
    text = output(capsys, "gaia", "--file", path)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("questions   test 4", "it comes with a file 1", "level 1 2, level 2 2", "Which 0?", "its answer  elm"):
        assert part in text
    unbroken = "".join(text.split())
    assert f"midstreamevalRECIPE--benchmarkgaia={path}" in unbroken
    assert f'tasks={{type="benchmark",name="gaia",file="{path}"}}' in unbroken
    printed = json.loads(output(capsys, "gaia", "--file", path, "--json"))
    assert printed["here"]["questions"] == {"test": 4}
    assert printed["here"]["left_out"] == {"it comes with a file": 1}
    assert printed["here"]["first"]["answer"] == "elm"


def test_a_file_of_your_own(capsys, tmp_path):
    path = write(tmp_path / "own.jsonl", [{"question": "\x1b[31mWhich?", "answer": 4, "aliases": ["four"]}])
    text = output(capsys, "--file", path)
    assert "\\x1b[31mWhich?" in text
    assert "its answer  4 or four" in text
    assert json.loads(output(capsys, "--file", path, "--json"))["families"] == {"own": 1}


def test_bad_rows_are_named_and_nothing_is_shown(capsys, tmp_path):
    path = write(
        tmp_path / "own.jsonl", [{"question": "a", "answer": 1}, {"question": "b"}, {"question": "a", "answer": 2}]
    )
    printed = output(capsys, "--file", path, code=2)
    assert "own.jsonl has 2 bad rows:" in printed
    assert "line 2: 'answer' is missing or null" in printed
    assert 'line 3: its question stands on line 1 with another answer: "1", here "2"' in printed
    assert "medqa has 3 bad rows" not in output(capsys, "--file", path, code=2)
    assert "benchmark medqa in " in output(capsys, "medqa", "--file", path, code=2)


def test_worlds_are_shown_with_questions(capsys):
    printed = json.loads(output(capsys, "gazetteer", "--json"))
    assert set(printed["here"]["families"]) >= {"lookup", "hop", "compare"}
    assert printed["repository"] == ""
    assert json.loads(output(capsys, "gameof24", "--json"))["here"]["questions"] == {"test": 273}


def test_json_and_names_alone(capsys):
    assert [one["name"] for one in json.loads(output(capsys, "--json"))] == list(BENCHMARKS)
    assert output(capsys, "--quiet").split() == list(BENCHMARKS)
    assert "has no benchmark 'zebra'" in output(capsys, "zebra", code=2)
