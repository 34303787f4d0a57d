"""A fetched page: whether it can be read, its characters, and its best passages for a query.

Most pages take milliseconds, but a page can be written so that parsing it takes minutes or gigabytes
(docs/benchmarks.md), and only killing the process stops that. So `PageReader` has a few processes that read one page
after another, with a deadline and a memory limit for each page; one that exceeds them is replaced. They are started
without our environment, because a parser of untrusted pages should not hold keys. That rules out
`concurrent.futures.ProcessPoolExecutor`: its processes inherit the environment and import the user's main script, and
it cannot kill one of them without losing the others' pages.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import unescape
from threading import Timer

from midstream.core.errors import ToolServerError
from midstream.tools.local_search import best_spans, passages

_TEXT = re.compile(r"text/.*|application/(.*\+)?(json|xml)|application/x-ndjson")
# The repeats are bounded so that no page makes them slow.
_META = re.compile(rb"<meta\s([^<>]{1,2500})>", re.IGNORECASE)
_REFRESHES = re.compile(rb"""http-equiv\s{0,9}=\s{0,9}["']?refresh""", re.IGNORECASE)
_TARGET = re.compile(
    rb"""content\s{0,9}=\s{0,9}["']?\s{0,9}[0-5](?:\.\d{0,9})?\s{0,9}[;,]\s{0,9}"""  # within five seconds
    rb"""url\s{0,9}=\s{0,9}["']?([^"'<>\s]{1,2000})""",
    re.IGNORECASE,
)
_META_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^<>]{0,200}?(?:charset|encoding)\s{0,9}=\s{0,9}["']?([\w.:-]{1,40})""", re.IGNORECASE
)
_HEAD = 10_000  # bytes in which a page declares its charset or a redirect
# Charsets in use on the web, by Python's names; the codecs left out are slow or not charsets ("idna", "zlib").
_CHARSETS = re.compile(
    r"cp\d+|iso8859-\d+|iso2022_\w+|koi8-\w|mac-\w+|tis-620|euc_\w+|gbk|gb2312|gb18030|big5\w*|shift_jis\w*"
)
# Browsers read these names as larger charsets.
_SUPERSETS = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_PROCESSES = 2
_MEMORY_MB = 1024
_START_S = 60.0
_READY = b"ready\n"
_ENVIRONMENT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_SHORT = 250  # characters: shorter extracted text is hardly a page's main text
_TITLE_CHARACTERS = 200
_GAP = "\n[...]\n"

_Process = subprocess.Popen[bytes]


class NoPage(Exception):
    """There is no page; the text gives the reason to the model that requested it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A fetched page: `url` after all redirects, the media type ("text/html") and charset sent by the server, the body.

    `cut`: the body continues beyond the limit.
    """

    url: str
    media_type: str
    charset: str
    body: bytes
    cut: bool = False

    @property
    def is_markup(self) -> bool:
        """Whether its text is between tags; without a media type, the first character decides."""
        if self.media_type:
            return self.media_type.endswith(("html", "xml"))
        return self.body.lstrip()[:1] == b"<"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A page's title and its best passages for a query, in the page's order."""

    title: str
    text: str


# --- what arrives -----------------------------------------------------------------------------------------------------


def check_readable(media_type: str, body: bytes = b"") -> None:
    """Refuse anything but text, by its type or by its first bytes.

    Raises:
        NoPage: it is a PDF, or binary.
    """
    if media_type == "application/pdf" or body.startswith(b"%PDF-"):
        raise NoPage("this is a PDF, which cannot be read here; look for an HTML version of it")
    if media_type and not _TEXT.fullmatch(media_type):
        raise NoPage(f"this is not text but {media_type[:80]!r}")
    if b"\0" in body[:1000] and not body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise NoPage("this is not text but binary data")


def unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    """A function that decompresses a body piece by piece: (piece, limit) -> at most `limit` bytes.

    It raises `zlib.error` for a damaged body.

    Raises:
        NoPage: the Content-Encoding was not requested.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return lambda piece, limit: piece[:limit]
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoPage(f"the page is compressed as {encoding[:40]!r}, which was not requested")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16) if "gzip" in encoding else None

    def unpack(piece: bytes, limit: int) -> bytes:
        nonlocal decoder
        if decoder is None:  # "deflate" is sent with zlib's header or without
            decoder = zlib.decompressobj(zlib.MAX_WBITS if piece[0] & 15 == 8 else -zlib.MAX_WBITS)
        return decoder.decompress(piece, limit)

    return unpack


def redirect_of(page: Page) -> str | None:
    """The target of a `<meta http-equiv="refresh">` in the beginning of an HTML page, if it acts within 5 s."""
    if not page.is_markup:
        return None
    for tag in _META.findall(page.body[:_HEAD]):
        target = _TARGET.search(tag) if _REFRESHES.search(tag) else None
        if target:
            return unescape(target[1].decode("utf-8", "replace"))
    return None


def characters(page: Page) -> str:
    """The body as text without control characters.

    In this order: by its byte order mark, as UTF-8 if it is valid, by the charset of the server, by the page's own,
    as Windows-1252. (Statistical detection, as by charset-normalizer, is wrong for short pages: it takes "Höhe 105" in
    Latin-1 for Big5, and it ignores the server's charset.)
    """
    declared = _META_CHARSET.search(page.body[:_HEAD])
    named: list[str] = []
    for name in (page.charset, declared[1].decode("ascii", "replace") if declared else ""):
        with contextlib.suppress(LookupError, ValueError):  # unknown names
            known = codecs.lookup(name).name
            if _CHARSETS.fullmatch(known):
                named.append(_SUPERSETS.get(known, known))
    marked = [name for mark, name in _BYTE_ORDER_MARKS if page.body.startswith(mark)]
    seven_bit = [name for name in named if name.startswith("iso2022")]  # valid UTF-8, too
    for name in [*marked, *seven_bit, "utf-8", *named]:
        try:
            # Not `bytes.decode`: a cut page may end within a character.
            return without_controls(codecs.getincrementaldecoder(name)().decode(page.body, final=not page.cut))
        except UnicodeError:
            continue
    return without_controls(page.body.decode("cp1252", "replace"))


def without_controls(text: str) -> str:
    """`text` with a space for each control character except line end and tab, and for those that change direction."""
    return _CONTROLS.sub(" ", text)


# --- processes --------------------------------------------------------------------------------------------------------


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
        """About `limit` characters of a page's text.

        Raises:
            NoPage: it has no text, or takes too much time or memory.
            ToolServerError: no process could be started.
        """
        self._threads = self._threads or ThreadPoolExecutor(_PROCESSES, "page-reader")
        head = {
            "page": {"url": page.url, "media_type": page.media_type, "charset": page.charset, "cut": page.cut},
            "bytes": len(page.body), "query": query, "size": self._passage_characters, "limit": limit,
        }  # fmt: skip
        request = json.dumps(head).encode() + b"\n" + page.body
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request)
        if not answer:
            raise NoPage(f"the page is too large or too complex to be read within {self._parse_s:g} s")
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
        """A process's answer, empty if it ended; the process is idle again afterwards, or gone."""
        process = None
        while process is None and self._idle:
            with contextlib.suppress(IndexError):  # another thread took it
                process = self._idle.pop()
                if process.poll() is not None:  # it died while it was idle
                    _end(process)
                    process = None
        process = process or self._start()
        answer = b""
        try:
            answer = self._line(process, request, self._parse_s)
        finally:
            if answer and self._threads:
                self._idle.append(process)
            else:
                _end(process)
        return answer

    def _start(self) -> _Process:
        """A new process that is ready to read.

        Raises:
            ToolServerError: it cannot be started.
        """
        command = [sys.executable, "-m", "midstream.tools.web.page"]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # Ctrl-C is for the run, which ends this process by closing its pipe
            )
            if self._line(process, b"", _START_S) == _READY:
                return process
            _end(process)
            reason = f"it ended with status {process.returncode} before it was ready"
        except OSError as error:
            reason = str(error)
        raise ToolServerError(
            f"no process to read pages in: {reason}",
            code="worker-not-started",
            cause="this machine is short of memory or processes, or the libraries of the extra `web` are broken",
            fix=f"see its output: {' '.join(command)} < /dev/null",
        )

    def _line(self, process: _Process, request: bytes, limit_s: float) -> bytes:
        """The line that a process answers to a request; empty if it ended. After `limit_s` it is killed."""
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


def _end(process: _Process) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


# --- in the process ---------------------------------------------------------------------------------------------------


def read_page(page: Page, query: str, size: int, limit: int) -> Reading:
    """Split a page's text into passages of `size` characters and keep the best, about `limit` characters."""
    title, text = "", characters(page)
    if page.media_type.endswith("xml") and "html" not in page.media_type:
        text = unescape(re.sub(r"<[^<>]*>", " ", text))
    elif page.is_markup:
        import trafilatura

        tree = trafilatura.load_html(text)
        if tree is None:  # not recognized as a page: a bare "<p>Hello", or plain text that the server declares as HTML
            text = f"<html>{text}</html>"
            tree = trafilatura.load_html(text)
        html, text = text, ""
        if tree is not None:
            title = tree.findtext(".//title") or ""
            text = trafilatura.extract(html, include_comments=False, favor_recall=True) or ""
            if len(text) < _SHORT:  # hardly any main text, as in a list of links: all its text
                text = max(text, trafilatura.html2txt(html), key=len)
    lines = (line.strip() for line in without_controls(text).split("\n"))
    text = "\n".join(line for line in lines if line)
    spans = best_spans(text, list(passages(text, size, size // 6)), query, limit)
    shown = _GAP.join(text[start:end].strip() for start, end in spans)
    if spans and spans[0][0] > 0:
        shown = _GAP.lstrip() + shown
    if spans and spans[-1][1] < len(text):
        shown += _GAP.rstrip()
    return Reading(title=" ".join(without_controls(title).split())[:_TITLE_CHARACTERS], text=shown)


def main() -> None:
    """Answer requests on standard input until there are no more, within bounded memory."""
    if sys.platform != "win32":
        import resource

        limit = _MEMORY_MB << 20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import trafilatura  # noqa: F401  # before the first page's time begins

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(_READY)
    answers.flush()
    while line := requests.readline():
        head = json.loads(line)
        page = Page(**head["page"], body=requests.read(head["bytes"]))
        reading = read_page(page, head["query"], head["size"], head["limit"])
        answers.write(json.dumps({"title": reading.title, "text": reading.text}).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
