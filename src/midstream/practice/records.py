"""What an update of the library leaves on disk: one record, in `updates.jsonl`, with all evidence for what was done."""

from __future__ import annotations

from typing import Literal

from midstream.core.data import Frozen
from midstream.core.metrics import ToolUse
from midstream.practice.library import Effect
from midstream.practice.operations import Operation, Outcome
from midstream.runs import RunDirectory
from midstream.runs.journal import read_models

Verdict = Literal["better", "not better", "undecided"]
Fate = Literal["accepted", "rejected", "pending", "unchanged"]


class Spent(Frozen):
    """What a run has used up so far. Tokens are the servers' count, estimated where they give none.

    Time is kept apart (`timings.jsonl`), so that records repeat byte for byte.
    """

    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


class Test(Frozen):
    """One sequential test of a changed library against the one before it, on pairs of fresh validation rollouts.

    `changes` are the places of the changes it holds in the update's list. `pairs` counts those with a result on both
    sides, `left_out` the others. `evidence` is the largest natural log of the test's e-value for "better", `needed`
    what it had to reach: log(1 / its share of the error rate). `mean` and `interval` (95 %) are the difference in
    reward.
    """

    __test__ = False  # for pytest, which collects what is called so

    name: Literal["whole", "kept"]
    changes: tuple[int, ...]
    pairs: int
    left_out: int = 0
    mean: float = 0.0
    interval: tuple[float, float] = (-1.0, 1.0)
    evidence: float = 0.0
    needed: float = 0.0
    verdict: Verdict


class ChangeRecord(Frozen):
    """One change that was tested, or accepted without a test: what became of it, and its measured effect."""

    operation: Operation
    fate: Fate
    effect: Effect | None = None


class UpdateRecord(Frozen):
    """One update: from a batch of tasks to a library.

    `uniform` groups had no contrast and taught nothing; `broken` maps ids of tasks to the reason why their groups were
    left out, `failed` the ids of rollouts that ended in an error to its text. `proposed` holds every operation that a
    role asked for and what became of it, and pending ones that are sound no longer; `changes` those that went to the
    gate, among them the pending ones of the update before. `bisect_pairs` of random halves had a result on both sides,
    `bisect_left_out` had not. `unreadable` are replies that stayed unusable, each with the role and task that it was
    for. `version` is the library's after it, `spent` all that the run used until its end.
    """

    step: int
    epoch: int
    tasks: tuple[str, ...]
    groups: int
    uniform: int
    broken: dict[str, str] = {}
    failed: dict[str, str] = {}
    mean_reward: float
    turns_mean: float
    tool_use: ToolUse
    proposed: tuple[Outcome, ...] = ()
    changes: tuple[ChangeRecord, ...] = ()
    tests: tuple[Test, ...] = ()
    bisect_pairs: int = 0
    bisect_left_out: int = 0
    unreadable: tuple[str, ...] = ()
    version: int
    lessons: int
    spent: Spent


def read_updates(run: RunDirectory) -> list[UpdateRecord]:
    """All updates of a run in order; empty if there are none yet. Raises `RunError` if damaged."""
    return read_models(run.updates_path, UpdateRecord)
