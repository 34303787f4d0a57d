"""The viewer's server: documents of runs as JSON, the page that shows them, and events when a run changes.

    GET  /TOKEN/                the page
    GET  /TOKEN/api/PATH        a document (`documents.py`)
    GET  /TOKEN/api/events      server-sent events: which runs changed
    POST /TOKEN/api/run/RUN/feedback and /TOKEN/api/compare/RUN/RUN/choices

It answers this machine alone, and there who has the token: pages of other hosts are refused by the token, by the Host
header (a name that was bound to 127.0.0.1 after the page was loaded) and by Origin. No request leaves its page.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from midstream.core.errors import MidstreamError, UsageError, needs_extra
from midstream.core.threads import in_thread
from midstream.gateway.forms import FormError
from midstream.gateway.http import LOOPBACK, Asgi, body_of, listen, parse_json, refusal, serve
from midstream.view.documents import Documents

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
_STATIC = {"": ("index.html", "html"), "view.js": ("view.js", "javascript"), "view.css": ("view.css", "css")}


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

        def as_json(document: object, status: int = 200) -> Response:
            return Response(json.dumps(document), status, _HEADERS, "application/json")

        def problem(status: int, code: str, what: str, cause: str = "", fix: str = "") -> Response:
            return as_json({"code": code, "what": what, "cause": cause, "fix": fix}, status)

        async def answer(request: Request) -> Response:
            if refused := self._refusal(request.scope):
                return problem(403, "refused", refused)
            (_, *path), query = _pieces(request.scope)
            try:
                match path:
                    # The page's own addresses are relative to its last slash.
                    case []:
                        return RedirectResponse(f"/{self.token}/", headers=_HEADERS)
                    case ["api", "run", run, "feedback"] if request.method == "POST":
                        body = parse_json(await body_of(request.receive, _LONGEST_BODY))
                        return as_json(await in_thread(lambda: self.documents.feedback(run, body)))
                    case ["api", "compare", first, second, "choices"] if request.method == "POST":
                        body = parse_json(await body_of(request.receive, _LONGEST_BODY))
                        return as_json(await in_thread(lambda: self.documents.choose(first, second, body)))
                    case _ if request.method == "POST":
                        return problem(405, "refused", "nothing is taken at this address")
                    case ["api", "events"] if request.method == "GET":
                        # Taken before the page hears that it is connected: it then reads what it shows again.
                        states = await in_thread(self.documents.runs.states)
                        return StreamingResponse(self._events(states), media_type="text/event-stream", headers=_HEADERS)
                    case ["api", *document]:
                        return as_json(await in_thread(lambda: self.documents.get(document, query)))
                    case [name] if name in _STATIC:
                        file, kind = _STATIC[name]
                        content = files("midstream.view").joinpath("static", file).read_bytes()
                        return Response(content, 200, _HEADERS, f"text/{kind}; charset=utf-8")
                return problem(404, "unknown-name", f"there is no {'/'.join(path)!r}")
            except FormError as error:
                return problem(error.status, error.code, error.message)
            except MidstreamError as error:
                status = 404 if error.code == "unknown-name" else 422
                return problem(status, error.code, error.what, error.cause, error.fix)
            except OSError as error:
                words = f"{error.filename} cannot be read: {error.strerror}"
                return problem(422, "file-unreadable", words, fix=f"ls -l {error.filename}")
            except Exception as failure:  # noqa: BLE001  # a bug of ours: the page and the terminal say so
                warn("the viewer cannot answer %s: %r", "/".join(path), failure)
                return problem(500, "viewer-failed", f"the viewer failed: {failure!r:.200}", fix="report this line")

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

    async def _events(self, states: dict[str, Hashable]) -> AsyncIterator[str]:
        """The runs that changed since these states, whenever some did."""
        yield ": open\n\n"
        beat = time.monotonic()
        while not (self._server and self._server.should_exit):
            await asyncio.sleep(_LOOK_S)
            before = states
            states = await in_thread(lambda: self.documents.runs.states(_LOOK_S / 2))  # one look for all pages
            changed = [name for name, state in states.items() if before.get(name) != state]
            if changed or time.monotonic() > beat + _BEAT_S:
                beat = time.monotonic()
                yield f"event: change\ndata: {json.dumps({'runs': changed})}\n\n" if changed else ": still here\n\n"


def _pieces(scope: Asgi) -> tuple[list[str], dict[str, str]]:
    """The decoded pieces of a request's path, of which the first is the token, and its query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix("/")
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    return [unquote(piece) for piece in path.split("/")], query
