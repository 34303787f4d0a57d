"""`midstream plan`: what it prints, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from midstream.cli.main import main
from support.errors import printed


def plan(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


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
        (("training-free-simulated", "--gpus", "8xH100"), "nothing-to-plan"),
    ],
)
def test_wrong_words_are_refused(capsys, words, code):
    assert main(["plan", *words]) == 2
    assert printed(capsys.readouterr().err).code == code
