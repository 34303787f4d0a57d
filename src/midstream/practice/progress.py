"""How a run in context space tells whoever watches it where it is; the session knows this protocol, no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from midstream.core.metrics import EvaluationResult
from midstream.practice.budget import Spent
from midstream.practice.commit import UpdateRecord
from midstream.practice.settings import BudgetConfig


class PracticeDisplay(Protocol):
    """Shows a practice run while it goes. Leaving the context, by an error or Ctrl-C too, restores the terminal."""

    def __enter__(self) -> Self:
        """Take the terminal."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back; never swallows an error."""
        ...

    def start(self, recipe: str, updates: int, first: int, run: str, limits: BudgetConfig) -> None:
        """A run of `updates` updates begins with number `first` (above 1 when resumed; they count from 1)."""
        ...

    def phase(self, text: str) -> None:
        """What is being done now, e.g. "rollouts 120/500"; replaces the last phase."""
        ...

    def spent(self, spent: Spent) -> None:
        """What the run has used up so far; may be told at any time."""
        ...

    def update(self, record: UpdateRecord) -> None:
        """An update is done and recorded; a resumed run tells those of before first."""
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


class NoPracticeDisplay:
    """A silent display, for tests and for use as a library."""

    def __enter__(self) -> Self:
        """Nothing to take."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to give back."""

    def start(self, recipe: str, updates: int, first: int, run: str, limits: BudgetConfig) -> None:
        """Shown nowhere."""

    def phase(self, text: str) -> None:
        """Shown nowhere."""

    def spent(self, spent: Spent) -> None:
        """Shown nowhere."""

    def update(self, record: UpdateRecord) -> None:
        """Shown nowhere."""

    def evaluation(self, result: EvaluationResult) -> None:
        """Shown nowhere."""

    def note(self, text: str) -> None:
        """Shown nowhere."""

    def finish(self) -> None:
        """Shown nowhere."""
