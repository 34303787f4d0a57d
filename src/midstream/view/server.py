"""The viewer's server: documents of runs as JSON, the page that shows them, and events when a run changes.

    GET  /TOKEN/                the page
    GET  /TOKEN/api/PATH        a document (`documents.py`)
    GET  /TOKEN/api/events      server-sent events: which runs changed since a cursor
    POST /TOKEN/api/run/RUN/feedback

It answers this machine alone, and there who has the token: pages of other hosts are refused by the token, by the Host
header (a name that was bound to 127.0.0.1 after the page was loaded) and by Origin. No request leaves its page.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from pydantic_core import PydanticSerializationError, to_json

from midstream.core.errors import MidstreamError, UsageError, needs_extra
from midstream.core.threads import in_thread
from midstream.gateway.forms import FormError
from midstream.gateway.http import LOOPBACK, Asgi, body_of, listen, parse_json, refusal, serve
from midstream.view.documents import Documents
from midstream.view.runs import changed_since, cursor_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

warn = logging.getLogger("midstream.view").warning
_LOOK_S, _BEAT_S = 0.4, 15.0  # seconds between two looks at the files, and between two signs of life
_LONGEST_BODY = 1 << 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC = {"": "index.html", "view.js": "view.js", "view.css": "view.css"}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Viewer:
    """The server of the runs in some places."""

    def __init__(self, places: Sequence[Path], *, host: str = LOOPBACK[0], port: int = 0, token: str = "") -> None:
        self.documents = Documents(places)
        self.host, self.port, self.token = host, port, token or secrets.token_urlsafe(18)
        self._server: Any = None

    @property
    def address(self) -> str:
        """The address of the page, once the server runs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{self.token}/"

    def run(self, ready: Callable[[str], Any]) -> None:
        """Serve until Ctrl-C; `ready` gets the address. Raises `UsageError` if the port is taken."""
        with needs_extra("the viewer needs starlette and uvicorn, not installed here", "serve"):
            import uvicorn
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"{self.port} is no port", code="setting-range", fix="give one of 1 to 65535, or none")
        listening = listen(self.host, self.port, "the viewer", "give another --port, or none for any free one")
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self.app(), log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)

        async def work() -> None:
            ready(self.address)
            await serve(self._server, listening)

        asyncio.run(work())

    def close(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True

    def app(self) -> Starlette:
        """The application: every address, behind the checks."""
        from starlette.applications import Starlette
        from starlette.responses import RedirectResponse, Response, StreamingResponse
        from starlette.routing import Route

        async def answer(request: Request) -> Response:
            if refused := self._refusal(request.scope):
                return _json(_problem("refused", refused), 403)
            (_, *path), query = _pieces(request.scope)
            try:
                if not path:  # the page's own addresses are relative to its last slash
                    return RedirectResponse(f"/{self.token}/", headers=_HEADERS)
                if path[:1] != ["api"]:
                    if request.method == "POST":
                        return _json(_problem("refused", "a page takes nothing"), 405)
                    return _static("/".join(path), Response)
                if request.method == "POST":
                    return await self._take(path[1:], request)
                if path[1:] == ["events"] and request.method == "GET":
                    cursor = request.headers.get("last-event-id") or query.get("cursor", "")
                    return StreamingResponse(self._events(cursor), media_type="text/event-stream", headers=_HEADERS)
                return _json(await in_thread(lambda: self.documents.get(path[1:], query)))
            except FormError as error:
                return _json(_problem(error.code, error.message), error.status)
            except MidstreamError as error:
                status = 404 if error.code == "unknown-name" else 422
                return _json(_problem(error.code, error.what, error.cause, error.fix), status)
            except OSError as error:
                words = f"{error.filename} cannot be read: {error.strerror}"
                return _json(_problem("file-unreadable", words, fix=f"ls -l {error.filename}"), 422)
            except Exception as failure:  # noqa: BLE001  # a bug of ours: the page and the terminal say so
                warn("the viewer cannot answer %s: %r", "/".join(path), failure)
                what, fix = f"the viewer cannot answer: {failure!r:.200}", "report this line"
                return _json(_problem("viewer-failed", what, fix=fix), 500)

        return Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "HEAD", "POST"])])

    def _refusal(self, scope: Asgi) -> str:
        """Why a request is refused; "" if it may pass."""
        # Elsewhere the machine's names are not known; there the token has to do.
        if error := refusal(scope, local=self.host in LOOPBACK):
            return error.message
        path, _ = _pieces(scope)
        if not secrets.compare_digest(path[0].encode(errors="replace"), self.token.encode()):
            return "the address lacks the token that was printed with it"
        if scope["method"] == "POST" and dict(scope["headers"]).get(b"x-midstream") != b"view":
            return "the header X-Midstream: view is missing"
        return ""

    async def _take(self, path: Sequence[str], request: Request) -> Response:
        match path:
            case ["run", run, "feedback"]:
                body = parse_json(await body_of(request.receive, _LONGEST_BODY))
                return _json(await in_thread(lambda: self.documents.feedback(run, body)))
        raise FormError("unknown-name", "nothing is taken at this address", None, status=404)

    async def _events(self, cursor: str) -> AsyncIterator[str]:
        """The runs that changed since the cursor, whenever some did, with the new cursor as the event's id."""
        states = await in_thread(self.documents.runs.states)
        # Without a cursor, what changed a moment ago is announced, too: the page may have read it before.
        fresh = self.documents.runs.fresh
        cursor = cursor or cursor_of({name: state for name, state in states.items() if not fresh(name)})
        yield ": open\n\n"
        beat = asyncio.get_running_loop().time()
        while not (self._server and self._server.should_exit):
            if changed := changed_since(cursor, states):
                cursor, beat = cursor_of(states), asyncio.get_running_loop().time()
                yield f"id: {cursor}\nevent: change\ndata: {json.dumps({'runs': changed})}\n\n"
            elif asyncio.get_running_loop().time() > beat + _BEAT_S:
                beat = asyncio.get_running_loop().time()
                yield ": still here\n\n"
            await asyncio.sleep(_LOOK_S)
            states = await in_thread(lambda: self.documents.runs.states(_LOOK_S / 2))  # one look for all pages


def encoded(document: Any) -> bytes:
    """A document as JSON; numbers that are not finite are null, half a surrogate pair is "?"."""
    try:
        return to_json(document, inf_nan_mode="null")
    except PydanticSerializationError:
        text = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
        return to_json(json.loads(text), inf_nan_mode="null")


def _problem(code: str, what: str, cause: str = "", fix: str = "") -> dict[str, str]:
    return {"code": code, "what": what, "cause": cause, "fix": fix}


def _json(document: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(encoded(document), status, _HEADERS, "application/json")


def _static(name: str, response: type[Response]) -> Response:
    """A file of the page code."""
    file = files("midstream.view").joinpath("static", _STATIC.get(name, name))
    if name not in _STATIC or not file.is_file():
        return _json(_problem("unknown-name", f"there is no {name!r}"), 404)
    kind = _TYPES[Path(_STATIC[name]).suffix]
    return response(file.read_bytes(), 200, _HEADERS, f"{kind}; charset=utf-8")


def _pieces(scope: Asgi) -> tuple[list[str], dict[str, str]]:
    """The decoded pieces of a request's path, of which the first is the token, and its query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix("/")
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    return [unquote(piece) for piece in path.split("/")], query
