"""Weights, lessons, and both, in each world and across worlds.

    frozen                    the warm start that both ways begin with
    lessons                   a library learned in its prompt, the weights frozen (Training-Free GRPO)
    another world's lessons   a library that was learned in another world, the weights frozen
    weights                   Flow-GRPO from the same start, no lessons
    weights, then lessons     the same, with this world's library in its prompt at evaluation alone
    both                      Flow-GRPO with this world's library in its prompt

Weights cannot cross: each world's planner reads and writes the words of its world alone. Every training is a run of its
own in the study's directory; nothing is run twice. `two-ways.toml` names the recipes; another file may be named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from midstream import api
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.metrics import EvaluationResult
from midstream.core.tables import validate
from midstream.core.text_file import read_toml
from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from midstream.report.study import StudyRow
from midstream.runs import RunDirectory
from studies.common import parser, print_tables, records, reporter, require_set, run, write_json


class World(Frozen):
    """The recipes of a world: one practises (`lessons`), the other trains the weights."""

    lessons: str
    weights: str


class TwoWaysFile(Frozen):
    """The study as its file describes it."""

    worlds: dict[str, World]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one seed, in `root`."""

    root: Path
    config: TwoWaysFile
    overrides: Sequence[str]
    seed: int

    def lessons(self, world: str) -> RunDirectory:
        """The practice run of a world."""
        return self._trained(self.config.worlds[world].lessons, f"{world}-lessons")

    def weights(self, world: str, *, library: bool = False) -> RunDirectory:
        """The training run of a world, with its library in the prompt or without."""
        more = [f"agent.library={json.dumps(str(self.lessons(world).root.resolve()))}"] if library else []
        return self._trained(self.config.worlds[world].weights, f"{world}-{'both' if library else 'weights'}", more)

    def under(self, trained: RunDirectory, library: str) -> RunDirectory:
        """A run's weights with the library of a world in the prompt."""
        out = self.root / f"{trained.root.name}-under-{library}-s{self.seed}"
        return api.evaluate(trained.root, out, library=str(self.lessons(library).root))

    def _trained(self, recipe: str, name: str, more: Sequence[str] = ()) -> RunDirectory:
        chosen = load_recipe(recipe, [*self.overrides, f"seed={self.seed}", *more])
        return api.train(chosen, self.root / f"{name}-s{self.seed}", exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-two-ways")
    default = Path(__file__).with_name("two-ways.toml")
    options.add_argument("file", nargs="?", type=Path, default=default, help="the recipes of each world")
    return run(study_two_ways, options.parse_args(arguments))


def study_two_ways(options: argparse.Namespace) -> None:
    """Train what is missing, evaluate, write the numbers, print a table."""
    config = validate(TwoWaysFile, read_toml(options.file), str(options.file))
    for world in config.worlds.values():  # refused before hours of work, not after
        for name, section in ((world.lessons, "practice"), (world.weights, "training")):
            recipe = load_recipe(name, options.overrides)
            if getattr(recipe, section) is None:
                raise RecipeError(
                    f"recipe {name!r} has no [{section}]",
                    code="wrong-kind-of-recipe",
                    fix="a world's `lessons` practises, its `weights` trains, as in studies/two-ways.toml",
                )
            require_set(recipe)
            check(recipe)
    report, values = reporter(options), dict[tuple[str, str], list[float]]()
    for seed in range(options.seeds):
        runs = Runs(root=options.out, config=config, overrides=options.overrides, seed=seed)
        for world in config.worlds:
            report(f"{world}, seed {seed}: training, unless that is done")
            for way, result in ways(runs, world):
                values.setdefault((f"{world}: {way}", result.sampling), []).append(result.success)
    rows = [StudyRow(name=name, metric=metric, values=tuple(found)) for (name, metric), found in values.items()]
    write_json(options.out / "two-ways.json", records(rows))
    if options.json:
        print(json.dumps(records(rows)))
    else:
        print_tables({"two ways": rows}, {"two ways": ("Weights, lessons, and both", "world: way")})


def ways(runs: Runs, world: str) -> Iterator[tuple[str, EvaluationResult]]:
    """Every way of a world with its evaluations, of the first set under each temperature."""
    lessons, weights = runs.lessons(world), runs.weights(world)
    yield from _each("frozen", lessons, last=False)
    yield from _each("lessons", lessons)
    for other in runs.config.worlds:
        if other != world:
            yield from _each(f"lessons of {other}", runs.under(lessons, other))
    yield from _each("weights", weights)
    yield from _each("weights, then lessons", runs.under(weights, world))
    yield from _each("both", runs.weights(world, library=True))


def _each(way: str, done: RunDirectory, *, last: bool = True) -> Iterator[tuple[str, EvaluationResult]]:
    """The first or last evaluation of a run's first set under each temperature."""
    results = done.evaluations.read()
    for sampling in dict.fromkeys(result.sampling for result in results):
        of_set = [result for result in results if (result.set_name, result.sampling) == (results[0].set_name, sampling)]
        yield way, of_set[-1 if last else 0]


if __name__ == "__main__":
    sys.exit(main())
