"""Passages ranked by an embeddings endpoint: its answers of every shape, and what the engine is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from midstream.core import http
from midstream.core.engine import Request
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.trajectory import Call
from midstream_web import reading
from midstream_web.reading import Embeddings, EmbeddingsConfig, Reader, ReadingConfig
from support.api_server import Answer, Fault
from support.embeddings_server import EmbeddingsServer
from support.errors import coded, raises

PARAGRAPHS = [
    f"Paragraph {number} describes harbors, herons and hay, and it continues for a while." for number in range(90)
]
PARAGRAPHS[40] = "The lighthouse of Amberbank is 105 metres high, and was lit in 1871 by Ada Byron."
TEXT = "\n".join(PARAGRAPHS)
QUESTION = "How high is the lighthouse?"


class Echo:
    """An engine that answers with the page it was given."""

    name, token_exact = "echo", False

    async def sample(self, request: Request) -> Call:
        return Call(role=request.role, completion=request.messages[0].content.partition("Page: ")[2])

    async def close(self) -> None: ...


def read(
    server: EmbeddingsServer, *, limit: int = 300, text: str = TEXT, engine: Any = None, batch: int = 16, **more: Any
) -> str:
    quick = {"timeout_s": 5.0, "max_attempts": 2, "base_url": f"{server.url}/", "model": "m"}
    embeddings = EmbeddingsConfig(**{**quick, **more}, batch=batch)

    async def go() -> str:
        reader = Reader("tool", ReadingConfig(passage_characters=200, passages=3, embeddings=embeddings), engine)
        try:
            return (await reader.read(QUESTION, "title", text, limit)).text
        finally:
            await reader.close()

    return asyncio.run(go())


def test_the_nearest_passages_are_kept_in_batches_of_requests():
    with EmbeddingsServer() as server:
        text = read(server)
    assert "105 metres" in text
    assert len(text) < 320
    sent = [asked.body["input"] for asked in server.asked]
    assert sent[0][0] == QUESTION
    assert {len(texts) for texts in sent[:-1]} == {16}
    assert {asked.body["model"] for asked in server.asked} == {"m"}


def test_a_text_that_fits_is_not_ranked():
    with EmbeddingsServer() as server:
        assert read(server, text="Short.") == "Short."
        assert not server.asked


def test_the_engine_is_given_as_many_passages_as_it_may_have():
    with EmbeddingsServer() as server:
        given = read(server, engine=Echo())
    assert "105 metres" in given
    assert 400 < len(given) < 800


def test_a_key_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VECTORS_KEY", "k-123")
    with EmbeddingsServer() as server:
        read(server, api_key_env="VECTORS_KEY")
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer k-123"}


def rows(*vectors: Any) -> Answer:
    data = ",".join(f'{{"embedding": {vector}}}' for vector in vectors)
    return Answer(body=f'{{"data": [{data}]}}')


def ranking(*vectors: Any, texts: Sequence[str] = ("a", "b", "c")) -> list[int]:
    with EmbeddingsServer(faults=[rows(*vectors)]) as server:
        embeddings = EmbeddingsConfig(base_url=server.url, model="m", max_attempts=1)
        return asyncio.run(Embeddings(embeddings).ranking(texts, "query"))


@pytest.mark.parametrize("size", ["1", "1e29", "5e-324"])
def test_vectors_are_compared_whatever_their_size(size: str):
    away, near, same = f"[-{size}, {size}]", f"[0, {size}]", f"[{size}, {size}]"
    assert ranking(same, away, near, same) == [2, 1, 0]
    assert ranking(same, "[0, 0]", away, same) == [2, 0, 1]
    with pytest.raises(ToolServerError, check=coded("endpoint-failed")):
        ranking(same, away, near, f"[1e999, {size}]")


def test_a_text_is_embedded_once(monkeypatch: pytest.MonkeyPatch):
    def sent(*searches: tuple[str, str], at_once: bool = False) -> list[list[str]]:
        with EmbeddingsServer() as server:

            async def go() -> None:
                embeddings = Embeddings(EmbeddingsConfig(base_url=server.url, model="m"))
                limit = asyncio.Semaphore(len(searches) if at_once else 1)

                async def rank(query: str, texts: str) -> None:
                    async with limit:
                        assert sorted(await embeddings.ranking(texts, query)) == list(range(len(texts)))

                await asyncio.gather(*(rank(*search) for search in searches))

            asyncio.run(go())
            return [asked.body["input"] for asked in server.asked]

    assert sent(("q", "abb"), ("q", "ab"), ("r", "bca")) == [["q", "a", "b"], ["r", "c"]]
    assert sent(("q", "ab"), ("q", "ab"), ("r", "ab"), at_once=True) == [["q", "a", "b"], ["r"]]
    monkeypatch.setattr(reading, "_KEPT_VECTORS", 3)
    assert sent(("q", "ab"), ("q", "c"), ("q", "b"), ("q", "a")) == [["q", "a", "b"], ["c"], ["a"]]


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    "fault",
    [
        *(500, 429, "reset", "html", "cut_json"),
        *(Answer(body=body) for body in ("[]", "{}", '{"data": 3}', '{"data": [3, 4]}')),
        *(rows("[1]"), rows("[1]", "[]"), rows("[1]", "[1, 2]"), rows('["a"]', "[1]"), rows("[NaN]", "[1]")),
    ],
    ids=str,
)
def test_one_fault_is_outlasted_and_two_are_an_error(fault: Fault, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LONGEST_PAUSE_S", 0.0)

    def all_in_one(faults: Sequence[Fault]) -> str:
        with EmbeddingsServer(faults=faults) as server:
            return read(server, batch=1000)

    assert "105 metres" in all_in_one([fault])
    with pytest.raises(ToolServerError, check=coded("endpoint-failed", "2 times")):
        all_in_one([fault, fault])


def test_endpoints_that_another_attempt_does_not_change_are_refused_at_once():
    several = [rows(*["[1, 2]"] * 16), rows(*["[1, 2, 3]"] * 16)]
    with EmbeddingsServer(faults=[Answer(status=401)]) as server, raises("missing-key", "401", "api_key_env"):
        read(server)
    with EmbeddingsServer(faults=several) as server, raises("service-refused", "[2, 3", "embeddings.model"):
        read(server)


def test_what_is_no_address_is_refused_at_once():
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "embeddings.base_url")):
        Reader("tool", ReadingConfig(embeddings=EmbeddingsConfig(base_url="nowhere", model="m")), None)
