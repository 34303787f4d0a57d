"""Figures of a study: valid SVG, all names and means, a band for each line, equal files for equal numbers."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from studies.charts import Panel, dots, panels

from midstream_extra.study_tables import StudyRow

pytest.importorskip("matplotlib")

CONTROLS = [
    StudyRow(name="a <b> $x$", metric="sampled", values=(0.25, 0.5, 0.75)),
    StudyRow(name="a <b> $x$", metric="greedy", values=(0.9,)),
    StudyRow(name="other", metric="greedy", values=(0.1, 0.2)),
    StudyRow(name="hidden", metric="tool errors", values=(0.1, 0.2)),
]


def words(path: Path) -> str:
    return "".join(ElementTree.fromstring(path.read_text(encoding="utf-8")).itertext())


def test_a_figure_of_dots_holds_every_name_and_mean(tmp_path: Path):
    dots(tmp_path / "a" / "dots.svg", CONTROLS, [("sampled", "greedy")], "Success & $")
    text = words(tmp_path / "a" / "dots.svg")
    for expected in ("a <b> $x$", "other", "50.0%", "90.0%", "15.0%", "sampled", "greedy", "Success & $"):
        assert expected in text, expected
    assert "hidden" not in text
    dots(tmp_path / "again.svg", CONTROLS, [("sampled", "greedy")], "Success & $")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "a" / "dots.svg").read_bytes()


def test_panels_draw_a_line_a_metric_and_leave_out_what_has_no_numbers(tmp_path: Path):
    rows = [
        StudyRow(name=str(turns), metric=metric, values=(share, share + 0.1))
        for metric, share in (("frozen <x>", 0.1), ("trained", 0.7))
        for turns in (10, 3, 5)
    ]
    rows.append(StudyRow(name="3", metric="tokens", values=(11.0, 13.0), as_percent=False))
    charts = [
        Panel(title="Success", x_label="turns", lines={"frozen <x>": "frozen <x>", "trained": "trained"}),
        Panel(title="Length", x_label="step", lines={"tokens": "mean"}),
        Panel(title="Nothing", x_label="step", lines={"unknown": "mean"}),
    ]
    panels(tmp_path / "panels.svg", charts, rows)
    text = words(tmp_path / "panels.svg")
    assert all(expected in text for expected in ("Success", "turns", "frozen <x>", "trained", "Length", "100%"))
    assert "Nothing" not in text


def test_each_group_of_metrics_has_a_chart_and_numbers_keep_their_unit(tmp_path: Path):
    turns = [StudyRow(name=name, metric="turns", values=(2.5, 3.5), as_percent=False) for name in ("other", "$x$")]
    gain = [StudyRow(name="other", metric="gain", values=(-0.2, -0.4))]
    dots(tmp_path / "dots.svg", [*CONTROLS, *turns, *gain], [("sampled", "greedy"), ("turns",), ("gain",)], "Three")
    text = words(tmp_path / "dots.svg")
    assert all(expected in text for expected in ("sampled", "turns", "gain", "-30.0%"))
    assert re.search(r"(?<![\d.])3(?![\d.%])", text), "the mean of the turns is no share"


def test_ten_arms_have_ten_lines(tmp_path: Path):
    arms = [f"arm {place}" for place in range(10)]
    rows = [StudyRow(name=step, metric=arm, values=(0.5,)) for arm in arms for step in ("0", "1", "2")]
    panels(tmp_path / "panels.svg", [Panel(title="All", x_label="step", lines={arm: arm for arm in arms})], rows)
    assert all(arm in words(tmp_path / "panels.svg") for arm in arms)
