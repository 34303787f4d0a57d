"""Tasks of reasoning-gym: as many as are requested, of its generators, at the levels of its curricula.

Each task is an item of a generator by seed and number, so that it can be made again to be scored. A hash of its
question decides its split: whatever the seeds, levels and settings, no question is in two splits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Self

from pydantic import Field, JsonValue, model_validator

from midstream.components.component import Context
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.seeds import derive_seed
from midstream.core.task import Task, same_question
from midstream.sources.finite import SPLIT_FIX, check_known
from midstream_environments.cases import share_of, task_of
from midstream_environments.library import Library, LibraryConfig

# New items cost little, so the smaller splits have more than those of a fixed set of rows.
SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
PER_FAMILY = 60  # default number of tasks of a family in an evaluation set
# Items in a row without a new task of the split, after which a family has no more.
_FRUITLESS = 400
_AT_ONCE = 64  # items of a request
# What midstream decides, and a family of families.
_DRAWN, _COMPOSITE = ("seed", "size"), "composite"


class Stage(Settings):
    """Families that are trained on once the stage before is learned.

    Attributes:
        families: their names
        level: the level of those that name none, by default that of the tasks
    """

    families: tuple[str, ...] = Field(min_length=1)
    level: int | None = Field(default=None, ge=0)


class ReasoningGymConfig(LibraryConfig):
    """Tasks of the generators of reasoning-gym, scored by the library.

    Attributes:
        families: names of generators, such as `countdown`, or `countdown@2` for level 2 of its curriculum
        level: the level of those that name none; without one, a generator has its defaults
        settings: settings of a generator, by its name, such as `{ countdown = { min_numbers = 3 } }`
        stages: in place of `families`, a curriculum: `training.stages` are set to these
    """

    adapter = "reasoning_gym"
    module = "reasoning_gym"
    library = "reasoning-gym"
    tested = ("0.1.20", "0.1.25")
    endless = True

    families: tuple[str, ...] = ()
    level: int | None = Field(default=None, ge=0)
    settings: dict[str, dict[str, JsonValue]] = {}
    stages: tuple[Stage, ...] = ()

    @model_validator(mode="after")
    def _names_families(self) -> Self:
        if not self.families and not self.stages:
            raise ValueError('name `families`, such as ["countdown", "spell_backward"], or give `stages`')
        if self.families and self.stages:
            raise ValueError("`families` and `stages`: the stages name them; where a recipe extends one, families = []")
        named = self.named
        for family in named:
            if "@" in family and not family.partition("@")[2].isdecimal():
                raise ValueError(f"the level in {family!r} is no whole number")
        if repeated := [family for family in named if named.count(family) > 1]:
            raise ValueError(f"{repeated[0]!r} is named twice")
        return self

    @property
    def named(self) -> list[str]:
        """All families, each with its level."""
        stages = self.named_stages
        return [family for stage in stages for family in stage] if stages else self.with_level(self.families)

    @property
    def named_stages(self) -> tuple[tuple[str, ...], ...]:
        """The families of each stage, each with its level."""
        return tuple(tuple(self.with_level(stage.families, stage.level)) for stage in self.stages)

    def with_level(self, families: Iterable[str], level: int | None = None) -> list[str]:
        """The families with a level, by default `level`, where they name none."""
        level = self.level if level is None else level
        return [name if "@" in name or level is None else f"{name}@{level}" for name in families]

    @property
    def adapter_settings(self) -> dict[str, JsonValue]:
        """The generators' settings: what else is of these tasks, each call says."""
        return {"settings": dict(self.settings)}

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Have a training follow the stages. Raises `RecipeError` if it cannot, or has others."""
        if not self.stages:
            return
        if where != "tasks" or recipe.lessons is not None:
            raise RecipeError(
                f"{where}.stages: only a training of weights on these tasks has stages",
                code="setting-conflict",
                fix="name `families` in place of `stages`",
            )
        if recipe.training is None or recipe.training.stages == self.named_stages:
            return
        if recipe.training.stages:
            raise RecipeError(
                "training.stages are not those of tasks.stages",
                code="setting-conflict",
                fix=f"leave training.stages out, or write: stages = {[list(stage) for stage in self.named_stages]}",
            )
        # A default that another table decides: the recipe that the run keeps has it.
        object.__setattr__(recipe, "training", recipe.training.model_copy(update={"stages": self.named_stages}))

    def build(self, context: Context) -> GymTasks:
        """The task source."""
        return GymTasks(self, self.opened(context))


class GymTasks:
    """Items of reasoning-gym as tasks (`core.source.TaskSource`); the library is asked when the first is drawn."""

    def __init__(self, config: ReasoningGymConfig, library: Library) -> None:
        self._config, self._library = config, library
        self.families = config.named
        self._known: dict[str, dict[str, Any]] = {}
        self._accepted: set[str] = set()

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks, families in proportion to `weights` (uniformly without)."""
        self._check(split, self.families)
        shares = [weights.get(family, 1.0) for family in self.families] if weights else None
        drawn = Random(derive_seed("families", split, seed)).choices(self.families, shares, k=count)
        found = {
            family: iter(self._tasks(split, family, drawn.count(family), derive_seed("sample", seed), set()))
            for family in dict.fromkeys(drawn)
        }
        return [next(found[family]) for family in drawn]

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Iterable[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """Return `per_family` tasks of each family (or `count`, shared out evenly), all questions different.

        `families` may be any of the library, also at levels that are not trained on.
        """
        chosen = list(dict.fromkeys(self._config.with_level(families))) or self.families
        self._check(split, chosen)
        total = count if count is not None else len(chosen) * (PER_FAMILY if per_family is None else per_family)
        seen: set[str] = set()
        tasks: list[Task] = []
        for place, family in enumerate(chosen):
            wanted = len(range(place, total, len(chosen)))  # dealt out in turn
            tasks += self._tasks(split, family, wanted, derive_seed("fixed", seed), seen)
        return tasks

    def _tasks(self, split: str, family: str, wanted: int, seed: int, seen: set[str]) -> list[Task]:
        """So many tasks of a split and family, whose questions are not in `seen`, to which they are added.

        Raises `RecipeError` if there are fewer.
        """
        seed = derive_seed("items", split, family, seed) % 2**31
        tasks: list[Task] = []
        number = fruitless = 0
        problem = ""
        while len(tasks) < wanted:
            count = min(_AT_ONCE, math.ceil((wanted - len(tasks)) / SHARES[split]))
            for row in self._library.call("items", family=family, seed=seed, start=number, count=count):
                fruitless += 1
                if "problem" in row:
                    problem = f"the latest that it could not make: {row['problem']}"
                    continue
                same = same_question(row["question"])
                if len(tasks) < wanted and same not in seen and share_of(row["question"], SHARES) == split:
                    seen.add(same)
                    tasks.append(task_of(self._library, row | {"family": family}))
                    fruitless = 0
            number += count
            if fruitless > _FRUITLESS:
                raise RecipeError(
                    f"reasoning-gym has {len(tasks)} different {family!r} tasks of {wanted} in the {split} split",
                    code="too-few-tasks",
                    cause=problem,
                    fix="ask for fewer, or widen the generator: another level, or its settings in tasks.settings",
                )
        return tasks

    # -- what the library has ------------------------------------------------------------------------------------------

    def _check(self, split: str, families: Iterable[str]) -> None:
        """Check a split, and what is named of the library. Raises `RecipeError`."""
        check_known("split", [split], SHARES, "reasoning-gym", SPLIT_FIX)
        if not self._known:
            self._known = self._library.call("families")
            self._check_settings()
        for family in families:
            if family not in self._accepted:
                self._check_family(family)
                self._accepted.add(family)

    def _check_family(self, family: str) -> None:
        name, _, level = family.partition("@")
        if name == _COMPOSITE:
            raise RecipeError(
                f"the family {_COMPOSITE!r} mixes others", code="unknown-family", fix="name those in `families`"
            )
        if name not in self._known:
            raise RecipeError(
                f"reasoning-gym has no family {name!r}",
                code="unknown-family",
                fix=f"{did_you_mean(name, self._known)}its generators are the keys of reasoning_gym.factory.DATASETS",
            )
        levels = self._known[name]["levels"]
        if level and not levels:
            raise RecipeError(
                f"{name!r} has no levels: the library has no curriculum of it",
                code="no-levels",
                fix=f"leave out the level; tasks.settings.{name} can have {self._settable(name)}",
            )
        if level and int(level) >= levels:
            raise RecipeError(
                f"{name!r} has no level {level}", code="no-levels", fix=f"choose one from 0 to {levels - 1}"
            )
        if problem := self._library.call("refusal", family=family):
            raise RecipeError(
                f"reasoning-gym refuses the configuration of {family!r}: {problem}",
                code="environment-refused",
                fix=f"correct tasks.settings.{name}" + (", or choose another level" if level else ""),
            )

    def _check_settings(self) -> None:
        used = list(dict.fromkeys(family.partition("@")[0] for family in self.families))
        for name, settings in self._config.settings.items():
            if name not in used:
                raise RecipeError(
                    f"tasks.settings.{name} is of no family of [tasks]",
                    code="unknown-family",
                    fix=f"{did_you_mean(name, used)}the families are {', '.join(used)}",
                )
            for key in settings:
                if key in _DRAWN:
                    raise RecipeError(
                        f"tasks.settings.{name}.{key}: midstream draws seeds, and as many tasks as a run needs",
                        code="setting-conflict",
                        fix="leave it out; `seed` and `per_family` of an evaluation set choose its tasks",
                    )
                if name in self._known and key not in self._known[name]["settings"]:
                    raise RecipeError(
                        f"{name!r} of reasoning-gym has no setting {key!r}",
                        code="unknown-setting",
                        fix=f"{did_you_mean(key, self._known[name]['settings'])}it has {self._settable(name)}",
                    )

    def _settable(self, name: str) -> str:
        return ", ".join(key for key in self._known[name]["settings"] if key not in _DRAWN) or "none"
