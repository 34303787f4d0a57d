import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.report.charts import Series, area_chart, change_bar, line_chart, ticks

finite = st.floats(-1e6, 1e6)


@given(finite, st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_lie_within_the_range_and_are_not_too_many(low, span, count):
    found = ticks(low, low + span, count)
    slack = max(1e-6 * span, 1e-9 * abs(low))
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert len(found) <= count + 1


@given(st.lists(st.tuples(st.integers(0, 10_000), finite), min_size=1, max_size=30))
def test_lines_are_well_formed_and_inside_the_picture(points):
    svg = line_chart([Series(name="a & b", points=tuple(points), label="<end>", marks=True)], summary='say "it"')
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == 'say "it"'
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 400
        assert 0 <= float(circle.attrib["cy"]) <= 230
    assert "<end>" in [text.text for text in root.iter("text")]


def test_areas_fill_the_whole_height_when_shares_add_up_to_one():
    shares = [Series(name=name, points=((1, share), (2, share))) for name, share in (("a", 0.25), ("b", 0.75))]
    root = ElementTree.fromstring(area_chart(shares, summary="shares"))
    heights = [float(y) for polygon in root.iter("polygon") for y in re.findall(r",([\d.]+)", polygon.attrib["points"])]
    assert (min(heights), max(heights)) == (8.0, 208.0)


def test_one_step_still_draws_an_area_and_a_dot():
    one = [Series(name=name, points=((1, 0.5),)) for name in "ab"]
    first, second = ElementTree.fromstring(area_chart(one, summary="s")).iter("polygon")
    assert first.attrib["points"] != second.attrib["points"]
    assert "<circle" in line_chart(one, summary="s")


def test_no_points_say_so():
    assert "No data yet" in line_chart([], summary="")
    assert "No data yet" in area_chart([Series(name="a", points=())], summary="")


def test_end_labels_do_not_overlap():
    lines = [Series(name=name, points=((1, 0.5), (2, 0.5)), label=name) for name in "abcdef"]
    root = ElementTree.fromstring(line_chart(lines, summary="s", y_range=(0.0, 1.0)))
    ys = sorted(float(text.attrib["y"]) for text in root.iter("text") if "end" in text.attrib["class"])
    assert len(ys) == 6
    assert all(below - above >= 12.9 for above, below in pairwise(ys))


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (None, 0.5), (0.5, None), (None, None)])
def test_change_bar_draws_the_sides_it_has(pair):
    root = ElementTree.fromstring(change_bar(*pair, summary="s"))
    assert len(list(root.iter("circle"))) == sum(value is not None for value in pair)
    assert math.isclose(float(root.attrib["viewBox"].split()[2]), 110)
