"""Model servers: the connections to each address and its limit of concurrent requests, shared by all engines there."""

from __future__ import annotations

import asyncio
from functools import cache
from weakref import WeakKeyDictionary

import aiohttp
from anyio import CapacityLimiter
from yarl import URL

from midstream.core.http import Sessions


class Endpoint:
    """A server's address. Event loops share nothing: each has its own connections, users and limit."""

    def __init__(self, url: URL) -> None:
        self.sessions = Sessions(url)
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[CapacityLimiter, dict[object, int]]] = (
            WeakKeyDictionary()
        )

    async def join(self, user: object, limit: int) -> tuple[aiohttp.ClientSession, CapacityLimiter]:
        """Connections, and slots for concurrent requests: the smallest limit of all users in this loop applies."""
        slots, limits = self._users.setdefault(asyncio.get_running_loop(), (CapacityLimiter(limit), {}))
        if limits.get(user) != limit:
            limits[user] = limit
            slots.total_tokens = min(limits.values())
        return await self.sessions.here(), slots

    async def leave(self, user: object) -> None:
        """Remove `user` and its limit. The last user to leave closes this loop's connections."""
        slots, limits = self._users.get(asyncio.get_running_loop(), (None, {}))
        if slots is None or limits.pop(user, None) is None:
            return
        if limits:
            slots.total_tokens = min(limits.values())
        else:
            await self.sessions.close()


@cache
def endpoint_of(origin: URL) -> Endpoint:
    """The endpoint of a scheme, host and port."""
    return Endpoint(origin)
