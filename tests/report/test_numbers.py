import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.text import visible
from midstream.report import numbers


def test_visible_writes_out_what_steers_a_terminal_or_reorders_text():
    assert visible("a\x1b[2Jb\r\nc\td") == "a\\x1b[2Jb\nc\td"
    assert visible("x\u202ey\ud800z") == "x\\u202ey\\ud800z"


@given(st.text(st.characters(codec=None)))
def test_visible_text_is_printable_and_encodable(text):
    shown = visible(text)
    shown.encode("utf-8")
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
    assert visible(shown) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.004, "0.00s"), (0.26, "0.3s"), (9.96, "10s"), (59.7, "1m 00s"), (723, "12m 03s"), (7500, "2h 05m"),
        (math.inf, "-"),
    ],
)  # fmt: skip
def test_duration(seconds, shown):
    assert numbers.duration(seconds) == shown


def test_shares_and_changes():
    assert numbers.percent(0.4123) == "41.2%"
    assert numbers.percent(None) == numbers.percent(math.nan) == "-"
    assert numbers.change(0.5, 0.625) == "+12.5"
    assert numbers.change(0.625, 0.5) == "-12.5"
    assert numbers.change(0.5, 0.49999) == "+0.0"
    assert numbers.change(None, 0.5) == "-"


def test_sparkline_scales_over_a_least_span_and_skips_what_is_not_finite():
    assert numbers.sparkline([0.0, 0.29, 1.0]) == "▁▃█"
    assert numbers.sparkline([0.4, 0.45, 0.5]) == "▃▅▆"
    assert numbers.sparkline([0.0, 0.0]) == "▁▁"
    assert numbers.sparkline([math.nan]) == ""


def test_buckets_keep_the_mean_and_the_limit():
    points = [(float(step), step / 1000) for step in range(1000)]
    kept = numbers.buckets([*points, (1000.0, math.nan)], 60)
    assert len(kept) <= 60
    assert kept[0] == (8.0, pytest.approx(0.008))


def test_shorten_says_what_is_left_out():
    assert numbers.shorten("abc", 3) == "abc"
    assert numbers.shorten("x" * 1500, 10) == "x" * 10 + " … (1,490 characters more)"
