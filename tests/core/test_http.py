import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from midstream.core.errors import UnsupportedError
from midstream.core.http import TransientError, retry, retry_after_s, usable_proxy
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
    with pytest.raises(UnsupportedError, check=coded("proxy-invalid")) as caught, usable_proxy():
        httpx2.AsyncClient()
    assert "4kqz" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "percent-encoded" in caught.value.cause


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
