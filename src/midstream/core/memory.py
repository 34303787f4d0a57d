"""The memory of one trajectory: typed records, append-only."""

from __future__ import annotations

from midstream.core.data import Frozen
from midstream.core.trajectory import Action, Command, Verdict


class MemoryRecord(Frozen):
    """One turn as later turns see it."""

    turn: int  # from 1
    action: Action
    command: Command | None = None
    result: str = ""  # text of the observation; empty without one
    error: str | None = None  # why it failed: a malformed action, an invalid command, or a tool that found nothing
    verdict: Verdict | None = None
    # Wall-clock seconds, only if the agent is configured to record them: a prompt with a measured time cannot be
    # repeated exactly.
    elapsed_s: float | None = None


class Memory(Frozen):
    """Records in order. `append` returns a new memory, so that runs cannot share one by accident."""

    records: tuple[MemoryRecord, ...] = ()

    def append(self, record: MemoryRecord) -> Memory:
        """This memory and one more record."""
        return Memory(records=(*self.records, record))

    def __len__(self) -> int:
        return len(self.records)
