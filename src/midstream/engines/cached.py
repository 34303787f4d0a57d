"""Replies that are kept by what was asked, so that an evaluation which changes one thing asks only what it changes.

A reply's key is a digest of the model and its server, the messages, the sampling, the seed and every other field of the
request. Trials differ in their seeds, so a reply stands for one trial. What is found costs nothing, and its
call says so (`sent["cached"]`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

from pydantic import JsonValue, ValidationError

from midstream.core.engine import Engine, ForwardedReply, ForwardedRequest, Request, ServedEngine
from midstream.core.sqlite_file import SqliteFile
from midstream.core.text import to_json
from midstream.core.trajectory import Call

# Raised by any change of a call's fields: entries of another version are not found.
VERSION = 3
warn = logging.getLogger("midstream.engines").warning
_APPLICATION = 0x6D644361


class ReplyFile(SqliteFile):
    """The replies in a directory, by key. Raises as `SqliteFile`."""

    def __init__(self, directory: Path, setting: str = "--cache") -> None:
        path = directory / f"replies-{VERSION}.sqlite"
        if not path.exists() and (others := sorted(directory.glob("replies-*.sqlite"))):
            warn(f"{others[-1]} is of another version of midstream: its replies are asked again")
        super().__init__(
            path,
            application=_APPLICATION,
            version=VERSION,
            schema=("CREATE TABLE replies (key TEXT PRIMARY KEY, value TEXT)",),
            what="cache of replies",
            setting=setting,
        )

    def find(self, key: str) -> Call | None:
        """The call of a key; None without one, or if it cannot be read."""
        with self.access() as connection:
            found = connection.execute("SELECT value FROM replies WHERE key = ?", (key,)).fetchone()
        try:
            return Call.model_validate_json(found[0]) if found else None
        except ValidationError:
            warn("a kept reply in %s cannot be read: it is asked again", self._path)
            return None

    def keep(self, key: str, call: Call) -> None:
        """Store a call."""
        with self.access() as connection:
            connection.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, call.model_dump_json()))


class CachedEngine:
    """`core.engine.Engine` that asks another one only what its file does not have.

    `identity` names the model; `keeps` says which replies are kept, by default all.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Mapping[str, JsonValue],
        file: ReplyFile,
        keeps: Callable[[Call], bool] = lambda call: True,
    ) -> None:
        self.engine, self._identity, self._file, self._keeps = engine, identity, file, keeps
        self.name, self.token_exact = engine.name, engine.token_exact

    async def sample(self, request: Request) -> Call:
        """Answer a request. Raises as the engine does; an error is not kept."""
        key = request_key(request, self._identity)
        # A file that several processes write may wait.
        found = await asyncio.to_thread(self._file.find, key)
        if found is not None:
            free = found.usage.model_copy(update={"cost_usd": 0.0})
            sent = {key: value for key, value in found.sent.items() if key != "waited_s"} | {"cached": True}
            request.emit("text", found.completion)
            return found.model_copy(update={"role": request.role, "usage": free, "sent": sent, "failures": ()})
        call = await self.engine.sample(request)
        if self._keeps(call):
            await asyncio.to_thread(self._file.keep, key, call)
        return call

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """Pass a request to another API of a server on: its answer is not kept."""
        assert isinstance(self.engine, ServedEngine)
        return await self.engine.forward(request)

    async def close(self) -> None:
        """Close the file, which other engines may share; the engine's owner closes it."""
        self._file.close()


def request_key(request: Request, identity: Mapping[str, JsonValue]) -> str:
    """A digest of all of a request that decides its reply."""
    asked: list[object] = [
        dict(identity),
        request.prompt,
        [message.wire() for message in request.messages],
        request.sampling.model_dump(mode="json"),
        request.seed,
        request.continues,
        request.keep_stop,
        dict(request.json_schema or {}),
        [dict(tool) for tool in request.tools],
        request.options if request.options is None else dict(request.options),
        request.capped,
    ]
    return blake2b(to_json(asked).encode(), digest_size=16).hexdigest()
