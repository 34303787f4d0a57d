"""The evolving memory of one trajectory: typed records, append-only."""

from __future__ import annotations

from midstream.core.data import Frozen
from midstream.core.trajectory import Action, Command, Verdict


class MemoryRecord(Frozen):
    """One turn as later turns see it.

    `result` is the observation's text (empty when there is none), `error` what went wrong (a malformed action, an
    invalid command, a tool that found nothing), `elapsed_s` the turn's wall-clock seconds: recorded only if the agent
    is told to, because a prompt that holds a measured time can never be repeated exactly.
    """

    turn: int
    action: Action
    command: Command | None = None
    result: str = ""
    error: str | None = None
    verdict: Verdict | None = None
    elapsed_s: float | None = None


class Memory(Frozen):
    """Records in order. `append` gives a new memory: one made in `run` cannot be shared by accident."""

    records: tuple[MemoryRecord, ...] = ()

    def append(self, record: MemoryRecord) -> Memory:
        """This memory with one record more."""
        return Memory(records=(*self.records, record))

    def __len__(self) -> int:
        return len(self.records)
