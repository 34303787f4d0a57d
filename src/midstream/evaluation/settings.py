"""Settings of evaluations: which sets, how often each task is tried, at which temperatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, WrapValidator, field_validator, model_validator

from midstream.components.component import Component, Wrappers
from midstream.components.tables import parse_strategy
from midstream.core.data import Settings
from midstream.core.seeds import Seed

OWN = "own"
_TemperatureOrOwn = Annotated[
    float,
    Field(ge=0),
    WrapValidator(lambda value, check: value if value == OWN else check(value)),
    PlainSerializer(lambda value: value),
]


class SetConfig(Settings):
    """A fixed set of tasks.

    Attributes:
        name: the set's name in tables
        tasks: a source for this set, a table such as `[tasks]`
        reward: a table such as `[reward]`; by default the reward of each task's benchmark, else the recipe's
        split: `train`, `validation` or `test`; a source may have others, such as the atlas
        families: only tasks of these families; empty: all
        per_family: this many different tasks of each family, drawn with `seed`; not with `count`
        count: this many tasks in all; by default the whole split, or 60 of each family of an endless source
        seed: the seed of the draw; every run seed has the same set
        max_turns: replaces the agent's limit
        wrappers: what wraps a tool in this set, as in `[wrappers]`
    """

    name: str
    tasks: Component | None = None
    reward: Component | None = None
    split: str = "test"
    families: tuple[str, ...] = ()
    per_family: int | None = Field(default=None, ge=1, le=1_000_000)
    count: int | None = Field(default=None, ge=1, le=1_000_000)
    seed: Seed = 99
    max_turns: int | None = Field(default=None, ge=1)
    wrappers: Wrappers = {}

    @model_validator(mode="after")
    def _one_size(self) -> SetConfig:
        if self.per_family is not None and self.count is not None:
            raise ValueError(f"set {self.name!r} has both per_family and count: leave one out")
        return self


_VALIDATION = {"name": "validation", "split": "validation", "per_family": 20, "seed": 7}


class EvaluationConfig(Settings):
    """Settings of what is evaluated, and when.

    Attributes:
        sets: evaluated before and after training, and by `midstream eval`: `[[evaluation.sets]]`
        validation: evaluated greedily every `validate_every` steps; a table such as a set's
        temperatures: every set is evaluated at each; 0 is greedy, "own" the temperature that the agent asks for
        trials: attempts at each task of a set, at each temperature
        strategy: how `midstream eval` and `solve` make one answer of several runs of the agent: `NAME:KEY=VALUE,...` of
            an installed strategy, such as `dser:K=8,T=4` (docs/evaluation.md)
        at: when a run that learns evaluates: before and after (`both`), after (`end`), or never (`none`, also without
            the validations of training)
    """

    sets: tuple[SetConfig, ...] = ()
    validation: SetConfig = SetConfig(**_VALIDATION)
    temperatures: tuple[_TemperatureOrOwn, ...] = Field(default=(1.0, 0.0), min_length=1)
    trials: int = Field(default=1, ge=1, le=10_000)
    strategy: str | None = None
    at: Literal["both", "end", "none"] = "both"

    @field_validator("strategy")
    @classmethod
    def _in_one_form(cls, value: str | None) -> str | None:
        return None if value is None else str(parse_strategy(value))

    @field_validator("validation", mode="before")
    @classmethod
    def _over_the_default(cls, value: object) -> object:
        """A table with a name is whole, as in the recipes of runs, where it may be of a whole split."""
        if not isinstance(value, Mapping) or "name" in value:
            return value
        replaced = ("per_family",) if value.keys() & {"count", "tasks"} else ()
        return {key: kept for key, kept in _VALIDATION.items() if key not in replaced} | dict(value)

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationConfig:
        """Results are identified by the names of their set and their temperature."""
        names = [chosen.name for chosen in (*self.sets, self.validation)]
        # Some file systems know no capitals.
        taken = Counter(map(str.casefold, names))
        if twice := [name for name in names if taken[name.casefold()] > 1]:
            raise ValueError(f"two evaluation sets have the same name: {', '.join(twice)}")
        samplings = list(map(sampling_name, self.temperatures))
        if len(set(samplings)) < len(samplings):
            raise ValueError(f"two temperatures have the same name: {', '.join(samplings)}")
        return self


def sampling_name(temperature: float | str) -> str:
    """ "greedy", "T=1" or "own"."""
    if temperature == OWN:
        return OWN
    return "greedy" if temperature == 0 else f"T={temperature:g}"
