"""A process that samples, with a copy of the weights, while another one trains: `python -m midstream_async.sampler`.

It gets the resolved recipe, builds the model as the learner's process does, and takes the weights of each version from
a file. Rollouts of the earliest step come first. What is sampled together depends on the rollouts of one step alone, so
timing changes no bit of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import defaultdict
from contextlib import nullcontext
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import PriorityQueue
from typing import Any

import torch

from midstream.core.engine import Pin, Request
from midstream.core.seeds import derive_seed
from midstream.engines.local.decoding import Sampled, generate
from midstream.engines.local.prefill import Prefill
from midstream.recipe.build import Build
from midstream.recipe.schema import Recipe, parse_recipe

# In place of a version: the reference policy, where it stays the same.
REFERENCE = -1


def asks_reference(recipe: Recipe) -> bool:
    """Whether a module asks the reference policy."""
    return any(engine.type == "reference" for engine in recipe.engines.values())


class _Worker:
    def __init__(self, build: Build) -> None:
        self.seed = build.recipe.seed
        self.learner, self.engine = build.policy.learner, build.policy.engine()
        if not asks_reference(build.recipe):
            # It takes the memory of the weights.
            self.learner.reference = None
        self.paths: dict[int, Path] = {}
        self.prefills: dict[Pin, dict[tuple[bool, str], Prefill]] = defaultdict(lambda: defaultdict(Prefill))
        self._pin: Pin | None = None

    def generate(
        self, pin: Pin, asked: list[tuple[tuple[int, ...], Request]], reference: bool, adapter: str
    ) -> list[Sampled]:
        self._use(pin)
        if reference and (path := self.paths.pop(REFERENCE, None)) is not None:
            self._load(path)
        engine: Any = self.engine
        with engine.reference_policy() if reference else nullcontext(engine.with_adapter(adapter)) as model:
            codec, prefill = engine.codec, self.prefills[pin][reference, adapter]
            return generate(model, asked, end_ids=codec.end_ids, decode=codec.decode, prefill=prefill)

    def leave(self, pin: Pin, order: int | None) -> None:
        if order is None:
            self.prefills.pop(pin, None)
        else:
            for prefill in self.prefills[pin].values():
                prefill.prefixes.leave(order)

    def _use(self, pin: Pin) -> None:
        """Have the weights of a pin."""
        drawn = hasattr(self.learner.model, "before_step")
        if self._pin is None or pin.version != self._pin.version or (drawn and pin != self._pin):
            self._load(self.paths[pin.version])
            # Version v was written as it was drawn for step v + 1.
            for model in (self.learner.model, self.learner.reference) if drawn and pin.step != pin.version + 1 else ():
                if model is not None:
                    model.before_step(derive_seed(self.seed, "redraw", pin.step))
        self._pin = pin

    def _load(self, path: Path) -> None:
        for name, state in torch.load(path, map_location="cpu", weights_only=True, mmap=True).items():
            getattr(self.learner, name).load_state_dict(state, strict=False)


def serve(connection: Connection) -> None:
    """Answer until the other side is gone."""
    table, threads = connection.recv()
    torch.set_num_threads(threads)
    jobs: PriorityQueue[tuple[int, int, tuple[Any, ...]]] = PriorityQueue()
    with Build(parse_recipe(table)) as build:
        worker = _Worker(build)

        def read() -> None:
            numbers = count()
            try:
                while True:
                    kind, key, *rest = connection.recv()
                    if kind == "use":
                        worker.paths[key] = rest[0]
                    else:
                        jobs.put((key.step, next(numbers), (kind, key, *rest)))
            except (EOFError, OSError):
                # The process that trains has ended.
                os._exit(0)

        threading.Thread(target=read, daemon=True).start()
        while True:
            _, _, (kind, pin, first, *rest) = jobs.get()
            if kind == "leave":
                worker.leave(pin, first)
                continue
            try:
                answer: list[Sampled] | str = worker.generate(pin, *rest)
            except (RuntimeError, ValueError, IndexError, KeyError, OSError) as failure:
                worker.prefills.pop(pin, None)
                answer = f"{type(failure).__name__}: {failure}"
            connection.send((first, answer))


if __name__ == "__main__":
    # These are for the process that trains, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
