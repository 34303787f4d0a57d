"""What all HTTP clients share: retries and pauses, texts without keys, certificates and proxies of the environment."""

from __future__ import annotations

import asyncio
import math
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2

from midstream.core.errors import UnsupportedError, UsageError

T = TypeVar("T")

LONGEST_PAUSE_S = 60.0  # between two attempts, whatever the server asks for
_MASKED = re.compile(r"\S{0,200}\*{3,}\S{0,200}")
_LONGEST_SHOWN = 5  # characters of a key in a row


class TransientError(Exception):
    """An attempt failed and another may succeed; `pause_s` is how long the server asks to wait."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


async def retry(attempt: Callable[[], Awaitable[T]], *, max_attempts: int, pause_s: Callable[[int], float]) -> T:
    """Call `attempt` until it does not raise `TransientError`, at most `max_attempts` times.

    The pause after attempt number n (from 1) is `pause_s(n)` seconds or what the server asks for, whichever is longer,
    and at most a minute. Raises the `TransientError` of the last attempt.
    """
    number = 1
    while True:
        try:
            return await attempt()
        except TransientError as failure:
            if number == max_attempts:
                raise
            await asyncio.sleep(min(max(pause_s(number), failure.pause_s), LONGEST_PAUSE_S))
            number += 1


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds the server asks to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; 0 if it does not."""
    text, factor = headers.get("retry-after", "0"), 1.0
    if "retry-after-ms" in headers:
        text, factor = headers["retry-after-ms"], 1e-3
    try:
        seconds = float(text) * factor
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):  # a date that datetime cannot hold
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def redacted(text: str, key: str) -> str:
    """`text` without the key: no six of its characters in a row remain, nor what a server masked with asterisks."""
    size = min(len(key), _LONGEST_SHOWN + 1)
    hidden = {i + j for i in range(len(text) - size + 1) if size and text[i : i + size] in key for j in range(size)}
    shown = "".join("\0" if i in hidden else character for i, character in enumerate(text))
    return _MASKED.sub("[key]", re.sub("\0+", "[key]", shown))


def certificates() -> ssl.SSLContext:
    """The certificates that verify TLS (20 ms to read). Raises `UsageError` if SSL_CERT_FILE has none."""
    try:
        return httpx2.create_ssl_context()
    except OSError as failure:  # an ssl.SSLError is one
        raise UsageError(
            f"the certificates in SSL_CERT_FILE={os.environ.get('SSL_CERT_FILE')!r} cannot be read: {failure}",
            code="certificates-invalid",
            fix="export SSL_CERT_FILE=<a .pem file of the certificates to trust>, or unset SSL_CERT_FILE",
        ) from failure


@contextmanager
def usable_proxy() -> Iterator[None]:
    """Context to create a client in that may use a proxy. Raises `UnsupportedError` if httpx2 cannot use it."""
    try:
        yield
    except (ImportError, ValueError, httpx2.InvalidURL) as failure:
        socks = isinstance(failure, ImportError)
        # Never quote the failure: in a misspelled address, part of the password is taken for the port.
        raise UnsupportedError(
            f"the proxy that the environment names cannot be used ({type(failure).__name__})",
            code="proxy-invalid",
            cause="a SOCKS proxy needs the package socksio"
            if socks
            else "http_proxy, https_proxy or all_proxy is not of the form http://[NAME:PASSWORD@]HOST:PORT, with every "
            "special character of NAME and PASSWORD percent-encoded",
            fix="pip install 'httpx2[socks]'" if socks else "correct the variable, or export no_proxy=HOST",
        ) from None
