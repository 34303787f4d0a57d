"""A model in process that batches continuously: a request joins the running batch at the next token, at any time.

For agents that keep no step with each other. What shares a batch depends on time, so samples are equal from run to run
up to floating point (`DecodingBatch`); where they must be equal bit for bit, use `TransformersLocal` and its barrier.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from midstream.core.engine import Engine, Request
from midstream.core.errors import UnsupportedError
from midstream.core.trajectory import Call
from midstream.engines.local.decoding import DecodingBatch, DecodingRow, Sampled, can_join
from midstream.engines.local.engine import TransformersLocal
from midstream.engines.local.prefill import Prefill

# After which the thread ends, and forgets the prompts that it holds.
IDLE_S = 2.0


@dataclass(eq=False, kw_only=True, slots=True)
class _QueuedRequest:
    request: Request
    prompt_ids: tuple[int, ...]
    adapter: str
    future: asyncio.Future[Sampled]
    # Of the weights with which its first token was sampled.
    policy_version: int = 0

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.future.done() or self.future.get_loop().is_closed()


class ContinuousLocal(Engine):
    """Answers requests of any number at any time with the model of a `TransformersLocal`, in a thread of its own.

    At most `max_batch` requests are in the batch; the others wait in order of arrival. A request that is cancelled
    leaves it at the next token. Several event loops may use it. While requests run, leave the wrapped engine and the
    model alone: change weights inside `paused`.

    Raises:
        UnsupportedError: the model keeps more of a prompt than keys and values, so that nothing can join its batch.
    """

    token_exact = True

    def __init__(self, engine: TransformersLocal) -> None:
        if not can_join(engine.model):
            raise UnsupportedError(
                f"{engine.name}, {type(engine.model).__name__}, cannot batch requests that arrive at different times",
                code="cache-unsupported",
                fix="ask the engine without continuous batching, or name another model",
            )
        self._engine = engine
        self.name, self.codec, self.max_batch = engine.name, engine.codec, engine.max_batch
        self._prefills: dict[str, Prefill] = defaultdict(Prefill)  # by adapter
        # Guards all below.
        self._changed = threading.Condition()
        self._waiting: deque[_QueuedRequest] = deque()
        self._running: list[_QueuedRequest] = []
        self._pauses = 0
        # Set when a pause has nothing more to wait for.
        self._drained: list[asyncio.Future[None]] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The model of the wrapped engine."""
        return self._engine.model

    async def sample(self, request: Request) -> Call:
        """Join the batch, or wait for a place in it, and answer. Errors are those of `TransformersLocal`."""
        prompt_ids = self._engine.prompt_of(request)
        request = self._engine.limited(request, prompt_ids)
        asked = _QueuedRequest(
            request=request,
            prompt_ids=prompt_ids,
            adapter=self._engine.adapter_for(request),
            future=asyncio.get_running_loop().create_future(),
        )
        with self._changed:
            self._closed = False
            self._waiting.append(asked)
            self._wake()
        sampled = await asked.future
        return self._engine.codec.call_of(request, prompt_ids, sampled, policy_version=asked.policy_version)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Finish the batch and let nothing join it inside the context: there weights may change. Requests wait."""
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            self._pauses += 1
            if self._running:
                self._drained.append(drained)
            else:
                drained.set_result(None)
        try:
            await drained
            # Not every change of weights shows.
            self._forget()
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._wake()

    async def close(self) -> None:
        """Cancel what is asked, and end the thread."""
        with self._changed:
            thread, self._closed = self._thread, True
            for asked in (*self._waiting, *self._running):
                _settle(asked.future, asked.future.cancel)
            self._waiting.clear()
            self._changed.notify_all()
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _wake(self) -> None:
        """With the lock held: let the thread see what changed, or start one."""
        if self._thread is None and self._waiting and not self._pauses:
            # A daemon: a program that ends does not wait for samples that nobody will read.
            self._thread = threading.Thread(target=self._work, name=f"{self.name} sampling", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    @torch.inference_mode()
    def _work(self) -> None:
        """What the thread does: a token at a time until nothing is asked for `IDLE_S`."""
        rows: dict[DecodingRow, _QueuedRequest] = {}
        batches: dict[str, DecodingBatch] = {}  # by adapter
        while (joining := self._take_joining(list(rows.values()))) is not None:
            together = {*rows.values(), *joining}
            if not together:
                continue
            try:
                if not rows:
                    batches.clear()
                for adapter in sorted({asked.adapter for asked in together}):
                    model = self._engine.with_adapter(adapter)
                    if adapter not in batches:
                        own = {"end_ids": self.codec.end_ids, "prefill": self._prefills[adapter]}
                        batches[adapter] = DecodingBatch(model, decode=self.codec.decode, **own)
                    batch = batches[adapter]
                    if new := [asked for asked in joining if asked.adapter == adapter]:
                        for asked in new:
                            asked.policy_version = self._engine.policy_version
                        added = batch.add([(asked.prompt_ids, asked.request) for asked in new])
                        rows.update(zip(added, new, strict=True))
                    for row in batch.step():
                        asked = rows.pop(row)
                        _settle(asked.future, asked.future.set_result, row.sampled)
                    if gone := {row for row in batch.rows if rows[row].gone}:
                        rows = {row: asked for row, asked in rows.items() if row not in gone}
                        batch.keep([place for place, row in enumerate(batch.rows) if row in rows])
                    batch.trim()
            except Exception as failure:  # noqa: BLE001 - the thread must live on, and nobody wait forever
                batches, rows = {}, {}
                # They may be half written; where memory ran out, it is needed.
                self._forget()
                for asked in together:
                    error = self._engine.sampling_failed(len(together), failure)
                    _settle(asked.future, asked.future.set_exception, error)

    def _forget(self) -> None:
        for prefill in self._prefills.values():
            prefill.prefixes.clear()

    def _take_joining(self, running: list[_QueuedRequest]) -> list[_QueuedRequest] | None:
        """Those that join now, in order of arrival. Waits while there is nothing to do; None ends the thread."""
        with self._changed:
            self._running = running
            if not running:
                for future in self._drained:
                    _settle(future, future.set_result, None)
                self._drained.clear()
                self._changed.wait_for(lambda: self._closed or (self._waiting and not self._pauses), IDLE_S)
                if not self._waiting or self._pauses:
                    self._forget()
                    self._thread = None
                    return None
            joining: list[_QueuedRequest] = []
            while self._waiting and not self._pauses and len(running) + len(joining) < self.max_batch:
                asked = self._waiting.popleft()
                if not asked.gone:
                    joining.append(asked)
            self._running = [*running, *joining]
            return joining


def _settle(future: asyncio.Future[Any], settle: Callable[..., object], *values: object) -> None:
    """Call a method of a future in its event loop, from any thread, unless the future is done by then."""
    # Its event loop is closed: nobody waits.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(lambda: None if future.done() else settle(*values))
