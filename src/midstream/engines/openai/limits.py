"""Limits of requests and tokens a minute, shared by all engines of one server and key.

The settings' own limits hold for any 60 seconds. Those of a server are in its headers, with the time of their reset:
OpenAI's `x-ratelimit-remaining-requests` (also Groq's, Azure's, LiteLLM's), Anthropic's
`anthropic-ratelimit-requests-remaining`, and `retry-after` of a 429.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import takewhile
from math import inf
from weakref import WeakKeyDictionary

from yarl import URL

from midstream.core.events import Emit, ignore_event
from midstream.core.http import retry_after_s

SHOWN_WAIT_S = 1.0
_MINUTE_S = 60.0
# A server that names a later time is asked again then: nobody waits for a limit of a day.
_LONGEST_WAIT_S = 600.0
# A reply that used less than was reserved makes room: a wait looks again this often.
_LOOK_S = 0.25
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "": 1.0}
_PIECES = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms]|$)")


@dataclass(slots=True)
class Reservation:
    """A request's place in the minute: the `tokens` that it may use, later those that it used."""

    tokens: int
    emit: Emit = ignore_event
    limits: tuple[float, float] = (inf, inf)  # requests and tokens a minute, by the settings of its engine
    model: str = ""
    at: float = 0.0  # when its turn came
    waits: bool = False  # for its turn, now
    waited_s: float = 0.0


@dataclass(slots=True)
class _Stated:
    """What a server still takes of requests or tokens before `reset`, when it takes `limit` again."""

    limit: float
    left: float
    reset: float


class RateLimits:
    """The turns of requests to one server with one key, in any number of event loops and threads."""

    def __init__(self) -> None:
        self.clock, self.sleep, self._guard = time.monotonic, asyncio.sleep, threading.Lock()
        self._queues = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        self._recent = deque[Reservation]()  # of the last minute
        self._used = dict[tuple[float, float], float]()  # settings of engines, and when one of them last sent
        self._paused_until = -inf
        # What a server states is of one model.
        self._read_until = defaultdict[str, float](lambda: -inf)
        self._stated = defaultdict[str, dict[str, _Stated]](dict)

    async def turn(self, request: Reservation) -> None:
        """Wait until a request may be sent."""
        began, request.waits = self.clock(), True
        # First come, first served: asyncio's locks are fair.
        async with self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if (wait_s := self._begin(request)) >= SHOWN_WAIT_S:
                request.emit("retry", f"waits up to {wait_s:.0f} s for the rate limit")
            while wait_s > 0:
                await self.sleep(min(wait_s, _LOOK_S))
                wait_s = self._begin(request)
        request.waits, request.waited_s = False, self.clock() - began

    def _begin(self, request: Reservation) -> float:
        """Begin a turn if there is room for it; else return the seconds until there may be."""
        with self._guard:
            now, recent, needs = self.clock(), self._recent, {"requests": 1, "tokens": request.tokens}
            while recent and recent[0].at <= now - _MINUTE_S:
                recent.popleft()
            wait_s = self._paused_until - now
            self._used[request.limits] = now
            # Engines share the least of their settings.
            here = (limits for limits, at in self._used.items() if at > now - _MINUTE_S)
            requests, tokens = map(min, zip(*here, strict=True))
            used = sum(earlier.tokens for earlier in recent) if tokens < inf else 0
            # A request that is larger than the limit has a minute of its own.
            if recent and (len(recent) >= requests or used + request.tokens > tokens):
                wait_s = max(wait_s, recent[0].at + _MINUTE_S - now)
            for kind, stated in self._stated[request.model].items():
                if now >= stated.reset:
                    # Until a reply states the next one: else all that wait would be sent at once, and be refused.
                    stated.left, stated.reset = stated.limit, now + _MINUTE_S
                if stated.left < min(needs[kind], stated.limit):
                    wait_s = max(wait_s, stated.reset - now)
            if wait_s <= 0:
                request.at = now
                recent.append(request)
                for kind, stated in self._stated[request.model].items():
                    stated.left -= needs[kind]
            return wait_s

    def read(self, request: Reservation, status: int, headers: Mapping[str, str]) -> None:
        """Follow what the headers of an answer state; a pause after a 429 is one for all."""
        with self._guard:
            now = self.clock()
            if status == 429:
                self._paused_until = max(self._paused_until, now + min(retry_after_s(headers), _LONGEST_WAIT_S))
            if request.at < self._read_until[request.model]:
                return
            self._read_until[request.model] = request.at
            # The server may not have counted these yet.
            others = takewhile(lambda other: other is not request, reversed(self._recent))
            later = [other.tokens for other in others if other.model == request.model]
            for kind, taken in (("requests", len(later)), ("tokens", sum(later))):
                limit, left, reset = (
                    headers.get(f"x-ratelimit-{name}-{kind}") or headers.get(f"anthropic-ratelimit-{kind}-{name}", "")
                    for name in ("limit", "remaining", "reset")
                )
                if left.isdecimal() and (reset_s := seconds_until(reset, time.time())) is not None:
                    most = float(limit) if limit.isdecimal() else inf
                    self._stated[request.model][kind] = _Stated(
                        most, int(left) - taken, now + min(reset_s, _LONGEST_WAIT_S)
                    )


@cache
def limits_of(origin: URL, key_digest: bytes) -> RateLimits:
    """The limits that all engines of a server and key share."""
    return RateLimits()


def seconds_until(text: str, now: float) -> float | None:
    """The seconds to a reset: of "6m0s", "20ms" or "1.5", or from `now` to an RFC 3339 or Unix time; else None."""
    pieces = _PIECES.findall(text)
    if pieces and "".join(map("".join, pieces)) == text:
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in pieces)
        return seconds if seconds < 1e9 else seconds - now
    try:
        return datetime.fromisoformat(text).timestamp() - now
    except (ValueError, OverflowError):
        return None
