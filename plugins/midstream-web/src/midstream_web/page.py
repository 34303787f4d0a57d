"""A fetched page: whether it can be read, its characters, and its main text.

As a program (`python -m midstream_web.page`) it reads one page within bounded memory, for `web_page.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import sys
from dataclasses import asdict, dataclass
from html import unescape

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

_MEMORY_MB = 1024
READY = b"ready\n"
_SHORT = 250  # characters: shorter extracted text is hardly a page's main text
_TITLE_CHARACTERS = 200


class NoPage(Exception):
    """There is no page; the text gives the reason to the model that requested it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A fetched page: `url` after all redirects, media type ("text/html") and charset as the server sent them, body."""

    url: str
    media_type: str
    charset: str
    body: bytes
    cut: bool = False  # the body continues beyond the limit

    @property
    def is_markup(self) -> bool:
        """Whether its text is between tags; without a media type, the first character decides."""
        if self.media_type:
            return self.media_type.endswith(("html", "xml"))
        return self.body.lstrip()[:1] == b"<"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A page's title and main text."""

    title: str
    text: str


# --- what arrives -----------------------------------------------------------------------------------------------------


def check_readable(media_type: str, body: bytes = b"") -> None:
    """Raise `NoPage` for anything but text (a PDF, binary), by its type or by its first bytes."""
    if media_type == "application/pdf" or body.startswith(b"%PDF-"):
        raise NoPage("this is a PDF, which cannot be read here; look for an HTML version of it")
    if media_type and not _TEXT.fullmatch(media_type):
        raise NoPage(f"this is not text but {media_type[:80]!r}")
    if b"\0" in body[:1000] and not body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise NoPage("this is not text but binary data")


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


# --- in a process -----------------------------------------------------------------------------------------------------


def read_page(page: Page) -> Reading:
    """A page's title and main text; each may be empty."""
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
    title = " ".join(without_controls(title).split())[:_TITLE_CHARACTERS]
    return Reading(title=title, text="\n".join(line for line in lines if line))


def main() -> None:
    """Read the page on standard input, within bounded memory."""
    if sys.platform != "win32":
        import resource

        limit = _MEMORY_MB << 20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import trafilatura  # noqa: F401  # a library that is broken is no fault of the page

    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    if line := sys.stdin.buffer.readline():
        page = Page(**json.loads(line), body=sys.stdin.buffer.read())
        sys.stdout.write(json.dumps(asdict(read_page(page))))


if __name__ == "__main__":
    main()
