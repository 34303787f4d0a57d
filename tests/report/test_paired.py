"""What `midstream compare` shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from midstream.core.metrics import EvaluationResult, ToolUse
from midstream.evaluation.pairs import Pair, Paired, Side
from midstream.report.paired import compared_screen, effort_table, sentence

LETTERS = {"runs/a": "A", "runs/b": "B", "runs/c": "C"}


def paired(**changes) -> Paired:
    whole = {
        "first": "runs/a", "other": "runs/b", "set_name": "bamboogle", "sampling": "T=0.7", "metric": "exact match",
        "tasks": 125, "first_success": 0.4, "other_success": 0.432, "difference": 0.032, "interval": (0.011, 0.053),
        "level": 0.95, "verdict": "better", "wins": 6, "losses": 2, "ties": 117, "left_out": 0, "only_first": 0,
        "only_other": 0,
    }  # fmt: skip
    return Paired.model_validate(whole | changes)


def shown(*found: Paired, tasks: bool = False) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(compared_screen(LETTERS, found, tasks=tasks))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"),
        (
            {"difference": -0.032, "interval": (-0.053, -0.011), "verdict": "worse"},
            "B is worse than A by 3.2 points (95% interval 1.1 to 5.3)",
        ),
        (
            {"difference": 0.004, "interval": (-0.02, 0.028), "verdict": "no evidence of a difference"},
            "B and A: no evidence of a difference (+0.4 points, 95% interval -2.0 to +2.8)",
        ),
        ({"verdict": "the same"}, "B and A are the same: every turn of every task is equal"),
        ({"level": 1 - 0.05 / 3}, "B is better than A by 3.2 points (98.33% interval 1.1 to 5.3)"),
    ],
)
def test_the_verdict_in_words(changes, words):
    one = paired(**changes)
    assert sentence(LETTERS, one) == words
    assert words in " ".join(shown(one).split())


def test_one_table_a_set_and_the_first_once():
    text = shown(paired(), paired(other="runs/c"), paired(set_name="gaia"))
    assert text.count("bamboogle, T=0.7: exact match") == 1
    assert text.count("gaia, T=0.7: exact match") == 1
    assert [line.split()[0] for line in text.splitlines() if "%" in line and "." in line.split()[2]] == list("ABCAB")


def test_what_was_left_out():
    text = shown(paired(left_out=2, only_first=1, only_other=3, runs_left_out=4))
    assert "4 runs of the others left out: no result" in text
    assert "2 tasks left out: no result on one side" in text
    assert "1 task left out: only A has it" in text
    assert "3 tasks left out: only B has them" in text


def test_tasks_that_differ_with_hostile_and_endless_answers():
    sides = (Side(value=0.0, answers=("[red]x\x1b[2J", None)), Side(value=1.0, answers=("y" * 5000,)))
    pair = Pair(task_id="t1", question="why [bold]?", gold="y", first=sides[0], other=sides[1])
    text = shown(paired(differing=(pair,)), tasks=True)
    assert "B is better on t1: why [bold]?" in text
    assert "[red]x\\x1b[2J | (none)" in text
    assert len(text) < 3000
    assert "t1" not in shown(paired(differing=(pair,)))


def test_what_a_task_took_is_per_run_whatever_the_agent():
    one = EvaluationResult(
        policy="p", set_name="s", split="test", sampling="greedy", seed=0, tasks=10, trials=2, success=0.5,
        success_without_errors=0.5, errors=0, by_family={}, turns_mean=2.5, prompt_tokens=20000, completion_tokens=900,
        tool_use=ToolUse(turns=50, errors=5, error_rate=0.1, calls={"python": 30, "search": 15}),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(effort_table({"A": one, "B": one.model_copy(update={"cost_usd": 1.0})}, "s, greedy"))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["A", "2.50", "2.25", "10.0%", "1,000", "45", "-"] in rows
    assert ["B", "2.50", "2.25", "10.0%", "1,000", "45", "$0.0500"] in rows
