"""Finding an answer in a reply, its normal form, its numbers."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.answers import extract, normalize, numbers, words


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("no tags", "no tags"),
        (" trimmed\n", "trimmed"),
        ("<answer>Rome</answer> wait <answer> Paris </answer>", "Paris"),
        ("<answer>\nPa\nris</answer> done", "Pa\nris"),
        ("<answer></answer>", ""),
        ("<answer>Paris", "Paris"),
        ("I close </answer> and open <answer>", ""),
        ("<answer>Rome</answer> or <answer>Paris", "Rome"),
        ("opened by the prompt</answer> and so on", "opened by the prompt"),
        ("<answer>Paris<answer>", "Paris"),
        ("<answer>Rome<answer>, no: <answer>Paris<answer>", "Paris"),
        ("<answer>Paris</answer> <answer>", "Paris"),
        ("<answer>Paris</answer> <answer></answer>", "Paris"),
        ("<answer>Paris<answer/>", "Paris"),
        ("<ANSWER>Paris</Answer>", "Paris"),
        ("<answer >Paris</ answer>", "Paris"),
        ("<answers>Paris</answers>", "<answers>Paris</answers>"),
        ("<answer>Paris</answer>" * 11, "Paris"),
    ],
)
def test_extract(reply, answer):
    assert extract(reply) == answer


def test_a_reply_of_tags_alone_is_read_in_one_pass():
    assert extract("<answer>" * 200_000) == ""


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The  Beatles!", "beatles"),
        ("an apple a day", "apple day"),
        ("well-known", "wellknown"),
        ("Zürich", "zürich"),
        ("Let’s", "let’s"),
        ("the", ""),
        ("theatre", "theatre"),
    ],
)
def test_normalize(text, form):
    assert normalize(text) == form


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,000", ("1000",)),
        ("$1,000.50", ("1000.5",)),
        ("-007", ("-7",)),
        ("− 7", ("-7",)),
        ("-$5", ("-5",)),
        ("$-5", ("-5",)),
        (".5", ("0.5",)),
        ("-0.0", ("0",)),
        ("+3", ("3",)),
        ("3,14", ("3,14",)),
        ("1,2345", ("1,2345",)),
        ("12, 34", ("12", "34")),
        ("1/2", ("1/2",)),
        ("1990-1995", ("1990-1995",)),
        ("3.5E-4 m", ("3.5e-4",)),
        ("covid-19", ("19",)),
        ("No.5", ("5",)),
        ("March 29, 2018.", ("29", "2018")),
        ("5 - 3", ("5", "-3")),
        ("f(3)-2", ("3", "2")),
        ("٣ apples", ()),
        ("", ()),
    ],
)
def test_numbers(text, found):
    assert numbers(text) == found


@given(st.integers(), st.integers(min_value=0, max_value=999))
def test_a_number_reads_the_same_however_it_is_written(whole, thousandths):
    sign, size = "-" if whole < 0 else "", abs(whole)
    plain = numbers(f"{sign}{size}.{thousandths:03}")
    assert plain == numbers(f"{sign}{size:,}.{thousandths:03}0") == numbers(f"{sign}00{size}.{thousandths:03} kg")
    assert plain != numbers(f"{sign}{size + 1}.{thousandths:03}")


def test_words_carry_the_numbers_that_the_normal_form_drops():
    for left, right in [("-5", "5"), ("3.14", "314"), ("1e-5", "1e5"), ("$1,000.0", "10000"), ("12:30", "1230")]:
        assert normalize(left) == normalize(right)
        assert words(left) != words(right)
    assert words("the 1,000 apples") == words("1000 apples!")


@given(st.text())
def test_words_are_those_of_the_normal_form(text):
    assert " ".join(word for word, _ in words(text.replace("−", ""))) == normalize(text.replace("−", ""))


@given(st.text(alphabet=string.digits + "+-−.,/: e$()a", max_size=40))
def test_numbers_read_from_their_own_form_are_the_same(text):
    """The form that `numbers` writes is a fixed point."""
    for number in numbers(text):
        assert numbers(number) == (number,)


def test_long_runs_take_no_time():
    for part in ("9", ".", ",", "- ", "1,", "1.", "(", "e9", " ", "−", "$"):
        words(part * 100_000)
