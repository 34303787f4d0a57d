"""The readable text of pages and its best passages, in processes of their own.

Most pages take milliseconds, but a page can be written so that taking it apart needs minutes or gigabytes
(docs/benchmarks.md), and nothing ends that but the end of a process. So a few processes read pages one after the other,
with a deadline and a memory limit each; one that exceeds them is replaced. They get no environment: what parses a
stranger's page should not hold keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import unescape
from threading import Timer
from typing import IO, Any

from midstream.core.errors import ToolServerError
from midstream.tools.local_search import best_spans, passages
from midstream.tools.web.page import NoPage, Page, characters, without_controls

_PROCESSES = 2
_MEMORY_MB = 1024
_START_S = 60.0
_READY = b"ready\n"
_ENVIRONMENT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_SHORT = 250  # characters: less than this is hardly a page's main text
_TITLE_CHARACTERS = 200
_TAG = re.compile(r"<[^<>]*>")
_GAP = "\n[...]\n"

_Process = subprocess.Popen[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A page's title and those of its passages that say most about a query, in the page's order."""

    title: str
    text: str


class PageReader:
    """Reads pages in a few processes; further pages wait for their turn.

    Args:
        parse_s: wall-clock seconds for one page.
        passage_characters: the size of the passages that are ranked.
    """

    def __init__(self, parse_s: float, passage_characters: int) -> None:
        self._parse_s, self._passage_characters = parse_s, passage_characters
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def read(self, page: Page, query: str, limit: int) -> Reading:
        """At most some `limit` characters of a page's text.

        Raises:
            NoPage: it has no text, or takes too long or too much memory.
            ToolServerError: there is no process to read it in.
        """
        self._threads = self._threads or ThreadPoolExecutor(_PROCESSES, "page-reader")
        head = {
            "url": page.url, "media_type": page.media_type, "charset": page.charset, "cut": page.cut,
            "bytes": len(page.body), "query": query, "size": self._passage_characters, "limit": limit,
        }  # fmt: skip
        request = json.dumps(head).encode() + b"\n" + page.body
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request)
        if not answer:
            raise NoPage(f"the page is too large or too tangled to be read within {self._parse_s:g} s")
        found = json.loads(answer)
        if not found["text"]:
            raise NoPage("the page has no text to read; it may need JavaScript, which is not run here")
        return Reading(title=found["title"], text=found["text"])

    async def close(self) -> None:
        """End the processes; a page that is being read is lost."""
        threads, self._threads = self._threads, None
        for process in [*self._busy, *self._idle]:
            process.kill()
        if threads:
            threads.shutdown(cancel_futures=True)
        while self._idle:
            _end(self._idle.pop())

    def _ask(self, request: bytes) -> bytes:
        """A process's answer, empty if it could give none. One that had died while it was idle is replaced."""
        with contextlib.suppress(IndexError):  # no process is idle
            while (process := self._idle.pop()).poll() is not None:
                _end(process)
            return self._answer(process, request)
        return self._answer(self._started(), request)

    def _started(self) -> _Process:
        """A new process that is ready to read.

        Raises:
            ToolServerError: it cannot be started, which is no page's fault.
        """
        cause = "this machine is short of memory or processes, or the libraries of the extra `web` are broken"
        fix = f"see what it says: {sys.executable} -m midstream.tools.web.page_reader < /dev/null"
        try:
            process = _start()
        except OSError as error:
            raise ToolServerError(f"no process to read pages in: {error}", cause=cause, fix=fix) from error
        if self._line(process, b"", _START_S) != _READY:
            _end(process)
            what = f"the process to read pages in ended with status {process.returncode} before it was ready"
            raise ToolServerError(what, cause=cause, fix=fix)
        return process

    def _answer(self, process: _Process, request: bytes) -> bytes:
        """The line that a process answers, empty if it ended; it is idle again or gone afterwards."""
        answer = b""
        try:
            answer = self._line(process, request, self._parse_s)
        finally:
            if answer and self._threads:
                self._idle.append(process)
            else:
                _end(process)
        return answer

    def _line(self, process: _Process, request: bytes, limit_s: float) -> bytes:
        """The line that a process says to a request; empty if it ended, as it does after `limit_s`."""
        assert process.stdin
        assert process.stdout
        self._busy.add(process)
        deadline = Timer(limit_s, process.kill)
        deadline.start()
        line = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
                process.stdin.flush()
                line = process.stdout.readline()
        finally:
            deadline.cancel()
            self._busy.discard(process)
        return line if line.endswith(b"\n") else b""


def _start() -> _Process:
    return subprocess.Popen(
        [sys.executable, "-m", "midstream.tools.web.page_reader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        start_new_session=True,  # Ctrl-C is for the run, which ends this one by closing its pipe
    )


def _end(process: _Process) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


# --- in the process ---------------------------------------------------------------------------------------------------


def read_page(page: Page, query: str, size: int, limit: int) -> Reading:
    """A page's text in passages of `size` characters, of which the best are kept, some `limit` characters."""
    title, text = "", characters(page)
    if page.media_type.endswith("xml") and "html" not in page.media_type:
        text = unescape(_TAG.sub(" ", text))
    elif page.is_markup:
        title, text = _main_text(text)
    lines = (line.strip() for line in without_controls(text).split("\n"))
    text = "\n".join(line for line in lines if line)
    spans = best_spans(text, list(passages(text, size, size // 6)), query, limit)
    shown = _GAP.join(text[start:end].strip() for start, end in spans)
    if spans and spans[0][0] > 0:
        shown = _GAP.lstrip() + shown
    if spans and spans[-1][1] < len(text):
        shown += _GAP.rstrip()
    return Reading(title=" ".join(without_controls(title).split())[:_TITLE_CHARACTERS], text=shown)


def _main_text(html: str) -> tuple[str, str]:
    """A page's title and its main text; all its text where there is hardly any main text, as in a list of links."""
    import trafilatura

    tree = trafilatura.load_html(html)
    if tree is None:  # it looks like no page: a bare "<p>Hello", or plain text that a server calls HTML
        html = f"<html>{html}</html>"
        tree = trafilatura.load_html(html)
    if tree is None:
        return "", ""
    title = tree.findtext(".//title") or ""
    text = trafilatura.extract(html, include_comments=False, favor_recall=True) or ""
    return title, text if len(text) >= _SHORT else max(text, trafilatura.html2txt(html), key=len)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while line := requests.readline():
        head: Mapping[str, Any] = json.loads(line)
        page = Page(
            url=head["url"], media_type=head["media_type"], charset=head["charset"], cut=head["cut"],
            body=requests.read(head["bytes"]),
        )  # fmt: skip
        reading = read_page(page, head["query"], head["size"], head["limit"])
        answers.write(json.dumps({"title": reading.title, "text": reading.text}).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and output, within bounded memory."""
    if sys.platform != "win32":
        import resource

        limit = _MEMORY_MB << 20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import trafilatura  # noqa: F401  # before the first page's time begins

    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    _serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
