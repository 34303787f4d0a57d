"""A real OpenAI-compatible server on this machine, with a function in place of a model and faults on demand.

    with Loopback(lambda messages, seed: "hello", faults=Faults(rate_limit=0.1, reset=0.1)) as server:
        engine = OpenAICompatibleEngine(Config(model="simulated", base_url=server.base_url), "agent")

It listens on 127.0.0.1 alone, in a thread with an event loop of its own, and answers `POST /v1/chat/completions`, never
in a stream. What goes wrong with a request is drawn from (seed, its body, how often that body came), never from the
order in which requests arrive, so a run through a broken server repeats, whatever its concurrency.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from pydantic import Field, model_validator

from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.http import TransientError
from midstream.core.trajectory import Message
from midstream.engines.openai.tool_calls import with_calls

Reply = Callable[[Sequence[Message], int], str]  # (messages, seed) -> what the model says

CHARACTERS_PER_TOKEN = 4  # of usage: the model has no tokenizer
_PATH = "/v1/chat/completions"
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_CUT = 40  # bytes that a body is short of
_BODIES = {"bad_json": b"<html>bad gateway</html>", "empty_choice": b'{"id": "x", "choices": []}'}
_STATUS = {"rate_limit": 429, "server_error": 500}


class Faults(Frozen):
    """The share of requests that each fault meets; the rest are answered well.

    `rate_limit` and `server_error` are statuses 429 (with Retry-After: 0) and 500, `hang` never answers, `reset` breaks
    the connection off, `cut` ends the body too early, `bad_json` sends an error page with status 200, `empty_choice` an
    answer without a choice.
    """

    rate_limit: float = Field(default=0.0, ge=0, le=1)
    server_error: float = Field(default=0.0, ge=0, le=1)
    hang: float = Field(default=0.0, ge=0, le=1)
    reset: float = Field(default=0.0, ge=0, le=1)
    cut: float = Field(default=0.0, ge=0, le=1)
    bad_json: float = Field(default=0.0, ge=0, le=1)
    empty_choice: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.total > 1 + 1e-9:
            raise ValueError(f"the shares of all faults together are {self.total:g}, more than 1")
        return self

    @property
    def total(self) -> float:
        """The share of requests that meet any fault."""
        return sum(self.model_dump().values())

    def draw(self, chance: float) -> str:
        """The fault at `chance` in [0, 1), "" for none."""
        for kind, share in self.model_dump().items():
            if chance < share:
                return kind
            chance -= share
        return ""


def usage_of(messages: Sequence[Message], completion: str) -> tuple[int, int]:
    """(prompt, completion) tokens: four characters each, rounded up."""
    characters = sum(len(message.content) for message in messages)
    return -(-characters // CHARACTERS_PER_TOKEN), -(-len(completion) // CHARACTERS_PER_TOKEN)


class Loopback:
    """The server; it serves from construction to `close`.

    `requests` counts what arrived, `met` the faults by kind ("" for good answers).
    """

    def __init__(self, reply: Reply, *, faults: Faults | None = None, seed: int = 0) -> None:
        self.requests = 0
        self.met: Counter[str] = Counter()
        self._reply, self._faults, self._seed = reply, faults or Faults(), seed
        self._seen: Counter[bytes] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="loopback", daemon=True)
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{self._port.result()}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Break off every connection and end the thread; again does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        except OSError as failure:
            self._port.set_exception(failure)
            return
        self._port.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)  # who was accepted just now begins
        while self._writers:
            await asyncio.sleep(0)  # until every connection's task has seen that it is over

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while not self._stop.is_set():
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                await self._answer(head, await reader.readexactly(int(length[1]) if length else 0), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went away, as it may
        except (asyncio.LimitOverrunError, ValueError):
            pass  # it speaks no HTTP that this server reads
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _answer(self, head: bytes, raw: bytes, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        fault = self._fault_of(raw)
        self.met[fault] += 1
        if fault == "hang":
            await self._stop.wait()
        if fault in ("hang", "reset"):
            raise _reset(writer)
        if fault in _STATUS:
            return await _send(writer, _STATUS[fault], _error(f"injected {fault}"))
        if fault in _BODIES:
            return await _send(writer, 200, _BODIES[fault])
        status, body = self._good(head, raw)
        await _send(writer, status, body, cut=_CUT if fault == "cut" else 0)

    def _fault_of(self, raw: bytes) -> str:
        key = blake2b(raw, digest_size=8).digest()
        self._seen[key] += 1
        return self._faults.draw(random.Random(f"{self._seed}/{key.hex()}/{self._seen[key]}").random())

    def _good(self, head: bytes, raw: bytes) -> tuple[int, bytes]:
        """The status and body of an answer in which nothing is made to go wrong."""
        if head.split(b" ")[:2] != [b"POST", _PATH.encode()]:
            return 404, _error(f"there is nothing but POST {_PATH}")
        try:
            body = json.loads(raw)
            messages = [
                Message(role=one["role"], content=with_calls(one["content"], one.get("tool_calls")))
                for one in body["messages"]
            ]
            text = self._reply(messages, int(body.get("seed", 0)))
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, TransientError) as failure:
            return 400, _error(f"no chat request: {failure!r}")
        except UsageError as failure:
            return 400, _error(failure.what)
        return 200, json.dumps(_completion(body.get("model", ""), messages, text)).encode()


def _completion(model: str, messages: Sequence[Message], text: str) -> dict[str, Any]:
    prompt, completion = usage_of(messages, text)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "loopback", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()


def _reset(writer: asyncio.StreamWriter) -> ConnectionError:
    """Have the connection end without a farewell: the error ends its task, which closes it."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return ConnectionError("reset on purpose")


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes, cut: int = 0) -> None:
    """Send `body`; with `cut`, announce all of it and hang up before the last `cut` bytes."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    wait = "Retry-After: 0\r\n" if status == 429 else ""
    writer.write(f"{head}{wait}\r\n".encode() + body[: len(body) - cut])
    await writer.drain()
    if cut:
        writer.close()
        await writer.wait_closed()
        raise ConnectionError("cut on purpose")
