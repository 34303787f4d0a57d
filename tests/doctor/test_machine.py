"""`midstream doctor` on the machine it runs on: the whole command, its screen, its exit code, and docs/doctor.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from midstream.cli.doctor import machine_blocks
from midstream.cli.main import main
from midstream.core.terminal import Terminal
from midstream.doctor import checks
from midstream.doctor.servers import Check
from midstream.report.draw import draw
from support.llm_server import LLMServer

ROOT = Path(__file__).parents[2]
KEY = "sk-canary-Zq7wLp2Xr9Vt"
CODES = ["MS101", "MS201", "MS202", "MS401", "MS501", "MS502", "MS503"]
LONG = "/a/very/long/path/" * 8


def shown(*found: Check, width: int = 80) -> str:
    console = Terminal(file=StringIO(), width=width)
    console.print(draw(machine_blocks(found)), crop=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def check(code: str, status: str = "ok", words: str = "there", fix: str = "") -> Check:
    return Check.model_validate({"code": code, "what": "thing", "status": status, "words": words, "fix": fix})


# --- the screen -------------------------------------------------------------------------------------------------------


def test_a_newcomer_sees_a_calm_screen() -> None:
    text = shown(*(check(code) for code in ("MS101", "MS201", "MS202", "MS401")))
    assert "Nothing failed, no warnings." in text
    assert len(text.splitlines()) <= 10
    assert "To fix" not in text


def test_a_fix_is_whole_on_a_line_of_its_own() -> None:
    text = shown(check("MS401", "failed", "none", f"apt {LONG}"), check("MS201", "warning", fix="pip install x"))
    lines = text.splitlines()
    assert f"  apt {LONG}" in lines
    assert lines[lines.index("  pip install x") - 1] == "To fix MS201, thing:"
    assert "1 failed, 1 warning." in lines


def test_what_a_server_says_cannot_steer_the_terminal() -> None:
    text = shown(check("MS502", "failed", "[bold]x\x1b[2J", "\x1b]0;x\x07"))
    assert "\x1b" not in text
    assert "[bold]x" in text


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither PyTorch nor the sandbox is tried out."""

    async def training() -> list[Check]:
        return [check("MS201"), check("MS202")]

    async def sandbox(*_: object, wanted: bool) -> list[Check]:
        return [check("MS401", "failed" if wanted else "warning", "none")]

    monkeypatch.setattr(checks, "check_training", training)
    monkeypatch.setattr(checks, "check_sandbox", sandbox)


@pytest.mark.usefixtures("quick")
def test_without_a_model_the_machine_alone_is_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["doctor", "--quiet"]) == 0, "warnings do not fail"
    out = capsys.readouterr().out
    assert out.endswith("Check a model's server: midstream doctor --model NAME --base-url URL\n")


@pytest.mark.usefixtures("quick")
def test_a_failed_check_is_the_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def training() -> list[Check]:
        return [check("MS201", "failed"), check("MS202")]

    monkeypatch.setattr(checks, "check_training", training)
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [entry["code"] for entry in found["machine"] if entry["status"] == "failed"] == ["MS201"]
    assert not found["works"]


@pytest.mark.usefixtures("quick")
def test_the_recipes_own_server_is_checked_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert main(["doctor", "--recipe", "agentflow-prompted", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    statuses = {entry["code"]: entry["status"] for entry in found["machine"]}
    assert (statuses["MS501"], "MS502" in statuses) == ("failed", False)
    assert statuses["MS401"] == "failed", "the recipe has the python tool"


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_down_has_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer() as server:
        gone = server.base_url
    assert main(["doctor", "--model", "m", "--provider", "vllm", "--base-url", gone, "--quiet"]) == 1
    out = capsys.readouterr().out
    assert f"  vllm serve m --port {gone.split(':')[2][:-3]}\n" in out


@pytest.mark.slow
def test_the_whole_machine_and_no_key_anywhere(tmp_path: Path) -> None:
    """The command as people run it, every check for real; no canary key is in anything that it prints."""
    keys = ("OPENAI_API_KEY", "SERPER_API_KEY", "OPENROUTER_API_KEY")
    environment = {**os.environ, **dict.fromkeys(keys, KEY), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "midstream", "doctor"]
    with LLMServer() as server:
        model = ["--model", "m", "--base-url", server.base_url, "--set", "engines.model.max_attempts=1"]
        for more in (["--json"], model):
            done = subprocess.run(
                [*command, *more], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
            )
            assert KEY[3:9] not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            if more == ["--json"]:
                found = json.loads(done.stdout)
                assert [entry["code"] for entry in found["machine"]] == CODES[:4]
                assert done.returncode == (0 if found["works"] else 1)
        assert any(headers.get("authorization") == f"Bearer {KEY}" for headers in server.headers), "it was in use"
    assert list(tmp_path.iterdir()) == []


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_code_is_explained_and_no_other() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (MS\d{3}) \| [^|]+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert rows == CODES
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/midstream/doctor").glob("*.py"))
    assert set(re.findall(r'"(MS\d{3})"', source)) == set(CODES)
    assert not set(re.findall(r"MS\d{3}", page)) - set(CODES)
