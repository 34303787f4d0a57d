"""How a long run tells whoever watches it where it is: the trainer knows this protocol, never a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming


class ProgressDisplay(Protocol):
    """Shows a training run while it goes. Leaving the context, by an error or Ctrl-C too, restores the terminal."""

    def __enter__(self) -> Self:
        """Take the terminal."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back; never swallows an error."""
        ...

    def start(self, recipe: str, steps: int, first_step: int, run: str) -> None:
        """A run of `steps` steps begins at `first_step` (above 1 when resumed; steps count from 1)."""
        ...

    def phase(self, text: str) -> None:
        """What is being done now, e.g. "warm start 120/450"; replaces the last phase."""
        ...

    def step(self, metrics: StepMetrics, timing: StepTiming) -> None:
        """A step is done."""
        ...

    def evaluation(self, result: EvaluationResult) -> None:
        """An evaluation is done."""
        ...

    def note(self, text: str) -> None:
        """A warning that must not be overlooked; stays on screen."""
        ...

    def finish(self) -> None:
        """The run is complete."""
        ...


class NoProgress:
    """A silent display, for tests and for use as a library."""

    def __enter__(self) -> Self:
        """Nothing to take."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to give back."""

    def start(self, recipe: str, steps: int, first_step: int, run: str) -> None:
        """Shown nowhere."""

    def phase(self, text: str) -> None:
        """Shown nowhere."""

    def step(self, metrics: StepMetrics, timing: StepTiming) -> None:
        """Shown nowhere."""

    def evaluation(self, result: EvaluationResult) -> None:
        """Shown nowhere."""

    def note(self, text: str) -> None:
        """Shown nowhere."""

    def finish(self) -> None:
        """Shown nowhere."""
