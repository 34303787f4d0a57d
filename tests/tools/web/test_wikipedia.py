import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.protocols import Tool, ToolResult
from midstream.tools.local_search import Document, build_index
from midstream.tools.web.wikipedia import Section, Wikipedia, WikipediaConfig, split, within
from support.api_server import Answer, Fault
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
    "Mercury": Entry(
        text="Mercury may refer to:\n\n== Science ==\nMercury (planet), nearest to the Sun\nMercury (element)",
        ambiguous=True,
        links=("Mercury (planet)", "Mercury (element)"),
    ),
    "עברית": Entry(text="\u202bעברית היא שפה שמית.\u202c"),
    "Empty": Entry(text=""),
}


def look_up(server: MediaWikiServer, arguments: dict[str, Any], **more: Any) -> ToolResult:
    quick = {"timeout_s": 5.0, "max_attempts": 2, "first_pause_s": 0.0, "base_url": server.api_url}

    async def go() -> ToolResult:
        tool = Wikipedia(WikipediaConfig(**{**quick, **more}))
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


def test_a_title_gives_the_lead_and_the_sections():
    assert ask(query="Toubkal") == ToolResult(
        text="Wikipedia (API): Toubkal (https://wiki.example/wiki/Toubkal)\nToubkal is the highest peak of the Atlas."
        "\n\nSections: Geography; Climate; History"
    )


def test_a_query_gives_the_best_page_and_names_others():
    result = ask(query="highest peak")
    assert result.ok
    assert "Toubkal is the highest peak of the Atlas." in result.text
    assert result.text.endswith("\n\nOther pages found: Atlas Mountains")
    assert "elsewhere" not in result.text  # what other wikis have


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("History", "First climbed in 1923."),
        (" geography ", "It lies in Morocco.\n\n=== Climate ===\nCold in winter."),
        ("== Climate ==", "Cold in winter."),
    ],
)
def test_one_section(section: str, text: str):
    assert ask(query="Toubkal", section=section).text.split("\n", 1)[1] == text


def test_no_such_section_names_those_there_are():
    result = ask(query="Toubkal", section="Economy")
    assert not result.ok
    assert result.text.startswith("Toubkal (https://wiki.example/wiki/Toubkal) has no section 'Economy'")
    assert result.text.endswith("Sections: Geography; Climate; History")


def test_a_redirect_is_followed_and_shown():
    assert "Toubkal, redirected from 'Jbel Toubkal' (" in ask(query="Jbel Toubkal").text


def test_a_title_is_normalized():
    assert "Atlas Mountains (https" in ask(query="atlas_Mountains").text


def test_a_title_that_means_several_things_lists_them():
    result = ask(query="Mercury")
    assert result.ok
    assert result.text.startswith("Wikipedia (API): Mercury may mean several things. Ask again with one title.\n")
    assert "Mercury (planet), nearest to the Sun" in result.text
    assert result.text.endswith("\n\nTitles to choose from: Mercury (element); Mercury (planet)")
    assert ask(query="Mercury", section="Science").text.endswith("Mercury (element)")


def test_any_script():
    assert "\u202bעברית היא שפה שמית.\u202c" in ask(query="עברית").text
    assert "עברית היא" in ask(query="שפה").text


def test_a_page_without_text():
    assert ask(query="Empty").text.endswith("(no text before the first section)")


def test_long_text_is_cut():
    with MediaWikiServer({"Long": Entry(text="word " * 1000)}) as server:
        result = look_up(server, {"query": "Long"}, max_characters=50)
    assert result.text.split("\n", 1)[1] == "word " * 10 + " ...\n[cut: 4999 characters]"


@pytest.mark.parametrize(
    "query", ["Toubkal height", "de:Toubkal", "Special:Toubkal", "<Toubkal>", "Toubkal|Mercury", "x" * 300, "\ud800"]
)
def test_what_is_no_title_is_searched_for(query: str):
    with MediaWikiServer(PAGES) as server:
        result = look_up(server, {"query": query})
        assert [one.params["srsearch"] for one in server.asked if "srsearch" in one.params] == [
            query.encode("utf-8", "replace").decode()
        ]
    assert result == ToolResult(text=f"no page matches {server.asked[-1].params['srsearch']!r}", ok=False)


def test_titles_that_no_request_can_hold():
    half = Answer(body='{"query": {"search": [{"title": "\\udc00"}]}}')
    page = Answer(
        body='{"query": {"pages": [{"title": "\\udc00", "extract": "", "pageprops": {"disambiguation": ""}}]}}'
    )
    with MediaWikiServer(PAGES, faults=[None, half]) as server:
        assert not look_up(server, {"query": "highest"}).ok
    with MediaWikiServer(PAGES, faults=[page]) as server:
        assert look_up(server, {"query": "Toubkal"}).ok


def test_a_page_that_is_found_and_gone():
    gone = Answer(body='{"query": {"search": [{"title": "Deleted"}, {"title": "Toubkal"}]}}')
    with MediaWikiServer(PAGES, faults=[None, gone]) as server:
        result = look_up(server, {"query": "highest"})
    assert result == ToolResult(text="no page matches 'highest'\n\nOther pages found: Toubkal", ok=False)


def test_no_match_is_an_answer_with_a_suggestion():
    with MediaWikiServer(PAGES, suggestion="toubkal") as server:
        result = look_up(server, {"query": "tubkall"})
    assert result == ToolResult(text="no page matches 'tubkall'; did you mean 'toubkal'?", ok=False)
    assert ask(query="tubkall") == ToolResult(text="no page matches 'tubkall'", ok=False)


@pytest.mark.parametrize("arguments", [{}, {"query": " "}, {"query": "", "section": "History"}])
def test_an_empty_query_is_an_answer(arguments: dict[str, str]):
    assert ask(**arguments) == ToolResult(text="`query` is empty", ok=False)


def test_a_query_that_is_too_long_is_an_answer():
    assert ask(query="é" * 200) == ToolResult(text="a search has 300 bytes at most; this one has 400", ok=False)


def test_is_polite():
    with MediaWikiServer(PAGES) as server:
        look_up(server, {"query": "Toubkal"}, user_agent="my-agent/1.0 (me@example.org)")
        (asked,) = server.asked  # of a title that there is, once
    assert asked.params["maxlag"] == "5"
    assert asked.headers["user-agent"] == "my-agent/1.0 (me@example.org)"


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


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_one_fault_is_outlasted_and_two_are_an_error(fault: Fault):
    with MediaWikiServer(PAGES, faults=[fault]) as server:
        assert look_up(server, {"query": "Toubkal"}).ok
    with (
        MediaWikiServer(PAGES, faults=[fault] * 2) as server,
        pytest.raises(ToolServerError, check=coded("service-failed", "2 times")) as caught,
    ):
        look_up(server, {"query": "Toubkal"})
    assert caught.value.retryable


@pytest.mark.parametrize("hits", ["null", "{}", "[1]", '[{"title": 1}]', '["Toubkal"]'])
def test_a_search_of_another_shape_is_an_error(hits: str):
    answer = Answer(body=f'{{"query": {{"search": {hits}}}}}')
    with (
        MediaWikiServer(PAGES, faults=[None, answer, answer]) as server,
        pytest.raises(ToolServerError, match="list of titles"),
    ):
        look_up(server, {"query": "highest"})


@pytest.mark.parametrize("pages", ["[1]", '[{"links": 3}]', '[{"links": [{"title": null}]}]'])
def test_links_of_another_shape_are_an_error(pages: str):
    answer = Answer(body=f'{{"query": {{"pages": {pages}}}}}')
    with (
        MediaWikiServer(PAGES, faults=[None, answer, answer]) as server,
        pytest.raises(ToolServerError, match="no links"),
    ):
        look_up(server, {"query": "Mercury"})


def test_a_query_that_the_wiki_refuses_is_an_answer():
    refused = error("cirrussearch-regex-syntax-error", "Regex syntax error in /(/")
    with MediaWikiServer(PAGES, faults=[None, refused]) as server:
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
    assert "TextExtracts" in caught.value.cause
    assert not caught.value.retryable


def test_one_object_serves_many_loops():
    with MediaWikiServer(PAGES) as server:
        tool = Wikipedia(WikipediaConfig(base_url=server.api_url, timeout_s=20))

        async def phase() -> list[ToolResult]:
            return await asyncio.gather(*(tool.call({"query": "highest peak"}) for _ in range(16)))

        for _ in range(2):
            assert all(result.ok for result in asyncio.run(phase()))
        assert server.most_in_flight <= 4
        assert len(server.asked) == 96  # no such title, the search, the page


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
    assert page == ToolResult(
        text="Wikipedia (index wiki.sqlite): Toubkal\nToubkal is the highest peak of the Atlas."
        "\n\nSections: Geography; Climate; History"
    )
    assert offline(index, query="Morocco") == page
    assert offline(index, query="Toubkal", section="history").text.endswith("\nFirst climbed in 1923.")
    assert offline(index, query="Maghreb peak").text.endswith("Other pages found: Toubkal")


def test_a_title_comes_before_what_ranks_higher(tmp_path: Path):
    documents = [
        Document(id="1", title="Oslo Airport", text="Oslo Oslo Oslo: an airport."),
        Document(id="2", title="Oslo", text="The capital of Norway. " * 50),
    ]
    build_index(tmp_path / "wiki.sqlite", documents).close()
    assert "index wiki.sqlite): Oslo\nThe capital" in offline(tmp_path / "wiki.sqlite", query="Oslo").text


def test_an_index_says_what_it_lacks(index: Path):
    assert offline(index, query="qqq") == ToolResult(text="no page matches 'qqq'", ok=False)
    assert offline(index, query="?!") == ToolResult(text="no page matches '?!'", ok=False)
    assert not offline(index, query="Toubkal", section="Economy").ok


def test_a_missing_index_is_refused_at_once(tmp_path: Path):
    with pytest.raises(RecipeError, check=coded("file-not-found", "none.sqlite")):
        Wikipedia(WikipediaConfig(index=tmp_path / "none.sqlite"))


# --- sections -----------------------------------------------------------------------------------------------------

LINES = st.text(alphabet="abc =é\t", max_size=12).filter(lambda line: not line.strip().startswith("="))
NAMES = st.text(alphabet="abcé =", min_size=1, max_size=8).map(lambda name: name.strip(" =")).filter(bool)
SECTIONS = st.lists(
    st.builds(
        lambda level, name, lines: Section(level=level, name=name, text="\n".join(lines).strip()),
        st.integers(2, 6),
        NAMES,
        st.lists(LINES, max_size=3),
    ),
    max_size=6,
)


@given(SECTIONS, st.lists(LINES, max_size=3))
def test_a_page_is_split_as_it_was_put_together(sections: list[Section], lead: list[str]):
    parts = ["\n".join(lead), *(f"{'=' * one.level} {one.name} {'=' * one.level}\n{one.text}" for one in sections)]
    assert split("\n".join(parts)) == ("\n".join(lead).strip(), sections)


@given(SECTIONS)
def test_a_section_holds_its_subsections_and_no_more(sections: list[Section]):
    for place, one in enumerate(sections):
        if [other.name.casefold() for other in sections].index(one.name.casefold()) < place:
            continue  # a later one of the same name
        later = sections[place + 1 :]
        end = next((i for i, other in enumerate(later) if other.level <= one.level), len(later))
        found = within(sections, one.name)
        assert found is not None
        assert found.count("\n") >= sum(bool(other) for other in later[:end])
        assert all(f"{other.name} {'=' * other.level}" in found for other in later[:end])
    assert within(sections, "no such name") is None


@given(st.text(alphabet="= \ta\n"))
def test_any_text_can_be_split(text: str):
    lead, sections = split(text)
    assert all(2 <= one.level <= 6 and one.name for one in sections)
    assert sum(len(one.text) for one in sections) + len(lead) <= len(text)


def test_splitting_takes_linear_time():
    split("==" + " " * 200_000 + "x\n" + "=" * 200_000)
