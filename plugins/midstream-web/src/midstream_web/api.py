"""JSON over HTTP for tools, bounded in time and size, with retries of transient failures and typed errors.

One attempt has `timeout_s` seconds for everything, from the connection to the last byte, and its body, decompressed,
at most `LONGEST_BODY` bytes. Transient failures (429, 5xx, a broken or missing connection, an answer that is not JSON)
are retried with growing pauses, as `core.http.retry` bounds them. Redirects are not followed: they could carry a key
to another server.

A key is read from the environment for each request and is only ever sent as a header. Certificates and proxies are
those of the environment (`core/http.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from pydantic import Field
from yarl import URL

from midstream.core.data import Settings
from midstream.core.errors import RecipeError, ToolServerError, TransientError
from midstream.core.http import Endpoint, redacted, retry, retry_after_s
from midstream.core.version import __version__

T = TypeVar("T")
Check = Callable[[Any, float], None]
NEVER_S = 3600.0  # a tool's `timeout_s`: attempts and pauses are bounded here; this only ends a hang
LONGEST_BODY = 8 << 20
_LONGEST_QUOTE = 300
_RETRIED_STATUS = {408, 425, 429}


class WebApiConfig(Settings):
    """Settings of requests to a web service.

    Attributes:
        timeout_s: seconds of one attempt
        max_attempts: attempts at a request that may succeed later (429, 5xx, no connection, no JSON)
        first_pause_s: seconds before the second attempt; each later pause doubles, up to a minute, or follows
            `Retry-After`
        concurrency: requests in progress; Wikimedia asks for few
        user_agent: the User-Agent header; by default midstream and its version. Wikimedia wants a contact:
            `"my-agent/1.0 (me@example.org)"`
    """

    timeout_s: float = Field(default=20.0, gt=0)
    max_attempts: int = Field(default=4, ge=1)
    first_pause_s: float = Field(default=0.5, ge=0)
    concurrency: int = Field(default=4, ge=1)
    user_agent: str | None = Field(default=None, pattern=r"^[!-~]([ -~]*[!-~])?$")


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key from the environment variable `env`, sent as the header `header`."""

    header: str
    env: str

    def read(self) -> str:
        """The key; raises `RecipeError` if it is not set, or a header cannot carry it."""
        key = os.environ.get(self.env, "").strip()
        if key and key.isascii() and key.isprintable():
            return key
        raise RecipeError(
            f"no usable key in ${self.env}",
            code="missing-key",
            cause="it holds a line break or an accented letter" if key else "the variable is not set",
            fix=f"export {self.env}=<your key>",
        )


async def retried(attempt: Callable[[], Awaitable[T]], config: WebApiConfig, service: str) -> T:
    """The first result of `attempt` that is not a `TransientError`; raises `ToolServerError` if all attempts failed."""

    def pause_s(number: int) -> float:
        return config.first_pause_s * 2 ** (number - 1) * random.uniform(0.5, 1.0)

    try:
        return await retry(attempt, max_attempts=config.max_attempts, pause_s=pause_s)
    except TransientError as failure:
        raise ToolServerError(
            f"{service} failed {config.max_attempts} times, the last time with: {failure}",
            code="service-failed",
            fix="try again later; lower the tool's concurrency, or raise its max_attempts or timeout_s",
        ) from failure


class Service:
    """A web service that answers in JSON, for any number of event loops and requests.

    `name` is its name in errors. The `check` of a request gets its answer and how long the service asks to wait; it
    raises `TransientError` for a transient failure and any other error for a permanent one.

    Raises `RecipeError` if `url` is not an address of a service.
    """

    def __init__(self, name: str, url: str, config: WebApiConfig, *, key: Key | None = None) -> None:
        try:
            self._url = URL(url)
        except ValueError:
            self._url = URL()
        if self._url.scheme not in ("http", "https") or not self._url.host or not self._url.port or self._url.user:
            raise RecipeError(
                f"{url.rpartition('@')[2]!r} is not an address of a service",
                code="address-invalid",
                cause="it is misspelled, holds a name and a password, or a port above 65535",
                fix='set base_url = "https://HOST/PATH"',
            ) from None
        self._label, self._config, self._key = f"{name} at {url}", config, key
        self._headers = {
            "User-Agent": config.user_agent or f"midstream/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
        }
        self._endpoint = Endpoint(self._url)

    async def request(self, method: str, check: Check, **content: Any) -> Any:
        """The answer to one request; `content` is aiohttp's `params` or `json`.

        Raises `ToolServerError` if the service refused (not retryable), or every attempt failed.
        """

        async def attempt() -> Any:
            session, slots = await self._endpoint.join(self._label, self._config.concurrency)
            async with slots:
                data, pause_s = await self._attempt(session, method, content)
            check(data, pause_s)
            return data

        return await retried(attempt, self._config, self._label)

    async def close(self) -> None:
        """Close the running loop's connections; a later request opens new ones."""
        await self._endpoint.leave(self._label)

    async def _attempt(
        self, session: aiohttp.ClientSession, method: str, content: Mapping[str, Any]
    ) -> tuple[Any, float]:
        """The answer as JSON and its Retry-After; `TransientError` or `ToolServerError` for anything else."""
        key = self._key.read() if self._key else ""
        headers = self._headers | ({self._key.header: key} if self._key else {})
        body = bytearray()
        try:
            async with (
                asyncio.timeout(self._config.timeout_s),
                session.request(method, self._url, headers=headers, allow_redirects=False, **content) as response,
            ):
                # aiohttp decompresses in small pieces: no server can fill this machine's memory.
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > LONGEST_BODY:
                        raise TransientError(f"the answer is longer than {LONGEST_BODY >> 20} MB")
        except aiohttp.ClientError as failure:  # before TimeoutError: a connection's time-out is both
            # Not chained: the failure's text may hold what was sent.
            raise TransientError(_quote(f"{type(failure).__name__} {failure}".strip(), key)) from None
        except TimeoutError as failure:
            raise TransientError(f"no complete answer within {self._config.timeout_s:g} s") from failure
        status, pause_s = response.status, retry_after_s(response.headers)
        if status != 200:
            text = _quote(body.decode("utf-8", "replace"), key)
            if status >= 500 or status in _RETRIED_STATUS:
                raise TransientError(f"{status}: {text}", pause_s)
            cause, fix = "", "check the tool's base_url, user_agent and api_key_env, where it has them"
            if 300 <= status < 400:
                cause = "it has moved, and redirects are not followed"
                fix = f"set the tool's base_url to {_quote(response.headers.get('location', ''), key)!r}"
            elif status in (401, 402, 403) and self._key:
                cause, fix = "the key is wrong or used up", f"export {self._key.env}=<a key that is valid>"
            raise final(f"{self._label} answered {status}: {text}", cause=cause, fix=fix)
        try:
            data = json.loads(body)
            shown = json.dumps(data, ensure_ascii=False) if key else ""
        except (ValueError, RecursionError) as failure:
            raise TransientError("the answer is cut off or not JSON") from failure
        if key and key in shown:
            raise final(
                f"{self._label} answered with the key that it was sent",
                fix="do not send this server a key, and make a new one",
            )
        return data, pause_s


def valid(argument: object) -> str:
    """A model's argument as text that a request can hold: no half surrogate pairs, white space folded."""
    return " ".join(str(argument).encode("utf-8", "replace").decode().split())


def _quote(text: str, key: str) -> str:
    """The beginning of a server's text, without the key."""
    return " ".join(redacted(text[: 4 * _LONGEST_QUOTE], key).split())[:_LONGEST_QUOTE]


def final(what: str, *, fix: str, cause: str = "") -> ToolServerError:
    """The error for a failure that another attempt does not fix."""
    return ToolServerError(what, code="service-refused", cause=cause, fix=fix, retryable=False)
