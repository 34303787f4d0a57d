import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from yarl import URL

from midstream.core.errors import TransientError, UnsupportedError
from midstream.core.http import proxy_of, retry, retry_after_s
from support.errors import coded


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": (format_datetime(datetime.now(UTC) - timedelta(days=1)))}, 0.0),
        *(
            ({"retry-after": text}, 0.0)
            for text in ("soon", "-5", "nan", "inf", "", "1e999", "Mon, 01 Jan 0001 00:00:00 GMT")
        ),
        ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999"}, 0.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float):
    assert retry_after_s(headers) == seconds


def test_it_may_name_a_date():
    assert retry_after_s({"retry-after": format_datetime(datetime.now(UTC) + timedelta(days=1))}) > 80_000


@pytest.mark.parametrize(
    "address",
    ["http://me:4kqz/9x@proxy:8080", "http://me:4kqz#9x@proxy:8080", "gopher://me:4kqz@proxy", "http://me:4kqz\x01@h"],
)
def test_an_unusable_proxy_is_reported_without_its_password(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("all_proxy", address)
    with pytest.raises(UnsupportedError, check=coded("proxy-invalid")) as caught:
        proxy_of(URL("http://a.example"))
    assert "4kqz" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "percent-encoded" in caught.value.cause


PROXIES = {"http_proxy": "one:3128", "https_proxy": "http://u:p%C3%A9@two:3128", "all_proxy": "http://three:3128"}


@pytest.mark.parametrize(
    ("url", "environment", "host"),
    [
        ("http://a.example", PROXIES, "one"),
        ("https://a.example", PROXIES, "two"),
        ("https://a.example", {"ALL_PROXY": "http://three:3128"}, "three"),
        ("https://a.example", {}, None),
        *(
            (url, PROXIES | {"no_proxy": f"x.test, {entry}"}, None)
            for entry, url in [
                ("*", "http://a.example"),
                ("a.example", "http://a.example"),
                ("example", "https://a.example:8443"),
                (".example", "http://a.example"),
                ("*.example", "http://a.example"),
                ("a.example:81", "http://a.example:81"),
                ("10.1.2.3", "http://10.1.2.3"),
                ("10.0.0.0/8", "http://10.1.2.3"),
                ("::1", "http://[::1]:8000"),
                ("fd00::/8", "http://[fd00::2]"),
            ]
        ),
        ("http://a.example", PROXIES | {"no_proxy": "b.example,10.0.0.0/8,*.a.example,notaexample"}, "one"),
        ("http://11.1.2.3", PROXIES | {"no_proxy": "10.0.0.0/8,/,[,]"}, "one"),
    ],
)
def test_the_proxy_of_an_address(
    url: str, environment: dict[str, str], host: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_of(URL(url))
    assert (proxy and proxy.host) == host


@pytest.mark.parametrize(
    ("asked_s", "expected"), [(0.0, [1, 2, 4]), (3.0, [3, 3, 4]), (300.0, [60, 60, 60])], ids=["none", "3 s", "300 s"]
)
def test_pauses_between_attempts(monkeypatch: pytest.MonkeyPatch, asked_s: float, expected: list[float]):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def attempt() -> None:
        raise TransientError(f"attempt {len(pauses) + 1}", asked_s)

    monkeypatch.setattr("midstream.core.http.asyncio.sleep", sleep)
    with pytest.raises(TransientError, match="attempt 4"):
        asyncio.run(retry(attempt, max_attempts=4, pause_s=lambda failed: 2 ** (failed - 1)))
    assert pauses == expected
