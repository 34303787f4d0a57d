"""MediaWiki's Action API, as Wikipedia offers it: search, and a page's plain text (extension TextExtracts).

Reference: https://www.mediawiki.org/wiki/API:Query, API:Search, Extension:TextExtracts, Manual:Maxlag_parameter; always
`formatversion=2`. Errors arrive as an object `error` with status 200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midstream.core.http import TransientError
from midstream.tools.web import api

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
    """A page; `text` has its headings as `== heading ==`.

    `ambiguous`: it only lists pages of similar titles. `redirected_from`: the title that redirects to it, or "".
    """

    title: str
    url: str
    text: str
    ambiguous: bool = False
    redirected_from: str = ""


class MediaWiki:
    """One wiki; `url` is its api.php."""

    def __init__(self, url: str, config: api.Config) -> None:
        self._service = api.Service("MediaWiki", url, config)

    async def search(self, words: str, limit: int) -> tuple[list[str], str]:
        """Titles of the best pages, best first, and the wiki's suggestion of a better spelling, or "".

        Raises:
            QueryError: the wiki cannot search for this.
            ToolServerError: no usable answer.
        """
        if len(words.encode()) > MAX_WORDS:
            raise QueryError(f"a search has {MAX_WORDS} bytes at most; this one has {len(words.encode())}")
        wanted = {"list": "search", "srsearch": words, "srlimit": str(limit), "srnamespace": "0"}
        wanted |= {"srinfo": "suggestion", "srprop": ""}

        def check(data: Any, pause_s: float) -> None:
            hits = _check(data, pause_s).get("search")
            if not isinstance(hits, list) or not all(
                isinstance(hit, dict) and isinstance(hit.get("title"), str) for hit in hits
            ):
                raise TransientError("the answer holds no list of titles")

        query = (await self._service.get(_ALWAYS | wanted, check))["query"]
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
        query = (await self._service.get(_ALWAYS | wanted, _check_page))["query"]
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

        def check(data: Any, pause_s: float) -> None:
            page = _first(_check(data, pause_s).get("pages"))
            links = page.get("links", []) if page else None
            if not isinstance(links, list) or not all(isinstance(_first([link]).get("title"), str) for link in links):
                raise TransientError("the answer holds no links")

        query = (await self._service.get(_ALWAYS | wanted, check))["query"]
        return [link["title"] for link in _first(query.get("pages")).get("links", [])]

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._service.close()


def _check(data: Any, pause_s: float) -> dict[str, Any]:
    """The field `query` of an answer; raises for an error or anything else."""
    if not isinstance(data, dict):
        raise TransientError("the answer is not an object")
    error = data.get("error")
    if error:
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
    query = data.get("query")
    if not isinstance(query, dict):
        raise TransientError("the answer holds no query")
    return query


def _check_page(data: Any, pause_s: float) -> None:
    query = _check(data, pause_s)
    pages = query.get("pages")
    if not pages and _first(query.get("interwiki")):
        return
    page = _first(pages)
    if any(page.get(flag) for flag in ("missing", "invalid", "special")):
        return
    if not isinstance(page.get("title"), str) or not isinstance(page.get("extract", ""), str):
        raise TransientError("the answer holds no page")
    if "extract" not in page:
        raise api.final(
            f"MediaWiki gives no text of {page['title']!r}",
            cause="the wiki lacks the extension TextExtracts",
            fix="set the tool's base_url to a wiki that has it, as Wikipedia does",
        )


def _first(value: Any) -> dict[str, Any]:
    """The first item of a list, if it is an object; {} for anything else."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
