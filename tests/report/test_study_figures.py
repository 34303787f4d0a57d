"""Tables and figures of a study: every seed's number, its mean and interval, and names that cannot break the markup."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from midstream.report.study import study_svg
from midstream.report.study_panels import Panel, panels_svg
from midstream.report.study_tables import StudyRow, study_table, study_tables

SVG = "{http://www.w3.org/2000/svg}"


def shown(renderable: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def cells(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(name)).split(name, 1)[1].split()


def tokens(step: int, *values: float) -> StudyRow:
    return StudyRow(name=str(step), metric="tokens", values=values, as_percent=False)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_shows_mean_and_interval_of_every_arm():
    rows = [
        StudyRow(name="flow-grpo", metric="greedy success", values=(0.68, 0.70, 0.72)),
        StudyRow(name="flow-grpo", metric="sampled success", values=(0.6, 0.6, 0.6)),
        StudyRow(name="shuffled reward", metric="greedy success", values=(0.3,)),
    ]
    text = shown(study_table(rows), 100)
    assert cells(text, "flow-grpo") == ["3", "70.0", "±", "5.0", "60.0", "±", "0.0"]
    assert cells(text, "shuffled reward") == ["1", "30.0", "(one", "seed)", "-"]
    assert "Student t" in text


def test_numbers_that_are_no_shares_stand_as_they_are_in_a_table_of_their_own():
    rows = [StudyRow(name="10", metric="reward", values=(0.5, 0.5)), tokens(10, 11.0, 12.0), tokens(20, 9.5)]
    shares, numbers = (shown(table) for table in study_tables(rows, "step", "Over training"))
    assert cells(shares, "10") == ["2", "50.0", "±", "0.0"]
    assert cells(numbers, "10") == ["2", "11.50", "±", "6.35"]
    assert cells(numbers, "20") == ["1", "9.50", "(one", "seed)"]
    assert "percent" in shares
    assert "percent" not in numbers


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["10", "a planner with a long name"]))
def test_tables_fit_a_terminal_and_leave_no_metric_out(metrics: int, seeds: int, name: str):
    rows = [StudyRow(name=name, metric=f"metric {i}", values=(0.5,) * seeds) for i in range(metrics)]
    texts = [shown(table) for table in study_tables(rows, "planner", "Planners")]
    assert all(len(line) <= 80 for text in texts for line in text.splitlines())
    assert sum(text.count("50.0") for text in texts) == metrics


def test_a_number_that_no_seed_has_is_a_dash():
    rows = [StudyRow(name="a", metric="recovered", values=()), StudyRow(name="a", metric="errors", values=(0.1, 0.1))]
    assert cells(shown(study_table(rows)), "a") == ["0", "to", "2", "-", "10.0", "±", "0.0"]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_figure_escapes_names_and_draws_every_seed():
    svg = study_svg([StudyRow(name="a <b>", metric="greedy", values=(0.25, 0.5, 0.75))], title="a & b")
    root = ElementTree.fromstring(svg)
    assert "a <b>" in "".join(root.itertext())
    assert svg.count("<circle") == 2 + 3


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_metrics_of_a_row_do_not_cover_each_other(count: int):
    metrics = [f"m{i}" for i in range(count)]
    rows = [StudyRow(name="a", metric=metric, values=(0.5,)) for metric in metrics]
    root = ElementTree.fromstring(study_svg([*rows, StudyRow(name="b", metric="other", values=(1.0,))], metrics))
    heights = {circle.get("cy") for circle in root.iter(f"{SVG}circle")} - {"40"}  # the legend's
    assert len(heights) == count
    assert "b" not in {text.text for text in root.iter(f"{SVG}text")}


def test_panels_draw_a_line_a_metric_with_its_band():
    rows = [
        StudyRow(name=str(turns), metric=metric, values=(share, share + 0.1))
        for metric, share in (("frozen <x>", 0.1), ("trained", 0.7))
        for turns in (3, 5, 7, 10)
    ]
    panel = Panel(title="Success", x_label="turns", lines={"frozen <x>": "frozen <x>", "trained": "trained"})
    root = ElementTree.fromstring(panels_svg([panel], rows, "Success by turns"))
    assert len(list(root.iter(f"{SVG}polyline"))) == len(list(root.iter(f"{SVG}polygon"))) == 2
    assert len(list(root.iter(f"{SVG}circle"))) == 2 + 2 * 4
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"Success", "turns", "3", "5", "7", "10", "0%", "100%", "frozen <x>"} <= words


def test_the_first_of_two_has_one_color_in_dots_and_lines():
    rows = [StudyRow(name="3", metric=name, values=(0.5, 0.6)) for name in ("frozen", "trained")]
    panel = Panel(title="t", x_label="x", lines={"frozen": "frozen", "trained": "trained"})
    dots = ElementTree.fromstring(study_svg(rows, ("frozen", "trained"))).iter(SVG + "circle")
    lines = ElementTree.fromstring(panels_svg([panel], rows, "s")).iter(SVG + "circle")
    legend = [one.get("fill") for one in dots][:2]
    assert legend == [one.get("fill") for one in lines if one.get("r") == "4"]


def test_a_panel_reaches_to_the_largest_number_and_its_interval():
    panel = Panel(title="Length", x_label="step", lines={"tokens": "mean"})
    root = ElementTree.fromstring(panels_svg([panel], [tokens(10, 10.0, 30.0), tokens(20, 11.0, 11.0)], "Length"))
    band = next(root.iter(f"{SVG}polygon")).get("points", "")
    heights = [float(point.split(",")[1]) for point in band.split()]
    assert min(heights) > 64  # the upper edge of the plot: nothing was cut off
    [line] = root.iter(f"{SVG}polyline")
    (_, first), (_, last) = (point.split(",") for point in line.get("points", "").split())
    assert float(first) < float(last)  # up is more


def test_a_panel_without_numbers_is_left_out_and_one_point_is_drawn():
    empty = Panel(title="Nothing", x_label="step", lines={"unknown": "mean"})
    one = Panel(title="One", x_label="step", lines={"tokens": "mean"})
    root = ElementTree.fromstring(panels_svg([empty, one], [tokens(10, 0.0)], "One"))
    assert next(root.iter(f"{SVG}text")).text == "One"
    assert "Nothing" not in "".join(root.itertext())
