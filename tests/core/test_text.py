from hypothesis import given
from hypothesis import strategies as st

from midstream.core.text import find_program, spoken

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
