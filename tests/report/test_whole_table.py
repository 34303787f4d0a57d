"""No number is cut on a narrow screen: what a wide one shows, a narrow one shows too."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from midstream.core.terminal import Terminal
from midstream.report.evaluation_tables import evaluation_view, plain_table
from midstream.report.tables import before_after_table, run_summary
from support.fake_run import evaluations, metrics

SIDES = [[result for result in evaluations() if result.step == step] for step in (0, 300)]
SCREENS = {
    "before and after": before_after_table(*SIDES),
    "run": run_summary("runs/a", "recipe", 300, metrics(), evaluations()),
    "evaluation": evaluation_view(evaluations()[:3]),
}
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map("{:,}".format),
    st.floats(-1e9, 1e9).map("{:+,.4f}".format),
    st.floats(0, 1).map("{:.1%}".format),
)


def shown(renderable, width):
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
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
    table = plain_table(Text("Numbers"), left=["name"], right=[f"column {place}" for place in range(9)])
    for name, row in zip(names, rows, strict=False):
        table.add_row(Text(name), *row)
    text = shown(table, width)
    words = {word for line in text.splitlines() for word in line.split()}
    assert {number for row in rows for number in row} <= words
    assert text.count("Numbers") == 1


def test_a_head_of_two_lines_stays_over_its_columns():
    lines = [line.split() for line in shown(SCREENS["before and after"], 60).splitlines()]
    assert [len(line) for line in lines if "before" in line and "after" in line] == [5, 4]
