"""Reading a web page with a query in mind: its passages that say most about it, or an engine's summary of them.

A page is fetched once, on an agent's request, as a person's browser would, and nothing is crawled: robots.txt, which
addresses crawlers, is not read. Requests identify themselves (`user_agent`), and a site that answers 403 or 429 is not
asked again.

A page's text is data. Control characters are removed and the rest is unchanged; the code that renders a prompt makes
sure that it cannot pass for anything else there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pydantic import Field, JsonValue

from midstream.components.component import ToolConfig
from midstream.core.engine import Engine
from midstream.core.errors import ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN, text_arguments
from midstream_web.fetch import Fetcher, Limits
from midstream_web.page import READY, NoPage, Page, Reading, without_controls
from midstream_web.reading import Reader, ReadingConfig

_THREADS = ThreadPoolExecutor(os.cpu_count(), "web-page")  # each waits for a process that reads a page
_ENVIRONMENT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")


class WebPage(Tool):
    """Fetches one page (`fetch.py`), extracts its passages (`page.py`), and has its engine, if any, summarize them."""

    name = "web_page"
    description = (
        "Reads one web page. Give its full address and, as the query, what you want to know from it. Returns the "
        "page's title and those parts of its text that say most about the query, or the reason if there is no page. "
        "It reads HTML and plain text, not PDF files, images, or pages that need a login or JavaScript. It does not "
        "search: find an address with a search tool first, and do not guess one."
    )
    parameters: Mapping[str, Any] = text_arguments(
        url="the page's address, beginning with https:// or http://", query="what you want to know from the page"
    )

    def __init__(self, config: WebPageConfig | None = None, engine: Engine | None = None) -> None:
        config = config or WebPageConfig()
        self.timeout_s, self.output_tokens = config.timeout_s, config.output_tokens
        self._fetcher = Fetcher(config)
        self._parse_s = config.parse_s
        self._reader = Reader(self.name, config, engine)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The passages of `arguments["url"]` about `arguments["query"]`; `ok=False` with the reason without a page.

        Raises `ToolServerError` if names cannot be resolved, or the proxy, the engine or the embeddings failed.
        """
        query = str(arguments["query"])
        try:
            page = await self._fetcher.fetch(str(arguments["url"]))
            parsed = await asyncio.get_running_loop().run_in_executor(_THREADS, parse, page, self._parse_s)
        except NoPage as reason:
            return ToolResult(text=without_controls(str(reason)), ok=False)
        limit = self.output_tokens * CHARACTERS_PER_TOKEN * 3 // 4  # the rest is for title and address
        found = await self._reader.read(query, parsed.title, parsed.text, limit)
        end = "\n[only the beginning of this page was read]" if page.cut else ""
        return replace(found, text=f"{parsed.title}\n{page.url}\n\n{found.text}{end}")

    async def close(self) -> None:
        """Close the embeddings endpoint's connections."""
        await self._reader.close()


class WebPageConfig(Limits, ReadingConfig, ToolConfig):
    """Reads one web page.

    The settings are `Limits` of what may be fetched, and how it is read (`ReadingConfig`).

    Attributes:
        parse_s: seconds to start a process and parse one page in it; then it is ended
        timeout_s: seconds of one call
        output_tokens: the most tokens of a result; four characters count as a token
    """

    component = WebPage
    asks = "optional"

    parse_s: float = Field(default=20.0, gt=0)
    timeout_s: float = Field(default=120.0, gt=0)
    output_tokens: int = Field(default=2000, ge=200)


def parse(page: Page, parse_s: float) -> Reading:
    """Return a page's title and main text; its own process parses it.

    Most pages take milliseconds, but a page can be written so that parsing it takes minutes or gigabytes
    (benchmarks/README.md), and only killing the process stops that. It starts without our environment: a parser of
    untrusted pages should not hold keys.

    Raises:
        NoPage: it has no text, or takes too much time or memory.
        ToolServerError: no process could be started.
    """
    command = [sys.executable, "-m", "midstream_web.page"]
    fields = {"url": page.url, "media_type": page.media_type, "charset": page.charset, "cut": page.cut}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(fields).encode() + b"\n" + page.body,
            capture_output=True,
            timeout=parse_s,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C is for the run
        )
        output, problem = done.stdout, f"it ended with status {done.returncode} before it was ready"
    except subprocess.TimeoutExpired as expired:
        output, problem = (expired.stdout or b"")[: len(READY)], f"it was not ready within {parse_s:g} s"
    except OSError as error:
        output, problem = b"", str(error)
    if not output.startswith(READY):
        raise ToolServerError(
            f"no process to read pages in: {problem}",
            code="worker-not-started",
            fix=f"see its output: {' '.join(command)} < /dev/null",
        )
    answer = output.removeprefix(READY)
    if not answer:
        raise NoPage(f"the page is too large or too complex to be read within {parse_s:g} s")
    reading = Reading(**json.loads(answer))
    if not reading.text:
        raise NoPage("the page has no text to read; it may need JavaScript, which is not run here")
    return reading
