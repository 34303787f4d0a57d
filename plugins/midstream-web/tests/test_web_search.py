import asyncio
import inspect
import json
import threading
from typing import Any

import pytest
from ddgs.base import BaseSearchEngine
from ddgs.ddgs import DDGS
from ddgs.engines import ENGINES
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException
from ddgs.results import TextResult

from midstream.components.tables import parse_component
from midstream.core.engine import Request
from midstream.core.errors import EngineError, PromptTooLongError, RecipeError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call
from midstream_web import web_search
from midstream_web.web_search import MAX_QUERY, WebSearch, WebSearchConfig
from support.api_server import Answer, Fault
from support.errors import coded
from support.serper_server import ANSWER_BOX, KEY, KNOWLEDGE_GRAPH, NO_CREDIT, TWO_PAGES, SerperServer, page

FIRST_TWO = (
    "results from serper (Google)\n"
    "1. Page 1 | https://page1.example/ | What page 1 says.\n"
    "2. Page 2 | https://page2.example/ | What page 2 says."
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)


class Summarizer:
    """An engine that answers every request with `text`, or fails."""

    name, token_exact = "helper", False

    def __init__(self, text: str = "Toubkal [1].", failure: EngineError | None = None) -> None:
        self.text, self.failure, self.requests = text, failure, list[Request]()

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        if self.failure:
            raise self.failure
        return Call(role=request.role, completion=self.text, sent={"model": "small-7b"})

    async def close(self) -> None:
        raise AssertionError("the engine is not the tool's to close")


def settings(server: SerperServer, **more: Any) -> WebSearchConfig:
    quick = {"timeout_s": 5.0, "max_attempts": 2, "first_pause_s": 0.0}
    return WebSearchConfig(provider="serper", base_url=server.search_url, **{**quick, **more})


def search(server: SerperServer, query: str = "toubkal", engine: Any = None, **more: Any) -> ToolResult:
    async def go() -> ToolResult:
        tool = WebSearch(settings(server, **more), engine)
        assert isinstance(tool, Tool)
        try:
            return await tool.call({"query": query})
        finally:
            await tool.close()

    return asyncio.run(go())


# --- serper -------------------------------------------------------------------------------------------------------


def test_lists_pages():
    with SerperServer() as server:
        assert search(server, region="uk-en", top_k=4) == ToolResult(text=FIRST_TWO)
        assert server.asked[0].body == {"q": "toubkal", "num": 4, "gl": "uk", "hl": "en"}


def test_no_more_than_top_k():
    with SerperServer([page(n) for n in range(1, 30)]) as server:
        assert search(server, top_k=2).text == FIRST_TWO


def test_what_google_answers_itself_comes_first():
    with SerperServer(extra={"answerBox": ANSWER_BOX, "knowledgeGraph": KNOWLEDGE_GRAPH}) as server:
        lines = search(server, top_k=1).text.splitlines()
    assert lines[1:] == [
        "1. answer box: Height | https://toubkal.example/height | 4,167 m",
        "2. knowledge panel: Toubkal (Mountain in Morocco) | https://en.wikipedia.example/wiki/Toubkal | "
        "Toubkal is the highest peak of North Africa.; Elevation: 4,167 m; First ascent: 1923",
        "3. Page 1 | https://page1.example/ | What page 1 says.",
    ]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (page(1, snippet=None), "1. Page 1 | https://page1.example/"),
        ({"link": "https://a.example/"}, "1. https://a.example/"),
        (
            page(1, title="قمة\u202e توبقال", snippet="Ἀθῆναι 🏔"),
            "1. قمة\u202e توبقال | https://page1.example/ | Ἀθῆναι 🏔",
        ),
        (page(1, title="two\nlines", snippet="x" * 900), f"1. two lines | https://page1.example/ | {'x' * 500} ..."),
        (page(1, snippet=["a"], title={"b": 1}), "1. https://page1.example/"),
        (page(1, title=7), "1. 7 | https://page1.example/ | What page 1 says."),
    ],
    ids=str,
)
def test_each_page_is_one_line(found: dict[str, Any], line: str):
    with SerperServer([found, "no object", {"title": "no address"}]) as server:
        assert search(server).text.split("\n", 1)[1] == line


@pytest.mark.parametrize("extra", [{"answerBox": [1]}, {"answerBox": {"title": "a"}}, {"knowledgeGraph": {"type": 3}}])
def test_odd_extras_are_left_out(extra: dict[str, Any]):
    with SerperServer(extra=extra) as server:
        assert search(server).text == FIRST_TWO


def test_nothing_found_is_an_answer():
    with SerperServer([]) as server:
        assert search(server, "qq zz") == ToolResult(text="serper (Google) finds nothing for 'qq zz'", ok=False)


@pytest.mark.parametrize("query", ["", " \n", "x" * (MAX_QUERY + 1)])
def test_an_impossible_query_is_an_answer(query: str):
    with SerperServer() as server:
        result = search(server, query)
        assert not result.ok
        assert f"1 to {MAX_QUERY} characters" in result.text
        assert not server.asked


@pytest.mark.parametrize(
    "fault", [429, 500, "reset", "html", "cut_json", Answer(body="[]"), Answer(body="{}")], ids=str
)
def test_one_fault_is_outlasted_and_two_are_an_error(fault: Fault):
    with SerperServer(faults=[fault]) as server:
        assert search(server).text == FIRST_TWO
    with (
        SerperServer(faults=[fault, fault]) as server,
        pytest.raises(ToolServerError, check=coded("service-failed", "2 times")) as caught,
    ):
        search(server)
    assert caught.value.retryable


@pytest.mark.parametrize("organic", [None, {"a": 1}, "pages", 3])
def test_results_of_another_type_are_no_results(organic: Any):
    with SerperServer(organic) as server, pytest.raises(ToolServerError, match="holds no list of results"):
        search(server)


def test_a_wrong_key_and_an_empty_account_are_final(monkeypatch: pytest.MonkeyPatch):
    with (
        SerperServer(faults=[NO_CREDIT]) as server,
        pytest.raises(ToolServerError, check=coded("service-refused", 400, "Not enough credits")) as caught,
    ):
        search(server)
    assert not caught.value.retryable
    monkeypatch.setenv("SERPER_API_KEY", "another-key-abcdef")
    with (
        SerperServer() as server,
        pytest.raises(ToolServerError, check=coded("service-refused", 403, "Unauthorized")) as caught,
    ):
        search(server)
    assert caught.value.fix.startswith("export SERPER_API_KEY=")
    assert not caught.value.retryable
    assert "another-key" not in str(caught.value)


def test_a_missing_key_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SERPER_API_KEY")
    with pytest.raises(RecipeError, check=coded("missing-key", "$SERPER_API_KEY")):
        WebSearch(WebSearchConfig(provider="serper"))


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SERPER_API_KEY")
    with SerperServer(key="") as server:
        assert search(server, api_key_env="").ok
        assert "x-api-key" not in server.asked[0].headers


def test_many_trajectories_in_several_loops_share_one_tool():
    with SerperServer() as server:
        tool = WebSearch(settings(server, timeout_s=20.0, concurrency=8))

        async def phase() -> list[ToolResult]:
            return await asyncio.gather(*(tool.call({"query": f"q{n}"}) for n in range(64)))

        for _ in range(2):
            assert {result.text for result in asyncio.run(phase())} == {FIRST_TWO}
        assert len(server.asked) == 128


# --- summary ------------------------------------------------------------------------------------------------------


def test_a_model_summarizes_and_everything_says_so():
    engine = Summarizer()
    with SerperServer() as server:
        result = search(server, engine=engine, max_tokens=99)
    assert result.text == (
        "summary by model small-7b of results from serper (Google)\nToubkal [1].\n"
        "Pages:\n1. https://page1.example/\n2. https://page2.example/"
    )
    assert [call.completion for call in result.calls] == ["Toubkal [1]."]
    (request,) = engine.requests
    assert FIRST_TWO.split("\n", 1)[1] in request.messages[0].content
    assert "Query: toubkal" in request.messages[0].content
    assert (request.role, request.sampling.max_tokens, request.sampling.temperature) == ("web_search", 99, 0.0)


@pytest.mark.parametrize("engine", [Summarizer(" "), Summarizer(failure=PromptTooLongError("long"))])
def test_without_a_summary_the_results_stay(engine: Summarizer):
    with SerperServer() as server:
        result = search(server, engine=engine)
    first, rest = result.text.split("\n", 1)
    assert result.ok
    assert first.startswith("results from serper (Google) (not summarized: ")
    assert rest == FIRST_TWO.split("\n", 1)[1]


def test_a_broken_engine_is_an_error():
    with SerperServer() as server, pytest.raises(ToolServerError, check=coded("engine-failed", "web_search", "down")):
        search(server, engine=Summarizer(failure=EngineError("down")))


# --- ddgs ---------------------------------------------------------------------------------------------------------


class StandIn:
    """Stands in for the class DDGS: what `script` says for each query, in order; then a page."""

    script: dict[str, list[Any]]
    asked: list[tuple[str, dict[str, Any]]]
    threads: set[str]

    def __init__(self, timeout: int) -> None:
        assert isinstance(timeout, int)
        self.timeout = timeout

    def text(self, query: str, **options: Any) -> list[dict[str, Any]]:
        self.asked.append((query, {**options, "timeout": self.timeout}))
        self.threads.add(threading.current_thread().name)
        outcomes = self.script.get(query, [])
        outcome = outcomes.pop(0) if outcomes else [{"title": "T", "href": "https://a.example/", "body": "B"}]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def nothing() -> DDGSException:
    return DDGSException("No results found.")


@pytest.fixture
def ddgs(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    """A class of this test's own: a search that another test abandoned may still run."""
    made = type("OwnStandIn", (StandIn,), {"script": {}, "asked": [], "threads": set()})
    monkeypatch.setattr("ddgs.DDGS", made)
    return made


def ask_ddgs(query: str = "toubkal", **more: Any) -> ToolResult:
    async def go() -> ToolResult:
        tool = WebSearch(WebSearchConfig(**{"max_attempts": 2, "first_pause_s": 0.0, **more}))
        try:
            return await tool.call({"query": query})
        finally:
            await tool.close()

    return asyncio.run(go())


def test_ddgs_is_the_default_and_runs_in_a_thread(ddgs: type[StandIn]):
    result = ask_ddgs(top_k=3)
    assert result.text == ("results from ddgs (duckduckgo, brave, startpage, mojeek)\n1. T | https://a.example/ | B")
    options = {"region": "us-en", "max_results": 3, "backend": "duckduckgo,brave,startpage,mojeek", "timeout": 5}
    assert ddgs.asked == [("toubkal", options)]
    assert all(name.startswith("web-search") for name in ddgs.threads)


def test_ddgs_finds_nothing_though_it_works(ddgs: type[StandIn]):
    ddgs.script["qq"] = [nothing()]
    assert ask_ddgs("qq", backends=("mojeek",)) == ToolResult(text="ddgs (mojeek) finds nothing for 'qq'", ok=False)
    assert [query for query, _ in ddgs.asked] == ["qq", web_search.CONTROL_QUERY]


def test_engines_that_refuse_are_no_answer(ddgs: type[StandIn]):
    """ddgs gives no error for a 403 or 429: all its engines then seem to find nothing."""
    ddgs.script = {"qq": [nothing(), nothing()], web_search.CONTROL_QUERY: [nothing(), nothing()]}
    with pytest.raises(ToolServerError, check=coded("service-failed", "2 times", "'weather'")) as caught:
        ask_ddgs("qq")
    assert caught.value.retryable


@pytest.mark.parametrize("error", [RatelimitException("202"), TimeoutException("timed out"), DDGSException("connect")])
def test_ddgs_errors_are_tried_again(ddgs: type[StandIn], error: Exception):
    ddgs.script["toubkal"] = [error]
    assert ask_ddgs().ok
    ddgs.script["toubkal"] = [error, error]
    with pytest.raises(ToolServerError, check=coded("service-failed", "2 times", type(error).__name__)):
        ask_ddgs()


def test_ddgs_serves_several_loops(ddgs: type[StandIn]):
    tool = WebSearch(WebSearchConfig(concurrency=2))

    async def phase() -> list[ToolResult]:
        results = await asyncio.gather(*(tool.call({"query": f"q{n}"}) for n in range(10)))
        await tool.close()
        return results

    for _ in range(2):
        assert all(result.ok for result in asyncio.run(phase()))
    assert len(ddgs.asked) == 20


@pytest.mark.parametrize("backends", [("altavista",), (), ("duckduckgo", "gogle")])
def test_an_unknown_backend_is_refused(backends: tuple[str, ...]):
    """ddgs would ask all of them instead, and say so in a log."""
    with pytest.raises(RecipeError, check=coded("unknown-backend", list(backends), fix="auto, brave, duckduckgo")):
        WebSearch(WebSearchConfig(backends=backends))


def test_ddgs_is_what_it_was():
    """The parts of the real package that are used, and the answer that is distinguished from errors."""
    assert list(inspect.signature(DDGS.text).parameters) == ["self", "query", "kwargs"]
    assert {"region", "max_results", "backend"} <= set(inspect.signature(DDGS._search_sync).parameters)
    assert "timeout" in inspect.signature(DDGS.__init__).parameters
    assert set(WebSearchConfig().backends) <= set(ENGINES["text"])
    assert WebSearch()._source.label == "ddgs (duckduckgo, brave, startpage, mojeek)"


def test_the_real_ddgs_where_engines_refuse(monkeypatch: pytest.MonkeyPatch):
    """`request` gives None for every status but 200."""
    monkeypatch.setattr(BaseSearchEngine, "request", lambda *arguments, **options: None)
    with pytest.raises(ToolServerError, check=coded("service-failed", "mojeek, brave", "'weather'")):
        ask_ddgs(backends=("mojeek", "brave"))


def test_the_real_ddgs_without_a_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DDGS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(ToolServerError, check=coded("service-failed", "2 times", "DDGSException", "ConnectError")):
        ask_ddgs(backends=("mojeek",))


def test_the_real_ddgs_with_results(monkeypatch: pytest.MonkeyPatch):
    def found(engine: Any, query: str, **options: Any) -> list[TextResult]:
        result = TextResult()
        result.title, result.href, result.body = f"{query} <b>1</b>", "https://a.example/%20b", "its &amp; text"
        return [result]

    monkeypatch.setattr(ENGINES["text"]["mojeek"], "search", found)
    assert ask_ddgs(backends=("mojeek",)).text.splitlines()[1:] == ["1. toubkal 1 | https://a.example/+b | its & text"]


# --- settings -----------------------------------------------------------------------------------------------------


def test_a_recipe_names_it_with_or_without_an_engine(make_build: Any):
    build = make_build("tools.web_search.provider=serper")
    assert build.tools[-1]._source.label == "serper (Google)"
    assert KEY not in json.dumps(build.resolved)
    config = parse_component("tool", {"type": "web_search", "engine": "helper"}, "tools.web_search").config
    assert config == WebSearchConfig()


def test_the_key_is_nowhere_to_be_seen():
    with SerperServer(faults=[500, 500]) as server:
        tool = WebSearch(settings(server))
        with pytest.raises(ToolServerError) as caught:
            asyncio.run(tool.call({"query": "a"}))
        seen = [repr(tool), repr(vars(tool)), repr(tool._source), str(caught.value), repr(caught.value.__cause__)]
    assert not [text for text in seen if KEY in text]
    assert tuple(server.organic) == TWO_PAGES
