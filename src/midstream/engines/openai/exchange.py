"""One attempt at a request: the body that is sent, and the checked reply or the reason for its absence.

The key is read from the environment for each request, sent as a header, and stored nowhere: a server's words are shown
without it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import aiohttp
from pydantic import JsonValue
from yarl import URL

from midstream.core.errors import (
    EngineError,
    PromptTooLongError,
    RecipeError,
    RefusedError,
    TransientError,
    UnsupportedError,
)
from midstream.core.events import Emit
from midstream.core.http import Endpoint, redacted, retry_after_s
from midstream.core.protocols import Request
from midstream.core.version import __version__
from midstream.engines.openai.providers import (
    PROVIDERS,
    REFUSES_ALL,
    key_header,
    key_of,
    limit_field,
    refusal_advice,
    request_url,
    start_advice,
)
from midstream.engines.openai.reply import (
    LONGEST_BODY,
    LONGEST_WORDS,
    Reply,
    checked_reply,
    decoded,
    may_pass,
    no_token_ids,
    reported_error,
)
from midstream.engines.openai.settings import OpenAIConfig
from midstream.engines.openai.stream import DONE, LONGEST_STREAM, EventParser, StreamedReply, event_object
from midstream.engines.openai.tool_calls import as_fields

_LAST_BYTES_S = 0.25  # a stream's end after [DONE]: worth a moment, because the connection can then be used again
_LONGEST_QUOTE = 300
_STREAM_TIMEOUTS = 10  # times `timeout_s`, of a whole stream
_LONGEST_ERROR = 1 << 20  # bytes that are read of an answer with another status than 200
_SHORTEST_SECRET = 12  # a shorter key is a placeholder ("none", "ollama", "x"), a word that any reply may hold
# vLLM takes what a request leaves open from the model's generation_config.json: Qwen's, for example, sets top_k to 20.
_WHOLE_DISTRIBUTION: dict[str, JsonValue] = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "User-Agent": f"midstream/{__version__}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A request as it is sent: `path` below base_url, and `sent`, all of the body but messages and prompt."""

    path: str
    body: bytes
    sent: dict[str, JsonValue]


def outgoing(request: Request, config: OpenAIConfig, model: str, prompt_ids: Sequence[int] | None = None) -> Outgoing:
    """The body of a request: chat messages go to chat/completions, a text prompt or `prompt_ids` to completions.

    `config.extra_body` overrides every field.
    """
    chat = prompt_ids is None and not request.prompt
    sampling = request.sampling
    limit = limit_field(config) if chat else "max_tokens"
    fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    fields = {"model": model, **(fields if request.options is None else request.options)}
    fields.setdefault("seed", request.seed % 2**31)
    if fields.pop("max_tokens", None) or request.options is None:
        fields[limit] = sampling.max_tokens
    for name in PROVIDERS[config.provider].unsent:
        if name not in (request.options or ()) and (name != "top_p" or sampling.top_p == 1):
            fields.pop(name, None)
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if config.token_ids:
        fields |= {"return_token_ids": True, "logprobs": True if chat else 1} | _WHOLE_DISTRIBUTION
        if request.keep_stop and sampling.stop:  # else vLLM may write out a message's end token
            fields["include_stop_str_in_output"] = True
    if config.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = fields | config.extra_body
    body = dict(sent)
    if request.json_schema is not None and "response_format" not in body:
        name = request.role or "reply"
        schema = {"name": name, "schema": dict(request.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent["json_schema"] = name
    if chat and request.tools and "tools" not in body:
        body["tools"] = [dict(tool) for tool in request.tools]
        sent["tools"] = len(request.tools)
    if chat:
        foreign = any(message.fields for message in request.messages)  # with its calls as fields already
        as_text = foreign or not request.tools or config.text_calls
        messages = [message.wire() for message in request.messages] if as_text else as_fields(request.messages)
        body.setdefault("messages", messages)
    else:
        body.setdefault("prompt", request.prompt if prompt_ids is None else list(prompt_ids))
    sent["base_url"] = config.base_url.rstrip("/")
    return Outgoing(path="chat/completions" if chat else "completions", body=json.dumps(body).encode(), sent=sent)


@cache
def endpoint_of(origin: URL) -> Endpoint:
    """The connections to a scheme, host and port, which all engines there share."""
    return Endpoint(origin)


class Exchange:
    """Talks to one server for one engine, through the running loop's connections to it.

    Its own state: whether the server ever answered, ever with a reply, and ever with token ids.
    """

    def __init__(self, config: OpenAIConfig, name: str) -> None:
        self._config, self._name = config, name
        self._base_url = config.base_url.rstrip("/")
        self._endpoint = endpoint_of(URL(self._base_url, encoded=True).origin())
        self._reached = self._replied = self._exact = False

    async def close(self) -> None:
        """Leave the running loop's connections."""
        await self._endpoint.leave(self)

    async def post(self, path: str, body: dict[str, str]) -> tuple[int, str]:
        """Status and text of any answer. Raises `TransientError` or `EngineError`."""
        session, _ = await self._endpoint.join(self, self._config.max_concurrency)
        async with self._answer(session, path, json.dumps(body).encode()) as (response, _):
            text = (await _whole(response)).decode("utf-8", "replace")
        return response.status, redacted(text[:LONGEST_WORDS], key_of(self._config))

    async def reply(self, asked: Outgoing, emit: Emit) -> Reply:
        """The checked reply, or `TransientError` or `EngineError`; of a stream, `emit` receives each piece of text."""
        streamed, model = StreamedReply(), str(asked.sent["model"])
        data: dict[str, Any] | None = None
        session, slots = await self._endpoint.join(self, self._config.max_concurrency)
        try:
            # The time that a request waits for its slot does not count.
            async with slots, self._answer(session, asked.path, asked.body) as (response, clock):
                if response.status == 200 and "event-stream" in response.headers.get("content-type", ""):
                    await self._read_stream(response, streamed, model, emit, clock)
                else:
                    body = await _whole(response)
                    data = decoded(body)
                    self._check(response.status, data, body, model, retry_after_s(response.headers))
        except TransientError:
            if not streamed.done:  # else the reply is whole, and only its connection is lost
                raise
        try:
            reply = checked_reply(streamed.whole() if data is None else data, token_ids=self._config.token_ids)
        except UnsupportedError as failure:
            if not self._exact:
                raise
            raise TransientError(failure.what) from failure  # it gave ids before, so this is one broken answer
        self._replied, self._exact = True, self._config.token_ids
        self._refuse_key_in(f"{reply.text}\n{reply.finish_reason}")
        if data is not None and self._config.stream:  # this server does not stream: all text at once
            emit("text", reply.text)
        return reply

    def _refuse_key_in(self, text: str) -> int:
        """Raise `EngineError` if the server's text holds the key; returns how many of its last characters begin one."""
        key = key_of(self._config)
        if len(key) < _SHORTEST_SECRET:
            return 0
        if key in text:
            raise EngineError(
                f"{self._name} at {self._base_url} answered with the key in ${self._config.api_key_env}",
                code="key-echoed",
                fix="do not send this server a key, and make a new one",
                retryable=False,
            )
        return max(size for size in range(min(len(text), len(key)) + 1) if key.startswith(text[len(text) - size :]))

    async def _read_stream(
        self, response: aiohttp.ClientResponse, streamed: StreamedReply, model: str, emit: Emit, clock: asyncio.Timeout
    ) -> None:
        """Read events into `streamed` until its end: each piece within `timeout_s`, the whole within ten times that."""
        received, held = 0, ""  # bytes; text that may be the beginning of the key, which no screen may show
        parser, now, timeout_s = EventParser(), asyncio.get_running_loop().time, self._config.timeout_s
        latest = now() + _STREAM_TIMEOUTS * timeout_s

        def take(event: str) -> None:
            nonlocal held
            if streamed.done:
                return
            if event == DONE:
                streamed.done = True
                clock.reschedule(now() + _LAST_BYTES_S)
                return
            if now() > latest:
                raise TransientError(f"the stream did not end within {_STREAM_TIMEOUTS * timeout_s:g} s")
            chunk = event_object(event)
            self._check(200, chunk, event.encode(), model)
            clock.reschedule(now() + timeout_s)
            held += streamed.add(chunk)
            shown = len(held) - self._refuse_key_in(held)
            if shown:
                emit("text", held[:shown])
            held = held[shown:]

        async for chunk in response.content.iter_any():
            received += len(chunk)
            if received > LONGEST_STREAM:
                raise TransientError(f"the stream is longer than {LONGEST_STREAM >> 20} MB")
            for event in parser.feed(chunk):
                take(event)
        for event in parser.end():
            take(event)
        if held:
            emit("text", held)

    def _check(
        self, status: int, data: dict[str, Any], body: bytes | bytearray, model: str, pause_s: float = 0.0
    ) -> None:
        """Raise the error that an answer or an event reports, if it reports one."""
        refusal = reported_error(status, data, body)
        if refusal is None:
            return
        status, text = refusal.status, redacted(refusal.text, key_of(self._config))[:_LONGEST_QUOTE]
        if may_pass(status) and not refusal.too_long:
            raise TransientError(f"{status}: {text}", pause_s)
        config = self._config
        if config.token_ids and "return_token_ids" in refusal.text:
            raise no_token_ids(f"it answered {status}: {text}")
        advice = refusal_advice(config, model, status, too_long=refusal.too_long)
        kind = PromptTooLongError if refusal.too_long else EngineError
        # A 403 after replies is about this prompt: moderation, or a firewall that reads code as an attack.
        if advice["code"] in REFUSES_ALL and not (status == 403 and self._replied):
            kind = RefusedError
        raise kind(f"{self._name} at {self._base_url} answered {status}: {text}", **advice, retryable=False)

    @asynccontextmanager
    async def _answer(
        self, session: aiohttp.ClientSession, path: str, body: bytes
    ) -> AsyncGenerator[tuple[aiohttp.ClientResponse, asyncio.Timeout]]:
        """Send one request; its answer can be read in the block, which has `timeout_s` seconds.

        Raises `TransientError` or `EngineError` for everything that breaks below the protocol, also in the block.
        """
        key = key_of(self._config)
        if not (key.isascii() and key.isprintable()):
            raise RecipeError(
                f"the key in ${self._config.api_key_env} holds a character that no HTTP header can carry",
                code="key-invalid",
                fix=f"export {self._config.api_key_env}=<your key>",
            )
        headers = _HEADERS | key_header(self._config, key)
        url = URL(request_url(self._config, path), encoded=True)  # sent as it is written
        # A redirect could carry the key to another server.
        sent = session.post(url, data=body, headers=headers, allow_redirects=False, auto_decompress=False)
        try:
            async with asyncio.timeout(self._config.timeout_s) as clock, sent as response:
                self._reached = True
                yield response, clock
        except aiohttp.ClientError as failure:  # before TimeoutError: a connection's time-out is both
            self._broken(failure)
        except TimeoutError as failure:
            raise TransientError(f"no whole answer within {self._config.timeout_s:g} s") from failure

    def _broken(self, failure: Exception) -> NoReturn:
        """Raise the error of a broken connection: final if the server was never reached, else worth another attempt."""
        reason = redacted(f"{type(failure).__name__} {failure}".strip()[:LONGEST_WORDS], key_of(self._config))[
            :_LONGEST_QUOTE
        ]
        if not isinstance(failure, _NO_CONNECTION):
            raise TransientError(reason) from None
        causes: list[BaseException] = [failure]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        if "Too many open files" in str(failure) and any(isinstance(cause, OSError) for cause in causes):
            raise EngineError(
                f"{self._name}: {failure}",
                code="too-many-open-files",
                fix="ulimit -n 4096, or lower max_concurrency",
            ) from failure
        if self._reached:  # it may be a server that restarts
            raise TransientError(f"no connection ({failure})") from failure
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            raise EngineError(
                f"{self._name}: no TLS with {self._base_url} ({failure})",
                code="certificate-untrusted",
                fix='export SSL_CERT_FILE=<the certificates to trust>, or base_url = "http://..."',
            ) from failure
        raise EngineError(
            f"{self._name}: nothing answers at {self._base_url} ({failure})",
            code="endpoint-unreachable",
            fix=start_advice(self._config),
        ) from failure


async def _whole(response: aiohttp.ClientResponse) -> bytearray:
    """The body, up to the longest valid reply, and the beginning of an error's."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise TransientError("the answer is compressed, which was not requested")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if response.status != 200 and len(body) > _LONGEST_ERROR:
            break
        if len(body) > LONGEST_BODY:
            raise TransientError(f"the answer is longer than {LONGEST_BODY >> 20} MB")
    return body
