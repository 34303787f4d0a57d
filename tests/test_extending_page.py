"""docs/extending.md: its sections on rewards, tasks and models, each by itself, and then every block of the page.

The commands run in this process; where a page asks a provider, a scripted server answers.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from midstream.cli.main import main
from support.llm_server import LLMServer

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KINDS = ("A reward", "Tasks", "A model")
ASKED = 'midstream solve "What is 4 + 5?" --recipe direct --set engines.model.type=my_model.py:adder'


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`read(text)` does what the text says, in this directory, and returns what each command printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"question": f"What is {number} + {number}?", "answer": 2 * number} for number in range(9)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(text: str) -> dict[str, str]:
        shown: dict[str, str] = {}
        for language, block in BLOCK.findall(text):
            written = re.fullmatch(r"# (\w+\.(?:py|toml))(, continued)?", block.partition("\n")[0])
            if written:
                file = tmp_path / written[1]
                assert file.exists() == bool(written[2]), written[0]
                file.write_text((file.read_text() if file.exists() else "") + block)
            elif language == "python":
                exec(compile(block, "page", "exec"), {"__name__": "page"})
                shown["python"] = capsys.readouterr().out
            else:
                for line in block.splitlines():
                    words = shlex.split(line, comments=True)
                    assert words[0] == "midstream"
                    if "--provider" in words:
                        place = words.index("--provider")
                        words[place : place + 2] = ["--base-url", url]
                    assert main([*words[1:], *["--quiet"] * (words[1] == "eval")]) == 0, line
                    shown[line.partition("--out ")[2] or line.partition("  ")[0]] = capsys.readouterr().out
        return shown

    def doubled(body):
        number = re.findall(r"\d+", body["messages"][-1]["content"])[0]
        return str(2 * int(number))

    with LLMServer(doubled) as server:
        url = server.base_url
        yield run
    for name in [name for name in sys.modules if re.fullmatch(r"mine|my_\w+", name)]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_is_complete(read, kind):
    shown = read(PAGE.partition(f"\n## {kind}\n")[2].partition("\n## ")[0])
    evaluated = [text for name, text in shown.items() if name.startswith("runs/")]
    assert evaluated
    assert all("100.0%" in text for text in evaluated)


@pytest.mark.slow
def test_every_block_runs(read):
    shown = read(PAGE)
    assert "scored by  close" in shown["runs/close"]
    assert "answer       9" in shown[ASKED]
    assert "my_tasks" not in shown["midstream list"]
    assert "answer       9" in shown['midstream solve "What is 4 + 5?" --recipe mine.toml']
    assert "add 3 (100%)" in shown["runs/second"]
    assert "add 3 (100%)" in shown["runs/class"]
    assert "100.0%" in shown["runs/third"]
    assert "42" in shown["midstream call thrice number=14 --recipe tools.toml"]
    assert "bound = 4.0" in shown["midstream train training.toml --dry-run"]
    assert "{'eval/test/success': 1.0," in shown["runs/fifth"]
    assert shown["python"].splitlines()[-2:] == ["9", "100%"]
