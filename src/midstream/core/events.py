"""Events of a run as it happens: what a training, lesson or evaluation session emits to its listener.

Each of these begins with `RunLoads` and `AgentBuilt`, other work with `AgentBuilt`; then follow

    training    Phase* RunStarted (StepFinished | EvaluationFinished | Phase | Note)* RunFinished
    lessons     RunStarted (UpdateFinished | EvaluationFinished | BudgetSpent | Phase | Note)* RunFinished
    evaluation  RunStarted (SetStarted TrajectoriesFinished* EvaluationFinished? | Note)* RunFinished

Everywhere, `TrajectoriesFinished` comes as rollouts end, and a `TurnEvent` for everything inside a trajectory:

    analyst     start text ... call analysis    (in turn 0)
    planner     start text text ... call action
    executor    start text ... call command observation
    verifier    start text ... call verdict
    generator   start text ... call answer
    policy      start text ... call (action command observation) ... | answer | answer user

Each listener receives every event once, in order, and cannot affect the run: a run with a listener and one without
leave the same trajectories. One that raises ends the run, which can be resumed. `lambda event: None` is the silent
listener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from midstream.core.metrics import EvaluationResult, Spent, StepMetrics, StepTiming
from midstream.core.trajectory import Trajectory

Work = Literal["training", "lessons", "evaluation", "solve", "validation"]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happens in a run: each of the classes below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLoads(RunEvent):
    """A run is about to load what it needs, which takes seconds; `pytorch` says whether PyTorch is part of it."""

    recipe: str
    directory: str
    pytorch: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentBuilt(RunEvent):
    """The agent is built, and its work begins.

    `sandbox` describes what confines the code that the agent runs, "" if it runs none; `replay` is the directory that
    its tools' answers come from, "" for live tools; `resolved` is its recipe with every default.
    """

    work: Work
    sandbox: str
    replay: str
    resolved: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStarts(RunEvent):
    """A run starts a model server of its own, whose output goes to the file `log`; with `ready_s` it answers."""

    command: str
    log: str
    ready_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted(RunEvent):
    """A run starts or resumes.

    `total` counts steps (training), updates (lessons) or trajectories (evaluation), `done` the part of earlier
    sessions. `sets` is the number of set and temperature pairs of an evaluation, `limits` the budget of a lesson run by
    field of `Spent`; a missing field has no limit.
    """

    recipe: str
    directory: str
    total: int
    done: int = 0
    sets: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase(RunEvent):
    """The present activity of the run, e.g. "warm start 120/450"; replaces the last phase."""

    text: str


@dataclass(frozen=True, slots=True)
class Note(RunEvent):
    """A warning that must not be overlooked."""

    text: str


@dataclass(frozen=True, slots=True)
class StepFinished(RunEvent):
    """A training step is recorded."""

    metrics: StepMetrics
    timing: StepTiming


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateFinished(RunEvent):
    """An update of the lesson set is recorded; a resumed run emits the earlier ones first.

    `fates` counts changes by what became of them ("accepted", "rejected", "pending", "refused"), `left_out` what taught
    nothing by reason. `lessons` is the size of the lesson set after the update.
    """

    update: int
    reward_mean: float
    proposed: int
    fates: Mapping[str, int]
    left_out: Mapping[str, int]
    lessons: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class BudgetSpent(RunEvent):
    """The use of a lesson run so far; may be emitted at any time."""

    spent: Spent


@dataclass(frozen=True, kw_only=True, slots=True)
class SetStarted(RunEvent):
    """The set number `place` (from 1) of an evaluation starts or resumes, with `done` of its `total` trajectories."""

    place: int
    name: str
    total: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoriesFinished(RunEvent):
    """Trajectories of `part` ("step-3", "gate-3-...", "eval-test-greedy") ended now, or in an `earlier` session."""

    trajectories: Sequence[Trajectory]
    part: str
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationFinished(RunEvent):
    """The result of an evaluation of one set at one temperature is recorded."""

    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """The run is complete."""


TurnKind = Literal[
    "start",  # a module begins; value None
    "text",  # a piece of its reply as it is written; value str
    "retry",  # an attempt failed or has to wait, the text since `start` does not count; value str, the reason
    "call",  # a request was answered; value Call
    "agent_run",  # of a strategy, an agent run ended; value str, its round, its part and its answer
    "analysis",  # of the query, before the first turn; value str
    "action",  # value Action
    "command",  # value Command
    "observation",  # value Observation
    "verdict",  # value Verdict
    "answer",  # value str | None
    "user",  # a dialogue's user said something; value str
    "restart",  # the whole trajectory failed and starts again; value ErrorInfo
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEvent(RunEvent):
    """Something that happened in turn `turn` of a trajectory, in module `role` ("" outside any module)."""

    turn: int
    role: str
    kind: TurnKind
    value: Any = None


Listener = Callable[[RunEvent], None]
TurnListener = Callable[[TurnEvent], None]  # any `Listener` is one
Emit = Callable[[TurnKind, object], None]  # emits a `TurnEvent` of a given turn and module


def ignore_event(kind: TurnKind, value: object) -> None:
    """The `Emit` of a run without a listener."""
