"""Weights, lessons, and both, each learned in one world and asked about in every one.

    frozen     the warm start that both ways begin with, which saw transcripts of every world
    lessons    a lesson set of one world in its prompt, the weights frozen (Training-Free GRPO, arXiv 2510.08191)
    weights    Flow-GRPO on one world's questions, no lessons (arXiv 2510.05592)
    both       Flow-GRPO on one world's questions, with that world's lesson set in the prompt

Every training is a run of its own in the study's directory; nothing is run twice. `two-ways.toml` names the recipes and
the families of each world; another file may be named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from midstream import api
from midstream.components.tables import validate
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.metrics import EvaluationResult
from midstream.core.text_file import read_toml
from midstream.recipe.build import Build
from midstream.recipe.schema import Recipe, load_recipe
from midstream.recipe.sessions import check_work
from midstream.runs import RunDirectory
from midstream_extra.study import chosen
from midstream_extra.study_tables import StudyRow
from studies.common import parser, print_tables, records, reporter, require_set, run, write_json


class TwoWaysFile(Frozen):
    """The study as its file describes it: one that learns lessons, one that trains, and the families of each world."""

    lessons: str
    weights: str
    worlds: dict[Annotated[str, Field(pattern=r"^\w+$")], Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        min_length=1
    )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one seed, in `root`."""

    root: Path
    config: TwoWaysFile
    overrides: Sequence[str]
    seed: int

    def recipe(self, way: str, world: str, lesson_set: RunDirectory | None = None) -> Recipe:
        """The recipe of a way that learns in a world."""
        families = json.dumps(self.config.worlds[world])
        name, learns = (
            (self.config.lessons, f"lessons.families={families}")
            if way == "lessons"
            else (self.config.weights, f"training.stages=[{families}]")
        )
        more = [f"agent.lessons={json.dumps(str(lesson_set.root.resolve()))}"] if lesson_set else []
        other = "training." if way == "lessons" else "lessons."  # of the other recipe alone
        shared = [override for override in self.overrides if not override.startswith(other)]
        return load_recipe(name, [*shared, learns, *more, f"seed={self.seed}"])

    def run(self, way: str, world: str) -> RunDirectory:
        """The finished run of a way, made now if it was not; `both` needs that of `lessons` first."""
        lesson_set = self.run("lessons", world) if way == "both" else None
        out = self.root / f"{way}-{world}-s{self.seed}"
        return api.train(self.recipe(way, world, lesson_set), out=out, exist_ok=True).directory


WAYS = ("lessons", "weights", "both")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-two-ways")
    default = Path(__file__).with_name("two-ways.toml")
    options.add_argument("file", nargs="?", type=Path, default=default, help="the recipes, and the families of worlds")
    return run(study_two_ways, options.parse_args(arguments))


def study_two_ways(options: argparse.Namespace) -> None:
    """Train what is missing, write the numbers, print a table."""
    config = validate(TwoWaysFile, read_toml(options.file), "", of=f"study {options.file}")
    seeds = [
        Runs(root=options.out, config=config, overrides=options.overrides, seed=seed) for seed in range(options.seeds)
    ]
    names = [way for way in WAYS if way in chosen(WAYS, options.only)]
    for way, section in (("lessons", "lessons"), ("weights", "training")):  # refused before hours of work, not after
        if getattr(load_recipe(getattr(config, way)), section) is None:
            raise RecipeError(
                f"recipe {getattr(config, way)!r} has no [{section}]",
                code="wrong-kind-of-recipe",
                fix="`lessons` is one that learns lessons, `weights` one that trains, as in studies/two-ways.toml",
            )
        for world in config.worlds:
            recipe = seeds[0].recipe(way, world)
            require_set(recipe)
            with Build(recipe) as build:
                check_work(build, "train")
    report, values = reporter(options), dict[tuple[str, str], list[float]]()
    for runs in seeds:
        for world in config.worlds:
            for way in names:
                report(f"{way} of {world}, seed {runs.seed}: learning, unless that is done")
                before, after = _sides(runs.run(way, world))
                if (way, world) == (names[0], next(iter(config.worlds))) and way != "both":  # it begins with lessons
                    _add(values, "frozen", before)
                _add(values, f"{way} of {world}", after)
    rows = [StudyRow(name=name, metric=metric, values=tuple(found)) for (name, metric), found in values.items()]
    write_json(options.out / "two-ways.json", records(rows))
    if options.json:
        print(json.dumps(records(rows)))
    else:
        print_tables({"two ways": rows}, {"two ways": ("Weights, lessons, and both", "learned")})


def _sides(done: RunDirectory) -> Iterator[list[EvaluationResult]]:
    """The first and the last evaluation of every set under each temperature."""
    results = [result for result in done.evaluations.read() if result.set_name != "validation"]
    for place in (0, -1):
        yield [
            [one for one in results if (one.set_name, one.sampling) == key][place]
            for key in dict.fromkeys((result.set_name, result.sampling) for result in results)
        ]


def _add(values: dict[tuple[str, str], list[float]], name: str, results: Sequence[EvaluationResult]) -> None:
    for result in results:
        values.setdefault((name, f"{result.set_name}, {result.sampling}"), []).append(result.success)


if __name__ == "__main__":
    sys.exit(main())
