"""Providers of web search: `ddgs` (no key, several search engines) and `serper` (Google's results, with a key)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from midstream.core.errors import RecipeError, UnsupportedError
from midstream.core.http import TransientError
from midstream.tools.web import api

SERPER_URL = "https://google.serper.dev/search"
NOTHING_FOUND = "No results found."  # ddgs's error if every engine answered and had no result
CONTROL_QUERY = "weather"  # every search engine has results for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One result; any of the three may be empty."""

    title: str
    url: str = ""
    snippet: str = ""


class Provider(Protocol):
    """Answers searches. `label` names the provider and the origin of its results."""

    label: str

    async def search(self, query: str, top_k: int) -> list[Hit]:
        """Up to `top_k` pages, best first, after the provider's own answers; [] without results.

        Raises:
            ToolServerError: no search could be made.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class Serper:
    """Google's results from serper.dev: an answer box and a knowledge panel, if Google shows them, then pages."""

    label = "serper (Google)"

    def __init__(self, config: api.Config, region: str, api_key_env: str, base_url: str | None = None) -> None:
        key = api.Key(header="X-API-KEY", env=api_key_env) if api_key_env else None
        if key:
            key.read()  # a missing key is an error before a run starts
        self._country, self._language = region.split("-")
        self._service = api.Service("serper", base_url or SERPER_URL, config, key=key)

    async def search(self, query: str, top_k: int) -> list[Hit]:
        """As `Provider.search`."""

        def check(data: Any, pause_s: float) -> None:
            # Every answer of Serper has a list of pages, empty if Google finds nothing.
            if not isinstance(data, dict) or not isinstance(data.get("organic"), list):
                raise TransientError("the answer holds no list of results", pause_s)

        body = {"q": query, "num": top_k, "gl": self._country, "hl": self._language}
        data = await self._service.post(body, check)
        extra: list[Hit] = []
        box, graph = data.get("answerBox"), data.get("knowledgeGraph")
        if isinstance(box, dict) and (text := _text(box, "answer") or _text(box, "snippet")):
            extra.append(Hit(title=f"answer box: {_text(box, 'title')}", url=_text(box, "link"), snippet=text))
        if isinstance(graph, dict) and _text(graph, "title"):
            attributes = graph.get("attributes")
            facts = [f"{name}: {fact}" for name, fact in attributes.items()] if isinstance(attributes, dict) else []
            kind, description = _text(graph, "type"), _text(graph, "description")
            extra.append(
                Hit(
                    title=f"knowledge panel: {_text(graph, 'title')}" + (f" ({kind})" if kind else ""),
                    url=_text(graph, "descriptionLink") or _text(graph, "website"),
                    snippet="; ".join([description, *facts] if description else facts),
                )
            )
        pages = [
            Hit(title=_text(item, "title"), url=_text(item, "link"), snippet=_text(item, "snippet"))
            for item in data.get("organic", [])
            if isinstance(item, dict)
        ]
        return extra + [page for page in pages if page.url][:top_k]

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._service.close()


def _text(item: Mapping[str, Any], name: str) -> str:
    """A field's text; "" for anything else: `answer` may be a number, a snippet may be missing."""
    value = item.get(name)
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


class Ddgs:
    """Several search engines through the package `ddgs`, which reads their result pages.

    It runs in its own threads. A search that timed out keeps its thread until `ddgs` times out as well: each of its
    requests has an equal part of `timeout_s`. `ddgs` reads its proxy from DDGS_PROXY alone.
    """

    def __init__(self, config: api.Config, region: str, backends: Sequence[str]) -> None:
        ddgs, engines = _ddgs_and_engines()
        known = sorted(engines["text"])
        unknown = [name for name in backends if name not in (*known, "auto")]
        if unknown or not backends:  # ddgs itself would query all engines instead, and only log that
            raise RecipeError(
                f"tools.web_search.backends = {list(backends)!r}: unknown to ddgs: {', '.join(unknown) or 'no name'}",
                code="unknown-backend",
                fix=f"name some of: auto, {', '.join(known)}",
            )
        self.label = f"ddgs ({', '.join(backends)})"
        self._ddgs, self._config, self._region, self._backend = ddgs, config, region, ",".join(backends)
        self._request_timeout_s = max(1, int(config.timeout_s / (len(known) if "auto" in backends else len(backends))))
        self._semaphore = api.LoopSemaphore(config.concurrency)
        self._threads: ThreadPoolExecutor | None = None

    async def search(self, query: str, top_k: int) -> list[Hit]:
        """As `Provider.search`."""

        async def attempt() -> list[Hit]:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._config.concurrency, thread_name_prefix="web-search")
            loop, timeout_s = asyncio.get_running_loop(), self._config.timeout_s
            async with self._semaphore.here():
                try:
                    async with asyncio.timeout(timeout_s):
                        return await loop.run_in_executor(self._threads, self._search, query, top_k)
                except TimeoutError as failure:
                    raise TransientError(f"no results within {timeout_s:g} s") from failure

        return await api.retried(attempt, self._config, self.label)

    def _search(self, query: str, top_k: int) -> list[Hit]:
        found = self._ask(query, top_k)
        # ddgs does not distinguish engines that refuse (403, 429) from engines that find nothing.
        if not found and not self._ask(CONTROL_QUERY, 1):
            raise TransientError(f"no results, not even for {CONTROL_QUERY!r}: the engines refuse")
        return [
            Hit(title=_text(item, "title"), url=_text(item, "href"), snippet=_text(item, "body"))
            for item in found[:top_k]
        ]

    def _ask(self, query: str, top_k: int) -> list[dict[str, Any]]:
        from ddgs.exceptions import DDGSException

        try:
            return self._ddgs(timeout=self._request_timeout_s).text(
                query, region=self._region, max_results=top_k, backend=self._backend
            )
        except DDGSException as failure:
            if str(failure) == NOTHING_FOUND:
                return []
            raise TransientError(f"{type(failure).__name__}: {str(failure)[:300]}") from failure

    async def close(self) -> None:
        """Let the threads end; later searches start new ones."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _ddgs_and_engines() -> tuple[Any, Any]:
    """The class DDGS and its table of engines."""
    try:
        from ddgs import DDGS
        from ddgs.engines import ENGINES
    except ImportError as failure:
        raise UnsupportedError(
            f"{failure.name} is not installed",
            code="missing-extra",
            cause="web search without a key needs the extra `web`",
            fix="pip install 'midstream[web]', or set provider = \"serper\" and export SERPER_API_KEY=<your key>",
        ) from failure
    return DDGS, ENGINES
