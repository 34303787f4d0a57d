"""Connections to model servers: one pool for each event loop, shared by all engines in it.

An endpoint (scheme, host, port) has a limit of concurrent requests and a list of idle connections, of which the newest
is used first, so that surplus ones expire. Each is an httpx2 client with a single connection: the bookkeeping of one
client with many connections costs as much as the request itself at hundreds of concurrent requests
(docs/architecture.md).

httpx2 reads certificates (SSL_CERT_FILE, SSL_CERT_DIR) and proxies (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) from
the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from urllib.parse import urlsplit

import httpx2
from anyio import CapacityLimiter

from midstream.core.http import certificates, usable_proxy

_CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 4.0  # below the five seconds after which uvicorn, under vLLM and SGLang, hangs up
_TIMEOUTS = {"timeout": {"connect": _CONNECT_TIMEOUT_S}}
_DEFAULT_PORTS = {"http": 80, "https": 443}
NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)

_pools: dict[asyncio.AbstractEventLoop, _Pool] = {}


class Endpoint:
    """A server's address in one event loop, with its `slots` and connections."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._idle: list[httpx2.AsyncClient] = []
        self._limits: dict[object, int] = {}
        self.slots = CapacityLimiter(1)

    def join(self, user: object, limit: int) -> None:
        """Limit concurrent requests to `limit` while `user` shares the endpoint; the smallest limit applies to all."""
        if self._limits.get(user) != limit:
            self._limits[user] = limit
            self.slots.total_tokens = min(self._limits.values())

    async def leave(self, user: object) -> None:
        """Remove `user` and its limit. The last user to leave closes the idle connections."""
        if self._limits.pop(user, None) is None:
            return
        if self._limits:
            self.slots.total_tokens = min(self._limits.values())
        else:
            await self.close()

    async def close(self) -> None:
        """Close idle connections; those in use close when their request ends."""
        idle, self._idle = self._idle, []
        for client in idle:
            await client.aclose()

    @contextlib.asynccontextmanager
    async def post(self, url: httpx2.URL, body: bytes, headers: httpx2.Headers) -> AsyncIterator[httpx2.Response]:
        """Send one request; its answer can be read until the block ends. The caller sets the time-out.

        Raises:
            httpx2.TransportError: no connection, or a broken one, on sending as on reading.
            UnsupportedError: the environment names a proxy that httpx2 cannot use.
        """
        if self._idle:
            client = self._idle.pop()
        else:
            limits = httpx2.Limits(max_connections=1, keepalive_expiry=_IDLE_S)
            with usable_proxy():
                client = httpx2.AsyncClient(verify=self._tls, limits=limits)
        answered = False
        try:
            # Not `client.stream`, which would parse address and headers again for every request.
            request = httpx2.Request("POST", url, headers=headers, content=body, extensions=_TIMEOUTS)
            answer = await client.send(request, stream=True)
            try:
                yield answer
            finally:
                await answer.aclose()
            answered = True
        finally:
            if answered and self._limits:
                self._idle.append(client)
            else:
                await client.aclose()


class _Pool:
    """The endpoints of one event loop."""

    def __init__(self) -> None:
        self.endpoints: dict[tuple[str, str, int], Endpoint] = {}
        self.tls = certificates()  # once for all endpoints: reading them takes 20 ms
        self.closer = self._closer()

    async def _closer(self) -> AsyncGenerator[None]:
        """Close all connections when the generator is closed.

        `asyncio.run` closes a loop's open asynchronous generators before it closes the loop, and a connection can only
        be closed in its own loop: so none leaks if a caller forgets `close`.
        """
        try:
            yield
        finally:
            _pools.pop(asyncio.get_running_loop(), None)
            for endpoint in self.endpoints.values():
                await endpoint.close()


async def endpoint_of(base_url: str) -> Endpoint:
    """The running loop's endpoint for an address, made at first use."""
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        for closed in [known for known in _pools if known.is_closed()]:
            _pools.pop(closed, None)
        pool = _pools[loop] = _Pool()
        await anext(pool.closer)
    url = urlsplit(base_url)
    key = (url.scheme, url.hostname or "", url.port or _DEFAULT_PORTS[url.scheme])
    if key not in pool.endpoints:
        pool.endpoints[key] = Endpoint(pool.tls)
    return pool.endpoints[key]
