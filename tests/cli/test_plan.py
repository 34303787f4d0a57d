"""`midstream plan`: what it prints, as text and as JSON."""

from __future__ import annotations

import json
import shutil

import pytest

from midstream.cli.main import main
from support.errors import printed


def plan(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_json_has_every_way_with_its_formulas(capsys):
    record = json.loads(plan(capsys, "agentflow-7b", "--gpus", "8xH100", "--price", "2", "--json"))
    assert [way["kind"] for way in record["ways"]] == ["one device", "torchrun", "Tinker", "verl"]
    assert (record["load"]["trajectories"], record["card"]["half"]) == (256, 989.5)
    assert [way["gpus"] for way in record["ways"]] == [1, 8, 8, 8]
    for way in record["ways"]:
        assert way["seconds"] == pytest.approx(sum(phase["seconds"] for phase in way["phases"]))
        assert way["dollars"] == pytest.approx(way["seconds"] * way["gpus"] * 2 / 3600)
        assert all(phase["formula"] for phase in way["phases"])


@pytest.mark.parametrize("columns", [60, 100])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = plan(capsys, "agentflow-7b", "--gpus", "8xH100", "--price", "2")
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_options_replace_what_is_assumed(capsys):
    given = ("--turns", "1", "--prompt-tokens", "10", "--completion-tokens", "5", "--observed-tokens", "7")
    record = json.loads(plan(capsys, "agentflow-7b", "--gpus", "H100", *given, "--turn-seconds", "3", "--json"))
    assert (record["load"]["turns"], record["load"]["sampled"], record["load"]["all"]) == (1, 256 * 5, 256 * 15)
    assert [way["kind"] for way in record["ways"]] == ["one device", "Tinker", "verl"]  # one GPU has no ranks
    phases = {phase["name"]: phase["seconds"] for phase in record["ways"][0]["phases"]}
    assert phases["tools and other modules"] == 3


def test_a_sweep_has_a_line_for_each_size(capsys):
    words = ("agentflow-7b", "--gpus", "H100", "--sweep", "8,64,1000")
    record = json.loads(plan(capsys, *words, "--json"))
    assert [(way["gpus"], way["kind"]) for way in record["ways"]] == [(8, "verl"), (64, "verl"), (1000, "verl")]
    assert "232 GPUs have no row" in " ".join(plan(capsys, *words).split())


def test_this_machine_is_measured(capsys):
    record = json.loads(plan(capsys, "text-tiny", "--cpu", "--json"))
    assert [way["kind"] for way in record["ways"]] == ["one device"]
    assert (record["ways"][0]["fits"], record["card"]["source"]) == (True, "measured")


def test_a_run_gives_its_tokens(capsys, finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "run")
    record = json.loads(plan(capsys, "flow-grpo-tiny", "--gpus", "H100", "--like", str(tmp_path / "run"), "--json"))
    assert "measured" in record["load"]["source"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("agentflow-7b", "--gpus", "8xH10"), "unknown-gpu"),
        (("training-free-simulated", "--gpus", "8xH100"), "nothing-to-plan"),
        (("agentflow-7b", "--gpus", "8xH100", "--sweep", "8,many"), "setting-range"),
        (("agentflow-7b", "--gpus", "8xH100", "--like", "nowhere"), "not-a-run"),
        (("agentflow-7b", "--gpus", "8xH100", "--like", "nowhere", "--turns", "2"), "option-without-effect"),
        (("agentflow-7b", "--gpus", "8xH100", "--sweep", "8", "--nodes", "2"), "option-without-effect"),
        (("text-tiny", "--cpu", "--sweep", "8"), "option-without-effect"),
        (("text-tiny", "--cpu", "--nodes", "2"), "option-without-effect"),
    ],
)
def test_wrong_words_are_refused(capsys, words, code):
    assert main(["plan", *words]) == 2
    assert printed(capsys.readouterr().err).code == code


@pytest.mark.parametrize(
    ("option", "values"),
    [("--price", ("nan", "-3", "much")), ("--turn-seconds", ("inf", "-20")), ("--turns", ("0", "1.5", "9" * 5000))],
)
def test_numbers_that_make_no_plan_are_refused(capsys, option, values):
    for value in values:
        with pytest.raises(SystemExit):
            main(["plan", "agentflow-7b", "--gpus", "8xH100", f"{option}={value}"])
        assert "is not a" in capsys.readouterr().err
