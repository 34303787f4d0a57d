"""Flow-GRPO whose rollouts run ahead of its updates.

    step k:  publish version k-1 -> begin batch k+S with it -> wait for batch k -> update, in a thread -> version k

    S = 1    rollouts    1 2 | 3     | 4     |          batch 3 is sampled by version 1 while step 2 trains on batch 2,
             updates         | 1     | 2     | 3        which version 0 sampled

Which tasks a batch has depends on what is known after step k - S - 1, when it begins, and on nothing that runs next to
it. A checkpoint holds what was known then, and the versions that sample; a resumed run begins the same batches again
and keeps of them what had ended.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from midstream.core.engine import PIN, Pin
from midstream.core.trajectory import Trajectory
from midstream.rollout import rollout
from midstream.runs import Journal, results
from midstream.training.flow_grpo import FlowGRPO, Sampled
from midstream_async.ahead import RunsAhead


@dataclass(eq=False, kw_only=True, slots=True)
class _Batch:
    """The rollouts of a step, and the algorithm as it was when they began."""

    began: FlowGRPO
    known: dict[str, Any]
    task: asyncio.Task[Sampled]


@dataclass(kw_only=True)
class Pipeline(RunsAhead):
    """The algorithm. `directory` is that of what has ended of open batches."""

    directory: Path
    _open: dict[int, _Batch] = field(default_factory=dict, init=False)
    # Of batches that were open when rollouts were last cut off: what was known when they began.
    _known: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)
    _done: int = field(default=0, init=False)

    async def batch(self, step: int) -> tuple[Sampled, int]:
        """Wait for the batch of a step, and have those of the next `staleness` steps run."""
        for place in range(step, min(step + self.ahead.staleness, self.config.steps) + 1):
            if place not in self._open:
                self._begin(place)
        batch = self._open[step]
        sampled = await batch.task
        self.stage, self.progress = batch.began.stage, batch.began.progress
        return sampled, self._version(step)

    def trained(self, step: int) -> None:
        """The batch of a step is no longer open."""
        del self._open[step]
        self._done = step

    def _version(self, step: int) -> int:
        """The version that samples the batch of a step."""
        return max(0, step - 1 - self.ahead.staleness)

    def _begin(self, step: int) -> None:
        """Begin the rollouts of a step."""
        began = copy.copy(self)
        if (known := self._known.pop(step, None)) is not None:
            began.load_state_dict(known)
        began.success = dict(began.success)
        # A stage that an open batch has begun stays.
        began.stage = max([began.stage, *(batch.began.stage for batch in self._open.values())])
        began.begin(step)
        known = {"success": dict(began.success), "stage": began.stage}
        self.directory.mkdir(parents=True, exist_ok=True)
        journal = Journal(self._path(step))
        kept = {result.place: result.trajectory for result in results.read(journal.path)}
        if kept and self.config.branching is None:
            began.rollout = partial(rollout, kept=kept)

        def on_done(ended: Sequence[Trajectory]) -> None:
            # Whatever made one fail may be corrected before the run is resumed; a wave is kept whole or not at all.
            if not any(each.status == "error" for each in ended):
                results.append(journal, f"step-{step}", ended)
            if self.on_done is not None:
                self.on_done(ended)

        began.on_done = on_done

        async def sample() -> Sampled:
            PIN.set(Pin(step=step, version=self._version(step)))
            with journal:
                return await FlowGRPO.sample(began, step)

        task = asyncio.create_task(sample())
        self._open[step] = _Batch(began=began, known=known, task=task)

    async def cancel(self) -> None:
        """End the rollouts under way; what has ended of them is kept."""
        tasks = [batch.task for batch in self._open.values()]
        self._known |= {step: batch.known for step, batch in self._open.items()}
        self._open.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _path(self, step: int) -> Path:
        return self.directory / f"batch-{step:06}.jsonl"

    def save(self, directory: Path) -> None:
        """Write also what the open batches began with; what is kept of batches before them is removed."""
        super().save(directory)
        done, opened = self._done, {step: batch.known for step, batch in self._open.items()}
        known = {step: known for step, known in (self._known | opened).items() if step <= done + self.ahead.staleness}
        (directory / "ahead.json").write_text(json.dumps({"done": done, "open": known}), encoding="utf-8")
        self.versions.save(directory, sorted({self._version(step) for step in known}))
        for path in self.directory.glob("batch-*.jsonl"):
            if _step_of(path) <= done:
                path.unlink()

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote; batches begin again with the next step."""
        super().load(directory)
        state = json.loads((directory / "ahead.json").read_text(encoding="utf-8"))
        self._done, self._known = state["done"], {int(step): value for step, value in state["open"].items()}
        for path in self.directory.glob("batch-*.jsonl"):
            # Begun after this checkpoint: with weights that may differ.
            if _step_of(path) > self._done + self.ahead.staleness:
                path.unlink()
        self.versions.load(directory)


def _step_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])
