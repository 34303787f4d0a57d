"""Pages: charsets, redirects by meta tags."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_web.page import NoPage, Page, characters, check_readable, redirect_of, without_controls
from page_server import FIXED


def page(body: bytes, media_type: str = "text/html", charset: str = "", *, cut: bool = False) -> Page:
    return Page(url="http://site.example/", media_type=media_type, charset=charset, body=body, cut=cut)


def served(path: str) -> Page:
    """A page of the bad web site, as it would be fetched."""
    head, _, body = FIXED[path].partition(b"\r\n\r\n")
    return page(body, charset=head.partition(b"charset=")[2].partition(b"\r")[0].decode())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/latin", "Höhe – 105 € hoch"),
        ("/utf8-as-latin", "Höhe 105"),
        ("/latin-as-utf8", "Höhe 105"),
        ("/meta-charset", "Высота маяка"),
        ("/japanese", "灯台の高さ"),
        ("/utf16", "Höhe 105"),
        ("/odd-charset", "\\x41 105"),
    ],
)
def test_the_charset_is_found_in_spite_of_wrong_declarations(path: str, text: str):
    assert text in characters(served(path))


def test_a_page_that_was_cut_within_a_character_is_still_utf_8():
    body = "Höhe ö".encode()[:-1]
    assert characters(page(body, cut=True)) == "Höhe "
    assert characters(page(body)) == "HÃ¶he Ã"


@given(
    st.binary(max_size=200),
    st.sampled_from(
        ["", "utf-8", "utf-16", "latin-1", "idna", "punycode", "zlib", "rot13", "undefined", "shift_jis", "\0"]
    )
    | st.text(max_size=20),
    st.booleans(),
)
def test_any_bytes_become_text(body: bytes, charset: str, cut: bool):
    text = characters(page(body, charset=charset, cut=cut))
    assert not set(text) & {"\x00", "\x1b", "\x07", "\x9b", "\u202e"}
    assert "\\x" in text or "\\" not in text or b"\\" in body


@given(st.text(max_size=200))
def test_utf_8_is_read_unchanged(text: str):
    written = text.encode("utf-8", "replace").decode()
    assert characters(page(written.encode(), charset="shift_jis")) == without_controls(written).removeprefix("\ufeff")


def test_controls_become_spaces():
    assert without_controls("a\x1b[2J\x07\u202eb\tc\nd\x9be") == "a [2J  b\tc\nd e"


@pytest.mark.parametrize(
    "media_type", ["", "text/html", "text/plain", "application/json", "application/ld+json", "application/xhtml+xml"]
)
def test_text_can_be_read(media_type: str):
    check_readable(media_type, b"text")
    check_readable(media_type, codecs.BOM_UTF16_LE + b"t\0")
    with pytest.raises(NoPage):
        check_readable(media_type, b"te\0xt")


@pytest.mark.parametrize(
    ("body", "target"),
    [
        (b'<meta http-equiv="refresh" content="0; url=/a?b=1&amp;c">', "/a?b=1&c"),
        (b"<META HTTP-EQUIV=Refresh CONTENT='3;URL=\"http://x.example/\"'>", "http://x.example/"),
        (b"<meta content='0;url=/a' http-equiv='refresh'/>", "/a"),
        (b"<meta content='0;url=/a'><meta http-equiv='refresh'>", None),
        (b"<meta http-equiv=refresh content='0,url=/a'>", "/a"),
        (b'<meta name="x" http-equiv="refresh" data-y content="1.5;url=a">', "a"),
        (b'<meta http-equiv="refresh" content="30; url=/later">', None),
        (b'<meta http-equiv="refresh" content="0">', None),
        (b'<p>meta http-equiv="refresh" content="0;url=/a"</p>', None),
        (b" " * 20_000 + b'<meta http-equiv="refresh" content="0;url=/a">', None),
    ],
)
def test_redirects_of_pages(body: bytes, target: str | None):
    assert redirect_of(page(body)) == target
    assert redirect_of(page(body, media_type="text/plain")) is None
