"""Wikipedia, or your own index: a page's lead section and the names of its other sections, or one of them.

The wiki is asked through MediaWiki's Action API (extension TextExtracts), always with `formatversion=2`; its errors
arrive as an object `error` with status 200. Reference: https://www.mediawiki.org/wiki/API:Query, API:Search,
Extension:TextExtracts, Manual:Maxlag_parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from midstream.core.component import ToolConfig
from midstream.core.http import TransientError
from midstream.core.protocols import ToolResult
from midstream.core.tool_calls import text_arguments
from midstream.tools import local_search
from midstream.tools.local_search import LocalSearch
from midstream.tools.web import api

_NEAR = 5  # other titles that are named
_MOST_SECTIONS = 80
_MOST_OPTIONS = 60
_EXTRA_TOKENS = 3000  # for titles and section names
MAX_WORDS = 300  # bytes of a search, as Wikipedia's own search takes them
MAX_TITLE = 255  # bytes
_LAG_S = 5.0
_ALWAYS = {"action": "query", "format": "json", "formatversion": "2", "utf8": "1", "maxlag": f"{_LAG_S:.0f}"}
_TRANSIENT = (
    *("maxlag", "ratelimited", "readonly", "internal_api_error"),
    *("cirrussearch-too-busy", "cirrussearch-backend", "search-error"),
)
_ABOUT_THE_QUERY = ("cirrussearch-", "invalidtitle", "search-")


class QueryError(Exception):
    """The wiki does not accept the query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page; `text` has its headings as `== heading ==`."""

    title: str
    url: str
    text: str
    ambiguous: bool = False  # it only lists pages of similar titles
    redirected_from: str = ""  # the title that redirects to it


class MediaWiki:
    """One wiki; `url` is its api.php."""

    def __init__(self, url: str, config: api.WebApiConfig) -> None:
        self._service = api.Service("MediaWiki", url, config)

    async def search(self, words: str, limit: int) -> tuple[list[str], str]:
        """Titles of the best pages, and the wiki's suggestion of a better spelling, or ""; raises as `page`."""
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
        return [api.valid(hit["title"]) for hit in query["search"]], suggestion if isinstance(suggestion, str) else ""

    async def page(self, title: str) -> Page | None:
        """The page of that title, redirects followed; None if it does not exist.

        Raises:
            QueryError: the wiki cannot look for this.
            ToolServerError: no usable answer.
        """
        if "|" in title or "\x1f" in title or len(title.encode()) > MAX_TITLE:  # both separate titles
            return None
        wanted = {"prop": "extracts|pageprops|info", "titles": title, "redirects": "1", "inprop": "url"}
        wanted |= {"explaintext": "1", "exsectionformat": "wiki", "exlimit": "1", "ppprop": "disambiguation"}

        def check(query: dict[str, Any]) -> None:
            page = _first(query.get("pages"))
            of_another_wiki = not query.get("pages") and bool(_first(query.get("interwiki")))
            if of_another_wiki or any(page.get(flag) for flag in ("missing", "invalid", "special")):
                return
            if not isinstance(page.get("title"), str) or not isinstance(page.get("extract", ""), str):
                raise TransientError("the answer holds no page")
            if "extract" not in page:
                raise api.final(
                    f"MediaWiki gives no text of {page['title']!r}",
                    cause="the wiki lacks the extension TextExtracts",
                    fix="set the tool's base_url to a wiki that has it, as Wikipedia does",
                )

        query = await self._query(wanted, check)
        page = _first(query.get("pages"))  # empty for a page of another wiki
        if "extract" not in page:
            return None
        properties, redirect = page.get("pageprops"), _first(query.get("redirects"))
        return Page(
            title=api.valid(page["title"]),
            url=str(page.get("fullurl", "")),
            text=page["extract"].strip(),
            ambiguous=isinstance(properties, dict) and "disambiguation" in properties,
            redirected_from=str(redirect.get("from", "")),
        )

    async def links(self, title: str) -> list[str]:
        """Titles of the articles that a page links to, in the wiki's order, 500 at most; raises as `page`."""
        wanted = {"prop": "links", "titles": title, "plnamespace": "0", "pllimit": "500"}

        def check(query: dict[str, Any]) -> None:
            page = _first(query.get("pages"))
            links = page.get("links", []) if page else None
            if not isinstance(links, list) or not all(isinstance(_first([link]).get("title"), str) for link in links):
                raise TransientError("the answer holds no links")

        query = await self._query(wanted, check)
        return [link["title"] for link in _first(query.get("pages")).get("links", [])]

    async def _query(self, wanted: dict[str, str], check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The field `query` of the wiki's answer, which `check` accepts; raises as `page`."""

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
                    cause="this wiki does not offer the request",
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading with its level (2 is the highest) and the text below it, up to the next heading."""

    level: int
    name: str
    text: str


class Wikipedia:
    """Returns the page of a title, or the best one for a query.

    `provider` names the Wikipedia that answers; the first line of every page repeats it. Raises `RecipeError` if
    `config.index` is not an index, or `config.base_url` not an address.
    """

    name = "wikipedia"
    description = (
        "Looks things up in Wikipedia. Give as `query` a page's title, or words to search for. Returns the lead "
        "section of the page of that title, or else of the best one found, and the names of its other sections; to "
        "read one of those, ask again with the page's title and `section`. If a title means several things it lists "
        "the pages to choose from. For established facts about people, places, things and ideas; not for news, "
        "opinions or arithmetic."
    )
    parameters: Mapping[str, Any] = {
        **text_arguments(
            query="title of a page, or words to search for",
            section="name of a section of the page; without it, the lead",
        ),
        "required": ["query"],
    }
    timeout_s = api.NEVER_S

    def __init__(self, config: WikipediaConfig | None = None) -> None:
        self._config = config = config or WikipediaConfig()
        self.output_tokens = config.max_characters // 4 + _EXTRA_TOKENS
        self._wiki = self._index = None
        if config.index is not None:
            self.provider = f"Wikipedia (index {config.index.name})"
            self._index = LocalSearch(local_search.LocalSearchConfig(index=config.index, match="any"))
        else:
            url = config.base_url or f"https://{config.language}.wikipedia.org/w/api.php"
            self.provider = f"Wikipedia ({config.base_url or config.language})"
            self._wiki = MediaWiki(url, config)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """A page for `query`; `ok=False` if no page matches, or it lacks the section.

        Raises `ToolServerError` if the wiki gave no usable answer, or the index could not be read.
        """
        query, section = (api.valid(arguments.get(name) or "") for name in ("query", "section"))
        if not query:
            return ToolResult(text="`query` is empty", ok=False)
        if self._index is not None:
            found = await self._index.titled(query) or await self._index.find(query, 1 + _NEAR)
            if not found:
                return ToolResult(text=f"no page matches {query!r}", ok=False)
            (title, text), *others = found
            return self._show(title or "(no title)", text, section, [other for other, _ in others if other])
        assert self._wiki is not None
        try:
            page, others = await self._wiki.page(query), []
            if page is None:
                found, suggestion = await self._wiki.search(query, 1 + _NEAR)
                if not found:
                    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
                    return ToolResult(text=f"no page matches {query!r}{hint}", ok=False)
                title, *others = found
                page = await self._wiki.page(title)
            if page is None:  # the search finds pages that were deleted
                return ToolResult(text=f"no page matches {query!r}" + _listed("other pages found", others), ok=False)
            if page.ambiguous and not section:
                options = _listed("titles to choose from", (await self._wiki.links(page.title))[:_MOST_OPTIONS])
                text = f"{self.provider}: {page.title} may mean several things. Ask again with one title.\n"
                return ToolResult(text=text + self._cut(page.text) + options)
        except QueryError as failure:
            return ToolResult(text=str(failure), ok=False)
        came_from = f", redirected from {page.redirected_from!r}" if page.redirected_from else ""
        return self._show(f"{page.title}{came_from} ({page.url})", page.text, section, others)

    def _show(self, heading: str, text: str, section: str, others: Sequence[str]) -> ToolResult:
        lead, sections = split(text)
        listed = _listed("sections", [known.name for known in sections[:_MOST_SECTIONS]])
        if section:
            wanted = within(sections, section)
            if wanted is None:
                return ToolResult(text=f"{heading} has no section {section!r}{listed}", ok=False)
            return ToolResult(text=f"{self.provider}: {heading}, section {section}\n{self._cut(wanted)}")
        text = f"{self.provider}: {heading}\n{self._cut(lead) or '(no text before the first section)'}"
        return ToolResult(text=text + listed + _listed("other pages found", others))

    def _cut(self, text: str) -> str:
        limit = self._config.max_characters
        return text if len(text) <= limit else f"{text[:limit]} ...\n[cut: {len(text)} characters]"

    async def close(self) -> None:
        """Release connections, or the index."""
        for source in (self._wiki, self._index):
            if source is not None:
                await source.close()


class WikipediaConfig(api.WebApiConfig, ToolConfig):
    """Settings of Wikipedia, next to those of `tools.web.api.WebApiConfig`.

    Attributes:
        language: the edition
        base_url: another wiki's `api.php`; the wiki needs the extension TextExtracts
        index: a file that `midstream index build` wrote: its documents are the pages, without any network
        max_characters: the most characters of a section's text in a result
    """

    component = Wikipedia

    language: str = Field(default="en", pattern=r"^[a-z][a-z0-9-]*$")
    base_url: str | None = None
    index: Path | None = None
    max_characters: int = Field(default=6000, ge=1)


def split(text: str) -> tuple[str, list[Section]]:
    """A page's lead and its sections, which begin with headings such as `== History ==`."""
    blocks: list[tuple[int, str, list[str]]] = [(0, "", [])]
    for line in text.splitlines():
        heading = line.strip()
        level = min(len(heading) - len(heading.lstrip("=")), len(heading) - len(heading.rstrip("=")))
        name = heading[level:-level].strip() if 2 <= level <= 6 else ""
        if name:
            blocks.append((level, name, []))
        else:
            blocks[-1][2].append(line)
    sections = [Section(level=level, name=name, text="\n".join(lines).strip()) for level, name, lines in blocks]
    return sections[0].text, sections[1:]


def within(sections: Sequence[Section], name: str) -> str | None:
    """The text of the first section of that name, with its subsections; None without such a section."""
    wanted = name.casefold().strip("= ")
    start = next((place for place, section in enumerate(sections) if section.name.casefold() == wanted), None)
    if start is None:
        return None
    parts = [sections[start].text]
    for section in sections[start + 1 :]:
        if section.level <= sections[start].level:
            break
        marks = "=" * section.level
        parts.append(f"{marks} {section.name} {marks}\n{section.text}")
    return "\n\n".join(part for part in parts if part) or "(no text)"


def _listed(what: str, names: Sequence[str]) -> str:
    return f"\n\n{what.capitalize()}: {'; '.join(names)}" if names else ""
