"""The pages of evaluations and comparisons, and the terminal's tables as blocks."""

from __future__ import annotations

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.report import blocks
from midstream.report.comparison import compare, compare_groups
from midstream.report.comparison_page import comparison_page
from midstream.report.evaluation_page import evaluation_page
from support.evaluations import evaluated, write
from support.pages import found, keys, made, rows, texts

HALF = {f"t{place}": [float(place % 2)] for place in range(40)}
MORE = {f"t{place}": [float(place % 4 > 0)] for place in range(40)}


def test_an_evaluation_s_page_has_its_numbers():
    result, _ = evaluated({**HALF, "t40": [None]}, tools=("search",))
    page = made(evaluation_page([result]))
    assert keys(page) == ["summary", "results", "notes"]
    (tiles,) = found(page, "tiles")
    assert {tile["name"]: tile["value"] for tile in tiles["tiles"]} == {
        "Success, held-out": "48.8%",
        "Tokens": "0",
        "Without a result": "1",
    }
    success = found(page, "table", "Success")[0]
    assert rows(success)[0][0] == "held-out"
    assert [column["align"] for column in success["columns"]][:2] == ["left", "right"]
    assert any(
        name == "errors" and "1 of 41 tasks without a result" in value
        for name, value in found(page, "facts")[0]["facts"]
    )
    assert page["lead"].startswith("held-out T=1: success 48.8%")


def test_without_results_an_evaluation_has_a_page_too():
    page = made(evaluation_page([]))
    assert keys(page) == ["results"]
    assert page["lead"] == "No set has been evaluated yet."


def test_a_comparison_draws_all_intervals_on_one_axis(tmp_path):
    paths = [write(tmp_path / name, scores) for name, scores in (("a", HALF), ("b", MORE), ("c", HALF))]
    comparison = compare(*paths)
    page = comparison_page(comparison)
    (table,) = found(page["sections"][0], "table")
    assert [row[0] for row in rows(table)] == ["B against A", "C against A"]
    assert rows(table)[0][2:5] == ["50.0%", "75.0%", "+25.0"]
    intervals = [row["cells"][5]["interval"] for row in table["rows"]]
    ends = [end for pair in comparison.found for end in pair.interval]
    assert {each["span"] for each in intervals} == {max(map(abs, ends))}
    assert (intervals[0]["low"], intervals[0]["mid"], intervals[0]["high"]) == pytest.approx((ends[0], 0.25, ends[1]))
    assert "Tasks that A and B differ on" in texts(page["sections"][1])


def test_groups_of_runs_have_a_page(tmp_path):
    groups = {
        name: [write(tmp_path / f"{name}{seed}", scores, run_seed=seed) for seed in range(2)]
        for name, scores in (("half", HALF), ("more", MORE))
    }
    page = comparison_page(compare_groups(groups))
    (table,) = found(page["sections"][0], "table")
    assert rows(table)[0][:5] == ["more against half", "held-out, T=1", "50.0%", "75.0%", "+25.0"]
    assert rows(table)[0][5] == "-", "values without a spread have no interval"


def test_a_screen_becomes_blocks():
    table = Table(title=Text("Numbers"))
    table.add_column("name")
    table.add_column("of\nall", justify="right")
    table.add_row(Text("[b]a[/b]"), Text("3", "green"))
    table.caption = Text("careful", "yellow")
    facts = Table.grid()
    facts.add_column()
    facts.add_column()
    facts.add_row("gold", Text("42"))
    found = blocks.of_screen(Group(table, Padding(facts, 1), Text(), Text("late", "yellow")))
    shown, caption, pairs, *rest = found
    assert shown == {
        "kind": "table",
        "caption": "Numbers",
        "columns": [{"name": "name", "align": "left"}, {"name": "of all", "align": "right"}],
        "rows": [{"cells": ["[b]a[/b]", {"text": "3", "tone": "up"}], "total": False}],
    }
    assert caption == {"kind": "text", "text": "careful", "tone": "warning"}
    assert pairs == {"kind": "facts", "facts": [["gold", "42"]]}
    assert rest == [None, {"kind": "text", "text": "late", "tone": "warning"}]


def test_numbers_that_json_does_not_have_are_null():
    chart = blocks.chart("x", "", [blocks.line("a", [(1, float("nan")), (2, float("inf")), (3, 0.5)])], "words")
    page = blocks.page("t", "", [("one", "One", [chart, None]), ("none", "None", [None])])
    assert keys(page) == ["one"]
    assert page["sections"][0]["blocks"][0]["lines"][0]["points"] == [[1, None], [2, None], [3, 0.5]]
