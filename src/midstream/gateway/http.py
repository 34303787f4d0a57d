"""Parts of the gateway's server that know HTTP and ASGI, and no sessions."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import JsonValue

from midstream.core.errors import UsageError
from midstream.gateway.forms import FormError

T = TypeVar("T")
Asgi = Any  # a scope, receive or send of ASGI
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_JSON = (b"content-type", b"application/json")
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class EventStream:
    """Server-sent events; the status 200 goes out with the first. From then on, an error has to be an event."""

    def __init__(self, send: Asgi) -> None:
        self._send, self.begun = send, False

    async def write(self, event: str, *, last: bool = False) -> None:
        """Send an event, or with `last` the end."""
        if not self.begun:
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            self.begun = True
        await self._send({"type": "http.response.body", "body": event.encode(), "more_body": not last})


def api_key(scope: Asgi) -> str:
    """The key that a client sends, as OpenAI's or as Anthropic's does."""
    headers = dict(scope["headers"])
    bearer = headers.get(b"authorization", b"").decode("latin-1")
    sent = bearer[7:].strip() if bearer[:7].casefold() == "bearer " else ""
    return sent or headers.get(b"x-api-key", b"").decode("latin-1").strip()


async def in_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[object, None, T]) -> T:
    """The result of a session's coroutine, which runs in the loop of its run."""
    ended = FormError("session-ended", "the session ended before its request was answered", None, status=409)
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as closed:
        work.close()
        raise ended from closed
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError as stopped:
        if (task := asyncio.current_task()) and task.cancelling():
            # This server stops, or nobody waits any more.
            raise
        raise ended from stopped
    except FormError:
        raise
    except Exception as failure:
        # Of an engine or agent of your own: it has failed the session.
        raise FormError("gateway-failed", f"the request failed: {failure!r:.200}", None, status=500) from failure


def listen(host: str, port: int, what: str, fix: str) -> socket.socket:
    """A socket that listens for `what`. Raises `UsageError`, with `fix`, if the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio sets it only on sockets that it makes; without it, each small reply waits 40 ms for the client.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as failure:
        words = f"{what} cannot listen on {host}:{port}: {failure.strerror or failure}"
        raise UsageError(words, code="address-taken", fix=fix) from failure
    # A client that hangs up is no news.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return listening


async def serve(server: Any, listening: socket.socket) -> None:
    """Run uvicorn's server until `should_exit`, and end the connections that it leaves."""
    await server.serve(sockets=[listening])
    # They close at the next tick; one that was just accepted is listed a tick or two later.
    for _ in range(3):
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


def refusal(scope: Asgi, *, local: bool) -> FormError | None:
    """Why a request is refused for its head; `local`: the server listens on loopback alone.

    Pages of other sites reach such a server by a name that they bind to 127.0.0.1 (Host), or by a form (Origin).
    """
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    if b"content-length" in headers and b"transfer-encoding" in headers:
        return FormError("refused", "send a Content-Length or a Transfer-Encoding, not both", None)
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    if local and host.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        words = f"{host!r:.100} is not this machine: ask at the address that was printed"
        return FormError("refused", words, None, status=403)
    if local and origin not in (None, f"http://{host}"):
        return FormError("refused", "pages of other origins are not answered", None, status=403)
    return None


async def body_of(receive: Asgi, limit: int) -> bytes:
    """The body of a request. Raises `FormError` if it is longer than `limit` bytes, or its client hangs up."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise FormError("body-incomplete", "the connection closed before the whole request had arrived", None)
        body += message.get("body", b"")
        if len(body) > limit:
            raise FormError("body-too-long", f"a request has at most {limit >> 20} MB", None, status=413)
        if not message.get("more_body"):
            return bytes(body)


def parse_json(body: bytes) -> Any:
    """A body's JSON. Raises `FormError`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FormError("body-invalid", f"the request is not JSON: {error}", None) from error


async def hung_up(receive: Asgi) -> None:
    """Return once the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Asgi, status: int, content: Mapping[str, JsonValue], *, close: bool = False) -> None:
    """Answer with JSON, and with `close` close the connection."""
    body = json.dumps(content).encode()
    # What went wrong here was tried again already, or would go wrong again.
    headers = [_JSON, (b"content-length", str(len(body)).encode()), (b"x-should-retry", b"false")]
    if close:
        headers.append((b"connection", b"close"))
    with suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
