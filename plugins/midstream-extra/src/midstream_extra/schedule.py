"""Probabilities that change over training: a curriculum, such as the share of noisy documents in ZeroSearch.

noise = 0.2                                              the same at every step
noise = { start = 0.0, end = 0.5 }                       ZeroSearch's: slow at first, then faster
noise = { start = 0.0, end = 0.5, shape = "linear" }
noise = { start = 0.0, end = 0.5, shape = "success" }    as far as the agent succeeds
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from midstream.core.data import Settings
from midstream.core.tool import RunProgress


class Schedule(Settings):
    """A probability over training.

    With i the step and m the number of steps, `exponential` is p_s + (4^(i/m) - 1)/3 (p_e - p_s), where p_s is
    `start` and p_e `end` (ZeroSearch, arXiv 2505.04588): a third of the way at half the steps. `linear` is
    p_s + i/m (p_e - p_s). `success` puts the agent's running success, from 0 to 1, in the place of i/m: the probability
    rises only as far as the agent copes with it.

    Attributes:
        start: the probability before the first step
        end: the probability at the last step; without it, `start` at every step
        shape: `exponential`, `linear` or `success`
    """

    start: float = Field(default=0.0, ge=0, le=1)
    end: float | None = Field(default=None, ge=0, le=1)
    shape: Literal["exponential", "linear", "success"] = "exponential"

    def at(self, progress: RunProgress | None) -> float:
        """The probability at a step; outside training (None) the one at the end."""
        if self.end is None or progress is None:
            return self.start if self.end is None else self.end
        share = progress.success if self.shape == "success" else min(1.0, progress.step / max(1, progress.steps))
        if self.shape == "exponential":
            share = (4.0**share - 1) / 3
        return self.start + share * (self.end - self.start)


# A number, which is the same at every step, or a table.
Probability = Annotated[
    Schedule, BeforeValidator(lambda value: {"start": value} if type(value) in (int, float) else value)
]
