"""docs/extending.md: every block, in the page's order, in one directory; the commands run in this process."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from midstream.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.syspath_prepend(tmp_path)
    shown: dict[str, str] = {}
    for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
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
                assert main([*words[1:], *["--quiet"] * (words[1] == "eval")]) == 0, line
                shown[line] = capsys.readouterr().out
    said = {line.partition("--out ")[2] or line.partition("  ")[0]: text for line, text in shown.items()}
    assert "mine.py" not in said["midstream components"]
    assert "100.0%" in said["runs/first"]
    assert "scored by  close" in said["runs/first"]
    assert "answer       9" in shown['midstream solve "What is 4 + 5?" --recipe mine.toml']
    assert "add 3 (100%)" in said["runs/second"]
    assert "add 3 (100%)" in said["runs/class"]
    assert "100.0%" in said["runs/third"]
    assert "42" in shown["midstream tools thrice number=14 --recipe tools.toml"]
    assert "bound = 4.0" in shown["midstream train training.toml --dry-run"]
    assert "{'eval/test/success': 1.0," in said["runs/fifth"]
    assert shown["python"].splitlines()[-2:] == ["9", "100%"]
    for name in [name for name in sys.modules if name in ("mine", "my_agent", "my_modules", "my_training")]:
        del sys.modules[name]
