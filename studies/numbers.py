"""More numbers of a study, and its figures: python -m studies.numbers depth

Runs what the study is missing, as `midstream study` does, then prints the numbers that `studies/numbers.toml` names for
it, and writes `numbers.json`, `study.svg` and, of arms that are evaluated while they train, `study-curves.svg`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from midstream.components.tables import validate
from midstream.core.data import Settings
from midstream.core.errors import RecipeError
from midstream.core.metrics import EvaluationResult
from midstream.core.text_file import read_toml
from midstream.recipe.schema import Recipe
from midstream_extra.study import EvaluationKey, Plan, Seeds, differences, plan, read_study, run_study
from midstream_extra.study_tables import StudyRow
from studies.charts import Panel, dots, panels
from studies.common import parser, print_tables, records, reporter, run, write_json

SUCCESS, TOKENS = "success", "new tokens a task"


class Metric(Settings):
    """A number of each arm.

    `value` is a path into the JSON of an `EvaluationResult` ("success", "tool_use.error_rate"), or several whose mean
    it is. It is read from the evaluation of set `set` with `sampling` (default: the first that all arms have), at the
    last evaluated step or the first. `per_run` divides by the number of trajectories; `missing` stands in for a path
    that is not there, such as the share of a tool that was never called.
    """

    value: str | tuple[str, ...]
    set: str = ""
    sampling: str = ""
    at: Literal["before", "after"] = "after"
    percent: bool = True
    per_run: bool = False
    missing: float | None = None

    def of(self, evaluations: Sequence[EvaluationResult], compared: Sequence[EvaluationKey]) -> float:
        """The number in the evaluations of one run. Raises `RecipeError` if it is not there."""
        keys = [key for key in compared if self.set in ("", key[0]) and self.sampling in ("", key[1])]
        found = [result for result in evaluations if (result.set_name, result.sampling) in keys[:1]]
        if not found:
            raise RecipeError(
                f"the study needs an evaluation of {f'set {self.set!r}' if self.set else 'a set'} {self.sampling}",
                code="missing-key",
                fix="keep evaluation.sets and evaluation.temperatures of the recipe, or change the metric",
            )
        found.sort(key=lambda result: result.step or 0)
        return self._read(found[0 if self.at == "before" else -1])

    def _read(self, result: EvaluationResult) -> float:
        values: list[float] = []
        for path in (self.value,) if isinstance(self.value, str) else self.value:
            found: Any = result.model_dump(mode="json")
            for key in path.split("."):
                found = found.get(key) if isinstance(found, Mapping) else None
            if (value := self.missing if found is None else found) is None:
                raise RecipeError(
                    f"an evaluation has no {path!r}", code="missing-key", fix="give the metric a `missing` value"
                )
            values.append(float(value))
        return fmean(values) / (result.tasks * result.trials if self.per_run else 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-NAME")
    options.set_defaults(seeds=None)  # the study has its own number
    options.add_argument("study", help="its name, or its file")
    options.add_argument(
        "--metrics", type=Path, default=Path(__file__).with_suffix(".toml"), help="the file of numbers, by study"
    )
    return run(study_numbers, options.parse_args(arguments))


def study_numbers(options: argparse.Namespace) -> None:
    """Run what is missing, then print and draw the numbers."""
    study = read_study(options.study)
    tables = read_toml(options.metrics)
    if study.name not in tables:
        raise RecipeError(
            f"{options.metrics} names no numbers of the study {study.name!r}",
            code="missing-key",
            fix=f'add [{study.name}], e.g. turns = {{ value = "turns_mean", percent = false }}',
        )
    metrics = {
        name: validate(Metric, table, name, of=f"metrics file {options.metrics}")
        for name, table in tables[study.name].items()
    }
    root = Path(f"runs/study-{study.name}") if options.out == Path("runs/study-NAME") else options.out
    planned = plan(study, root, seeds=options.seeds, only=options.only, overrides=options.overrides)
    result = run_study(planned, report=reporter(options))
    table = rows(metrics, result.evaluations, planned.compared)
    apart = differences(table, planned.runs[0].arm.name)
    curve, x_label = curves(result.evaluations, {run.arm.name: run.recipe for run in planned.runs})
    record = {"rows": records(table), "differences": records(apart), "curves": records(curve)}
    write_json(root / "numbers.json", record)
    draw(planned, metrics, table, curve, x_label)
    if options.json:
        print((root / "numbers.json").read_text(encoding="utf-8"), end="")
    else:
        title = study.title or study.name
        print_tables({"rows": table, "apart": apart}, {"rows": (title, "arm"), "apart": ("Difference by seed", "arm")})


def rows(metrics: Mapping[str, Metric], found: Seeds, compared: Sequence[EvaluationKey]) -> list[StudyRow]:
    """Every metric of every row, a value a seed."""
    return [
        StudyRow(
            name=name,
            metric=metric,
            values=tuple(settings.of(evaluations, compared) for evaluations in seeds),
            as_percent=settings.percent,
        )
        for name, seeds in found.items()
        for metric, settings in metrics.items()
    ]


def draw(
    planned: Plan, metrics: Mapping[str, Metric], table: Sequence[StudyRow], curve: Sequence[StudyRow], x_label: str
) -> None:
    """Draw each arm's numbers, successes in one chart, and the curves if there are any."""
    success = [name for name, metric in metrics.items() if metric.value == SUCCESS]
    groups = [*filter(None, [success]), *([name] for name in metrics if name not in success)]
    dots(planned.root / "study.svg", table, groups, planned.study.title or planned.study.name)
    if curve:
        arms = [arm.name for arm in planned.study.arms]
        lines = {metric: {f"{arm}: {metric}": arm for arm in arms} for metric in (SUCCESS, TOKENS)}
        charts = [Panel(title=name, x_label=x_label, lines=each) for name, each in lines.items()]
        panels(planned.root / "study-curves.svg", charts, curve)


def curves(found: Seeds, recipes: Mapping[str, Recipe]) -> tuple[list[StudyRow], str]:
    """Success and new tokens over training, on the set that was evaluated most often; and what the places count.

    The place, a row's `name`, is the number of training trajectories, or the step if an arm does not count those.
    """
    evaluated = [
        (arm, (result.set_name, result.sampling, result.metric), result.step, result)
        for arm in recipes
        for evaluations in found[arm]
        for result in evaluations
        if result.step is not None
    ]
    most = Counter(key for _, key, _, _ in evaluated).most_common(1)
    drawn = [(arm, step, result) for arm, key, step, result in evaluated if [key] == [key for key, _ in most]]
    each = {arm: _trajectories_a_step(recipes[arm]) for arm, _, _ in drawn}
    counted, points = all(each.values()), dict[tuple[str, int], list[EvaluationResult]]()
    for arm, step, result in drawn:
        points.setdefault((arm, step * each[arm] if counted else step), []).append(result)
    curve = []
    for (arm, place), results in sorted(points.items(), key=lambda point: point[0][1]):
        tokens = tuple(result.completion_tokens / (result.tasks * result.trials) for result in results)
        values = tuple(result.success for result in results)
        curve.append(StudyRow(name=str(place), metric=f"{arm}: {SUCCESS}", values=values))
        curve.append(StudyRow(name=str(place), metric=f"{arm}: {TOKENS}", values=tokens, as_percent=False))
    enough = len({place for _, place in points}) > 2  # before and after alone are no curve
    return curve if enough else [], "training trajectories" if counted else "step"


def _trajectories_a_step(recipe: Recipe) -> int:
    """0 of a recipe that does not learn from its own trajectories in steps of equal size."""
    training = recipe.training
    if training is None or training.algorithm == "supervised":
        return 0
    return training.tasks_per_step * training.group_size


if __name__ == "__main__":
    sys.exit(main())
