import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.text import find_program, neutral, spoken, to_json
from support.chat_tokens import FAMILIES, INNOCENT

WORDS = st.lists(st.sampled_from(["```", "```python", "```", "\n", "x = 1", "x = (", "<think>", "</think>", "\x00"]))


def test_thoughts_are_not_spoken():
    assert spoken("<think>hm</think> yes") == " yes"
    assert spoken("<think>hm") == ""
    assert spoken("yes \ud800") == "yes ?"


def test_the_first_block_that_compiles_is_the_program():
    assert find_program("```\nx = 0\n```\n```python\nx = (\n```\n```py\nx = 1\n```") == ("x = 1", "")
    assert find_program("x = 1") == ("x = 1", "")
    code, problem = find_program("```python\nx = (\n```")
    assert code is None
    assert problem.startswith("SyntaxError: '(' was never closed (line 1: x = ()")


@given(st.text() | WORDS.map("\n".join))
def test_a_program_found_compiles_and_anything_else_has_a_problem(text):
    code, problem = find_program(text)
    assert (code is None) == bool(problem)
    if code is not None:
        assert code in spoken(text)
        compile(code, "program", "exec", dont_inherit=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_of_a_chat_template_stays(family):
    _, tokens = FAMILIES[family]
    for token in tokens:
        assert neutral(f"a{token}b") == f"a\\u{ord(token[0]):04x}{token[1:]}b"
        line = to_json({"text": f"a{token}b"})
        assert token not in line
        assert json.loads(line) == {"text": f"a{token}b"}


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_stays(text):
    assert neutral(text) == text


def test_a_token_inside_another_is_found():
    assert neutral("<<s>s>") == "<\\u003cs>s>"
    assert neutral("]~b]~b]") == "\\u005d~b\\u005d~b]"
