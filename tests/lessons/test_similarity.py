import pytest
from hypothesis import given

from midstream.lessons.settings import NEAR
from midstream.lessons.similarity import ngram_similarity
from support.lesson_sets import texts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Check the units before answering.", "check units before you answer"),
        ("Do not guess", "Don't guess."),
        ("Never guess.", "Do not guess"),
        ("Round the heights to 2 decimals.", "Please round heights to 2 decimals"),
        (
            "Verify each result with a second search, then answer",
            "Verify each result with a second search. Then answer!",
        ),
        (
            "Verify every intermediate result with a second search before giving the final answer",
            "Verify every intermediate result with a second search before you give a final answer to the user",
        ),
        ("先查资料，再计算", "先查资料，再计算。"),
    ],
)
def test_near_duplicates(one: str, other: str):
    assert ngram_similarity(one, other) >= NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("When the order says red, set the press to high.", "When the order says red, set the press to low."),
        ("When the order says red, set the dial to A", "When the order says red, set the dial to B"),
        ("Never guess a number that a tool could look up.", "Guess a number that a tool could look up."),
        ("Always round the final result to 2 decimals", "Always round the final result to 3 decimals"),
        ("Turn the press on before you heat the oven", "Turn the press off before you heat the oven"),
        ("Answer with the name and the year of the page", "Answer with the name or the year of the page"),
        ("Search before you calculate", "Calculate before you search"),
        ("先查资料，再计算", "先计算，再查资料"),
        ("Check units.", "Search twice."),
        ("", "?"),
    ],
)
def test_what_claims_something_else_is_never_alike(one: str, other: str):
    assert ngram_similarity(one, other) < NEAR


@given(texts, texts)
def test_symmetric_and_between_0_and_1(one: str, other: str):
    value = ngram_similarity(one, other)
    assert 0.0 <= value <= 1.0
    assert value == pytest.approx(ngram_similarity(other, one))
    assert ngram_similarity(one, one) == 1.0
