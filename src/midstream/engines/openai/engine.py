"""An engine behind any OpenAI-compatible HTTP server: OpenAI, vLLM, SGLang, Ollama, llama.cpp, OpenRouter.

    Request -> outgoing -> _retry(_attempt) -> _send -> a body or a stream -> checked_reply -> Call

Every reply is checked before it is used, whether it came as a whole or in a stream. What a second attempt may fix (429,
5xx, time-outs, resets, a body or stream that is cut off, is not JSON, holds no choice, no text, or an error under
status 200) is tried again with growing pauses. What it cannot fix (a wrong key, model or address) is an `EngineError`
at once, with its fix.

The key is read from the environment for each request, sent as a header, and stored nowhere: errors quote a server's
text without it.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import NoReturn, TypeVar

import aiohttp
from pydantic import JsonValue
from yarl import URL

from midstream.core.data import JsonObject, unfit
from midstream.core.engine import Codec, ForwardedReply, ForwardedRequest, ReplyPiece, Request, Weights
from midstream.core.errors import (
    DeadlineError,
    EngineError,
    PromptTooLongError,
    RecipeError,
    RefusedError,
    TransientError,
    UnsupportedError,
)
from midstream.core.http import Endpoint, redacted, retry, retry_after_s
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, ErrorInfo, Usage
from midstream.core.version import __version__
from midstream.engines.adapters import adapter_of, adapters_in
from midstream.engines.openai.limits import SHOWN_WAIT_S, Reservation, limits_of
from midstream.engines.openai.providers import PROVIDERS, price_of
from midstream.engines.openai.reply import (
    LONGEST_BODY,
    LONGEST_WORDS,
    CheckedReply,
    as_fields,
    checked_reply,
    decode_body,
    may_pass,
    no_token_ids,
    reported_error,
    usage_in,
)
from midstream.engines.openai.server import (
    ADAPTERS_KEPT,
    ModelContext,
    change_adapter,
    estimated_tokens,
    write_adapter,
)
from midstream.engines.openai.settings import REFUSES_ALL, OpenAIConfig, refusal_advice, start_advice
from midstream.engines.openai.stream import DONE, LONGEST_STREAM, EventParser, StreamedReply, event_object

_T = TypeVar("_T")
_NO_REPLY = CheckedReply(text="", finish_reason="", prompt_tokens=0, completion_tokens=0)
# A stream's end after [DONE]: worth a moment, because the connection can then be used again.
_LAST_BYTES_S = 0.25
_LONGEST_QUOTE = 300
# Times `timeout_s`, of a whole stream.
_STREAM_TIMEOUTS = 10
# Bytes that are read of an answer with another status than 200.
_LONGEST_ERROR = 1 << 20
# A shorter key is a placeholder ("none", "ollama", "x"), a word that any reply may hold.
_SHORTEST_SECRET = 12
# vLLM takes what a request leaves open from the model's generation_config.json: Qwen's, for example, sets top_k to 20.
_WHOLE_DISTRIBUTION: dict[str, JsonValue] = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "User-Agent": f"midstream/{__version__}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingRequest:
    """A request as it is sent: `path` below base_url, and `sent`, all of the body but messages and prompt."""

    path: str
    body: bytes
    sent: dict[str, JsonValue]


def encode_request(
    request: Request, config: OpenAIConfig, model: str, prompt_ids: Sequence[int] | None = None
) -> OutgoingRequest:
    """The body of a request: chat messages go to chat/completions, a text prompt or `prompt_ids` to completions.

    `config.extra_body` overrides every field.
    """
    chat = prompt_ids is None and not request.prompt
    sampling = request.sampling
    limit = config.limit_field if chat else "max_tokens"
    options = request.options
    if options is None:
        options = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    fields: dict[str, JsonValue] = {"model": model, **options}
    if fields.get("seed") is None:
        fields["seed"] = request.seed % 2**31
    if request.options is None or request.capped:
        fields[limit] = sampling.max_tokens
    for name in PROVIDERS[config.provider].unsent:
        if name not in (request.options or ()) and (name != "top_p" or sampling.top_p == 1):
            fields.pop(name, None)
    if sampling.stop and "stop" not in fields:
        fields["stop"] = list(sampling.stop)
    if config.token_ids:
        fields |= {"return_token_ids": True, "logprobs": True if chat else 1} | _WHOLE_DISTRIBUTION
        # Otherwise vLLM may write out a message's end token.
        if request.keep_stop and sampling.stop:
            fields["include_stop_str_in_output"] = True
    if config.stream or request.relay is not None:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = fields | config.extra_body
    body = dict(sent)
    if request.json_schema is not None and "response_format" not in body:
        name = request.role or "reply"
        schema: JsonValue = {"name": name, "schema": dict(request.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent["json_schema"] = name
    if chat and request.tools and "tools" not in config.extra_body:
        body.setdefault("tools", [dict(tool) for tool in request.tools])
        sent["tools"] = len(request.tools)
    if chat and "messages" not in body:
        foreign = any(message.fields for message in request.messages)
        as_text = foreign or not request.tools or PROVIDERS[config.provider].text_calls
        messages = [message.wire() for message in request.messages] if as_text else as_fields(request.messages)
        body["messages"] = [*messages]
    elif not chat:
        body.setdefault("prompt", request.prompt if prompt_ids is None else list(prompt_ids))
    sent["base_url"] = config.base_url.rstrip("/")
    return OutgoingRequest(
        path="chat/completions" if chat else "completions", body=json.dumps(body).encode(), sent=sent
    )


# All engines at a scheme, host and port share its connections.
endpoint_of = cache(Endpoint)


class OpenAICompatibleEngine:
    """`core.engine.Engine` over HTTP; one object serves any number of event loops, one after another or at once.

    With `codec` set, prompts are sent as the token ids that it gives; a server that reads other ids is an error.
    """

    def __init__(self, config: OpenAIConfig, name: str) -> None:
        self.config, self.name = config, name
        self.token_exact = config.token_ids
        self.codec: Codec | None = None
        self._model = config.model
        # Adapters on the server, the newest last: directories, and names by the name of a role's adapter.
        self.versions: dict[int, Path] = {}
        self._names: dict[int, dict[str, str]] = {}
        # Versions that stay there; more than one where rollouts run ahead of training.
        self.kept = 1
        self._context = ModelContext(config, name)
        self._base_url = config.base_url.rstrip("/")
        self._endpoint = endpoint_of(URL(self._base_url, encoded=True).origin())
        # Whether the server ever answered, ever with a reply, and ever with token ids.
        self._reached = self._replied = self._exact = False

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: the server refuses, or every attempt failed; `calls` holds the failed call.
            PromptTooLongError: the server, or the engine before it, refuses what exceeds the context; likewise.
            DeadlineError: `request.deadline_s` passed first; likewise.
        """
        ids = None if self.codec is None else tuple(self.codec.encode(request))
        # Read once: a later adapter is for later requests.
        version, model = self._serving(request)
        out = encode_request(request, self.config, model, ids)
        failures: list[str] = []
        deadline_s = None if request.deadline_s is None else request.deadline_s - time.monotonic()
        error: EngineError | DeadlineError
        what, relayed = f"{self.name} at {self._base_url}", False

        def relay(chunk: JsonObject, pieces: Sequence[ReplyPiece]) -> None:
            nonlocal relayed
            if request.relay is not None:
                relayed = True
                request.relay(chunk, pieces)

        place = Reservation(0)

        async def attempt() -> CheckedReply:
            nonlocal place
            place = Reservation(estimated_tokens(request, None), request.emit, model=self.config.model)
            try:
                return await self._attempt(out, replace(request, relay=request.relay and relay), place)
            except TransientError as failure:
                failures.append(str(failure))
                if relayed:
                    # What the agent has of the stream cannot be taken back.
                    words, fix = f"{what} broke off a stream: {failure}", "look at the server's log"
                    raise EngineError(words, code="endpoint-failed", fix=fix) from failure
                request.emit("retry", str(failure))
                raise

        try:
            async with asyncio.timeout(deadline_s):
                await self._context.check(request, ids)
                reply = await self._retry(attempt, what, request)
            if ids is not None and self.config.token_ids and ids != reply.prompt_ids:
                pairs = enumerate(zip(ids, reply.prompt_ids, strict=False))
                same = next((i for i, (sent, read) in pairs if sent != read), len(reply.prompt_ids))
                raise EngineError(
                    f"{self.name} was sent {len(ids)} token ids and read {len(reply.prompt_ids)}, the same up to "
                    f"number {same}",
                    code="prompt-changed",
                    fix=f"vllm serve {self.config.model} with the tokenizer of this engine; no truncate_prompt_tokens",
                    retryable=False,
                )
            if request.keep_stop and self.codec is not None and reply.completion_ids:
                # The server cuts the last token.
                reply = replace(reply, text=self.codec.decode(reply.completion_ids))
            return self._call(request, out, version, failures, reply)
        except EngineError as failure:
            error = failure
            if failure.code == "request-refused" and self._context.is_exceeded(request, ids):
                error = PromptTooLongError(failure.what, **refusal_advice(self.config, self._model, 400, too_long=True))
        except TimeoutError:
            # A run that only waited is tried again: it is no fault of its agent.
            error = (
                EngineError(
                    f"{what}: the rate limit left no time before the deadline",
                    code="endpoint-failed",
                    fix="raise rollout.deadline_s, or lower max_concurrency",
                )
                if place.waits
                else DeadlineError(
                    f"{self.name} ({out.sent['model']}) gave no answer before the deadline",
                    code="deadline",
                    fix="raise the trajectory's deadline, or lower max_tokens or max_concurrency",
                )
            )
        info = ErrorInfo(type=type(error).__name__, message=str(error), retryable=error.retryable)
        error.calls = (self._call(request, out, version, failures, _NO_REPLY, info),)
        raise error

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """The server's answer to a request to another of its APIs; what it refuses is an answer, too.

        Dollars are counted for text completions, whose price is known. Raises `EngineError` and `DeadlineError`.
        """
        body = request.body
        if request.own_model:
            body = json.dumps({**decode_body(body), "model": self._model}).encode()

        async def attempt() -> ForwardedReply:
            session, slots = await self._endpoint.join(self, self.config.max_concurrency)
            place = Reservation(len(body) // 4 if "json" in request.content_type else 0)
            sent = self._send(session, request.path, body, place, request.method, request.content_type)
            async with slots, sent as (response, _):
                answer = bytes(await _read_body(response))
            data, status = decode_body(answer), response.status
            # A conflict is the agent's to solve; a wrong key or an empty account is not.
            if (may_pass(status) and status != 409) or status in (401, 402):
                self._check(status, data, answer, self._model, retry_after_s(response.headers))
            self._refuse_key_in(answer.decode("latin-1"))
            if status >= 400:
                # It may quote a part of the key.
                answer = redacted(answer.decode("utf-8", "replace"), self.config.key()).encode()
            kind = response.headers.get("content-type", "application/octet-stream")
            parser = EventParser()
            for event in (*parser.feed(answer), *parser.end()) if "event-stream" in kind else ():
                data = decode_body(event.encode()) if '"usage"' in event else data
            usage = usage_in(data, response.headers.get("x-litellm-response-cost", ""))
            if request.path == "completions" and not usage.cost_usd:
                usage = usage.model_copy(update={"cost_usd": self._cost_usd(usage)})
            return ForwardedReply(status=status, content_type=kind, body=answer, usage=usage)

        what = f"{self.name} at {self._base_url}"
        deadline_s = None if request.deadline_s is None else request.deadline_s - time.monotonic()
        try:
            async with asyncio.timeout(deadline_s):
                return await self._retry(attempt, what)
        except TimeoutError as failure:
            late = f"{what} gave no answer to {request.method} {request.path} before the deadline"
            raise DeadlineError(late, code="deadline", fix="raise the trajectory's deadline") from failure

    async def use_weights(self, weights: Weights) -> None:
        """Sample from the newest weights: the server loads them as a LoRA adapter, and unloads older ones.

        Prompts are then sent as token ids, so that nothing depends on the server's chat template.
        """
        self.codec = weights.codec
        adapter = write_adapter(weights.export, weights.directory, weights.version)
        await self.use_adapter(weights.version, adapter)
        for version in [*self.versions][: -self.kept]:
            del self.versions[version], self._names[version]
        others = (path for path in adapter.parent.glob("version-*") if path not in self.versions.values())
        older = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in older:
            await self.drop_adapter(path)
        for path in older[: len(older) + 1 - ADAPTERS_KEPT]:
            # A leftover does no harm.
            shutil.rmtree(path, ignore_errors=True)

    async def use_adapter(self, version: int, path: Path) -> None:
        """Sample from the LoRA adapter at `path` (on the server's disk) from now on; calls record `version`.

        Where `path` has an adapter for each role, requests of a role get theirs. Requests that name a version get it.
        """
        found = adapters_in(path) or {"default": path}
        names = {name: await change_adapter("load", own, self.config, self._post) for name, own in found.items()}
        self.versions.pop(version, None)
        self.versions[version], self._names[version] = path, names
        self._model = names.get("default", self.config.model)

    async def drop_adapter(self, path: Path) -> None:
        """Unload the adapter at `path` from the server, if it is loaded."""
        for own in (adapters_in(path) or {"": path}).values():
            await change_adapter("unload", own, self.config, self._post)

    async def close(self) -> None:
        """Leave this event loop's connections; they close with their last user. A later request opens new ones."""
        await self._endpoint.leave(self)

    def _serving(self, request: Request) -> tuple[int | None, str]:
        """The version of the weights that answer a request, and their name on the server."""
        version = next(reversed(self.versions), None)
        if version is None:
            return None, self.config.model
        if request.pin is not None:
            version = request.pin.version
        names = self._names[version]
        return version, names.get(adapter_of(request.role)) or names.get("default", self.config.model)

    # -- attempts --------------------------------------------------------------------------------------------------

    async def _retry(self, attempt: Callable[[], Awaitable[_T]], what: str, request: Request | None = None) -> _T:
        """The result of the first attempt that succeeds. Raises `EngineError` after the last."""
        attempts = self.config.max_attempts

        def pause_s(failed: int) -> float:
            # Half of it is random, so that requests that failed together do not return together: drawn from the
            # request, so that a run repeats.
            asked = request and derive_seed(request.seed, request.order, request.role, failed)
            chance = random.Random(asked).uniform(0.5, 1.0) if request else 1.0
            return self.config.first_pause_s * 2 ** (failed - 1) * chance

        try:
            return await retry(attempt, max_attempts=attempts, pause_s=pause_s)
        except TransientError as failure:
            raise EngineError(
                f"{what} failed {attempts} times, last: {failure}",
                code="endpoint-failed",
                fix="look at the server's log; lower max_concurrency, or raise max_attempts or timeout_s",
            ) from failure

    async def _post(self, path: str, body: Mapping[str, str]) -> tuple[int, str]:
        """Post a JSON object, with retries; returns the status and text of the answer. Raises `EngineError`."""

        async def attempt() -> tuple[int, str]:
            session, _ = await self._endpoint.join(self, self.config.max_concurrency)
            async with self._send(session, path, json.dumps(body).encode(), Reservation(0)) as (response, _):
                answer = (await _read_body(response)).decode("utf-8", "replace")
            text = redacted(answer[:LONGEST_WORDS], self.config.key())
            # What vLLM's worker reports about the adapter itself is final, though its status is 500.
            if may_pass(response.status) and "add_lora" not in text:
                raise TransientError(f"{response.status}: {text[:_LONGEST_QUOTE]}")
            return response.status, text

        return await self._retry(attempt, f"{self._base_url}/{path}")

    async def _attempt(self, out: OutgoingRequest, request: Request, place: Reservation) -> CheckedReply:
        """The checked reply, or `TransientError` or `EngineError`; a stream's text is emitted as it arrives."""
        streamed, model, billed = StreamedReply(), str(out.sent["model"]), ""
        data: JsonObject | None = None
        session, slots = await self._endpoint.join(self, self.config.max_concurrency)
        try:
            # The time that a request waits for its slot does not count.
            async with slots, self._send(session, out.path, out.body, place) as (response, clock):
                billed = response.headers.get("x-litellm-response-cost", "")
                if place.waited_s >= SHOWN_WAIT_S:
                    out.sent["waited_s"] = round(place.waited_s, 1)
                if response.status == 200 and "event-stream" in response.headers.get("content-type", ""):
                    await self._read_stream(response, streamed, model, request, clock)
                else:
                    data = await self._read_object(response, model)
        except TransientError:
            # Otherwise the reply is whole, and only its connection is lost.
            if not streamed.complete:
                raise
        try:
            whole = streamed.whole() if data is None else data
            relayed = request.options is not None and not self.config.token_ids
            reply = checked_reply(whole, billed, token_ids=self.config.token_ids, relayed=relayed)
        except UnsupportedError as failure:
            if not self._exact:
                raise
            # It gave ids before, so this is one broken answer.
            raise TransientError(failure.what) from failure
        self._replied, self._exact = True, self.config.token_ids
        place.tokens = reply.prompt_tokens + reply.completion_tokens or place.tokens
        self._refuse_key_in(json.dumps(whole, ensure_ascii=False))
        if relayed and not unfit(whole):
            reply = replace(reply, body=whole)
        # This server does not stream: all text at once.
        if data is not None and self.config.stream:
            request.emit("text", reply.text)
        return reply

    async def _read_object(self, response: aiohttp.ClientResponse, model: str) -> JsonObject:
        """The object in an answer that is not a stream. Raises the error that it reports."""
        body = await _read_body(response)
        data = decode_body(body)
        self._check(response.status, data, body, model, retry_after_s(response.headers))
        return data

    async def _read_stream(
        self,
        response: aiohttp.ClientResponse,
        streamed: StreamedReply,
        model: str,
        request: Request,
        clock: asyncio.Timeout,
    ) -> None:
        """Read events into `streamed` until its end: each piece within `timeout_s`, the whole within ten times that."""
        # Bytes; the end of what was read, which may be the beginning of the key, and the chunks that wait for its end.
        received, last = 0, ""
        waiting: list[tuple[JsonObject, list[ReplyPiece]]] = []
        parser, now, timeout_s = EventParser(), asyncio.get_running_loop().time, self.config.timeout_s
        latest = now() + _STREAM_TIMEOUTS * timeout_s

        def take(event: str) -> None:
            nonlocal last
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
            pieces = streamed.add(chunk)
            last += "".join(piece.text for piece in pieces)
            last = last[len(last) - self._refuse_key_in(last) :]
            self._refuse_key_in(event)
            waiting.append((chunk, pieces))
            if not last:
                release()

        def release() -> None:
            for chunk, pieces in waiting:
                if text := "".join(piece.text for piece in pieces if piece.kind == "text"):
                    request.emit("text", text)
                if request.relay is not None:
                    request.relay(chunk, pieces)
            waiting.clear()

        try:
            async for chunk in response.content.iter_any():
                received += len(chunk)
                if received > LONGEST_STREAM:
                    raise TransientError(f"the stream is longer than {LONGEST_STREAM >> 20} MB")
                for event in parser.feed(chunk):
                    take(event)
            for event in parser.end():
                take(event)
        finally:
            # Also of a stream whose connection breaks after its end.
            if streamed.complete:
                release()

    @asynccontextmanager
    async def _send(
        self,
        session: aiohttp.ClientSession,
        path: str,
        body: bytes,
        place: Reservation,
        method: str = "POST",
        content_type: str = "application/json",
    ) -> AsyncGenerator[tuple[aiohttp.ClientResponse, asyncio.Timeout]]:
        """Send one request when it is its turn; its answer can be read in the block, which has `timeout_s` seconds.

        Raises `TransientError` or `EngineError` for everything that breaks below the protocol, also in the block.
        """
        key = self.config.key()
        if not (key.isascii() and key.isprintable()):
            raise RecipeError(
                f"the key in ${self.config.api_key_env} holds a character that no HTTP header can carry",
                code="key-invalid",
                fix=f"export {self.config.api_key_env}=<your key>",
            )
        headers = {"Content-Type": content_type} | _HEADERS | self.config.key_header()
        # Sent as it is written.
        url = URL(f"{self._base_url}/{path}", encoded=True)
        limits = limits_of(url.origin(), blake2b(key.encode()).digest())
        place.limits = self.config.requests_per_minute or inf, self.config.tokens_per_minute or inf
        await limits.turn(place)
        # A redirect could carry the key to another server.
        sent = session.request(
            method, url, data=body or None, headers=headers, allow_redirects=False, auto_decompress=False
        )
        try:
            async with asyncio.timeout(self.config.timeout_s) as clock, sent as response:
                self._reached = True
                limits.read(place, response.status, response.headers)
                yield response, clock
        except aiohttp.ClientError as failure:
            # Before TimeoutError: a connection's time-out is both.
            self._raise_broken(failure)
        except TimeoutError as failure:
            raise TransientError(f"no whole answer within {self.config.timeout_s:g} s") from failure

    # -- errors ----------------------------------------------------------------------------------------------------

    def _refuse_key_in(self, text: str) -> int:
        """Raise `EngineError` if the server's text holds the key; returns how many of its last characters begin one."""
        key = self.config.key()
        if len(key) < _SHORTEST_SECRET:
            return 0
        if key in text:
            raise EngineError(
                f"{self.name} at {self._base_url} answered with the key in ${self.config.api_key_env}",
                code="key-echoed",
                fix="do not send this server a key, and make a new one",
                retryable=False,
            )
        return max(size for size in range(min(len(text), len(key)) + 1) if key.startswith(text[len(text) - size :]))

    def _check(
        self,
        status: int,
        data: Mapping[str, JsonValue],
        body: bytes | bytearray,
        model: str,
        pause_s: float = 0.0,
    ) -> None:
        """Raise the error that an answer or an event reports, if it reports one."""
        refusal = reported_error(status, data, body)
        if refusal is None:
            return
        status, words, too_long = refusal
        text = redacted(words, self.config.key())[:_LONGEST_QUOTE]
        if may_pass(status) and not too_long:
            raise TransientError(f"{status}: {text}", pause_s)
        if self.config.token_ids and "return_token_ids" in words:
            raise no_token_ids(f"it answered {status}: {text}")
        advice = refusal_advice(self.config, model, status, too_long=too_long)
        kind = PromptTooLongError if too_long else EngineError
        # A 403 after replies is about this prompt: moderation, or a firewall that reads code as an attack.
        if advice["code"] in REFUSES_ALL and not (status == 403 and self._replied):
            kind = RefusedError
        raise kind(f"{self.name} at {self._base_url} answered {status}: {text}", **advice, retryable=False)

    def _raise_broken(self, failure: Exception) -> NoReturn:
        """Raise the error of a broken connection: final if the server was never reached, else worth another attempt."""
        if not isinstance(failure, _NO_CONNECTION):
            reason = f"{type(failure).__name__} {failure}".strip()[:LONGEST_WORDS]
            raise TransientError(redacted(reason, self.config.key())[:_LONGEST_QUOTE]) from None
        causes: list[BaseException] = [failure]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        if "Too many open files" in str(failure) and any(isinstance(cause, OSError) for cause in causes):
            what, code = f"{self.name}: {failure}", "too-many-open-files"
            fix = "ulimit -n 4096, or lower max_concurrency"
        elif self._reached:
            # It may be a server that restarts.
            raise TransientError(f"no connection ({failure})") from failure
        elif any(isinstance(cause, ssl.SSLError) for cause in causes):
            what, code = f"{self.name}: no TLS with {self._base_url} ({failure})", "certificate-untrusted"
            fix = 'export SSL_CERT_FILE=<the certificates to trust>, or base_url = "http://..."'
        else:
            what, code = f"{self.name}: nothing answers at {self._base_url} ({failure})", "endpoint-unreachable"
            fix = start_advice(self.config)
        raise EngineError(what, code=code, fix=fix) from failure

    def _cost_usd(self, usage: Usage, cached_tokens: int = 0) -> float:
        prompt_usd, completion_usd = price_of(self.config)
        cost = usage.prompt_tokens * prompt_usd + usage.completion_tokens * completion_usd
        if self.config.price_cached_usd is not None:
            cost -= cached_tokens * (prompt_usd - self.config.price_cached_usd)
        return cost / 1e6

    def _call(
        self,
        request: Request,
        out: OutgoingRequest,
        version: int | None,
        failures: list[str],
        reply: CheckedReply,
        error: ErrorInfo | None = None,
    ) -> Call:
        usage = Usage(prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
        cost_usd = self._cost_usd(usage, reply.cached_tokens) if reply.cost_usd is None else reply.cost_usd
        return request.answered(
            self.name,
            reply.text,
            prompt_ids=reply.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            policy_version=version,
            finish_reason=reply.finish_reason,
            usage=usage.model_copy(update={"cost_usd": cost_usd}) if cost_usd else usage,
            sent=out.sent,
            reply=reply.body,
            failures=tuple(failures),
            error=error,
        )


async def _read_body(response: aiohttp.ClientResponse) -> bytearray:
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
