import asyncio
import random
from typing import Any

import pytest
from hypothesis import given

from midstream.core.errors import EngineError
from midstream.lessons.settings import NEAR, EmbeddingConfig
from midstream.lessons.similarity import embedding_similarity, ngram_similarity
from support.api_server import Answer, ApiServer, Asked
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


# --- embeddings ----------------------------------------------------------------------------------------------------

VECTORS = {
    "Look it up.": [1.0, 0.0],
    "Search for it.": [0.9, 0.1],
    "Shout.": [-1.0, 0.0],
    "Do not look it up.": [1, 0],
}


def vectors(asked: Asked) -> Any:
    data = [{"index": place, "embedding": VECTORS[text]} for place, text in enumerate(asked.body["input"])]
    random.Random(0).shuffle(data)
    return {"data": data}


def config(server: ApiServer, **more: Any) -> EmbeddingConfig:
    return EmbeddingConfig(model="small", base_url=f"{server.url}/v1", **more)


def test_vectors_are_asked_for_once_and_come_in_any_order():
    with ApiServer(vectors) as server:
        like = asyncio.run(embedding_similarity(config(server), [*VECTORS, "Look  it up."]))
    (asked,) = server.asked
    assert (asked.path, asked.body) == ("/v1/embeddings", {"model": "small", "input": list(VECTORS)})
    assert like("Look it up.", "Search for it.") == pytest.approx(0.9 / (0.82**0.5))
    assert like("Look it up.", "Shout.") == 0.0
    assert like("Look it up.", "Do not look it up.") == 0.5
    assert like("Look it\nup.", "Look it up.") == 1.0


def test_an_empty_text_is_not_asked_for_and_like_nothing():
    with ApiServer(vectors) as server:
        like = asyncio.run(embedding_similarity(config(server), ["", "Shout.", " \n"]))
    assert [asked.body["input"] for asked in server.asked] == [["Shout."]]
    assert (like("", "Shout."), like("", "")) == (0.0, 0.0)


def test_many_texts_are_several_requests():
    names = [f"lesson {number}" for number in range(130)]
    with ApiServer(lambda asked: {"data": [{"embedding": [1.0]} for _ in asked.body["input"]]}) as server:
        asyncio.run(embedding_similarity(config(server), names))
    assert [len(asked.body["input"]) for asked in server.asked] == [64, 64, 2]


def test_the_key_is_sent_as_a_bearer(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-0123456789")
    with ApiServer(vectors) as server:
        asyncio.run(embedding_similarity(config(server, api_key_env="SOME_KEY"), ["Shout."]))
    assert server.asked[0].headers["authorization"] == "Bearer sk-0123456789"


def test_a_server_that_stumbles_is_asked_again():
    with ApiServer(vectors, faults=[Answer(status=429, headers={"retry-after": "0"})]) as server:
        like = asyncio.run(embedding_similarity(config(server), ["Shout.", "Look it up."]))
        assert len(server.asked) == 2
    assert like("Shout.", "Shout.") == 1.0


def test_a_refusal_says_what_to_do():
    with ApiServer(vectors, faults=[404]) as server, pytest.raises(EngineError) as caught:
        asyncio.run(embedding_similarity(config(server), ["Shout."]))
    assert "404" in caught.value.what
    assert "lessons.limits.embedding" in caught.value.fix


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": [[1.0]]},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": ["x"]}]},
        {"data": [{"embedding": [1.0], "index": [0]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]},
        {"data": [{"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": 0}]},
    ],
    ids=str,
)
def test_an_answer_without_usable_vectors_is_an_error(answer, monkeypatch):
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    with ApiServer(lambda asked: answer) as server, pytest.raises(EngineError) as caught:
        asyncio.run(embedding_similarity(config(server), ["Shout."]))
    assert caught.value.code == "embedding-failed"


async def no_pause(seconds: float) -> None:
    pass
