import asyncio

from hypothesis import given
from hypothesis import strategies as st

from midstream.core.protocols import Tool
from midstream.worlds.gazetteer.guess import ConfidentGuess, Config


def guess(question: str, largest: int = 999) -> str:
    result = asyncio.run(ConfidentGuess(Config(largest=largest)).call({"question": question}))
    assert result.ok
    return result.text


def test_is_the_same_on_every_machine():
    assert guess("How high is Amberbank plus 7 ?") == "Without a doubt it is 921"


def test_depends_on_the_question_alone():
    questions = [f"question {i}" for i in range(200)]
    assert [guess(question) for question in questions] == [guess(question) for question in questions]
    assert len({guess(question).split()[-1] for question in questions}) > 150


@given(st.text(), st.integers(0, 10**6))
def test_ends_in_a_number_in_range(question: str, largest: int):
    assert 0 <= int(guess(question, largest).split()[-1]) <= largest


def test_is_a_tool():
    assert isinstance(ConfidentGuess(), Tool)
