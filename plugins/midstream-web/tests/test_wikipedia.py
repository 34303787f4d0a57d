import asyncio
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError, RecipeError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call
from midstream.tools.local_search import Document, build_index
from midstream_web.wikipedia import Wikipedia, WikipediaConfig
from support.api_server import Answer, Fault
from support.embeddings_server import EmbeddingsServer
from support.errors import coded
from support.mediawiki_server import Entry, MediaWikiServer, error

TOUBKAL = """\
Toubkal is the highest peak of the Atlas.

== Geography ==
It lies in Morocco.

=== Climate ===
Cold in winter.

== History ==
First climbed in 1923."""
PAGES = {
    "Toubkal": Entry(text=TOUBKAL),
    "Jbel Toubkal": Entry(redirect="Toubkal"),
    "Atlas Mountains": Entry(text="A range of the Maghreb; Toubkal is its highest peak."),
    "עברית": Entry(text="\u202bעברית היא שפה שמית.\u202c"),
    "Empty": Entry(text=""),
}


def look_up(
    server: MediaWikiServer, arguments: dict[str, Any], *, engine: Engine | None = None, **more: Any
) -> ToolResult:
    quick = {"timeout_s": 5.0, "max_attempts": 2, "first_pause_s": 0.0, "base_url": server.api_url}

    async def go() -> ToolResult:
        tool = Wikipedia(WikipediaConfig(**{**quick, **more}), engine)
        assert isinstance(tool, Tool)
        try:
            return await tool.call(arguments)
        finally:
            await tool.close()

    return asyncio.run(go())


def ask(**arguments: Any) -> ToolResult:
    with MediaWikiServer(PAGES) as server:
        result = look_up(server, arguments)
        return ToolResult(text=result.text.replace(server.api_url, "API"), ok=result.ok)


# --- pages --------------------------------------------------------------------------------------------------------


def test_the_best_pages_are_read_and_named_with_their_addresses():
    assert ask(query="highest peak") == ToolResult(
        text=f"Wikipedia (API)\n\n1. Toubkal (https://wiki.example/wiki/Toubkal)\n{TOUBKAL}\n\n"
        "2. Atlas Mountains (https://wiki.example/wiki/Atlas_Mountains)\n"
        "A range of the Maghreb; Toubkal is its highest peak."
    )


def test_pages_that_are_not_read_are_named():
    with MediaWikiServer(PAGES) as server:
        result = look_up(server, {"query": "highest peak"}, pages=1)
        assert len(server.asked) == 2
    assert result.text.endswith("First climbed in 1923.\n\nOther pages found: Atlas Mountains")
    assert "elsewhere" not in result.text  # what other wikis have


WORDS = "the river was old town railway church mayor founded market lit harvest bridge finished by shut when".split()


def long_page(town: str, fact: str) -> str:
    """An article of 30,000 characters: its second last section holds `fact`, and all sections its other words."""
    draws = random.Random(fact)

    def section(number: int) -> list[str]:
        sentences = [" ".join(draws.choices(WORDS, k=12)).capitalize() + "." for _ in range(20)]
        return [f"== Section {number} of {town} ==\n{town}:", *sentences]

    sections = [section(number) for number in range(20)]
    sections[-2].insert(10, fact)
    return "\n\n".join([f"{town} is a town.", *(" ".join(sentences) for sentences in sections)])


FACTS = [  # town, fact, question
    (f"Town{year}", f"The {what} was {verb} in {year} by {who}.", f"When was the {what} of Town{year} {verb}?")
    for year, ((what, verb), who) in enumerate(
        product(
            [("lighthouse", "lit"), ("observatory", "founded"), ("aqueduct", "finished"), ("mint", "shut")],
            ["Ada Byron", "Karl Weiss", "Inês Prado", "Tove Lund", "Jan Novák"],
        ),
        start=1700,
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("ranking", ["words", pytest.param("embeddings", marks=pytest.mark.slow)])
def test_a_fact_of_a_late_section_is_found_in_twenty_of_twenty_pages(ranking: str):
    """The engine summarizes by quoting the sentence that has the fact, if its prompt holds one."""
    pages = {town: Entry(text=long_page(town, fact)) for town, fact, _ in FACTS}
    others = {f"{town} railway station": Entry(text=f"A station in {town}.") for town in pages}
    found = quoted = 0
    with MediaWikiServer({**others, **pages}) as wiki, EmbeddingsServer(common=WORDS) as vectors:
        more: dict[str, Any] = {"max_characters": 3000}
        if ranking == "embeddings":
            more["embeddings"] = {"base_url": vectors.url, "model": "m"}
        by_name = [fact for town, fact, _ in FACTS[:4] if fact in look_up(wiki, {"query": town}, **more).text]
        assert not by_name  # the town's name alone does not lead to the fact
        for town, fact, question in FACTS:
            wiki.finds = {question: [f"{town} railway station", town]}
            result = look_up(wiki, {"query": question}, **more)
            found += fact in result.text and f"2. {town} (https://wiki.example/wiki/{town})\n" in result.text
            assert len(result.text) < 4000
            summary = look_up(wiki, {"query": question}, engine=Quoter(fact), **more)
            quoted += summary.text == (
                f"Wikipedia ({wiki.api_url})\n\n1. {town} (https://wiki.example/wiki/{town})\n{fact}\n\n"
                f"Other pages found: {town} railway station"
            )
    assert (found, quoted) == (20, 20)
    assert bool(vectors.asked) == (ranking == "embeddings")


class Quoter:
    """Chooses the second page, and summarizes a page by `fact` if the page it is given holds it."""

    name = "quoter"
    token_exact = False

    def __init__(self, fact: str, *, choice: str = "2", failures: int = 0) -> None:
        self.fact, self.choice, self.failures, self.prompts = fact, choice, failures, []

    async def sample(self, request: Request) -> Call:
        prompt = request.messages[0].content
        self.prompts.append(prompt)
        if len(self.prompts) > 1 and self.failures:
            raise EngineError("no connection")
        choosing = prompt.startswith("Which of these")
        reply = self.choice if choosing else self.fact if self.fact in prompt else "The page does not say."
        return Call(role=request.role, completion=reply)

    async def close(self) -> None:
        raise AssertionError("the engine is not the tool's to close")


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("2", ["Atlas Mountains"]),
        ("2, 1", ["Atlas Mountains", "Toubkal"]),
        ("<think>1 or 2?</think> 2.", ["Atlas Mountains"]),
        ("9 and 2 and 2", ["Atlas Mountains"]),
        ("none of them", ["Toubkal", "Atlas Mountains"]),
        ("", ["Toubkal", "Atlas Mountains"]),
    ],
)
def test_the_engine_chooses_the_pages(choice: str, read: list[str]):
    engine = Quoter("the highest peak", choice=choice)
    with MediaWikiServer(PAGES) as server:
        result = look_up(server, {"query": "highest peak"}, engine=engine)
    assert [line[3:].partition(" (")[0] for line in result.text.split("\n") if line[1:3] == ". "] == read
    assert len(result.calls) == 1 + len(read)
    assert "Query: highest peak\n\n1. Toubkal\n2. Atlas Mountains" in engine.prompts[0]
    assert "Query: highest peak\n\nPage: " in engine.prompts[1]


def test_an_engine_that_fails_is_an_error_with_all_requests():
    with (
        MediaWikiServer(PAGES) as server,
        pytest.raises(ToolServerError, check=coded("engine-failed", "wikipedia")) as caught,
    ):
        look_up(server, {"query": "highest peak"}, engine=Quoter("", failures=1))
    assert [call.completion for call in caught.value.calls] == ["2"]


def test_any_script():
    assert "\u202bעברית היא שפה שמית.\u202c" in ask(query="עברית").text
    assert "עברית היא" in ask(query="שפה").text


def test_an_address_stays_on_its_line():
    body = '{"query": {"pages": [{"title": "Toubkal", "extract": "a", "fullurl": "https://a.b/\\n2. x"}]}}'
    with MediaWikiServer(PAGES, faults=[None, Answer(body=body)]) as server:
        assert "1. Toubkal (https://a.b/ 2. x)\na" in look_up(server, {"query": "Toubkal"}, pages=1).text


def test_a_page_without_text():
    assert ask(query="Empty").text.endswith("1. Empty (https://wiki.example/wiki/Empty)\n(no text)")


@pytest.mark.parametrize("query", ["Toubkal height", "<Toubkal>", "x" * 300, "\ud800"])
def test_what_is_not_found(query: str):
    with MediaWikiServer(PAGES) as server:
        result = look_up(server, {"query": query})
    assert result == ToolResult(text=f"no page matches {query.encode('utf-8', 'replace').decode()!r}", ok=False)


def test_a_wiki_that_ignores_the_limit():
    hits = ", ".join(f'{{"title": "Page {number}"}}' for number in range(500))
    with MediaWikiServer(PAGES, faults=[Answer(body=f'{{"query": {{"search": [{hits}]}}}}')]) as server:
        result = look_up(server, {"query": "highest"}, pages=1)
    assert result.text.endswith("Page 8; Page 9")


def test_a_page_that_is_found_and_gone():
    gone = Answer(body='{"query": {"search": [{"title": "Deleted"}, {"title": "Toubkal"}]}}')
    with MediaWikiServer(PAGES, faults=[gone]) as server:
        result = look_up(server, {"query": "highest"}, pages=1)
    assert result == ToolResult(text="no page matches 'highest'\n\nOther pages found: Toubkal", ok=False)
    with MediaWikiServer(PAGES, faults=[gone]) as server:
        assert "1. Toubkal (" in look_up(server, {"query": "highest"}).text


def test_no_match_is_an_answer_with_a_suggestion():
    with MediaWikiServer(PAGES, suggestion="toubkal") as server:
        result = look_up(server, {"query": "tubkall"})
    assert result == ToolResult(text="no page matches 'tubkall'; did you mean 'toubkal'?", ok=False)


@pytest.mark.parametrize("arguments", [{}, {"query": " "}])
def test_an_empty_query_is_an_answer(arguments: dict[str, str]):
    assert ask(**arguments) == ToolResult(text="`query` is empty", ok=False)


def test_a_query_that_is_too_long_is_an_answer():
    assert ask(query="é" * 200) == ToolResult(text="a search has 300 bytes at most; this one has 400", ok=False)


def test_is_polite():
    with MediaWikiServer(PAGES) as server:
        look_up(server, {"query": "Maghreb"}, user_agent="my-agent/1.0 (me@example.org)")
        search, page = server.asked
    assert search.params["maxlag"] == page.params["maxlag"] == "5"
    assert page.headers["user-agent"] == "my-agent/1.0 (me@example.org)"


# --- faults -------------------------------------------------------------------------------------------------------

LAG = error("maxlag", "Waiting for 10.64.48.35: 5.5 seconds lagged", **{"Retry-After": "0.01"})
FAULTS: list[Fault] = [
    *(429, 500, 503, "reset", "truncate", "cut_json", "html", "huge", LAG),
    error("ratelimited", "You've exceeded your rate limit."),
    error("internal_api_error_DBQueryError", "[x] Caught exception of type DBQueryError"),
    *(Answer(body=body) for body in ("", "[]", "null", "{}", '{"batchcomplete": true}', '{"query": []}')),
    *(Answer(body=f'{{"query": {{"pages": {pages}}}}}') for pages in ("[]", "[1]", "{}", "[{}]", '[{"title": 3}]')),
    Answer(body='{"query": {"pages": [{"title": "Toubkal", "pageid": 1, "extract": ["a"]}]}}'),
]


@pytest.mark.matrix(10)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_one_fault_is_outlasted_and_two_are_an_error(fault: Fault):
    with MediaWikiServer(PAGES, faults=[None, fault]) as server:
        assert look_up(server, {"query": "Toubkal"}).ok
    with (
        MediaWikiServer(PAGES, faults=[None, *[fault] * 2]) as server,
        pytest.raises(ToolServerError, check=coded("service-failed", "2 times")) as caught,
    ):
        look_up(server, {"query": "Toubkal"})
    assert caught.value.retryable


@pytest.mark.parametrize("hits", ["null", "{}", "[1]", '[{"title": 1}]', '["Toubkal"]'])
def test_a_search_of_another_shape_is_an_error(hits: str):
    answer = Answer(body=f'{{"query": {{"search": {hits}}}}}')
    with (
        MediaWikiServer(PAGES, faults=[answer, answer]) as server,
        pytest.raises(ToolServerError, match="list of titles"),
    ):
        look_up(server, {"query": "highest"})


def test_a_query_that_the_wiki_refuses_is_an_answer():
    refused = error("cirrussearch-regex-syntax-error", "Regex syntax error in /(/")
    with MediaWikiServer(PAGES, faults=[refused]) as server:
        result = look_up(server, {"query": "insource:/(/"})
    assert result == ToolResult(text="the wiki does not accept this: Regex syntax error in /(/", ok=False)


def test_an_error_of_the_wiki_is_final():
    refused = error("readapidenied", "You need read permission to use this module.")
    with (
        MediaWikiServer(PAGES, faults=[refused]) as server,
        pytest.raises(ToolServerError, check=coded("service-refused", "'readapidenied'")) as caught,
    ):
        look_up(server, {"query": "Toubkal"})
    assert not caught.value.retryable


def test_a_wiki_without_extracts_is_named():
    with MediaWikiServer(PAGES, extracts=False) as server, pytest.raises(ToolServerError) as caught:
        look_up(server, {"query": "Toubkal"})
    assert "TextExtracts" in caught.value.fix
    assert not caught.value.retryable


def test_one_object_serves_many_loops():
    with MediaWikiServer(PAGES) as server:
        tool = Wikipedia(WikipediaConfig(base_url=server.api_url, timeout_s=20))

        async def phase() -> list[ToolResult]:
            return await asyncio.gather(*(tool.call({"query": "highest peak"}) for _ in range(16)))

        for _ in range(2):
            assert all(result.ok for result in asyncio.run(phase()))
        assert server.most_in_flight <= 4
        assert len(server.asked) == 96  # the search, two pages


@pytest.mark.parametrize("language", ["EN", "en.evil.example/", "", "e n", "en@host"])
def test_a_language_is_no_address(language: str):
    with pytest.raises(ValidationError):
        WikipediaConfig(language=language)


def test_the_edition_is_named():
    assert Wikipedia(WikipediaConfig(language="zh-yue")).provider == "Wikipedia (zh-yue)"


# --- an index of one's own ----------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / "wiki.sqlite"
    documents = [Document(id=title, title=title, text=entry.text) for title, entry in PAGES.items() if entry.text]
    build_index(path, documents).close()
    return path


def offline(index: Path, **arguments: str) -> ToolResult:
    async def go() -> ToolResult:
        tool = Wikipedia(WikipediaConfig(index=index))
        assert tool.provider == "Wikipedia (index wiki.sqlite)"
        try:
            return await tool.call(arguments)
        finally:
            await tool.close()

    return asyncio.run(go())


def test_an_index_answers_without_a_network(index: Path):
    page = offline(index, query="toubkal")
    assert page.text.startswith(f"Wikipedia (index wiki.sqlite)\n\n1. Toubkal\n{TOUBKAL}\n\n2. Atlas Mountains\n")
    assert offline(index, query="Morocco").text == f"Wikipedia (index wiki.sqlite)\n\n1. Toubkal\n{TOUBKAL}"


def test_a_title_comes_before_what_ranks_higher(tmp_path: Path):
    documents = [
        Document(id="1", title="Oslo Airport", text="Oslo Oslo Oslo: an airport."),
        Document(id="2", title="Oslo", text="The capital of Norway. " * 50),
    ]
    build_index(tmp_path / "wiki.sqlite", documents).close()
    assert "\n1. Oslo\nThe capital" in offline(tmp_path / "wiki.sqlite", query="Oslo").text


def test_an_index_says_what_it_lacks(index: Path):
    assert offline(index, query="qqq") == ToolResult(text="no page matches 'qqq'", ok=False)
    assert offline(index, query="?!") == ToolResult(text="no page matches '?!'", ok=False)


def test_a_missing_index_is_refused_at_once(tmp_path: Path):
    with pytest.raises(RecipeError, check=coded("file-not-found", "none.sqlite")):
        Wikipedia(WikipediaConfig(index=tmp_path / "none.sqlite"))
