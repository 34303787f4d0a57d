"""Comparisons of evaluations task by task, and of groups of runs: their blocks and their pages."""

from __future__ import annotations

import io

import pytest

from midstream.core.metrics import EvaluationResult, ToolUse
from midstream.core.terminal import Terminal
from midstream.evaluation.estimates import exact_interval
from midstream.evaluation.pairs import Pair, Paired, Side
from midstream.report.comparison import (
    compare,
    compare_groups,
    compared_blocks,
    comparison_page,
    effort_table,
    preference,
    sentence,
)
from midstream.report.draw import draw
from support.evaluations import write
from support.pages import found, keys, rows

HALF = {f"t{place}": [float(place % 2)] for place in range(40)}
MORE = {f"t{place}": [float(place % 4 > 0)] for place in range(40)}


def test_a_comparison_draws_all_intervals_on_one_axis(tmp_path):
    paths = [write(tmp_path / name, scores) for name, scores in (("a", HALF), ("b", MORE), ("c", HALF))]
    comparison = compare(*paths)
    page = comparison_page(comparison)
    assert keys(page) == ["compared", "results", "details"]
    (table,) = found(page["sections"][1], "table")
    assert [row[0] for row in rows(table)] == ["A", "B", "C"]
    assert rows(table)[1][1:4] == ["40", "75.0%", "+25.0"]
    intervals = [row["cells"][4]["interval"] for row in table["rows"] if isinstance(row["cells"][4], dict)]
    ends = [end for pair in comparison.found for end in pair.interval]
    assert {each["span"] for each in intervals} == {max(map(abs, ends))}
    assert (intervals[0]["low"], intervals[0]["mid"], intervals[0]["high"]) == pytest.approx((ends[0], 0.25, ends[1]))
    assert found(page, "fold", "Tasks that A and B differ on")


def test_groups_of_runs_have_a_page(tmp_path):
    groups = {
        name: [write(tmp_path / f"{name}{seed}", scores, run_seed=seed) for seed in range(2)]
        for name, scores in (("half", HALF), ("more", MORE))
    }
    page = comparison_page(compare_groups(groups))
    (table,) = found(page["sections"][0], "table")
    assert rows(table)[0] == ["half", "2", "50.0%", "", "", "50.0  50.0"]
    assert rows(table)[1] == ["more", "2", "75.0%", "+25.0", "-", "75.0  75.0"], "equal values have no interval"


LETTERS = {"runs/a": "A", "runs/b": "B", "runs/c": "C"}


def paired(**changes) -> Paired:
    whole = {
        "first": "runs/a", "other": "runs/b", "set_name": "bamboogle", "sampling": "T=0.7", "metric": "exact match",
        "tasks": 125, "first_success": 0.4, "other_success": 0.432, "difference": 0.032, "interval": (0.011, 0.053),
        "level": 0.95, "verdict": "better", "wins": 6, "losses": 2, "ties": 117, "left_out": 0, "only_first": 0,
        "only_other": 0,
    }  # fmt: skip
    return Paired.model_validate(whole | changes)


def shown_comparison(*found: Paired, tasks: bool = False) -> str:
    console = Terminal(file=io.StringIO(), width=80)
    sets = dict.fromkeys(pair.set_name for pair in found)
    several = [compared_blocks(LETTERS, [pair for pair in found if pair.set_name == name]) for name in sets]
    console.print(draw([block for blocks in several for block in blocks], folds=tasks))
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
    assert words in " ".join(shown_comparison(one).split())


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            (9, 10, 0),
            "B to A on 9 of 10 tasks (exact 95% interval 55.5% to 99.7%): B is preferred. 0 equal, 4 not judged.",
        ),
        (
            (0, 6, 2),
            "B to A on 0 of 6 tasks (exact 95% interval 0.0% to 45.9%): A is preferred. 2 equal, 6 not judged.",
        ),
        ((1, 1, 3), "B to A on 1 of 1 task (exact 95% interval 2.5% to 100.0%): undecided. 3 equal, 10 not judged."),
        ((0, 0, 14), "B to A on 0 of 0 tasks (exact 95% interval 0.0% to 100.0%): undecided. 14 equal, 0 not judged."),
    ],
)
def test_a_persons_preference_in_words(counts, words):
    preferred, decided, equal = counts
    interval = exact_interval(preferred, decided)
    found = {"preferred": preferred, "decided": decided, "equal": equal, "asked": 14, "interval": interval}
    assert f"a person preferred {words}" in preference(LETTERS, paired(preference=found))
    assert preference(LETTERS, paired()) == ""


def test_one_table_a_set_and_the_first_once():
    text = shown_comparison(paired(), paired(other="runs/c"), paired(set_name="gaia"))
    assert text.count("bamboogle, T=0.7: exact match") == 1
    assert text.count("gaia, T=0.7: exact match") == 1
    assert [line.split()[0] for line in text.splitlines() if "%" in line and "." in line.split()[2]] == list("ABCAB")


def test_what_was_left_out():
    text = shown_comparison(paired(left_out=2, only_first=1, only_other=3, runs_left_out=4))
    assert "4 runs of the others left out: no result" in text
    assert "2 tasks left out: no result on one side" in text
    assert "1 task left out: only A has it" in text
    assert "3 tasks left out: only B has them" in text


def test_tasks_that_differ_with_hostile_and_endless_answers():
    sides = (Side(value=0.0, answers=("[red]x\x1b[2J", None)), Side(value=1.0, answers=("y" * 5000,)))
    pair = Pair(task_id="t1", question="why [bold]?", gold="y", first=sides[0], other=sides[1])
    text = shown_comparison(paired(differing=(pair,)), tasks=True)
    assert "B is better on t1: why [bold]?" in text
    assert "[red]x\\x1b[2J | (none)" in text
    assert len(text) < 3000
    assert "t1" not in shown_comparison(paired(differing=(pair,)))


def test_what_a_task_took_is_per_run_whatever_the_agent():
    one = EvaluationResult(
        policy="p", set_name="s", split="test", sampling="greedy", seed=0, tasks=10, trials=2, success=0.5,
        success_without_errors=0.5, errors=0, by_family={}, turns_mean=2.5, prompt_tokens=20000, completion_tokens=900,
        tool_use=ToolUse(turns=50, errors=5, error_rate=0.1, calls={"python": 30, "search": 15}),
    )  # fmt: skip
    console = Terminal(file=io.StringIO(), width=80)
    console.print(draw([effort_table({"A": one, "B": one.model_copy(update={"cost_usd": 1.0})}, "s, greedy")]))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["A", "2.50", "2.25", "10.0%", "1,000", "45", "-"] in rows
    assert ["B", "2.50", "2.25", "10.0%", "1,000", "45", "$0.0500"] in rows
