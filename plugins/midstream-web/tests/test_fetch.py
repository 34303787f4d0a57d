"""Fetching, against a web site with pages of every bad kind; names are resolved by the tests themselves."""

import asyncio
import socket
import ssl
import subprocess
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.errors import ToolServerError, UnsupportedError, UsageError
from midstream_web.fetch import Fetcher, Limits
from midstream_web.page import NoPage, Page
from page_server import ARTICLE, PageServer, head
from support.errors import coded

NAMES = {
    "site.example": ["127.0.0.1"],
    "xn--bcher-kva.example": ["127.0.0.1"],
    "inner.example": ["10.1.2.3"],
    "half.example": ["93.184.216.34", "10.1.2.3"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "empty.example": [],
    "dead-first.example": ["127.0.0.2", "127.0.0.1"],
}


@pytest.fixture(autouse=True)
def _no_proxy_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream_web.fetch._RETRY_AFTER_S", 0.01)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def site() -> Iterator[PageServer]:
    with PageServer() as server:
        yield server


class Resolver:
    """Resolves `NAMES` and keeps the names."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host == "away.example":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return NAMES[host]


def fetch(url: str, site: PageServer, resolver: Resolver | None = None, **limits: object) -> Page:
    allowed = ("127.0.0.1", "site.example", "bücher.example", "dead-first.example")
    chosen = Limits.model_validate({"ports": (80, 443, site.port), "allow_private": allowed, **limits})
    return asyncio.run(Fetcher(chosen, resolver or Resolver()).fetch(url))


def refusal(url: str, site: PageServer, resolver: Resolver | None = None, **limits: object) -> str:
    with pytest.raises(NoPage) as reason:
        fetch(url, site, resolver, **limits)
    return str(reason.value)


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/article",
        "/gzip",
        "/deflate",
        "/raw-deflate",
        "/no-type",
        "/there",
        "/refresh",
        "/http10",
        "/flaky",
    ],
)
def test_a_page_comes_whole(site: PageServer, path: str):
    page = fetch(site.url(path), site)
    assert page.body == ARTICLE
    assert not page.cut
    assert page.media_type == ("" if path == "/no-type" else "text/html")
    moved = {"/there": "/article#sights", "/refresh": "/article"}
    assert page.url == site.url(moved.get(path, path))


def test_a_page_that_ends_early_is_cut(site: PageServer):
    page = fetch(site.url("/short"), site)
    assert (page.body, page.cut) == (ARTICLE, True)


def test_a_page_that_only_loads_itself_again_is_taken(site: PageServer):
    assert b"105" in fetch(site.url("/refresh-itself"), site).body


@pytest.mark.parametrize("path", ["/endless", "/bomb"])
def test_bytes_are_bounded(site: PageServer, path: str):
    tracemalloc.start()
    try:
        page = fetch(site.url(path), site, max_kb=500)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(page.body), page.cut) == (500_000, True)
    assert peak < 20e6  # the server's own pieces included
    assert site.sent[path] < 30e6  # an endless page: what the sockets' buffers take


def test_a_request_says_who_asks_and_nothing_else(site: PageServer):
    fetch(site.url("/article"), site, user_agent="tester (mail@example.org)")
    names = [line.split(":")[0] for line in site.heads[-1].split("\r\n")[1:] if line]
    assert names == ["Host", "User-Agent", "Accept", "Accept-Encoding"]
    assert "tester (mail@example.org)" in site.heads[-1]


# --- what does not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/404", "status 404 (Not Found)"),
        ("/418", "status 418"),
        ("/429", "status 429 (Too Many Requests)"),
        ("/500", "status 500"),
        ("/599", "answers with status 599"),
        ("/nowhere", "status 302"),
        ("/pdf", "is a PDF"),
        ("/pdf-as-html", "is a PDF"),
        ("/binary", "not text but 'application/octet-stream'"),
        ("/binary-as-text", "binary data"),
        ("/image", "image/png"),
        ("/brotli", "Can not decode content-encoding: brotli"),
        ("/not-gzip", "Can not decode content-encoding: gzip"),
        ("/gzip-broken", "Can not decode content-encoding: gzip"),
        ("/loop", "more than 5 redirects"),
        ("/odd-target", "not the address of a page"),
        ("/to-metadata", "169.254.169.254 is not on the public internet"),
        ("/refresh-metadata", "169.254.169.254 is not on the public internet"),
        ("/to-localhost", "there is no host localhost"),
        ("/to-file", "not a complete address"),
        ("/to-user", "user name or password"),
        ("/not-http", "did not send a valid response"),
        ("/bad-header", "did not send a valid response"),
        ("/huge-header", "did not send a valid response"),
        ("/long", "did not send a valid response"),
        ("/silence", "did not send a valid response"),
    ],
)
def test_why_there_is_no_page(site: PageServer, path: str, why: str):
    assert why in refusal(site.url(path), site)


@pytest.mark.parametrize("path", ["/429", "/500", "/silence", "/bad-header"])
def test_a_transient_failure_is_retried_once(site: PageServer, path: str):
    before = site.paths.count(path)
    refusal(site.url(path), site)
    assert site.paths.count(path) == before + 2


def test_a_permanent_failure_is_not_retried(site: PageServer):
    before = site.paths.count("/404")
    refusal(site.url("/404"), site)
    assert site.paths.count("/404") == before + 1


def test_time_is_bounded(site: PageServer):
    assert "did not arrive within 0.3 s" in refusal(site.url("/drip"), site, fetch_s=0.3)
    assert "did not answer within 0.3 s" in refusal(site.url("/slow-head"), site, headers_s=0.3)
    assert site.sent["/drip"] < 1000


def test_a_resolver_that_hangs_is_bounded(site: PageServer):
    async def hang(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(NoPage, match=r"within 0\.1 s"):
        asyncio.run(Fetcher(Limits(fetch_s=0.1), hang).fetch("http://site.example/"))


def test_a_closed_port(site: PageServer):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "no connection to 127.0.0.1" in refusal(f"http://127.0.0.1:{port}/", site, ports=(port,))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300)
    | st.tuples(
        st.sampled_from(["gzip", "deflate", "gzip, deflate", "\xff"]),
        st.sampled_from(["text/html", "text/plain;charset=", "\x80", "a/b"]),
        st.binary(max_size=200),
    ).map(
        lambda parts: (
            head(kind=parts[1]).replace(b"\r\n\r\n", b"\r\nContent-Encoding: ")
            + parts[0].encode("latin-1")
            + b"\r\n\r\n"
            + parts[2]
        )
    )
)
def test_any_response_is_a_page_or_refused(site: PageServer, answer: bytes):
    site.fixed["/any"] = answer
    try:
        page = fetch(site.url("/any"), site, fetch_s=5)
    except NoPage:
        return
    assert len(page.body) <= 300 * 1032  # deflate's best


# --- destinations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://inner.example/", "not on the public internet"),
        ("http://half.example/", "not on the public internet"),
        ("http://mapped.example/", "not on the public internet"),
        ("http://10.0.0.1/", "not on the public internet"),
        ("http://[::1]/", "not on the public internet"),
        ("http://[::ffff:169.254.169.254]/", "not on the public internet"),
        ("http://[fe80::1%25eth0]/", "not on the public internet"),
        ("http://2130706433/", "is not a host name"),
        ("http://0x7f.1/", "is not a host name"),
        ("http://127.1/", "is not a host name"),
        ("http://0177.0.0.1/", "is not a host name"),
        ("http://１０.0.0.1/", "not on the public internet"),
        ("http://ex%61mple.com/", "is not a host name"),
        ("http://a b.example/", "is not a host name"),
        (f"http://{'a' * 64}.example/", "is not a host name"),
        (f"http://{'a.' * 130}example/", "is not a host name"),
        ("http://site.example\\@10.0.0.1/", "not the address of a page"),
        ("http://me:secret@site.example/", "user name or password"),
        ("http://none.example/", "there is no host none.example"),
        ("http://empty.example/", "there is no host empty.example"),
        ("http://site.example:22/", "port 22 is not allowed"),
        ("http://site.example:0/", "port 0 is not allowed"),
        ("http://site.example:99999/", "not the address of a page"),
        ("http://xn--/", "not the address of a page"),
        ("http://www.xn--/x", "not the address of a page"),
        ("http://a.xn--zzzzzzz-/", "not the address of a page"),
        ("ftp://site.example/", "ftp:// addresses cannot be read"),
        ("file:///etc/passwd", "not a complete address"),
        ("javascript:alert(1)", "not a complete address"),
        ("site.example/page", "not a complete address"),
        ("//site.example/page", "not a complete address"),
        ("the page about herons", "not a complete address"),
        ("", "not a complete address"),
        ("http://site.example/" + "a" * 2000, "longer than 2000"),
        ("http://site.example/\x00", "not the address of a page"),
    ],
)
def test_addresses_that_are_not_fetched(site: PageServer, url: str, why: str):
    before = len(site.heads)
    assert why in refusal(url, site)
    assert len(site.heads) == before


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=60)
    | st.text(max_size=40).map("http://".__add__)
    | st.from_regex(r"https?://[\w.:\[\]@%-]{1,40}/?")
)
def test_any_address_is_refused_without_an_error(site: PageServer, url: str):
    with pytest.raises(NoPage):
        asyncio.run(Fetcher(Limits(ports=(1,)), Resolver()).fetch(url))


def test_the_connection_goes_to_the_address_that_was_checked(site: PageServer):
    resolver = Resolver()
    assert fetch(site.url("/article", "site.example"), site, resolver).body == ARTICLE
    assert resolver.asked == ["site.example"]  # and nobody asked again in connecting: the system knows no such name
    assert f"Host: site.example:{site.port}" in site.heads[-1]


def test_every_redirect_is_checked_again(site: PageServer):
    resolver = Resolver()
    site.fixed["/to-name"] = head(302, Location=site.url("/to-inner", "site.example"))
    site.fixed["/to-inner"] = head(302, Location="http://inner.example/")
    assert "inner.example is not on the public internet" in refusal(site.url("/to-name"), site, resolver)
    assert resolver.asked == ["site.example", "inner.example"]


def test_the_next_address_is_tried_where_the_first_takes_no_connection(site: PageServer):
    assert fetch(site.url("/article", "dead-first.example"), site).body == ARTICLE


def test_an_international_name(site: PageServer):
    resolver = Resolver()
    page = fetch(site.url("/article", "Bücher.example"), site, resolver)
    assert page.body == ARTICLE
    assert resolver.asked == ["xn--bcher-kva.example"]


def test_the_systems_resolver(site: PageServer):
    limits = Limits(ports=(site.port,), allow_private=("localhost",))
    assert asyncio.run(Fetcher(limits).fetch(site.url("/article", "localhost"))).body == ARTICLE
    with pytest.raises(NoPage, match="localhost is not on the public internet"):
        asyncio.run(Fetcher(Limits(ports=(site.port,))).fetch(site.url("/article", "localhost")))


@pytest.mark.parametrize(
    "wrong",
    [{"ports": (0,)}, {"ports": (65536,)}, *({"allow_private": (host,)} for host in ("h:80", "a b", "http://h", ""))],
)
def test_limits_that_could_never_match_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        Limits(**wrong)
    assert Limits(ports=(65535,), allow_private=("::1", "[::1]", "wiki.local")).ports == (65535,)


def test_names_that_cannot_be_resolved_now_are_an_error(site: PageServer):
    with pytest.raises(ToolServerError, check=coded("network", "away.example")) as failure:
        fetch("http://away.example/", site)
    assert failure.value.retryable


def test_one_fetcher_serves_several_event_loops_and_many_at_once(site: PageServer):
    fetcher = Fetcher(Limits(ports=(site.port,), allow_private=("127.0.0.1",)))

    async def many() -> list[Page]:
        return await asyncio.gather(*(fetcher.fetch(site.url("/article")) for _ in range(30)))

    for _ in range(2):
        assert all(page.body == ARTICLE for page in asyncio.run(many()))


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "site.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=site.example"]
    made += ["-addext", "subjectAltName=DNS:site.example", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    path.write_text(path.read_text() + (path.parent / f"{path.name}.crt").read_text())
    return str(path)


def test_certificates_are_checked_against_the_name(certificate: str, monkeypatch: pytest.MonkeyPatch):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    named: list[str | None] = []
    tls.sni_callback = lambda socket, name, context: named.append(name)
    with PageServer(tls) as site:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(site.url("/article", "site.example"), site)  # nobody trusts it
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        assert fetch(site.url("/article", "site.example"), site).body == ARTICLE
        assert set(named) == {"site.example"}
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(site.url("/article", "dead-first.example"), site)
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(site.url("/article"), site)


def test_certificates_that_cannot_be_read_are_named(site: PageServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(UsageError, check=coded("certificates-invalid", "SSL_CERT_FILE='/nowhere.pem'")):
        fetch(site.url("/article"), site)


# --- with a proxy -----------------------------------------------------------------------------------------------------


def test_a_proxy_resolves_names(site: PageServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{site.port}")
    resolver = Resolver()
    assert fetch("http://far.example/article", site, resolver).body == ARTICLE
    assert site.heads[-1].startswith("GET http://far.example/article HTTP/1.1\r\n")
    assert resolver.asked == []
    monkeypatch.setenv("no_proxy", "inner.example")
    assert "not on the public internet" in refusal("http://inner.example/", site, resolver)
    assert resolver.asked == ["inner.example"]


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "[::1]", "169.254.169.254", "localhost", "localhost.", "a.localhost", "wiki", "x.local", "y.internal"],
)
def test_inner_hosts_are_refused_with_a_proxy_too(site: PageServer, monkeypatch: pytest.MonkeyPatch, host: str):
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{site.port}")
    before = len(site.heads)
    assert "not on the public internet" in refusal(f"http://{host}/article", site)
    assert len(site.heads) == before
    assert fetch(f"http://{host}/article", site, allow_private=(host.strip("[]"),)).body == ARTICLE


def test_a_proxy_that_does_not_answer_is_an_error(site: PageServer, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(ToolServerError) as failed:
        fetch("http://far.example/article", site)
    assert failed.value.code == "network"
    assert "proxy" in failed.value.what
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{site.port}")  # a web site, which knows no CONNECT
    assert "far.example did not send a valid response" in refusal("https://far.example/article", site)
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1")
    with pytest.raises(UnsupportedError):
        fetch("http://far.example/article", site)
