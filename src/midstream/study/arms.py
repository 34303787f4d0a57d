"""The arms of a planner's study: the recipe itself, and the changes of it that stand beside it.

    stronger              `study.stronger`, not trained
    supervised            as many supervised updates as Flow-GRPO makes, on transcripts of the clumsy policy
    distilled             the same on the stronger planner's
    distilled-successes   the same on those of them that succeeded
    trained               Flow-GRPO: the recipe itself
    size-NAME             the recipe with the changes of `study.sizes`

Each is trained into a run of its own but for `stronger`. The frozen planner is `trained` before its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midstream import api
from midstream.core.errors import RecipeError
from midstream.evaluation.study_settings import StudyConfig, Table
from midstream.recipe.schema import Recipe, merge, parse_recipe, read_table, validate, with_overrides
from midstream.runs import RunDirectory

FROZEN = "frozen"
LABELS = {
    "stronger": "stronger planner, frozen",
    "supervised": "supervised, clumsy runs",
    "distilled": "distilled, all runs",
    "distilled-successes": "distilled, successes",
    "trained": "Flow-GRPO",
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study on disk: its recipe, its arms' runs in `root`, and `tell` for what is going on."""

    root: Path
    named: str
    overrides: tuple[str, ...]
    seeds: int
    tell: Callable[[str], None]
    _runs: dict[str, RunDirectory] = field(default_factory=dict)

    def table(self, seed: int) -> Table:
        """The recipe's table under a seed."""
        return with_overrides(read_table(self.named), [*self.overrides, f"seed={seed}"])

    @property
    def config(self) -> StudyConfig:
        """The recipe's `[study]`."""
        return validate(StudyConfig, self.table(0).get("study", {}), "study")

    def recipe(self, arm: str, seed: int) -> Recipe:
        """The recipe of an arm.

        Raises:
            RecipeError: the recipe does not define what the arm needs.
        """
        table = {key: value for key, value in self.table(seed).items() if key != "study"}
        changes = self._changes(arm, parse_recipe(table))
        if changes:
            table = merge(table, {"name": f"{table['name']}-{arm}", **changes})
        return parse_recipe(table)

    def run(self, arm: str, seed: int) -> RunDirectory:
        """The finished run of an arm, trained now if it was not."""
        recipe = self.recipe(arm, seed)
        name = f"{recipe.name}-s{seed}"
        if name not in self._runs:
            self.tell(f"{name}: training, unless that is done")
            self._runs[name] = api.train(recipe, self.root / name, exist_ok=True)
        return self._runs[name]

    @property
    def imitating(self) -> tuple[str, ...]:
        """The arms that imitate; without a warm start there is no clumsy policy."""
        every = ("supervised", "distilled", "distilled-successes")
        return every if self.recipe("trained", 0).warm_start else every[1:]

    def size_arm(self, label: str) -> str:
        """The arm of a size; the one without changes is the recipe itself."""
        return f"size-{label}" if self.config.sizes[label] else "trained"

    def _changes(self, arm: str, recipe: Recipe) -> Table:
        if recipe.training is None or recipe.training.algorithm != "flow_grpo":
            raise RecipeError(
                f"recipe {recipe.name!r} is not trained with Flow-GRPO",
                cause="a study of the planner compares it before and after that",
                fix='choose a recipe with training.algorithm = "flow_grpo"',
            )
        if arm == "trained":
            return {}
        if arm.startswith("size-"):
            return self.config.sizes[arm.removeprefix("size-")]
        if arm != "supervised" and self.config.stronger is None:
            raise RecipeError(
                f"recipe {recipe.name!r} has no study.stronger",
                cause="without it there is no such arm beside the trained planner",
                fix="add it, a table like [agent.planner], or name with --only the analyses that do without",
            )
        if arm == "stronger":
            return {"agent": {"planner": self.config.stronger}}
        supervised: dict[str, Any] = dict(self.config.imitation)
        if arm != "supervised":
            supervised |= {"planner": self.config.stronger, "successes_only": arm == "distilled-successes"}
        return {"training": {"algorithm": "supervised", "supervised": supervised}}
