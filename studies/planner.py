"""The analyses of section 4 of AgentFlow's paper (arXiv 2510.05592) on one planner, each as numbers over seeds.

    planners   success of the trained planner, and of frozen, stronger, supervised and distilled ones
    tools      share of turns by tool, before and after training, in each family
    training   reward, tool errors and length of replies over training
    turns      success and turns used, by the number of turns allowed
    sizes      success before and after, by the size of the policy
    recovery   what follows an error, before and after
    toolsets   success before and after with worse and better tools at inference
    costs      of right answers: the cost of their calls, next to the best plan's (`midstream_worlds/graphs/tasks.py`)

Training itself is seen on the recipe's training questions, all else on its evaluation sets. `planner.toml` has the
recipe and the variants; another file may be named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from midstream.core.errors import RecipeError
from midstream.core.metrics import StepMetrics
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream_extra.study import chosen
from midstream_extra.study_tables import StudyRow
from studies.charts import Panel, dots, panels
from studies.common import parser, print_tables, records, reporter, require_set, run, write_json
from studies.planner_arms import ALL, FROZEN, LABELS, Condition, Measured, Study, best_costs, measured, read_file

BEFORE_AFTER = {FROZEN: True, LABELS["trained"]: False}  # label -> before training
STEPS_A_POINT = 10
PLAIN = ("turns", "tokens", "cost")  # metrics that are no shares begin so
# Analyses, and what the study's file must have for each.
WANT = {"sizes": "sizes", "toolsets": "tools", "costs": "costs"}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where the planner is looked at: the recipe's sets, and its temperatures by the names of tables."""

    sets: tuple[str, ...]
    temperatures: dict[str, float]

    @classmethod
    def of(cls, study: Study) -> Scene:
        """Raises `RecipeError` if the recipe evaluates nothing."""
        recipe = study.recipe("trained", 0)
        if not recipe.evaluation.sets:
            raise RecipeError(
                f"recipe {recipe.name!r} has nothing to evaluate on",
                code="missing-key",
                fix='add [[evaluation.sets]], e.g. name = "test", split = "test", per_family = 60',
            )
        temperatures = {
            "greedy" if temperature == 0 else "sampled": temperature
            for temperature in reversed(recipe.evaluation.temperatures)
        }
        order = [name for name in ("sampled", "greedy") if name in temperatures]
        return cls(
            sets=tuple(chosen.name for chosen in recipe.evaluation.sets),
            temperatures={name: temperatures[name] for name in order},
        )

    def on(self, set_name: str, **changes: object) -> Condition:
        """A set under the first temperature."""
        temperature = next(iter(self.temperatures.values()))
        return Condition(set_name=set_name, temperature=temperature, **changes)  # type: ignore[arg-type]


def require(study: Study, names: Sequence[str]) -> None:
    """Raise `RecipeError` for what an analysis wants and the recipe does not define, before anything is trained."""
    require_set(study.recipe("trained", 0))
    arms = ["trained"]
    if "planners" in names:
        arms += ["stronger", *study.imitating]
    for name, key in WANT.items():
        if name in names and not getattr(study.config, key):
            raise RecipeError(
                f"the study has no {key}",
                code="missing-key",
                fix=f"add [{key}] to its file, or name with --only the analyses that do without",
            )
    if "costs" in names:
        recipe = study.recipe("trained", 0)
        if differ := set(recipe.tools) ^ set(study.config.costs):
            raise RecipeError(
                f"[costs] of the study and the recipe's tools differ in {', '.join(sorted(differ))}",
                code="setting-conflict",
                fix=f"give a cost to each of {', '.join(sorted(recipe.tools))}, and to nothing else",
            )
        without = [each.name for each in recipe.evaluation.sets if not best_costs(Build(recipe).set_tasks(each))]
        if without:
            raise RecipeError(
                f"no task of set {without[0]!r} states its best_cost",
                code="setting-conflict",
                cause="the analysis `costs` compares the cost of calls with that of the best plan",
                fix="choose a recipe on graphs, whose tasks state it, or leave [costs] out",
            )
    if "sizes" in names:
        arms += map(study.size_arm, study.config.sizes)
    for arm in arms:
        resolve(study.recipe(arm, 0))


def _rows(
    study: Study, name: str, arm: str, condition: Condition, metrics: Mapping[str, Callable[[Measured], float | None]]
) -> list[StudyRow]:
    """One row a metric; a seed without the number (nothing to recover from, say) is left out."""
    seeds = [measured(study, arm, seed, condition) for seed in range(study.seeds)]
    return [
        StudyRow(
            name=name,
            metric=metric,
            values=tuple(value for measurement in seeds if (value := number(measurement)) is not None),
            as_percent=not metric.startswith(PLAIN),
        )
        for metric, number in metrics.items()
    ]


def _success(measurement: Measured) -> float:
    return measurement.result.success


def _turns(measurement: Measured) -> float:
    return measurement.result.turns_mean


def planners(study: Study, scene: Scene) -> list[StudyRow]:
    """Every arm on every set: sampled and greedy on the first, then what it does with its turns."""
    rows: list[StudyRow] = []
    arms = [
        (FROZEN, "trained", True),
        *((LABELS[arm], arm, False) for arm in ("stronger", *study.imitating, "trained")),
    ]
    for label, arm, before in arms:
        for name, temperature in scene.temperatures.items():
            if arm == "stronger" and name == "greedy":
                continue  # a program takes no temperature, and another model has its own
            condition = Condition(set_name=scene.sets[0], temperature=temperature, before=before)
            rows += _rows(study, label, arm, condition, {name: _success})
        for other in scene.sets[1:]:
            rows += _rows(study, label, arm, scene.on(other, before=before), {other: _success})
        habits = {"tool errors": lambda measurement: measurement.use.error_rate, "turns": _turns}
        rows += _rows(study, label, arm, scene.on(scene.sets[0], before=before), habits)
    return rows


def tools(study: Study, scene: Scene) -> list[StudyRow]:
    """Share of turns by tool on the first set, over all families and in each."""
    sides = {}
    for metric, before in {"before": True, "after": False}.items():
        condition = scene.on(scene.sets[0], before=before)
        sides[metric] = [measured(study, "trained", seed, condition) for seed in range(study.seeds)]
    every = [measurement for seeds in sides.values() for measurement in seeds]
    names = sorted({name for measurement in every for name in measurement.use.share})
    return [
        StudyRow(
            name=f"{family}: {name}",
            metric=metric,
            values=tuple(measurement.share(family, name) for measurement in seeds),
        )
        for family in (ALL, *every[0].families)
        for name in names
        for metric, seeds in sides.items()
    ]


def training(study: Study, scene: Scene) -> list[StudyRow]:
    """Means over ten training steps each, named after the last of them."""
    seeds = [study.run("trained", seed).metrics.read() for seed in range(study.seeds)]
    last = min(len(metrics) for metrics in seeds)
    rows: list[StudyRow] = []
    for start in range(0, last, STEPS_A_POINT):
        pieces = [metrics[start : min(start + STEPS_A_POINT, last)] for metrics in seeds]
        numbers: dict[str, Callable[[Sequence[StepMetrics]], float]] = {
            "reward": _family_reward,
            "tool errors": lambda piece: fmean(step.tool_use.error_rate for step in piece),
            "tokens a reply": lambda piece: fmean(
                step.completion_tokens / max(1, step.tool_use.turns) for step in piece
            ),
        }
        rows += [
            StudyRow(
                name=str(pieces[0][-1].step),
                metric=metric,
                values=tuple(map(number, pieces)),
                as_percent=not metric.startswith(PLAIN),
            )
            for metric, number in numbers.items()
        ]
    return rows


def _family_reward(steps: Sequence[StepMetrics]) -> float:
    """Families in equal shares: a recipe may draw those more often that fail."""
    families = {name for step in steps for name in step.reward_by_family}
    by_family = [[s.reward_by_family[name] for s in steps if name in s.reward_by_family] for name in families]
    return fmean([fmean(values) for values in by_family] or [0.0])


def turns(study: Study, scene: Scene) -> list[StudyRow]:
    """Success and turns used on every set, frozen and trained, by turns allowed."""
    rows: list[StudyRow] = []
    for limit in study.config.turns:
        for name in scene.sets:
            for label, before in BEFORE_AFTER.items():
                numbers = {f"{name}, {label}": _success, f"turns, {name}, {label}": _turns}
                condition = scene.on(name, max_turns=limit, before=before)
                rows += _rows(study, str(limit), "trained", condition, numbers)
    return rows


def sizes(study: Study, scene: Scene) -> list[StudyRow]:
    """Success on the first set before and after, by the policy's size."""
    rows: list[StudyRow] = []
    for label in study.config.sizes:
        arm = study.size_arm(label)
        for name, temperature in scene.temperatures.items():
            for side, before in BEFORE_AFTER.items():
                condition = Condition(set_name=scene.sets[0], temperature=temperature, before=before)
                rows += _rows(study, label, arm, condition, {f"{name}, {side}": _success})
    return rows


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def recovery(study: Study, scene: Scene) -> list[StudyRow]:
    """Errors, what followed them and what was repeated, on every set."""
    rows: list[StudyRow] = []
    for name in scene.sets:
        for label, before in BEFORE_AFTER.items():
            numbers = {
                "tool errors": lambda measurement: measurement.use.error_rate,
                "recovered": lambda measurement: _share(measurement.errors.recoveries, measurement.errors.followed),
                "repeats": lambda measurement: _share(measurement.errors.repeats, measurement.use.turns),
            }
            rows += _rows(study, f"{name}, {label}", "trained", scene.on(name, before=before), numbers)
    return rows


def toolsets(study: Study, scene: Scene) -> list[StudyRow]:
    """Success on the first set with worse and better tools, frozen and trained."""
    return [
        row
        for label in study.config.tools
        for side, before in BEFORE_AFTER.items()
        for row in _rows(study, label, "trained", scene.on(scene.sets[0], tools=label, before=before), {side: _success})
    ]


def costs(study: Study, scene: Scene) -> list[StudyRow]:
    """On every set and in each family, before and after; regret is what right answers cost above the best plan."""
    rows: list[StudyRow] = []
    for set_name in scene.sets:
        sides = {}
        for label, before in BEFORE_AFTER.items():
            condition = scene.on(set_name, before=before)
            sides[label] = [measured(study, "trained", seed, condition) for seed in range(study.seeds)]
        for family in (ALL, *sides[LABELS["trained"]][0].families):
            for label, seeds in sides.items():
                found = [one.costs[family] for one in seeds if family in one.costs]
                rows += [
                    StudyRow(
                        name=f"{set_name}, {family}, {label}",
                        metric=metric,
                        values=tuple(getattr(cost, part) for cost in found),
                        as_percent=False,
                    )
                    for metric, part in (("cost", "spent"), ("cost, best plan", "best"), ("cost, regret", "regret"))
                ]
    return rows


ANALYSES = {
    "planners": planners,
    "tools": tools,
    "training": training,
    "turns": turns,
    "sizes": sizes,
    "recovery": recovery,
    "toolsets": toolsets,
    "costs": costs,
}

TITLES = {
    "planners": ("Planners", "planner"),
    "tools": ("Use of tools, share of turns", "family: tool"),
    "training": ("Over training, ten steps a line", "step"),
    "turns": ("Success and turns used, by turns allowed", "allowed"),
    "sizes": ("Success by size of the policy", "size"),
    "recovery": ("Errors, and what followed them", "set, planner"),
    "toolsets": ("Success by tools at inference", "tools"),
    "costs": ("Cost of right answers, next to the best plan's", "set, family, planner"),
}


def draw(name: str, rows: Sequence[StudyRow], scene: Scene, path: Path) -> None:
    """Draw the figure of an analysis."""
    first = scene.sets[0]
    sampling = next(iter(scene.temperatures))
    match name:
        case "planners":
            dots(path, rows, [tuple(scene.temperatures)], f"Success on {first}")
        case "tools":
            picked = [row for row in rows if row.name.startswith(f"{ALL}: ")]
            dots(path, picked, [("before", "after")], f"Share of turns on {first}")
        case "training":
            titles = {
                "reward": "Reward, families in equal shares",
                "tool errors": "Share of turns in error",
                "tokens a reply": "Length of a planner's reply, tokens",
            }
            line = "mean, 95 % interval"
            panels(path, [Panel(title=titles[key], x_label="step", lines={key: line}) for key in titles], rows)
        case "turns":
            charts = [
                Panel(
                    title=title.format(set_name),
                    x_label="turns allowed",
                    lines={f"{key}{set_name}, {side}": side for side in BEFORE_AFTER},
                )
                for set_name in scene.sets
                for key, title in (("", "Success on {}"), ("turns, ", "Turns used on {}"))
            ]
            panels(path, charts, rows)
        case "sizes":
            dots(path, rows, [tuple(f"{sampling}, {side}" for side in BEFORE_AFTER)], f"Success on {first} by size")
        case "recovery":
            dots(path, rows, [("tool errors", "recovered", "repeats")], "Errors, and what followed them")
        case "toolsets":
            dots(path, rows, [tuple(BEFORE_AFTER)], f"Success on {first} by tools at inference")
        case "costs":
            dots(path, rows, [("cost", "cost, best plan")], "Cost of right answers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-planner")
    default = Path(__file__).with_suffix(".toml")
    options.add_argument("file", nargs="?", type=Path, default=default, help="the recipe and its variants")
    return run(study_planner, options.parse_args(arguments))


def study_planner(options: argparse.Namespace) -> None:
    """Train what is missing, analyze, write numbers and figures, print a table an analysis."""
    study = Study(
        root=options.out,
        config=read_file(options.file),
        overrides=tuple(options.overrides),
        seeds=options.seeds,
        report=reporter(options),
    )
    able = tuple(name for name in ANALYSES if getattr(study.config, WANT.get(name, "recipe")))
    names = chosen(tuple(ANALYSES), options.only) if options.only else able
    require(study, names)
    scene = Scene.of(study)
    found = {name: ANALYSES[name](study, scene) for name in names}
    record = {
        "recipe": study.recipe("trained", 0).name,
        "seeds": study.seeds,
        "analyses": {name: records(rows) for name, rows in found.items()},
    }
    write_json(study.root / "planner.json", record)
    for name, rows in found.items():
        draw(name, rows, scene, study.root / f"planner-{name}.svg")
    if options.json:
        print(json.dumps(record))
    else:
        print_tables(found, TITLES)


if __name__ == "__main__":
    sys.exit(main())
