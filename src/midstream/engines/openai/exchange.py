"""One attempt at a request: it goes out, and comes back as a checked reply or as the reason why not.

The key is taken from the environment at each request, is sent as a header, and stands nowhere else: a server's words
are shown without it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import httpx2

from midstream.core.errors import EngineError, PromptTooLongError, RecipeError, UnsupportedError
from midstream.core.events import Tell
from midstream.core.http import TransientError, retry_after_s
from midstream.core.version import __version__
from midstream.engines.openai import pool as http_pool
from midstream.engines.openai.providers import refusal_advice, start_advice
from midstream.engines.openai.reply import (
    LONGEST_BODY,
    LONGEST_WORDS,
    Reply,
    checked_reply,
    decoded,
    may_pass,
    no_token_ids,
    redacted,
    reported_error,
)
from midstream.engines.openai.request import Outgoing
from midstream.engines.openai.stream import DONE, EventParser, StreamedReply, event_object

if TYPE_CHECKING:
    from midstream.engines.openai.engine import Config

_LAST_BYTES_S = 0.25  # a stream's end after [DONE]: worth a moment, because the connection can then be used again
_LONGEST_QUOTE = 300
_LONGEST_STREAM = 10  # times `timeout_s`
_SHORTEST_SECRET = 12  # a shorter key is a placeholder ("none", "ollama", "x"), a word that any reply may hold
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "User-Agent": f"midstream/{__version__}",
}


class Exchange:
    """Talks to one server for one engine; it remembers only whether the server ever answered, and ever with ids."""

    def __init__(self, config: Config, name: str) -> None:
        self._config, self._name = config, name
        self._base_url = config.base_url.rstrip("/")
        self._reached = self._exact = False

    async def post(self, endpoint: http_pool.Endpoint, path: str, body: bytes) -> tuple[int, str]:
        """Status and text of any answer, or `TransientError`, or `EngineError`."""
        try:
            async with (
                asyncio.timeout(self._config.timeout_s),
                endpoint.post(_url(f"{self._base_url}/{path}"), body, self._headers()) as response,
            ):
                said = (await _whole(response)).decode("utf-8", "replace")
        except TimeoutError as failure:
            raise TransientError(f"no whole answer within {self._config.timeout_s:g} s") from failure
        except httpx2.TransportError as failure:
            self._broken(failure)
        self._reached = True
        return response.status_code, redacted(said[:LONGEST_WORDS], self._key())

    async def reply(self, endpoint: http_pool.Endpoint, asked: Outgoing, tell: Tell) -> Reply:
        """The checked reply, or `TransientError`, or `EngineError`; of a stream, `tell` is told each piece of text."""
        streamed, model = StreamedReply(), str(asked.sent["model"])
        data: dict[str, Any] | None = None
        try:
            async with (
                asyncio.timeout(self._config.timeout_s) as clock,
                endpoint.post(_url(f"{self._base_url}/{asked.path}"), asked.body, self._headers()) as response,
            ):
                self._reached = True
                if response.status_code == 200 and "event-stream" in response.headers.get("content-type", ""):
                    await self._read_stream(response, streamed, model, tell, clock)
                else:
                    body = await _whole(response)
                    data = decoded(body)
                    self._check(response.status_code, data, body, model, retry_after_s(response.headers))
        except TimeoutError as failure:
            if not streamed.done:
                raise TransientError(f"no whole answer within {self._config.timeout_s:g} s") from failure
        except httpx2.TransportError as failure:
            if not streamed.done:
                self._broken(failure)
        reply = self._checked(streamed.whole() if data is None else data)
        if data is not None and self._config.stream:  # and the server does not
            tell("text", reply.text)
        return reply

    def _checked(self, data: dict[str, Any]) -> Reply:
        key = self._key()
        try:
            reply = checked_reply(data, token_ids=self._config.token_ids)
        except UnsupportedError as failure:
            if not self._exact:
                raise
            raise TransientError(failure.what) from failure  # it gave ids before, so this is one broken answer
        self._exact = self._config.token_ids
        if len(key) >= _SHORTEST_SECRET and key in reply.text:
            error = EngineError(
                f"{self._name} at {self._base_url} answered with the key in ${self._config.api_key_env}",
                cause="the server repeats what it was sent as a header, and a trace must not hold it",
                fix="do not send this server a key, and make a new one",
            )
            error.retryable = False
            raise error
        return reply

    async def _read_stream(
        self, response: httpx2.Response, streamed: StreamedReply, model: str, tell: Tell, clock: asyncio.Timeout
    ) -> None:
        """Events into `streamed`, until its end; it may take as long as each piece comes in time, but not for ever."""
        parser, now, timeout_s = EventParser(), asyncio.get_running_loop().time, self._config.timeout_s
        latest = now() + _LONGEST_STREAM * timeout_s

        def take(event: str) -> None:
            if streamed.done:
                return
            if event == DONE:
                streamed.done = True
                clock.reschedule(now() + _LAST_BYTES_S)
                return
            if now() > latest:
                raise TransientError(f"the stream did not end within {_LONGEST_STREAM * timeout_s:g} s")
            chunk = event_object(event)
            self._check(200, chunk, event.encode(), model)
            clock.reschedule(now() + timeout_s)
            piece = streamed.add(chunk)
            if piece:
                tell("text", piece)

        async for chunk in response.aiter_raw():
            for event in parser.feed(chunk):
                take(event)
        for event in parser.end():
            take(event)

    def _check(self, status: int, data: dict[str, Any], body: bytes, model: str, pause_s: float = 0.0) -> None:
        """Raise what an answer or an event reports, if it reports an error."""
        refusal = reported_error(status, data, body)
        if refusal is None:
            return
        status, said = refusal.status, redacted(refusal.said, self._key())[:_LONGEST_QUOTE]
        if may_pass(status) and not refusal.too_long:
            raise TransientError(f"{status}: {said}", pause_s)
        config = self._config
        if config.token_ids and "return_token_ids" in refusal.said:
            raise no_token_ids(f"it answered {status}: {said}")
        advice = refusal_advice(
            config.provider, self._base_url, model, config.api_key_env, status, too_long=refusal.too_long
        )
        kind = PromptTooLongError if refusal.too_long else EngineError
        error = kind(f"{self._name} at {self._base_url} answered {status}: {said}", **advice)
        error.retryable = False
        raise error

    def _key(self) -> str:
        return os.environ.get(self._config.api_key_env, "").strip() if self._config.api_key_env else ""

    def _headers(self) -> httpx2.Headers:
        key = self._key()
        if not (key.isascii() and key.isprintable()):
            raise RecipeError(
                f"the key in ${self._config.api_key_env} holds a character that no HTTP header can carry",
                cause="a line break or an accented letter was copied with it",
                fix=f"export {self._config.api_key_env}=<your key>",
            )
        return httpx2.Headers(_HEADERS | {"Authorization": f"Bearer {key}"} if key else _HEADERS)

    def _broken(self, failure: Exception) -> NoReturn:
        """Raise what a broken connection means: nobody is there, or, once one was, another attempt."""
        reason = redacted(f"{type(failure).__name__} {failure}".strip()[:LONGEST_WORDS], self._key())[:_LONGEST_QUOTE]
        if not isinstance(failure, http_pool.NO_CONNECTION):
            raise TransientError(reason) from None
        if _has_cause(failure, OSError) and "Too many open files" in str(failure):
            raise EngineError(
                f"{self._name}: {failure}",
                cause="every request under way has a connection, and this process may not open more",
                fix="ulimit -n 4096, or lower max_concurrency",
            ) from failure
        if self._reached:  # it may be a server that restarts
            raise TransientError(f"no connection ({failure})") from failure
        if _has_cause(failure, ssl.SSLError):
            raise EngineError(
                f"{self._name}: no TLS with {self._base_url} ({failure})",
                cause="its certificate is not trusted here, or it speaks plain HTTP",
                fix='export SSL_CERT_FILE=<the certificates to trust>, or base_url = "http://..."',
            ) from failure
        raise EngineError(
            f"{self._name}: nothing answers at {self._base_url} ({failure})",
            cause="is the server running?",
            fix=start_advice(self._config.provider, self._base_url, self._config.model),
        ) from failure


@lru_cache(maxsize=256)
def _url(address: str) -> httpx2.URL:
    """Parsed once: that takes as long as writing the request's body."""
    return httpx2.URL(address)


async def _whole(response: httpx2.Response) -> bytes:
    """The body, as long as a reply can be and not a byte longer: a server must not fill this machine's memory."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise TransientError("the answer is compressed, which was not asked for")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise TransientError(f"the answer is longer than {LONGEST_BODY >> 20} MB")
    return bytes(body)


def _has_cause(failure: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error of a kind is among the causes of a failed connection."""
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
