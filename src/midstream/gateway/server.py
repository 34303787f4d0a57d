"""The gateway: an HTTP server through which agents of other programs ask midstream's models.

    POST /s/KEY/v1/chat/completions     OpenAI's chat completions; also /responses, and Anthropic's /messages
    GET  /s/KEY/v1/models               the names under which models answer
    any other path below /s/KEY/v1      another API of a model's server, where nothing is trained
    POST /s/KEY/reward, /s/KEY/end      the caller's own reward, of its run or of one reply; the end of a session that
                                        was opened from outside
    POST /v1/sessions                   open a session from outside
    GET  /healthz

Each session has a key, which stands in the path or is sent as the API key. The server has a thread with an event loop
of its own, so that it answers while an engine computes; sessions and engines belong to the loop of the run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from midstream.core.data import JsonObject
from midstream.core.engine import ForwardedReply, ForwardedRequest
from midstream.core.errors import InfrastructureError, MidstreamError, UsageError, needs_extra
from midstream.core.threads import in_thread
from midstream.gateway import anthropic_messages, chat_completions, http, responses
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, Relayed
from midstream.gateway.settings import ServeConfig

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

APIS: Mapping[str, ModuleType] = {
    "chat/completions": chat_completions,
    "responses": responses,
    "messages": anthropic_messages,
}
# Keys of ended sessions: a late request is answered with 409, not as an unknown key.
_KEPT = 100_000
# Bytes of a request to a model; of a reward or an end.
LONGEST_BODY, _LONGEST_NEWS = 32 << 20, 1 << 20
# A waiting stream gets a sign of life so often.
HEARTBEAT_S = 10.0
_KEEP_ALIVE_S = 3600
ADMIN_KEY = "MIDSTREAM_ADMIN_KEY"


Step = Callable[[str | Relayed], object]


@dataclass(kw_only=True)
class PendingReply:
    """A session's answer to one request."""

    reply: ChatReply
    # The server sets it when the agent gets the answer.
    delivered: bool = False


class SessionHandle(Protocol):
    """What the gateway asks of a session; it does so in the event loop `loop`."""

    loop: asyncio.AbstractEventLoop

    @property
    def names(self) -> Sequence[str]:
        """The names of its models."""
        ...

    async def ask(self, chat: ChatRequest, digest: str, retried: bool, step: Step) -> PendingReply:
        """Answer a request with the body of `digest`; a client may have `retried` it.

        `step` gets words on the progress, or the pieces of a stream. Raises `FormError` for what the agent did wrong,
        or may not do now.
        """
        ...

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """Answer a request to another API of the server behind an engine. Raises `FormError`."""
        ...

    def fail(self, failure: MidstreamError) -> None:
        """Something around the model failed."""
        ...

    async def take_reward(self, body: object) -> None:
        """Take the caller's own reward. Raises `FormError`."""
        ...

    async def take_end(self, body: object) -> None:
        """Take the end of a session that was opened from outside. Raises `FormError`."""
        ...


class Gateway:
    """The server of one run; it starts with its first session. `roles` are names of models that are trained apart."""

    def __init__(self, config: ServeConfig, roles: Sequence[str] = ()) -> None:
        self.config, self.roles = config, roles
        self.address = ""
        self.sessions: dict[str, SessionHandle] = {}  # by key
        # Opens sessions from outside.
        self.opener: Callable[[object], Coroutine[object, None, JsonObject]] | None = None
        # Of the run.
        self.loop: asyncio.AbstractEventLoop | None = None
        # Answers every client, without sessions.
        self.everyone: SessionHandle | None = None
        self._ended: deque[str] = deque(maxlen=_KEPT)
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @asynccontextmanager
    async def serving(self, session: SessionHandle) -> AsyncGenerator[str]:
        """Answer the requests of a session while the block lasts; yields its key. Its address is `url(key)`."""
        self.start()
        key = secrets.token_urlsafe(24)
        self.sessions[key] = session
        try:
            yield key
        finally:
            del self.sessions[key]
            self._ended.append(key)

    def url(self, key: str) -> str:
        """The address of a session; an OpenAI client's `base_url` is this and "/v1"."""
        return f"{self.address}/s/{key}"

    def start(self) -> None:
        """Start the server for the running event loop, once. Raises `UsageError` if its address is taken."""
        self.loop = asyncio.get_running_loop()
        if self._thread is not None:
            return
        with needs_extra("agents of other programs need starlette and uvicorn, not installed here", "serve"):
            import uvicorn
        host, port = self.config.host, self.config.port
        if host not in http.LOOPBACK and not os.environ.get(ADMIN_KEY, "").strip():
            raise UsageError(
                f"serve.host = {host!r} is open to other machines, and ${ADMIN_KEY} is not set",
                code="admin-key-missing",
                fix=f"export {ADMIN_KEY}=<a long random text>, or leave out serve.host",
            )
        fix = "set another serve.port (midstream serve --port N), or 0 for any free one"
        listening = http.listen(host, port, "the gateway", fix)
        # Where agents on this machine reach it.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{listening.getsockname()[1]}"
        settings = uvicorn.Config(
            self.app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # A connection that is closed while a request is on its way would be the agent's failure.
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=asyncio.run, args=[http.serve(self._server, listening)], name="gateway", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Stop the server; a later session starts it again."""
        if self._thread is not None:
            self._server.should_exit = True
            await in_thread(self._thread.join)
            self._thread = None

    def app(self) -> http.Asgi:
        """The routes, behind the checks of a request's head."""
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def health(_: HttpRequest) -> Response:
            return JSONResponse({"status": "ok", "sessions": len(self.sessions)})

        async def models(request: HttpRequest) -> Response:
            names = self.session(request.scope).names
            listed = [{"id": name, "object": "model", "owned_by": "midstream"} for name in names]
            return JSONResponse({"object": "list", "data": listed})

        def takes(what: str) -> Callable[[HttpRequest], Awaitable[Response]]:
            async def take(request: HttpRequest) -> Response:
                session = self.session(request.scope)
                body = http.parse_json(await http.body_of(request.receive, _LONGEST_NEWS))
                await http.in_loop(session.loop, getattr(session, f"take_{what}")(body))
                return JSONResponse({"status": "ok"})

            return take

        async def open_session(request: HttpRequest) -> Response:
            self.check_admin(request.scope)
            body = http.parse_json(await http.body_of(request.receive, _LONGEST_NEWS) or b"{}")
            if self.opener is None or self.loop is None:
                words = "this run starts its agents itself; serve --sessions of midstream-extra opens them for others"
                raise FormError("no-sessions", words, None, status=404)
            opening = asyncio.ensure_future(http.in_loop(self.loop, self.opener(body)))
            gone = asyncio.ensure_future(http.hung_up(request.receive))
            await asyncio.wait({opening, gone}, return_when=FIRST_COMPLETED)
            gone.cancel()
            if not opening.done():
                # Its place is for somebody who is there.
                opening.cancel()
                return JSONResponse({})
            # A caller on another machine reaches the gateway as it did now.
            here, opened = str(request.base_url).rstrip("/"), opening.result().items()
            return JSONResponse(
                {key: str(found).replace(self.address, here, 1) if "url" in key else found for key, found in opened}
            )

        async def refused(_: HttpRequest, error: Any) -> Response:
            # What went wrong here was tried again already, or would go wrong again.
            return JSONResponse(chat_completions.error(error), error.status, {"x-should-retry": "false"})

        both = ("/s/{key}/v1", "/v1")
        routed = Starlette(
            routes=[
                Route("/healthz", health),
                Route("/v1/sessions", open_session, methods=["POST"]),
                Route("/s/{key}/reward", takes("reward"), methods=["POST"]),
                Route("/s/{key}/end", takes("end"), methods=["POST"]),
                *(Route(f"{start}/models", models) for start in both),
                *(
                    Route(f"{start}/{path}", ApiEndpoint(self, api), methods=["POST"])
                    for start in both
                    for path, api in APIS.items()
                ),
                *(Route(f"{start}/{{path:path}}", self.forward, methods=["GET", "POST"]) for start in both),
            ],
            exception_handlers={FormError: refused},
        )

        async def checked(scope: http.Asgi, receive: http.Asgi, send: http.Asgi) -> None:
            if error := http.refusal(scope, local=self.config.host in http.LOOPBACK):
                return await http.send_json(send, error.status, chat_completions.error(error), close=True)
            return await routed(scope, receive, send)

        return checked

    async def forward(self, request: HttpRequest) -> Response:
        """Answer a request to another API of the server behind a session's engine."""
        from starlette.responses import Response

        session, path = self.session(request.scope), request.path_params["path"]
        pieces = path.lower().split("/")
        # A chat whose path is misspelled must not pass unrecorded; weights are not the agent's to change.
        if {"", ".", ".."} & {*pieces} or "/".join(pieces[-2:]) in APIS or "lora_adapter" in pieces[-1]:
            raise FormError("not-found", f"there is no {request.method} /v1/{path}", None, status=404)
        asked = ForwardedRequest(
            method=request.method,
            path=quote(path) + (f"?{request.url.query}" if request.url.query else ""),
            content_type=request.headers.get("content-type", "application/json"),
            body=await http.body_of(request.receive, LONGEST_BODY),
        )
        found = await http.in_loop(session.loop, session.forward(asked))
        return Response(found.body, found.status, {"content-type": found.content_type})

    def check_admin(self, scope: http.Asgi) -> None:
        """Check the admin key, if one is set. Raises `FormError`."""
        wanted = os.environ.get(ADMIN_KEY, "").strip()
        if wanted and not secrets.compare_digest(http.api_key(scope).encode(), wanted.encode()):
            raise FormError("admin-key-wrong", f"send the key in ${ADMIN_KEY} as a bearer", None, status=401)

    def session(self, scope: http.Asgi) -> SessionHandle:
        """The session whose key a request has. Raises `FormError` if it has none, or two that differ."""
        if self.everyone is not None:
            self.check_admin(scope)
            return self.everyone
        sent = http.api_key(scope)
        path = scope.get("path_params", {}).get("key", "")
        if path and sent and path != sent:
            raise FormError("key-conflict", "the key in the path and the API key are of different sessions", None)
        key = path or sent
        session = self.sessions.get(key)
        if session is None and key in self._ended:
            raise FormError("session-ended", "this session has ended; its agent may ask no more", None, status=409)
        if session is None:
            words = "no session has this key; use base_url and api_key as they were given"
            raise FormError("unknown-session", words, None, status=401)
        return session


class ApiEndpoint:
    """The ASGI application of one API: a request to a model, and its answer whole or as events."""

    def __init__(self, gateway: Gateway, api: ModuleType) -> None:
        self._gateway, self._api = gateway, api

    async def __call__(self, scope: http.Asgi, receive: http.Asgi, send: http.Asgi) -> None:
        """Answer one request."""
        api, gateway, steps = self._api, self._gateway, asyncio.Queue[str | Relayed]()
        here = asyncio.get_running_loop()
        try:
            session = gateway.session(scope)
            body = await http.body_of(receive, LONGEST_BODY)
            chat = api.read(http.parse_json(body))
            # SDKs mark what they send again; without the mark, an equal request is a new one.
            tries = dict(scope["headers"]).get(b"x-stainless-retry-count", b"")
            retried = tries.isdigit() and int(tries[:9]) > 0
            digest = blake2b(body, digest_size=16).hexdigest()
            # Steps come from the run's thread.
            work = session.ask(chat, digest, retried, partial(here.call_soon_threadsafe, steps.put_nowait))
            answer = asyncio.ensure_future(http.in_loop(session.loop, work))
            # Nobody may be there to look at its error.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        except FormError as error:
            return await http.send_json(send, error.status, api.error(error))
        gone = asyncio.ensure_future(http.hung_up(receive))
        written = http.EventStream(send)
        stream = api.Stream(chat)

        def shown(news: str | Relayed) -> Iterator[str]:
            if not chat.stream:
                return iter(())
            if isinstance(news, Relayed):
                return stream.add(news)
            return stream.step(news) if hasattr(stream, "step") else iter([api.heartbeat])

        news = asyncio.ensure_future(steps.get())
        try:
            while not answer.done() and not gone.done():
                await asyncio.wait({answer, gone, news}, timeout=HEARTBEAT_S, return_when=FIRST_COMPLETED)
                if news.done():
                    for event in shown(news.result()):
                        await written.write(event)
                    news = asyncio.ensure_future(steps.get())
                elif chat.stream and not answer.done():
                    await written.write(api.heartbeat)
            if gone.done():
                # The session keeps the sample for a marked retry.
                return None
            try:
                pending = answer.result()
            except FormError as error:
                if not written.begun:
                    return await http.send_json(send, error.status, api.error(error))
                return await written.write(api.error_event(error), last=True)
            # Those that came with the answer.
            left = [news.result()] if news.done() else []
            while not steps.empty():
                left.append(steps.get_nowait())
            # Before the last byte: the agent may end with it.
            first, pending.delivered = not pending.delivered, True
            if not chat.stream:
                return await http.send_json(send, 200, api.write(pending.reply))
            for event in chain(*map(shown, left), stream.end(pending.reply)):
                await written.write(event)
                if gone.done():
                    pending.delivered = not first
                    return None
            return await written.write("", last=True)
        except Exception as failure:
            # Such as a reply that this API cannot write: it must not be scored.
            broken = InfrastructureError(f"a reply failed: {failure!r}", code="gateway-failed", retryable=False)
            session.loop.call_soon_threadsafe(session.fail, broken)
            raise
        finally:
            news.cancel()
            gone.cancel()
