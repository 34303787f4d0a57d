"""What rollouts that run ahead of training have in common: the steps, which train in a thread meanwhile."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from midstream.core.seeds import derive_seed
from midstream.training.flow_grpo import FlowGRPO, Sampled, StepOutcome
from midstream.training.learner import LocalLearner
from midstream.training.protocols import LossStats
from midstream.training.rows import RowBatch
from midstream_async.correction import corrected, gradient_cosine
from midstream_async.settings import AheadConfig
from midstream_async.versions import Versions

T = TypeVar("T")
_SWITCH_S = 0.0005


@dataclass(kw_only=True)
class RunsAhead(FlowGRPO):
    """The algorithm, without what says which rollouts a step trains on."""

    ahead: AheadConfig
    versions: Versions

    async def batch(self, step: int) -> tuple[Sampled, int]:
        """The rollouts to train on, and the oldest version of the weights that sampled them."""
        raise NotImplementedError

    def trained(self, step: int) -> None:
        """The update of a step is made."""

    async def cancel(self) -> None:
        """End the rollouts under way."""
        raise NotImplementedError

    async def step(self, step: int) -> StepOutcome:
        """Publish the newest weights, wait for a batch, train on it in a thread; rollouts continue meanwhile."""
        started = time.monotonic()
        self.learner.before_step(derive_seed(self.seed, "redraw", step))
        try:
            # Where an update is slower than its rollouts, nothing else here lets Ctrl-C through.
            await asyncio.sleep(0)
            await self.versions.restore()
            await self.publish(step - 1)
            await self.versions.publish(step - 1)
            sampled, version = await self.batch(step)
            waited_s = time.monotonic() - started
            self._gap_checked |= version != step - 1

            def update() -> tuple[dict[str, Any], tuple[list[LossStats], list[float]]]:
                batches: Sequence[RowBatch] = sampled.batches
                changes: dict[str, Any] = {}
                if version != step - 1:
                    batches, correction = corrected(sampled.batches, self.learner, self.ahead)
                    changes = correction.metrics(decoupled=self.ahead.decoupled)
                    every = self.ahead.probe_every
                    if every and step % every == 0 and isinstance(self.learner, LocalLearner):
                        loss = self.config.loss
                        changes["gradient_cosine"] = gradient_cosine(sampled.batches, batches, self.learner, loss)
                return changes, self.update(batches, step)

            changes, (stats, norms) = await in_thread(update)
        except BaseException:
            await self.cancel()
            raise
        self.trained(step)
        self.count(sampled.groups)
        outcome = self.outcome(step, sampled, stats, norms, rollout_s=waited_s)
        return StepOutcome(
            metrics=outcome.metrics.model_copy(update={"policy_version": version} | changes),
            trajectories=outcome.trajectories,
            rollout_s=waited_s,
        )


async def in_thread(work: Callable[[], T]) -> T:
    """The result of work in a thread. If the caller is cancelled meanwhile, it is so once the work is done."""
    threads = torch.get_num_threads()

    def with_threads() -> T:
        # PyTorch's number of threads is that of each thread.
        torch.set_num_threads(threads)
        return work()

    # Tools use the threads of the event loop.
    executor, task, cancelled = ThreadPoolExecutor(1), asyncio.current_task(), False
    future = asyncio.get_running_loop().run_in_executor(executor, with_threads)
    executor.shutdown(wait=False)
    interval = sys.getswitchinterval()
    # Otherwise each of the agents' many short pieces of work waits 5 ms for the interpreter.
    sys.setswitchinterval(_SWITCH_S)
    while not future.done():
        try:
            # Unlike awaiting it, this does not cancel it.
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
            if task is not None:
                task.uncancel()
    sys.setswitchinterval(interval)
    # A failed update raises its own error: the weights may be changed in part.
    result = future.result()
    if cancelled and task is not None:
        task.cancel()
    return result
