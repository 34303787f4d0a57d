"""A fetched page: whether it can be read at all, unpacking it within bounds, its characters, where it moved to."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
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
_HEAD = 10_000  # bytes in which a page says such things of itself
_CHARSETS = re.compile(
    r"cp\d+|iso8859-\d+|iso2022_\w+|koi8-\w|mac-\w+|tis-620|euc_\w+|gbk|gb2312|gb18030|big5\w*|shift_jis\w*"
)
# Names that stand for a larger set, as browsers read them.
_WIDER = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class NoPage(Exception):
    """Why there is no page, in words for the model that asked for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What came: `url` after all redirects, the media type ("text/html") and charset that its server named, the bytes.

    `cut` says that there was more of it.
    """

    url: str
    media_type: str
    charset: str
    body: bytes
    cut: bool = False

    @property
    def is_markup(self) -> bool:
        """Whether its text stands between tags; a server that names no type is taken at the page's word."""
        if self.media_type:
            return self.media_type.endswith(("html", "xml"))
        return self.body.lstrip()[:1] == b"<"


def check_readable(media_type: str, body: bytes = b"") -> None:
    """Refuse what is no text, by its type or by how it begins.

    Raises:
        NoPage: it is a PDF, or binary.
    """
    if media_type == "application/pdf" or body.startswith(b"%PDF-"):
        raise NoPage("this is a PDF, which cannot be read here; look for an HTML version of it")
    if media_type and not _TEXT.fullmatch(media_type):
        raise NoPage(f"this is no text but {media_type[:80]!r}")
    if b"\0" in body[:1000] and not body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise NoPage("this is no text but binary data")


def unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    """What unpacks one piece of a body after the other, each time giving at most so many bytes; raises `zlib.error`.

    Raises:
        NoPage: the Content-Encoding is one that was not asked for.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return lambda part, most: part[:most]
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoPage(f"the page is packed as {encoding[:40]!r}, which was not asked for")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16) if "gzip" in encoding else None

    def unpack(part: bytes, most: int) -> bytes:
        nonlocal decoder
        if decoder is None:  # "deflate" is with zlib's header or without
            decoder = zlib.decompressobj(zlib.MAX_WBITS if part[0] & 15 == 8 else -zlib.MAX_WBITS)
        return decoder.decompress(part, most)

    return unpack


def moved_to(page: Page) -> str | None:
    """Where an HTML page says within its first lines that it moved to (`<meta http-equiv="refresh">`), if at once."""
    if not page.is_markup:
        return None
    for tag in _META.findall(page.body[:_HEAD]):
        target = _TARGET.search(tag) if _REFRESHES.search(tag) else None
        if target:
            return unescape(target[1].decode("utf-8", "replace"))
    return None


def characters(page: Page) -> str:
    """The body as text: by its byte order mark, as UTF-8 where it is valid, by its server's charset or by its own.

    Where none fits it is read as Windows-1252. Control characters but line ends and tabs become spaces.
    """
    own = _META_CHARSET.search(page.body[:_HEAD])
    named = [_codec(name) for name in (page.charset, own[1].decode("ascii", "replace") if own else "")]
    marks = [name for mark, name in _MARKS if page.body.startswith(mark)]
    seven_bit = [name for name in named if name and name.startswith("iso2022")]  # which is valid UTF-8 too
    for name in filter(None, [*marks, *seven_bit, "utf-8", *named]):
        try:
            # Not `bytes.decode`: a page that was cut may end within a character.
            return without_controls(codecs.getincrementaldecoder(name)().decode(page.body, final=not page.cut))
        except UnicodeError:
            continue
    return without_controls(page.body.decode("cp1252", "replace"))


def without_controls(text: str) -> str:
    """`text` with a space for each control character but line end and tab, those that turn its direction included."""
    return _CONTROLS.sub(" ", text)


def _codec(name: str) -> str | None:
    """Python's name of a charset in use on the web; None for others, of which some are slow and some no charsets."""
    try:
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return _WIDER.get(known, known) if _CHARSETS.fullmatch(known) else None
