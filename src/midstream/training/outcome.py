"""What one training step leaves to be written down."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.core.metrics import StepMetrics, StepTiming
from midstream.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """The step's numbers and, for reinforcement, its trajectories."""

    metrics: StepMetrics
    timing: StepTiming
    trajectories: list[Trajectory]
