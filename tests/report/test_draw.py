"""Blocks in the terminal: nothing is left out but folds, and no number is cut on a narrow screen."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from midstream.core.terminal import Terminal
from midstream.report import blocks
from midstream.report.draw import chosen, draw
from midstream.report.evaluation import evaluation_page
from midstream.report.training import training_page
from support.fake_run import evaluations, metrics, timings

SCREENS = {
    "training": [block for _, _, found in training_page(metrics(), timings(), evaluations())[1] for block in found],
    "evaluation": [block for _, _, found in evaluation_page(evaluations()[:3])[1] for block in found],
}
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map("{:,}".format),
    st.floats(-1e9, 1e9).map("{:+,.4f}".format),
    st.floats(0, 1).map("{:.1%}".format),
)


def shown(found, width=80, **options):
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(found, **options), crop=False)
    return console.file.getvalue()


def numbers(text):
    return set(re.findall(r"(?<![\w.,])[-+]?\d[\d.,–]*%?", text))


@pytest.mark.matrix(4)
@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
def test_a_screen_cuts_no_number(screen, width):
    text = shown(screen, width)
    assert "…" not in text
    assert numbers(shown(screen, 300)) <= numbers(text)
    assert max(map(len, text.splitlines())) <= width


@given(
    st.lists(st.lists(NUMBERS, min_size=9, max_size=9), min_size=1, max_size=4),
    st.lists(st.text("abcdef ", max_size=30), min_size=4, max_size=4),
    st.integers(40, 200),
)
def test_a_table_cuts_no_number(rows, names, width):
    heads = ["name", *(f"column {place}" for place in range(9))]
    table = blocks.table("Numbers", heads, [[name, *row] for name, row in zip(names, rows, strict=False)])
    text = shown([table], width)
    words = {word for line in text.splitlines() for word in line.split()}
    assert {number for row in rows for number in row} <= words
    assert text.count("Numbers") == 1


def test_a_name_of_a_column_is_broken_into_lines_as_narrow_as_its_numbers():
    table = blocks.table("", ("set", "tool errors", "cost of it"), [["a", "1.0%", "$3"]])
    heads = [line.split() for line in shown([table]).splitlines()[:2]]
    assert heads == [["tool", "cost", "of"], ["set", "errors", "it"]]


def test_every_kind_of_block_is_drawn_and_folds_only_if_asked_for():
    card = blocks.card("L1", "count twice", ("planner", ""), struck=True)
    found = [
        blocks.heading("Heads"),
        blocks.text("a paragraph", "warn"),
        blocks.tiles([blocks.tile("Success", "60.0%", "40 tasks", before="50.0%")]),
        blocks.facts([("gold", blocks.cell("42", "up")), ("empty", ""), ("none", None)]),
        blocks.table("Sums", ("what", "count"), [["a", "1"], ["all", "1"]], totals=1),
        blocks.chart("Reward", "", [blocks.line("reward", [(1, 0.25), (2, 0.5)])]),
        blocks.charts(blocks.curve("Turns", "", [(1, 3.0), (2, 2.0)], 1)),
        blocks.cards([card]),
        blocks.code("midstream show " + "x" * 90),
        blocks.fold("More", blocks.text("folded")),
        None,
    ]
    text = shown(found)
    for part in (
        *("Heads", "a paragraph", "gold  42", "Sums", "count twice", "planner"),
        *("By step, 1 to 2", "25.0% → 50.0%", "3 → 2", "x" * 90),
    ):
        assert part in text, part
    assert "empty" not in text
    assert "Success" not in text, "tiles are for the browser"
    assert "folded" not in text
    assert "folded" in shown(found, folds=True)


def test_numbers_that_are_not_finite_are_drawn_too():
    chart = blocks.chart("Reward", "", [blocks.line("reward", [(1, float("nan")), (2, float("inf"))])])
    assert "Reward" in shown([chart])


@given(st.text(max_size=30))
def test_no_text_steers_the_terminal_or_is_read_as_markup(name):
    rows = [[f"[red]{name}[/red]", f"{name}\x1b[2J"]]
    found = [
        blocks.text(name), blocks.facts([(name, name)]), blocks.table(name, ("a", name), rows, left=2),
        blocks.cards([blocks.card(name, name, (name,))]), blocks.tiles([blocks.tile(name, name, name)]),
    ]  # fmt: skip
    text = shown(found, 400)
    assert "\x1b" not in text
    assert "[red]" in text
    assert max(map(cell_len, text.split("\n"))) <= 400


def test_sections_are_chosen_in_the_order_that_is_asked_for():
    sections = [("a", "A", [blocks.text("one")]), ("b", "B", [blocks.text("two"), None])]
    assert [block and block["text"] for block in chosen(sections, "b", "a", "c")] == ["two", None, "one"]
