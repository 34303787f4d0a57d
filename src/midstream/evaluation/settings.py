"""Settings of evaluations: which sets, how often each task is tried, at which temperatures."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from midstream.core.component import Component
from midstream.core.data import Frozen


class SetConfig(Frozen):
    """A fixed set of tasks.

    `tasks` is a source of its own (as `[tasks]`; none: the recipe's) and `reward` what scores it (none: with `tasks`,
    what its benchmark is scored by, else the recipe's). `families`, `per_family` and `count` take part of the split,
    drawn with `seed`. `max_turns` replaces the agent's own limit.
    """

    name: str
    tasks: Component | None = None
    reward: Component | None = None
    split: Literal["train", "validation", "test"] = "test"
    families: tuple[str, ...] = ()
    per_family: int | None = Field(default=None, ge=1, le=1_000_000)
    count: int | None = Field(default=None, ge=1, le=1_000_000)
    seed: int = 99
    max_turns: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_size(self) -> SetConfig:
        if self.per_family is not None and self.count is not None:
            raise ValueError(f"set {self.name!r} has both per_family and count: leave one out")
        return self


class EvaluationConfig(Frozen):
    """What is evaluated before and after training (`sets`), and while it goes (`validation`, greedily, once a task).

    Every task is tried `trials` times at each of `temperatures`.
    """

    sets: tuple[SetConfig, ...] = ()
    validation: SetConfig = SetConfig(name="validation", split="validation", per_family=20, seed=7)
    temperatures: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        default=(1.0, 0.0), min_length=1
    )
    trials: int = Field(default=1, ge=1, le=10_000)

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationConfig:
        """Results are identified by the names of their set and their temperature."""
        names = [chosen.name for chosen in (*self.sets, self.validation)]
        taken = Counter(map(str.casefold, names))  # some file systems know no capitals
        if twice := [name for name in names if taken[name.casefold()] > 1]:
            raise ValueError(f"two evaluation sets have the same name: {', '.join(twice)}")
        samplings = list(map(sampling_name, self.temperatures))
        if len(set(samplings)) < len(samplings):
            raise ValueError(f"two temperatures have the same name: {', '.join(samplings)}")
        return self


def sampling_name(temperature: float) -> str:
    """ "greedy" or "T=1"."""
    return "greedy" if temperature == 0 else f"T={temperature:g}"


def result_name(set_name: str, sampling: str, step: int | None = None) -> str:
    """The name of an evaluation's file of trajectories; `step` if a run evaluates a set at several."""
    return f"{set_name}-{sampling.replace('=', '')}" + ("" if step is None else f"-{step}")
