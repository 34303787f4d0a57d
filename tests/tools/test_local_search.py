import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.tools.local_search import Document, LocalSearch, LocalSearchConfig, build_index, passages

TEXTS = ["Amberbank height 105", "Amberbank age 40", "Coldmere height 77", "Coldmere height 78"]
DOCUMENTS = [Document(id=str(place), text=text) for place, text in enumerate(TEXTS)]
ODD = [*DOCUMENTS, Document(id="odd", text='say "hello" AND (NOT NEAR) * café x_y', title="Odd one")]


def search(query: str, config: LocalSearchConfig | None = None, documents: list[Document] = ODD) -> ToolResult:
    async def go() -> ToolResult:
        tool = LocalSearch.from_documents(documents, config)
        try:
            return await tool.call({"query": query})
        finally:
            await tool.close()

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Amberbank height", "Amberbank height 105"),
        ("HEIGHT, amberbank!", "Amberbank height 105"),
        ("40", "Amberbank age 40"),
        ("Coldmere height", "Coldmere height 77"),
        ('"hello" and (not', 'Odd one: say "hello" AND (NOT NEAR) * café x_y'),
        ("odd cafe\u0301", 'Odd one: say "hello" AND (NOT NEAR) * café x_y'),
        ("x_y near*", 'Odd one: say "hello" AND (NOT NEAR) * café x_y'),
    ],
)
def test_finds_the_document(query: str, text: str):
    assert search(query) == ToolResult(text=text)


@pytest.mark.parametrize("query", ["Amberbank weight", "", "?!", "Amber", "title:odd", "am*"])
def test_no_match_is_an_answer(query: str):
    assert search(query) == ToolResult(text=f"no document matches {query!r}", ok=False)


def test_any_word_may_match():
    assert search("Amberbank weight", LocalSearchConfig(match="any")).text.startswith("Amberbank")
    assert search("age height", LocalSearchConfig(match="any")).text == "Amberbank age 40"  # the rarer word


def test_several_results_are_numbered_and_ties_keep_their_order():
    assert search("coldmere", LocalSearchConfig(top_k=2)).text == "1. Coldmere height 77\n2. Coldmere height 78"
    reversed_documents = DOCUMENTS[::-1]
    found = search("coldmere", LocalSearchConfig(top_k=9), reversed_documents)
    assert found.text == "1. Coldmere height 78\n2. Coldmere height 77"


def test_long_documents_are_cut():
    long = [Document(id="1", title="Long", text="word " * 100)]
    assert search("word", LocalSearchConfig(max_characters=9), long).text == "Long: word word ..."


@given(st.text(), st.sampled_from(["all", "any"]))
def test_no_text_is_an_error(shared_search: dict[str, LocalSearch], query: str, match: str):
    result = asyncio.run(shared_search[match].call({"query": query}))
    assert result.ok or result.text.startswith("no document matches")


@given(
    st.lists(
        st.sampled_from(['"', "'", "AND", "OR", "NOT", "NEAR", "(", ")", "*", "^", "-", ":", "+", "\0", "{", "hello"])
    )
)
def test_no_query_syntax_is_an_error(shared_search: dict[str, LocalSearch], parts: list[str]):
    for joint in ("", " "):
        query = joint.join(parts)
        result = asyncio.run(shared_search["any"].call({"query": query}))
        assert result.ok or result.text.startswith("no document matches")


@given(st.sampled_from(ODD))
def test_every_document_is_found_by_its_own_text(shared_search: dict[str, LocalSearch], document: Document):
    assert document.text in asyncio.run(shared_search["all"].call({"query": document.text})).text


def test_a_very_long_query(shared_search: dict[str, LocalSearch]):
    query = " ".join(f"w{i}" for i in range(5000)) + "x" * 10**5
    for tool in shared_search.values():
        assert not asyncio.run(tool.call({"query": query})).ok


@pytest.fixture(scope="module")
def shared_search():
    tools = {match: LocalSearch.from_documents(ODD, LocalSearchConfig(match=match)) for match in ("all", "any")}
    yield tools
    for tool in tools.values():
        asyncio.run(tool.close())


def test_an_index_on_disk(tmp_path: Path):
    path = tmp_path / "a folder" / "documents #1?.sqlite"
    path.parent.mkdir()
    for documents in (DOCUMENTS[:1], DOCUMENTS):  # the second replaces the first
        build_index(path, documents).close()
    tool = LocalSearch(LocalSearchConfig(index=path))
    assert isinstance(tool, Tool)
    assert asyncio.run(tool.call({"query": "coldmere height"})).text == "Coldmere height 77"
    asyncio.run(tool.close())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_build_that_fails_leaves_the_old_index(tmp_path: Path):
    path = tmp_path / "index"
    build_index(path, DOCUMENTS).close()
    before = path.read_bytes()

    def broken():
        yield DOCUMENTS[0]
        raise RuntimeError("source ended")

    with pytest.raises(RuntimeError):
        build_index(path, broken())
    assert path.read_bytes() == before


def test_the_last_of_two_builds_at_once_stays(tmp_path: Path):
    def documents():
        yield DOCUMENTS[0]
        build_index(tmp_path / "index", DOCUMENTS[2:]).close()
        yield DOCUMENTS[1]

    build_index(tmp_path / "index", documents()).close()
    tool = LocalSearch(LocalSearchConfig(index=tmp_path / "index"))
    assert asyncio.run(tool.call({"query": "age"})).text == DOCUMENTS[1].text
    assert not asyncio.run(tool.call({"query": "Coldmere"})).ok
    asyncio.run(tool.close())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_or_wrong_index_is_refused(tmp_path: Path):
    for path in (tmp_path / "none", None):
        with pytest.raises(RecipeError) as refused:
            LocalSearch(LocalSearchConfig(index=path))
        assert refused.value.code == "file-not-found"
        assert str(path) in refused.value.what
    for content in (b"", b"not a database at all, but long enough to look at" * 100):
        (tmp_path / "wrong").write_bytes(content)
        with pytest.raises(RecipeError) as refused:
            LocalSearch(LocalSearchConfig(index=tmp_path / "wrong"))
        assert refused.value.code == "file-invalid"
        assert "midstream index build" in refused.value.fix


def test_an_index_that_sqlite_cannot_open_is_refused(tmp_path: Path):
    """SQLite takes no path of more than 512 characters; one that may not be read it refuses in the same way."""
    deep = tmp_path.joinpath(*["d" * 200] * 3)
    deep.mkdir(parents=True)
    (deep / "index").write_bytes(b"")
    with pytest.raises(RecipeError) as refused:
        LocalSearch(LocalSearchConfig(index=deep / "index"))
    assert refused.value.code == "file-unreadable"


def test_a_damaged_index_is_an_error(tmp_path: Path):
    path = tmp_path / "index"
    build_index(path, [Document(id=str(i), text=f"word{i} " * 50) for i in range(500)]).close()
    tool = LocalSearch(LocalSearchConfig(index=path))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(ToolServerError) as failed:
        asyncio.run(tool.call({"query": "word7"}))
    assert failed.value.code == "storage"
    asyncio.run(tool.close())


def test_an_index_on_disk_does_not_hold_up_the_event_loop(tmp_path: Path):
    """Searches in a file leave the loop free, serve several loops, and end with the tool."""
    path = tmp_path / "index"
    build_index(path, (Document(id=str(i), text=f"word{i} hay") for i in range(3000))).close()
    tool = LocalSearch(LocalSearchConfig(index=path, match="any"))
    ran: list[str] = []

    async def search_while_others_work() -> list[ToolResult]:
        async def other() -> None:
            ran.append("other")

        async def one(number: int) -> ToolResult:
            result = await tool.call({"query": f"hay word{number}"})
            ran.append("found")
            return result

        *results, _ = await asyncio.gather(*(one(number) for number in range(20)), other())
        return [result for result in results if result is not None]

    for _ in range(2):
        results = asyncio.run(search_while_others_work())
        assert [result.text for result in results] == [f"word{number} hay" for number in range(20)]
    assert ran[0] == ran[21] == "other"

    async def close_meanwhile() -> None:
        searches = [asyncio.create_task(tool.call({"query": "hay"})) for _ in range(50)]
        await asyncio.sleep(0)
        await tool.close()
        ended = await asyncio.gather(*searches, return_exceptions=True)
        assert all(isinstance(result, ToolResult | ToolServerError | asyncio.CancelledError) for result in ended)

    asyncio.run(close_meanwhile())
    with pytest.raises(ToolServerError):
        asyncio.run(tool.call({"query": "hay"}))


def test_an_index_that_fails_leaves_no_part_of_it(tmp_path: Path):
    with pytest.raises(RuntimeError):
        build_index(tmp_path / "index", (_fail(number) for number in range(9)))
    assert list(tmp_path.iterdir()) == []


def _fail(number: int) -> Document:
    if number == 8:
        raise RuntimeError("source ended")
    return Document(id=str(number), text="hay")


# --- passages ---------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="ab .\n灯", max_size=500), st.integers(10, 80), st.integers(0, 4))
def test_passages_cover_the_text_in_order(text: str, size: int, overlap: int):
    spans = list(passages(text, size, overlap))
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert all(end - start <= size for start, end in spans)
    for (start, end), (after, later) in pairwise(spans):
        assert start < after <= end < later
        assert end - after <= overlap


def test_a_passage_ends_where_a_line_does():
    text = "\n".join(f"Paragraph {number} describes harbors, herons and hay." for number in range(100))
    assert all(text[end - 1] == "\n" for _, end in [*passages(text, 200, 30)][:-1])
    words = "one two three four five six " * 30
    assert all(words[end - 1] == " " and words[start - 1] == " " for start, end in list(passages(words, 100, 20))[1:-1])
