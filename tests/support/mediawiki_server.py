"""A small MediaWiki on 127.0.0.1: api.php with list=search, prop=extracts|info.

The shapes are those that mediawiki.org documents for `formatversion=2` (API:Query, API:Search,
Extension:TextExtracts, Manual:Maxlag_parameter): titles are normalized, redirects and
interwiki titles are listed next to the pages, errors come with status 200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.api_server import Answer, ApiServer, Asked, Fault

INVALID = set("<>[]{}")
INTERWIKI = {"de", "commons", "wikt"}


def error(code: str, info: str, **headers: str) -> Answer:
    """An API error: status 200, and the code in a header as well."""
    body = {"error": {"code": code, "info": info, "docref": "See api.php for API usage."}, "servedby": "mw1"}
    return Answer(body=json.dumps(body), headers={"MediaWiki-API-Error": code, **headers})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A page: its plain text with headings, or where it redirects to."""

    text: str = ""
    redirect: str = ""


class MediaWikiServer(ApiServer):
    """`pages` by title; a search finds those whose title or text holds all its words, titles first.

    `finds` has other answers to single searches.
    """

    def __init__(
        self,
        pages: Mapping[str, Entry],
        *,
        suggestion: str = "",
        extracts: bool = True,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(self._query, faults=faults)
        self.pages, self.suggestion, self.extracts = dict(pages), suggestion, extracts
        self.finds: dict[str, list[str]] = {}

    @property
    def api_url(self) -> str:
        return f"{self.url}/w/api.php"

    def _query(self, asked: Asked) -> Any:
        params = asked.params
        if asked.path != "/w/api.php" or params.get("format") != "json" or params.get("formatversion") != "2":
            return Answer(status=404, body="<html>not here</html>")
        if params.get("list") == "search":
            return {"batchcomplete": True, "query": self._search(params)}
        return {"batchcomplete": True, "query": self._page(params)} | self._warnings(params)

    def _search(self, params: Mapping[str, str]) -> dict[str, Any]:
        words = params["srsearch"].casefold().split()
        articles = [title for title, entry in self.pages.items() if not entry.redirect]
        by_title = [title for title in articles if all(word in title.casefold() for word in words)]
        by_text = [
            title for title in articles if all(word in (title + self.pages[title].text).casefold() for word in words)
        ]
        titles = self.finds.get(params["srsearch"], list(dict.fromkeys(by_title + by_text)))[
            : int(params.get("srlimit", "10"))
        ]
        info = {"suggestion": self.suggestion} if self.suggestion and not titles else {}
        return {
            "searchinfo": info,
            "search": [{"ns": 0, "title": title, "pageid": self._id(title)} for title in titles],
            "interwikisearch": {"wikt": [{"ns": 0, "title": "wikt:elsewhere"}]},
        }

    def _page(self, params: Mapping[str, str]) -> dict[str, Any]:
        asked = params["titles"]
        prefix = asked.partition(":")[0]
        if prefix in INTERWIKI:
            return {"interwiki": [{"title": asked, "iw": prefix}]}
        if INVALID & set(asked):
            reason = "The requested page title contains invalid characters."
            return {"pages": [{"title": asked, "invalidreason": reason, "invalid": True}]}
        if prefix == "Special":
            return {"pages": [{"ns": -1, "title": asked, "special": True}]}
        title = asked.replace("_", " ").partition("#")[0]
        title = title[:1].upper() + title[1:]
        query: dict[str, Any] = {}
        if title != asked:
            query["normalized"] = [{"fromencoded": False, "from": asked, "to": title}]
        if title in self.pages and self.pages[title].redirect and "redirects" in params:
            target = self.pages[title].redirect
            query["redirects"] = [{"from": title, "to": target}]
            title = target
        if title not in self.pages:
            return query | {"pages": [{"ns": 0, "title": title, "missing": True}]}
        return query | {"pages": [self._entry(title, params)]}

    def _entry(self, title: str, params: Mapping[str, str]) -> dict[str, Any]:
        entry, props = self.pages[title], params["prop"].split("|")
        page: dict[str, Any] = {"pageid": self._id(title), "ns": 0, "title": title}
        if "info" in props:
            page["fullurl"] = f"https://wiki.example/wiki/{title.replace(' ', '_')}"
        if "extracts" in props and self.extracts:
            page["extract"] = entry.text
        return page

    def _warnings(self, params: Mapping[str, str]) -> dict[str, Any]:
        if self.extracts or "extracts" not in params["prop"]:
            return {}
        return {"warnings": {"query": {"warnings": 'Unrecognized value for parameter "prop": extracts'}}}

    def _id(self, title: str) -> int:
        return 1 + list(self.pages).index(title)
