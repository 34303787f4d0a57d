"""Wikipedia, or your own index: what its best pages say about a query.

Source: arXiv 2510.05592, the tool Wikipedia search: the wiki's search finds pages, a model chooses among their titles,
and each page is read for what the query wants (`reading.py`).

The wiki is asked through MediaWiki's Action API (extension TextExtracts), always with `formatversion=2`; its errors
arrive as an object `error` with status 200. Reference: https://www.mediawiki.org/wiki/API:Query, API:Search,
Extension:TextExtracts, Manual:Maxlag_parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from midstream.components.component import ToolConfig
from midstream.core.engine import Engine
from midstream.core.errors import ToolServerError, TransientError
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN, text_arguments
from midstream.core.trajectory import Call
from midstream.tools.base_generator import ask
from midstream.tools.local_search import LocalSearch, LocalSearchConfig, match_expression
from midstream_web import api
from midstream_web.reading import Reader, ReadingConfig

_TITLED = (
    "SELECT title, text FROM documents WHERE documents MATCH ? AND title = ? COLLATE NOCASE ORDER BY rowid LIMIT 1"
)
_CANDIDATES = 10  # titles that a search finds
_EXTRA_TOKENS = 1000  # for titles and addresses
MAX_WORDS = 300  # bytes of a search, as Wikipedia's own search takes them
_LAG_S = 5.0
_ALWAYS = {"action": "query", "format": "json", "formatversion": "2", "utf8": "1", "maxlag": f"{_LAG_S:.0f}"}
_TRANSIENT = (
    *("maxlag", "ratelimited", "readonly", "internal_api_error"),
    *("cirrussearch-too-busy", "cirrussearch-backend", "search-error"),
)
_ABOUT_THE_QUERY = ("cirrussearch-", "invalidtitle", "search-")
_CHOICE_PROMPT = """Which of these Wikipedia pages are most likely to answer the query? Reply with their numbers alone,
separated by commas, the best one first, at most {pages}.

Query: {query}

{titles}"""


class QueryError(Exception):
    """The wiki does not accept the query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page; `text` has its headings as `== heading ==`."""

    title: str
    url: str = ""
    text: str = ""


class MediaWiki:
    """The pages of a wiki; `url` is its api.php."""

    def __init__(self, url: str, config: api.WebApiConfig) -> None:
        self._service = api.Service("MediaWiki", url, config)

    async def search(self, words: str, limit: int) -> tuple[list[Page], str]:
        """The best pages, without text, and the wiki's suggestion of a better spelling, or ""; raises as `read`."""
        if len(words.encode()) > MAX_WORDS:
            raise QueryError(f"a search has {MAX_WORDS} bytes at most; this one has {len(words.encode())}")
        wanted = {"list": "search", "srsearch": words, "srlimit": str(limit), "srnamespace": "0"}
        wanted |= {"srinfo": "suggestion", "srprop": ""}

        def check(query: dict[str, Any]) -> None:
            hits = query.get("search")
            if not isinstance(hits, list) or not all(
                isinstance(hit, dict) and isinstance(hit.get("title"), str) for hit in hits
            ):
                raise TransientError("the answer holds no list of titles")

        query = await self._query(wanted, check)
        info = query.get("searchinfo")
        suggestion = info.get("suggestion") if isinstance(info, dict) else None
        pages = [Page(title=api.valid(hit["title"])) for hit in query["search"]][:limit]  # some wikis ignore `srlimit`
        return pages, suggestion if isinstance(suggestion, str) else ""

    async def read(self, page: Page) -> Page | None:
        """The page with its text, redirects followed; None if it does not exist: a search finds deleted ones.

        Raises:
            QueryError: the wiki cannot look for this.
            ToolServerError: no usable answer.
        """
        wanted = {"prop": "extracts|info", "titles": page.title, "redirects": "1", "inprop": "url"}
        wanted |= {"explaintext": "1", "exsectionformat": "wiki", "exlimit": "1"}

        def check(query: dict[str, Any]) -> None:
            found = _first(query.get("pages"))
            if found.get("missing"):
                return
            if not isinstance(found.get("title"), str) or not isinstance(found.get("extract", ""), str):
                raise TransientError("the answer holds no page")
            if "extract" not in found:
                raise api.final(
                    f"MediaWiki gives no text of {found['title']!r}",
                    fix="set the tool's base_url to a wiki with the extension TextExtracts, as Wikipedia is",
                )

        query = await self._query(wanted, check)
        found = _first(query.get("pages"))
        if found.get("missing"):
            return None
        return Page(
            title=api.valid(found["title"]), url=api.valid(found.get("fullurl", "")), text=found["extract"].strip()
        )

    async def _query(self, wanted: dict[str, str], check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The field `query` of the wiki's answer, which `check` accepts; raises as `read`."""

        def check_answer(data: Any, pause_s: float) -> None:
            if not isinstance(data, dict):
                raise TransientError("the answer is not an object")
            if error := data.get("error"):
                fields = error if isinstance(error, dict) else {"info": error}
                code, info = str(fields.get("code", "")), str(fields.get("info", ""))[:300]
                if code.startswith(_TRANSIENT):
                    raise TransientError(f"{code}: {info}", pause_s or (_LAG_S if code == "maxlag" else 0.0))
                if code.startswith(_ABOUT_THE_QUERY):
                    raise QueryError(f"the wiki does not accept this: {info or code}")
                raise api.final(
                    f"MediaWiki answered with the error {code!r}: {info}",
                    fix="check the tool's base_url: it is the address of a wiki's api.php",
                )
            if not isinstance(data.get("query"), dict):
                raise TransientError("the answer holds no query")
            check(data["query"])

        return (await self._service.request("GET", check_answer, params=_ALWAYS | wanted))["query"]

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._service.close()


def _first(value: Any) -> dict[str, Any]:
    """The first item of a list, if it is an object; {} for anything else."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


class Index(LocalSearch):
    """The pages of an index on disk, as `MediaWiki` gives those of a wiki."""

    async def search(self, query: str, limit: int) -> tuple[list[Page], str]:
        """The pages that match best, first the one with that title, whatever its case; no suggestion."""
        words = match_expression(query, "all")
        titled = await self.rows(_TITLED, (f"title : ({words})", query)) if words else []
        rows = dict.fromkeys([*titled, *await self.find(query, limit)])
        return [Page(title=title or "(no title)", text=text) for title, text in rows], ""

    async def read(self, page: Page) -> Page:
        """The page, which has its text already."""
        return page


class Wikipedia:
    """Searches for pages, has its engine (or the search's order) choose, and reads each for what the query wants.

    `provider` names the Wikipedia that answers; the first line of every result repeats it. Raises `RecipeError` if
    `config.index` is not an index, or `config.base_url` not an address.
    """

    name = "wikipedia"
    description = (
        "Looks things up in Wikipedia. Give as `query` what you want to know, with the names that its page would have. "
        "Returns what the best pages say about it, with their titles and addresses, and the titles of other pages "
        "found. For established facts about people, places, things and ideas; not for news, opinions or arithmetic."
    )
    parameters: Mapping[str, Any] = text_arguments(query="what to look up: a question, words to search for, or a title")

    def __init__(self, config: WikipediaConfig | None = None, engine: Engine | None = None) -> None:
        self._config = config = config or WikipediaConfig()
        self._engine, self._reader = engine, Reader(self.name, config, engine)
        self.timeout_s = config.call_timeout_s
        summaries = config.pages * config.max_tokens if engine is not None else 0
        self.output_tokens = config.max_characters // CHARACTERS_PER_TOKEN + summaries + _EXTRA_TOKENS
        if config.index is not None:
            self.provider = f"Wikipedia (index {config.index.name})"
            self._pages = Index(LocalSearchConfig(index=config.index, match="any"))
        else:
            url = config.base_url or f"https://{config.language}.wikipedia.org/w/api.php"
            self.provider = f"Wikipedia ({config.base_url or config.language})"
            self._pages = MediaWiki(url, config)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """What the best pages say about `arguments["query"]`; `ok=False` if no page matches.

        Raises `ToolServerError` if the wiki gave no usable answer, the index could not be read, or the engine or the
        embeddings endpoint failed.
        """
        query = api.valid(arguments.get("query") or "")
        if not query:
            return ToolResult(text="`query` is empty", ok=False)
        calls: tuple[Call, ...] = ()
        parts: list[str] = []
        try:
            candidates, suggestion = await self._pages.search(query, _CANDIDATES)
            places, calls = await self._choose(query, [page.title for page in candidates])
            for page in [candidates[place] for place in places]:
                if (found := await self._pages.read(page)) is None:
                    continue
                limit = self._config.max_characters // len(places)
                reading = await self._reader.read(query, found.title, found.text, limit)
                calls += reading.calls
                source = f"{found.title} ({found.url})" if found.url else found.title
                parts.append(f"{len(parts) + 1}. {source}\n{reading.text or '(no text)'}")
        except QueryError as failure:
            return ToolResult(text=str(failure), ok=False, calls=calls)
        except ToolServerError as failure:
            failure.calls = (*calls, *failure.calls)
            raise
        others = dict.fromkeys(page.title for place, page in enumerate(candidates) if place not in places)
        listed = [f"Other pages found: {'; '.join(others)}"] if others else []
        if not parts:
            hint = f"; did you mean {suggestion!r}?" if suggestion else ""
            return ToolResult(text="\n\n".join([f"no page matches {query!r}{hint}", *listed]), ok=False, calls=calls)
        return ToolResult(text="\n\n".join([self.provider, *parts, *listed]), calls=calls)

    async def _choose(self, query: str, titles: Sequence[str]) -> tuple[list[int], tuple[Call, ...]]:
        """Places of the titles whose pages are read: those that the engine names, else the search's first."""
        first = list(range(len(titles)))[: self._config.pages]
        if self._engine is None or len(titles) < 2:
            return first, ()
        listed = "\n".join(f"{number}. {title}" for number, title in enumerate(titles, 1))
        prompt = _CHOICE_PROMPT.format(query=query, titles=listed, pages=self._config.pages)
        answer = await ask(self._engine, self.name, prompt, self._reader.sampling)
        numbers = [int(digits) - 1 for digits in re.findall(r"\d{1,4}", answer.text)]
        named = [number for number in dict.fromkeys(numbers) if number in range(len(titles))]
        return (named if answer.ok else [])[: self._config.pages] or first, answer.calls

    async def close(self) -> None:
        """Release connections, or the index; the engine's owner closes it."""
        await self._pages.close()
        await self._reader.close()


class WikipediaConfig(api.WebApiConfig, ReadingConfig, ToolConfig):
    """Looks things up in Wikipedia.

    Its other settings are those of `WebApiConfig`, and how pages are read (`ReadingConfig`).

    Attributes:
        language: the edition
        base_url: another wiki's `api.php`; the wiki needs the extension TextExtracts
        index: a file that `midstream index build` (midstream-extra) wrote: its documents are the pages
        pages: the most pages that are read, of ten that are found
        max_characters: the most characters of passages in a result, from all pages together
        call_timeout_s: seconds of one call, with all attempts and the engine's requests
    """

    component = Wikipedia
    asks = "optional"

    language: str = Field(default="en", pattern=r"^[a-z][a-z0-9-]*$")
    base_url: str | None = None
    index: Path | None = None
    pages: int = Field(default=3, ge=1, le=10)
    max_characters: int = Field(default=6000, ge=1)
    call_timeout_s: float = Field(default=api.NEVER_S, gt=0)
