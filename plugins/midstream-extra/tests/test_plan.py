"""`midstream plan`: what it prints, as text and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from midstream.cli.main import main
from support.errors import printed

SCREEN = Path(__file__).with_name("plan.txt")


def plan(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_its_screen(capsys, monkeypatch):
    """plan.txt has what is printed, without spaces at the ends of lines."""
    monkeypatch.setenv("COLUMNS", "100")
    text = plan(capsys, "agentflow-7b", "--gpus", "8xH100")
    assert [line.rstrip() for line in text.splitlines()] == SCREEN.read_text(encoding="utf-8").splitlines()


def test_the_lines_of_the_page_run(capsys):
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^midstream plan (.*?) +#", page, re.MULTILINE)
    assert len(lines) == 3
    assert all(plan(capsys, *line.split()) for line in lines)


def test_json_has_every_way_with_its_formulas(capsys):
    record = json.loads(plan(capsys, "agentflow-7b", "--gpus", "8xH100", "--json"))
    assert [(way["kind"], way["fits"]) for way in record["ways"]] == [
        ("one device", True), ("torchrun", False), ("verl", True),
    ]  # fmt: skip
    assert (record["gpu"], record["gpu_gb"]) == ("H100", 80)
    assert all(part["formula"] for way in record["ways"] for part in way["parts"])


@pytest.mark.parametrize("columns", [60, 100])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = plan(capsys, "agentflow-7b", "--gpus", "8xH100")
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("agentflow-7b", "--gpus", "8xH10"), "unknown-gpu"),
        (("lessons-simulated", "--gpus", "8xH100"), "nothing-to-plan"),
    ],
)
def test_wrong_words_are_refused(capsys, words, code):
    assert main(["plan", *words]) == 2
    assert printed(capsys.readouterr().err).code == code
