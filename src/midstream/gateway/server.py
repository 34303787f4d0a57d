"""The gateway: an HTTP server through which agents of other programs ask midstream's models.

    POST /s/KEY/v1/chat/completions     OpenAI's chat completions; also /responses, and Anthropic's /messages
    GET  /s/KEY/v1/models               the names under which models answer
    POST /s/KEY/reward, /s/KEY/end      the caller's own reward; the end of a session that was opened from outside
    POST /v1/sessions                   open a session from outside
    GET  /healthz

Each session has a key, which stands in the path or is sent as the API key. The server has a thread with an event loop
of its own, so that it answers while an engine computes; sessions and engines belong to the loop of the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import threading
import time
from asyncio import FIRST_COMPLETED
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from midstream.core.errors import UsageError, needs_extra
from midstream.gateway import anthropic_messages, chat_completions, responses
from midstream.gateway.forms import Answered, Asked, FormError
from midstream.gateway.settings import ServeConfig

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

T = TypeVar("T")
Asgi = Any  # a scope, receive or send of ASGI

APIS: Mapping[str, ModuleType] = {
    "chat/completions": chat_completions,
    "responses": responses,
    "messages": anthropic_messages,
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEPT = 100_000  # keys of ended sessions: a late request is answered with 409, not as an unknown key
_LONGEST_NEWS = 1 << 20  # bytes of a reward or an end
ADMIN_KEY = "MIDSTREAM_ADMIN_KEY"
_JSON = (b"content-type", b"application/json")
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class Reply(Protocol):
    """A session's answer to one request."""

    answered: Answered
    delivered: bool  # the server sets it when the agent gets the answer


class Served(Protocol):
    """What the gateway asks of a session; it does so in the event loop `loop`."""

    loop: asyncio.AbstractEventLoop

    @property
    def names(self) -> Sequence[str]:
        """The names of its models."""
        ...

    async def ask(self, asked: Asked, digest: str, retried: bool, step: Callable[[str], Any]) -> Reply:
        """Answer a request with the body of `digest`; a client may have `retried` it; `step` reports progress.

        Raises `FormError` for what the agent did wrong, or may not do now.
        """
        ...

    async def take_reward(self, body: Any) -> None:
        """Take the caller's own reward. Raises `FormError`."""
        ...

    async def take_end(self, body: Any) -> None:
        """Take the end of a session that was opened from outside. Raises `FormError`."""
        ...


class Gateway:
    """The server of one run; it starts with its first session."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.address = ""
        self.sessions: dict[str, Served] = {}  # by key
        self.opener: Callable[[Any], Coroutine[Any, Any, dict[str, Any]]] | None = None  # opens sessions from outside
        self.loop: asyncio.AbstractEventLoop | None = None  # of the run
        self.everyone: Served | None = None  # answers every client, without sessions
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @asynccontextmanager
    async def serving(self, session: Served) -> AsyncGenerator[str]:
        """Answer the requests of a session while the block lasts; yields its key. Its address is `url(key)`."""
        self.start()
        key = secrets.token_urlsafe(24)
        self.sessions[key] = session
        try:
            yield key
        finally:
            del self.sessions[key]
            self._ended[key] = None
            while len(self._ended) > _KEPT:
                self._ended.popitem(last=False)

    def url(self, key: str) -> str:
        """The address of a session; an OpenAI client's `base_url` is this and "/v1"."""
        return f"{self.address}/s/{key}"

    def start(self) -> None:
        """Start the server for the running event loop; again it does nothing. Raises `UsageError`: it is taken."""
        self.loop = asyncio.get_running_loop()
        if self._thread is not None:
            return
        with needs_extra("agents of other programs need starlette and uvicorn, not installed here", "serve"):
            import uvicorn
        host, port = self.config.host, self.config.port
        if host not in LOOPBACK and not os.environ.get(ADMIN_KEY, "").strip():
            raise UsageError(
                f"serve.host = {host!r} is open to other machines, and ${ADMIN_KEY} is not set",
                code="admin-key-missing",
                cause="anyone who reaches the address could open sessions, and use the models",
                fix=f"export {ADMIN_KEY}=<a long random text>, or leave out serve.host",
            )
        try:
            listening = socket.create_server((host, port), backlog=2048)
        except OSError as failure:
            raise UsageError(
                f"the gateway cannot listen on {host}:{port}: {failure.strerror or failure}",
                code="address-taken",
                fix="set another serve.port, or 0 for any free one",
            ) from failure
        self.address = f"http://{host}:{listening.getsockname()[1]}"
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a client that hangs up is no news
        settings = uvicorn.Config(
            self.app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, ws="none"
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="gateway", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Stop the server; a later session starts it again."""
        if self._thread is not None:
            self._server.should_exit = True
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def app(self) -> Starlette:
        """The routes."""
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def health(_: HttpRequest) -> Response:
            return JSONResponse({"status": "ok", "sessions": len(self.sessions)})

        async def models(request: HttpRequest) -> Response:
            try:
                session = self.session(request.scope)
            except FormError as error:
                return _refused(chat_completions, error)
            listed = [{"id": name, "object": "model", "owned_by": "midstream"} for name in session.names]
            return JSONResponse({"object": "list", "data": listed})

        def takes(what: str) -> Callable[[HttpRequest], Awaitable[Response]]:
            async def take(request: HttpRequest) -> Response:
                try:
                    session = self.session(request.scope)
                    body = _parsed(await _body(request.scope, request.receive, _LONGEST_NEWS))
                    await _in_loop(session.loop, getattr(session, f"take_{what}")(body))
                except FormError as error:
                    return _refused(chat_completions, error)
                return JSONResponse({"status": "ok"})

            return take

        async def open_session(request: HttpRequest) -> Response:
            try:
                self.check_admin(dict(request.scope["headers"]))
                body = _parsed(await _body(request.scope, request.receive, _LONGEST_NEWS) or b"{}")
                if self.opener is None or self.loop is None:
                    words = "this run starts its agents itself; midstream serve RECIPE opens sessions for others"
                    raise FormError("no-sessions", words, None, status=404)
                return JSONResponse(await _in_loop(self.loop, self.opener(body)))
            except FormError as error:
                return _refused(chat_completions, error)

        both = ("/s/{key}/v1", "/v1")
        return Starlette(
            routes=[
                Route("/healthz", health),
                Route("/v1/sessions", open_session, methods=["POST"]),
                Route("/s/{key}/reward", takes("reward"), methods=["POST"]),
                Route("/s/{key}/end", takes("end"), methods=["POST"]),
                *(Route(f"{start}/models", models) for start in both),
                *(
                    Route(f"{start}/{path}", _Asks(self, api), methods=["POST"])
                    for start in both
                    for path, api in APIS.items()
                ),
            ]
        )

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the admin key, if one is set. Raises `FormError`."""
        wanted = os.environ.get(ADMIN_KEY, "").strip()
        if wanted and not secrets.compare_digest(_api_key(headers).encode(), wanted.encode()):
            raise FormError("admin-key-wrong", f"send the key in ${ADMIN_KEY} as a bearer", None, status=401)

    def session(self, scope: Asgi) -> Served:
        """The session whose key a request has. Raises `FormError` if it has none, or two that differ."""
        if self.everyone is not None:
            self.check_admin(dict(scope["headers"]))
            return self.everyone
        sent = _api_key(dict(scope["headers"]))
        path = scope.get("path_params", {}).get("key", "")
        if path and sent and path != sent:
            raise FormError(
                "key-conflict", "the key in the path and the API key are of different sessions", None, status=400
            )
        key = path or sent
        session = self.sessions.get(key)
        if session is None and key in self._ended:
            raise FormError("session-ended", "this session has ended; its agent may ask no more", None, status=409)
        if session is None:
            raise FormError(
                "unknown-session",
                "no session has this key; use base_url and api_key as they were given",
                None,
                status=401,
            )
        return session


class _Asks:
    """The ASGI application of one API: a request to a model, and its answer whole or as events."""

    def __init__(self, gateway: Gateway, api: ModuleType) -> None:
        self._gateway, self._api = gateway, api

    async def __call__(self, scope: Asgi, receive: Asgi, send: Asgi) -> None:
        """Answer one request."""
        api, gateway, steps = self._api, self._gateway, asyncio.Queue[str]()
        here = asyncio.get_running_loop()
        try:
            session = gateway.session(scope)
            body = await _body(scope, receive, gateway.config.max_body_mb << 20)
            asked = api.read(_parsed(body))
            # SDKs mark what they send again; without the mark, an equal request is a new one.
            retried = dict(scope["headers"]).get(b"x-stainless-retry-count", b"0") not in (b"0", b"")
            digest = blake2b(body, digest_size=16).hexdigest()
            # Steps come from the run's thread.
            asking = session.ask(asked, digest, retried, partial(here.call_soon_threadsafe, steps.put_nowait))
            answer = asyncio.ensure_future(_in_loop(session.loop, asking))
        except FormError as error:
            return await _send(send, error.status, api.error(error.status, error.code, error.message, error.param))
        gone, beat_s = asyncio.ensure_future(_hung_up(receive)), gateway.config.heartbeat_s
        stream = _Stream(send)
        try:
            while not answer.done() and not gone.done():
                news = asyncio.ensure_future(steps.get())
                await asyncio.wait({answer, gone, news}, timeout=beat_s, return_when=FIRST_COMPLETED)
                if asked.stream and (news.done() or not answer.done()):
                    shown = api.step(news.result(), asked) if news.done() and hasattr(api, "step") else api.heartbeat
                    await stream.write(shown)
                news.cancel()
            if not answer.done():
                return None  # the session keeps the sample for a marked retry
            try:
                reply = answer.result()
            except FormError as error:
                refused = (error.status, error.code, error.message, error.param)
                if not stream.begun:
                    return await _send(send, error.status, api.error(*refused))
                return await stream.write(api.error_event(*refused), last=True)
            reply.delivered = not gone.done()  # before the last byte: the agent may end with it
            if not asked.stream:
                return await _send(send, 200, api.write(reply.answered))
            for event in api.events(reply.answered, asked):
                await stream.write(event)
            return await stream.write("", last=True)
        finally:
            gone.cancel()


class _Stream:
    """Server-sent events; the status 200 goes out with the first. From then on, an error has to be an event."""

    def __init__(self, send: Asgi) -> None:
        self._send, self.begun = send, False

    async def write(self, event: str, *, last: bool = False) -> None:
        if not self.begun:
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            self.begun = True
        await self._send({"type": "http.response.body", "body": event.encode(), "more_body": not last})


def _api_key(headers: Mapping[bytes, bytes]) -> str:
    """The key that a client sends, as OpenAI's or as Anthropic's does."""
    bearer = headers.get(b"authorization", b"").decode("latin-1")
    sent = bearer[7:].strip() if bearer[:7].casefold() == "bearer " else ""
    return sent or headers.get(b"x-api-key", b"").decode("latin-1").strip()


async def _in_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of a session's coroutine, which runs in the loop of its run."""
    try:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except (asyncio.CancelledError, RuntimeError) as stopped:  # the run has ended, and perhaps its loop
        work.close()
        if isinstance(stopped, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
            raise  # this server stops
        raise FormError(
            "session-ended", "the session ended before its request was answered", None, status=409
        ) from stopped


async def _body(scope: Asgi, receive: Asgi, limit: int) -> bytes:
    """The body of a request. Raises `FormError` if it is longer than `limit` bytes, or does not arrive."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise FormError(
                "body-incomplete", "the connection closed before the whole request had arrived", None, status=400
            )
        body += message.get("body", b"")
        if len(body) > limit:
            raise FormError(
                "body-too-long", f"a request has at most {limit >> 20} MB (serve.max_body_mb)", None, status=413
            )
        if not message.get("more_body"):
            return bytes(body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FormError("body-invalid", f"the request is not JSON: {error}", None, status=400) from error


async def _hung_up(receive: Asgi) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Asgi, status: int, content: Any) -> None:
    body = json.dumps(content).encode()
    # What went wrong here was tried again already, or would go wrong again.
    headers = [_JSON, (b"content-length", str(len(body)).encode()), (b"x-should-retry", b"false")]
    with suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _refused(api: ModuleType, error: FormError) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(api.error(error.status, error.code, error.message, error.param), status_code=error.status)


def now() -> int:
    """Unix seconds."""
    return int(time.time())
