"""Connections to model servers: one pool an event loop, shared by all engines in it.

An endpoint (scheme, host, port) has a limit of requests at a time and a list of idle connections, of which the newest
is used first: what is idle longest runs out. Each connection is one of httpcore2's, without its pool, on a socket of
asyncio's: the pool's book-keeping costs more than the request itself where hundreds are under way.

TLS certificates are verified (SSL_CERT_FILE and SSL_CERT_DIR are obeyed), and HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
NO_PROXY hold; a request through a proxy takes httpcore2's own pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2

from midstream.core.errors import UnsupportedError
from midstream.engines.http_socket import SocketBackend

CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 4.0  # below the five seconds after which uvicorn, under vLLM and SGLang, hangs up
_DEFAULT_PORTS = {"http": 80, "https": 443}
TRANSPORT_ERRORS = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, httpcore2.ProxyError)
NO_CONNECTION = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.ProxyError)

_pools: dict[asyncio.AbstractEventLoop, _Pool] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """An answer whose body is still to be read. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.chunks])


class Slots:
    """So many holders at once; who waits is served in order of arrival. The limit may change meanwhile."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        self.admit()
        if self._held < self.limit:
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # but only its task, just after the slot was handed over
                self._leave()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._leave()

    def admit(self) -> None:
        """Hand free slots to those who wait."""
        while self._waiting and self._held < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._held += 1
                turn.set_result(None)

    def _leave(self) -> None:
        self._held -= 1
        self.admit()


class Endpoint:
    """A server's address in one event loop, with its `slots` and connections."""

    def __init__(self, scheme: str, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._origin = httpcore2.Origin(scheme.encode(), host.encode(), port)
        name = f"[{host}]" if ":" in host else host
        self._host = (name if port == _DEFAULT_PORTS[scheme] else f"{name}:{port}").encode()
        self._tls = tls
        self._idle: list[httpcore2.AsyncHTTPConnection] = []
        self._limits: dict[object, int] = {}
        self._proxy = _proxy_pool(scheme, host, tls)
        self.slots = Slots(1)

    def join(self, user: object, limit: int) -> None:
        """`user` makes at most `limit` requests at a time, and so do all who share the endpoint."""
        if self._limits.get(user) != limit:
            self._limits[user] = limit
            self._set_limit()

    async def leave(self, user: object) -> None:
        """`user` makes no more requests. The last to leave closes the idle connections."""
        if self._limits.pop(user, None) is None:
            return
        if self._limits:
            self._set_limit()
        else:
            await self.close()

    async def close(self) -> None:
        """Close idle connections; those in use close when their request ends."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()
        if self._proxy is not None:
            await self._proxy.aclose()

    @contextlib.asynccontextmanager
    async def post(self, target: str, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> AsyncIterator[Response]:
        """Send one request; its answer can be read until the block ends. The caller's clock bounds it.

        Raises:
            TRANSPORT_ERRORS: no connection, or a broken one, on sending as on reading.
        """
        connection = self._proxy or await self._taken()
        head = [(b"Host", self._host), (b"Content-Length", b"%d" % len(body)), *headers]
        request = httpcore2.Request(
            b"POST",
            httpcore2.URL(
                scheme=self._origin.scheme, host=self._origin.host, port=self._origin.port, target=target.encode()
            ),
            headers=head,
            content=body,
            extensions={"timeout": {"connect": CONNECT_TIMEOUT_S}},
        )
        try:
            answer = await connection.handle_async_request(request)
            chunks = answer.aiter_stream()
            try:
                fields = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
                yield Response(status=answer.status, headers=fields, chunks=chunks)
            finally:
                await chunks.aclose()
                await answer.aclose()
        finally:
            if isinstance(connection, httpcore2.AsyncHTTPConnection):
                await self._give_back(connection)

    async def _taken(self) -> httpcore2.AsyncHTTPConnection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore2.AsyncHTTPConnection(
            self._origin, ssl_context=self._tls, keepalive_expiry=_IDLE_S, network_backend=SocketBackend()
        )

    async def _give_back(self, connection: httpcore2.AsyncHTTPConnection) -> None:
        if self._limits and connection.is_idle() and not connection.is_closed():
            self._idle.append(connection)
        else:
            await connection.aclose()

    def _set_limit(self) -> None:
        self.slots.limit = min(self._limits.values())
        self.slots.admit()


class _Pool:
    """The endpoints of one event loop."""

    def __init__(self) -> None:
        self.endpoints: dict[tuple[str, str, int], Endpoint] = {}
        self.closer = self._closer()

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """What TLS connections are verified with; reading the certificates takes 20 ms."""
        return httpcore2.default_ssl_context()

    async def _closer(self) -> AsyncGenerator[None]:
        """Closes all connections when it is closed itself.

        `asyncio.run` closes a loop's open asynchronous generators before it closes the loop, and a connection can only
        be closed in its own loop: so none leaks where nobody calls `close`.
        """
        try:
            yield
        finally:
            _pools.pop(asyncio.get_running_loop(), None)
            for endpoint in self.endpoints.values():
                await endpoint.close()


async def endpoint_of(base_url: str) -> Endpoint:
    """The running loop's endpoint for an address, made at first use.

    Raises:
        UnsupportedError: the environment asks for a proxy that is not an HTTP one.
    """
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        for closed in [known for known in list(_pools) if known.is_closed()]:
            _pools.pop(closed, None)
        pool = _pools[loop] = _Pool()
        await anext(pool.closer)
    url = urlsplit(base_url)
    key = (url.scheme, url.hostname or "", url.port or _DEFAULT_PORTS[url.scheme])
    if key not in pool.endpoints:
        pool.endpoints[key] = Endpoint(*key, pool.tls if url.scheme == "https" else None)
    return pool.endpoints[key]


def _proxy_pool(scheme: str, host: str, tls: ssl.SSLContext | None) -> httpcore2.AsyncConnectionPool | None:
    """Connections through the proxy that the environment names for an address, if it names one."""
    proxies = getproxies()
    address = proxies.get(scheme) or proxies.get("all")
    if not address or proxy_bypass(host):
        return None
    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.scheme not in _DEFAULT_PORTS or not url.hostname:
        raise UnsupportedError(
            f"a proxy of kind {url.scheme!r} for {host}",
            cause=f"{scheme}_proxy or all_proxy is set in the environment, and only HTTP proxies are supported",
            mend=f"export no_proxy={host}, or name an http:// proxy",
        )
    login = None if url.username is None else (unquote(url.username), unquote(url.password or ""))
    where = httpcore2.URL(scheme=url.scheme, host=url.hostname, port=url.port or _DEFAULT_PORTS[url.scheme], target="/")
    return httpcore2.AsyncConnectionPool(
        ssl_context=tls,
        proxy=httpcore2.Proxy(where, auth=login),
        max_connections=None,
        keepalive_expiry=_IDLE_S,
        network_backend=SocketBackend(),
    )
