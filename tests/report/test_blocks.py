"""Blocks as JSON values."""

from __future__ import annotations

from midstream.report import blocks
from support.pages import keys


def test_texts_and_numbers_that_json_does_not_have():
    assert blocks.safe({"a": float("nan"), "b": (float("inf"), 1.5), "half \ud800": "\x1b["}) == {
        "a": None, "b": [None, 1.5], "half \\ud800": "\\x1b[",
    }  # fmt: skip


def test_numbers_that_json_does_not_have_are_null():
    chart = blocks.chart("x", "", [blocks.line("a", [(1, float("nan")), (2, float("inf")), (3, 0.5)])])
    page = blocks.page("t", "", [("one", "One", [chart, None]), ("none", "None", [None])])
    assert keys(page) == ["one"]
    assert page["sections"][0]["blocks"][0]["lines"][0]["points"] == [[1, None], [2, None], [3, 0.5]]
