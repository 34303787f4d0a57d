"""A viewer's server and a client that speaks HTTP with it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit

from midstream.view.server import Viewer


class Client:
    def __init__(self, address: str) -> None:
        self.address, self.port = address, urlsplit(address).port
        self.base = urlsplit(address).path

    def send(
        self, path: str, *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to a request of a whole path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def get(self, path: str, status: int = 200) -> Any:
        """The document at a path."""
        found, _, body = self.send(f"{self.base}api/{path}")
        assert found == status, body
        return json.loads(body)

    def post(self, path: str, body: Any, status: int = 200, **headers: str) -> Any:
        sent = {"X-Midstream": "view", "Content-Type": "application/json", **headers}
        found, _, answer = self.send(f"{self.base}api/{path}", method="POST", body=body, headers=sent)
        assert found == status, answer
        return json.loads(answer)

    @contextmanager
    def events(self) -> Iterator[Queue[list[str]]]:
        """The runs of each change from now on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", f"{self.base}api/events", headers={"Host": f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        found: Queue[list[str]] = Queue()

        def listen() -> None:
            try:
                while line := answer.readline().decode():
                    if line.startswith("data: "):
                        found.put(json.loads(line[6:])["runs"])
            except (OSError, ValueError, AttributeError):  # closed below, or the server ended
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield found
        finally:
            if connection.sock:
                connection.sock.shutdown(2)
            thread.join(5)
            answer.close()
            connection.close()


@contextmanager
def viewing(*places: Path, token: str = "", port: int = 0) -> Iterator[Client]:
    """A running viewer of these places."""
    ready: Queue[str] = Queue()
    viewer = Viewer(places, token=token, port=port)
    thread = threading.Thread(target=viewer.run, args=[ready.put])
    thread.start()
    try:
        yield Client(ready.get(timeout=30))
    finally:
        viewer.close()
        thread.join(10)
        assert not thread.is_alive()


def names(entries: Sequence[dict[str, Any]]) -> list[int]:
    """The places of entries."""
    return [entry["place"] for entry in entries]
