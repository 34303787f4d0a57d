"""What docstrings of the three styles say."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.tools.docstrings import parse

GOOGLE = """Finds a place.

    The nearest one, by
    its name.

    Args:
        name (str, optional): what it is called:
            its whole name
        near: where to begin (a place)
        bare:

    Raises:
        ValueError: there is none
    """
NUMPY = """Finds a place.

    The nearest one, by
    its name.

    Parameters
    ----------
    name : str, optional
        what it is called:
        its whole name
    near
        where to begin (a place)
    bare : int

    Returns
    -------
    str
        the place
    """
FIELDS = """Finds a place.

    The nearest one, by
    its name.

    :param str name: what it is called:
        its whole name
    :param near: where to begin (a place)
    :param bare:
    :returns: the place
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, FIELDS], ids=["google", "numpy", "fields"])
def test_every_style_says_the_same(docstring):
    description, arguments = parse(inspect.cleandoc(docstring))
    assert description == "Finds a place.\nThe nearest one, by its name."
    found = {name: text for name, text in arguments.items() if text}
    assert found == {"name": "what it is called: its whole name", "near": "where to begin (a place)"}


def test_two_arguments_may_share_a_description():
    assert parse("Adds.\n\nParameters\n----------\na, b : int\n    a summand")[1] == {
        "a": "a summand",
        "b": "a summand",
    }


def test_prose_with_colons_is_no_section():
    text = "Answers: yes or no.\nNote: it may be wrong.\nargs are free"
    assert parse(text) == ("Answers: yes or no. Note: it may be wrong. args are free", {})


def test_sections_alone_say_nothing_of_the_function():
    assert parse("Args:\n    a: this") == ("", {"a": "this"})


@given(st.text())
def test_any_text_is_read(text):
    description, arguments = parse(text)
    assert isinstance(description, str)
    assert all(isinstance(one, str) for one in arguments.values())


@given(st.text(alphabet="ab:-\n (),", max_size=60).map(lambda text: f"Does.\n\nArgs:\n{text}"))
def test_broken_sections_keep_the_description(text):
    assert parse(text)[0] == "Does."
