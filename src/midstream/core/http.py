"""Parts that all HTTP clients share: sessions, retries and pauses, texts without keys.

The environment names certificates (SSL_CERT_FILE, SSL_CERT_DIR) and proxies (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY,
NO_PROXY). A ~/.netrc is not read, and no cookie is kept.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from ipaddress import ip_address, ip_network
from typing import TypeVar
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
import truststore
from aiohttp.abc import AbstractResolver
from anyio import CapacityLimiter
from multidict import CIMultiDict
from yarl import URL

from midstream.core.errors import TransientError, UnsupportedError, UsageError

T = TypeVar("T")

LONGEST_PAUSE_S = 60.0  # between two attempts, whatever the server asks for
CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 4.0  # below the five seconds after which uvicorn, under vLLM and SGLang, hangs up
_LONGEST_HEADER = 64 << 10  # bytes of a header; aiohttp takes at most 128 of them
_MASKED = re.compile(r"\S{0,200}\*{3,}\S{0,200}")
_LONGEST_SHOWN = 5  # characters of a key in a row


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
        except (ValueError, OverflowError):
            # It is a date that datetime cannot hold, or none.
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def redacted(text: str, key: str) -> str:
    """`text` without the key: no six of its characters in a row remain, nor what a server masked with asterisks."""
    size = min(len(key), _LONGEST_SHOWN + 1)
    hidden = {i + j for i in range(len(text) - size + 1) if size and text[i : i + size] in key for j in range(size)}
    shown = "".join("\0" if i in hidden else character for i, character in enumerate(text))
    return _MASKED.sub("[key]", re.sub("\0+", "[key]", shown))


def certificates() -> ssl.SSLContext:
    """The certificates that verify TLS. Raises `UsageError` if SSL_CERT_FILE has none."""
    file = os.environ.get("SSL_CERT_FILE") or None
    return _certificates(file, None if file else os.environ.get("SSL_CERT_DIR") or None)


@lru_cache(maxsize=4)  # reading them takes 20 ms
def _certificates(file: str | None, directory: str | None) -> ssl.SSLContext:
    try:
        if file or directory:
            context = ssl.create_default_context(cafile=file, capath=directory)
        else:  # what the system trusts, also where OpenSSL does not find it (macOS, Windows)
            context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    except OSError as failure:
        # An `ssl.SSLError` is an `OSError`.
        raise UsageError(
            f"the certificates in SSL_CERT_FILE={file!r} cannot be read: {failure}",
            code="certificates-invalid",
            fix="export SSL_CERT_FILE=<a .pem file of the certificates to trust>, or unset SSL_CERT_FILE",
        ) from failure
    context.set_alpn_protocols(["http/1.1"])
    return context


def proxy_of(url: URL) -> URL | None:
    """The proxy that the environment names for an address. Raises `UnsupportedError` if aiohttp cannot use it."""
    host, proxies = url.raw_host or "", getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{host}:{url.port}"):
        return None
    # `proxy_bypass` knows neither *.org nor 10.0.0.0/8.
    for entry in map(str.strip, proxies.get("no", "").split(",")):
        if entry == "*" or (entry.startswith("*.") and host.endswith(entry[1:])):
            return None
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry.strip("[]"), strict=False):
                return None
    with suppress(ValueError):
        proxy = URL(named if "://" in named else f"http://{named}")
        plain = proxy.path == "/" and named.isprintable() and ":" not in (proxy.user or "")
        if plain and proxy.scheme in ("http", "https") and proxy.host and proxy.port:
            return proxy
    # The error is without the address: of a misspelled one, any part may hold the password.
    raise UnsupportedError(
        "the proxy that the environment names cannot be used",
        code="proxy-invalid",
        cause="http_proxy, https_proxy or all_proxy is not of the form http://[NAME:PASSWORD@]HOST:PORT: it is a SOCKS "
        "proxy, or a special character of NAME or PASSWORD is not percent-encoded",
        fix="correct the variable, name an HTTP proxy in place of a SOCKS proxy, or export no_proxy=HOST",
    )


def session_for(proxy: URL | None, *, resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """A session for one server, to be closed by the caller: no cookies, no limit of connections, bounded headers."""
    credentials = None
    if proxy and (proxy.user or proxy.password):
        credentials = aiohttp.encode_basic_auth(proxy.user or "", proxy.password or "")
    connector = aiohttp.TCPConnector(ssl=certificates(), limit=0, keepalive_timeout=_IDLE_S, resolver=resolver)
    return aiohttp.ClientSession(
        connector=connector,
        proxy=proxy and proxy.with_user(None),  # aiohttp's errors quote it
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(connect=CONNECT_TIMEOUT_S),
        middlewares=(partial(_send, credentials),),
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
    )


async def _send(
    credentials: str | None, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request, with its proxy's credentials, and once: aiohttp would repeat a GET if its connection breaks."""
    # They are for the tunnel alone: the server behind it must not see them.
    if credentials and request.is_ssl():
        request.proxy_headers = CIMultiDict({"Proxy-Authorization": credentials})
    elif credentials:
        request.headers["Proxy-Authorization"] = credentials
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as failure:
        raise aiohttp.ClientConnectionError(str(failure) or "the connection broke") from failure


@dataclass(frozen=True, slots=True)
class _Connections:
    """Parts that the users of an endpoint share in one event loop; `closer` closes the session."""

    session: aiohttp.ClientSession
    closer: AsyncGenerator[aiohttp.ClientSession]
    slots: CapacityLimiter
    limits: dict[object, int]  # of each user


class Endpoint:
    """Connections to one server, and slots for concurrent requests. Event loops share nothing."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._loops: dict[asyncio.AbstractEventLoop, _Connections] = {}
        _endpoints.add(self)

    async def join(self, user: object, limit: int) -> tuple[aiohttp.ClientSession, CapacityLimiter]:
        """The running loop's session and slots; the smallest limit of all users in this loop applies."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            closer = _opened(proxy_of(self._url))
            self._loops[loop] = _Connections(await anext(closer), closer, CapacityLimiter(limit), {})
            for closed in [known for known in self._loops if known.is_closed()]:
                await self._loops.pop(closed).session.close()
        here = self._loops[loop]
        if here.limits.get(user) != limit:
            here.limits[user] = limit
            here.slots.total_tokens = min(here.limits.values())
        return here.session, here.slots

    async def leave(self, user: object) -> None:
        """Remove `user` and its limit. The last user to leave closes the running loop's session."""
        here = self._loops.get(asyncio.get_running_loop())
        if here is None or here.limits.pop(user, None) is None:
            return
        if here.limits:
            here.slots.total_tokens = min(here.limits.values())
        else:
            del self._loops[asyncio.get_running_loop()]
            await here.closer.aclose()


_endpoints: WeakSet[Endpoint] = WeakSet()


@atexit.register
def _close_forgotten() -> None:
    """Close what a caller forgot in a loop that `asyncio.run` did not end (a notebook's): aiohttp would complain."""
    for loop, here in [opened for endpoint in _endpoints for opened in endpoint._loops.items()]:
        if not loop.is_running():
            (asyncio.run if loop.is_closed() else loop.run_until_complete)(here.session.close())


async def _opened(proxy: URL | None) -> AsyncGenerator[aiohttp.ClientSession]:
    """Yield a session and close it when this generator is closed: `asyncio.run` does so if nobody calls `leave`."""
    async with session_for(proxy) as session:
        yield session
