"""The arms of a planner's study, and their evaluations under the recipe's conditions or others.

    stronger              `stronger` of the study's file, not trained
    supervised            as many supervised updates as Flow-GRPO makes, on transcripts of the clumsy policy
    distilled             the same on the stronger planner's
    distilled-successes   the same on those of them that succeeded
    trained               Flow-GRPO: the recipe itself
    size-NAME             the recipe with the changes of `sizes`

Each is trained into its own run, but for `stronger`. The frozen planner is `trained` before its first step.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, ValidationError

from midstream import api
from midstream.components.tables import validate
from midstream.core.data import Frozen
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.metrics import EvaluationResult, Tally, ToolUse
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text_file import read_toml
from midstream.core.trajectory import Action, Trajectory, Turn
from midstream.evaluation.run import SetEvaluation, summary_of
from midstream.evaluation.settings import SetConfig, sampling_name
from midstream.process import event_loop, load_weights
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.files import merge, read_table, with_overrides
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.rollout import rollout
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream.runs.segments import result_name

Table = dict[str, Any]

FROZEN = "frozen"
LABELS = {
    "stronger": "stronger planner, frozen",
    "supervised": "supervised, clumsy runs",
    "distilled": "distilled, all runs",
    "distilled-successes": "distilled, successes",
    "trained": "Flow-GRPO",
}
MAX_LOST = 0.01  # share of tasks without a result, above which a measurement says nothing of the planner
ALL = "all"  # families together


class PlannerFile(Frozen):
    """A study of a planner as its file describes it.

    `stronger` is a table like `agent.planner`: a planner that is better before any training. `imitation` holds settings
    of `training.supervised` for the arms that imitate. `sizes` names changes of the recipe that make its policy smaller
    or larger, from small to large; `tools` names changes of `[tools]`, from worse tools to better ones. An empty
    change is the recipe itself. `turns` are the limits under which the planner is evaluated. `costs` is what a call of
    each tool costs, in the unit of the tasks' `metadata["best_cost"]`.
    """

    recipe: str
    stronger: Table | None = None
    imitation: Table = {}
    sizes: dict[str, Table] = {}
    tools: dict[str, Table] = {}
    costs: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    turns: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(3, 5, 7, 10), min_length=1)


def read_file(path: Path) -> PlannerFile:
    """The study in a TOML file. Raises `RecipeError`."""
    return validate(PlannerFile, read_toml(path), "", of=f"study {path}")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study on disk, its arms' runs in `root`; `report` receives what is done now."""

    root: Path
    config: PlannerFile
    overrides: tuple[str, ...] = ()
    seeds: int = 1
    report: Callable[[str], None] = lambda text: None
    _runs: dict[str, RunDirectory] = field(default_factory=dict)

    def recipe(self, arm: str, seed: int) -> Recipe:
        """The recipe of an arm.

        Raises:
            RecipeError: the recipe does not define what the arm needs.
        """
        table = with_overrides(read_table(self.config.recipe), [*self.overrides, f"seed={seed}"])
        changes = self._changes(arm, parse_recipe(table))
        if changes:
            table = merge(table, {"name": f"{table['name']}-{arm}", **changes})
        return parse_recipe(table)

    def run(self, arm: str, seed: int) -> RunDirectory:
        """The finished run of an arm, trained now if it was not."""
        recipe = self.recipe(arm, seed)
        name = f"{recipe.name}-s{seed}"
        if name not in self._runs:
            self.report(f"{name}: training, unless that is done")
            self._runs[name] = api.train(recipe, out=self.root / name, exist_ok=True).directory
        return self._runs[name]

    @property
    def imitating(self) -> tuple[str, ...]:
        """The arms that imitate; without a warm start there is no clumsy policy."""
        every = ("supervised", "distilled", "distilled-successes")
        return every if self.recipe("trained", 0).warm_start else every[1:]

    def size_arm(self, label: str) -> str:
        """The arm of a size; an arm without changes is the recipe itself."""
        return f"size-{label}" if self.config.sizes[label] else "trained"

    def _changes(self, arm: str, recipe: Recipe) -> Table:
        if recipe.training is None or recipe.training.algorithm != "flow_grpo":
            raise RecipeError(
                f"recipe {recipe.name!r} is not trained with Flow-GRPO",
                code="wrong-kind-of-recipe",
                cause="a study of the planner compares it before and after that",
                fix='choose a recipe with training.algorithm = "flow_grpo"',
            )
        if arm == "trained":
            return {}
        if arm.startswith("size-"):
            return self.config.sizes[arm.removeprefix("size-")]
        if arm != "supervised" and self.config.stronger is None:
            raise RecipeError(
                "the study has no stronger planner",
                code="missing-key",
                fix="add `stronger` to its file, a table like [agent.planner], or name with --only other analyses",
            )
        if arm == "stronger":
            return {"agent": {"planner": self.config.stronger}}
        supervised: dict[str, Any] = dict(self.config.imitation)
        if arm != "supervised":
            supervised |= {"planner": self.config.stronger, "successes_only": arm == "distilled-successes"}
        # Stages are Flow-GRPO's: an imitator draws from all families.
        return {"training": {"algorithm": "supervised", "supervised": supervised, "stages": []}}


class Cost(Frozen):
    """What the calls of right answers cost on average, and what the best plans of the same tasks cost."""

    spent: float
    best: float

    @property
    def regret(self) -> float:
        """What they cost above the best plan; less than 0 where a cheap tool that may be wrong was right, or where
        one call made several calculations."""
        return self.spent - self.best


class Errors(Frozen):
    """What followed the turns whose observation was an error. Turns that something around the model broke are not
    counted."""

    followed: int = 0  # errors that had a next turn
    recoveries: int = 0  # errors after which the next turn tried something else and succeeded
    repeats: int = 0  # turns that failed with exactly what had failed before in the trajectory


class Measured(Frozen):
    """An evaluation, and how tools were used in `ALL` of it and in each family; `costs` of those with right answers."""

    result: EvaluationResult
    tools: dict[str, ToolUse]
    errors: Errors = Errors()
    costs: dict[str, Cost] = {}

    @property
    def use(self) -> ToolUse:
        """In all families together."""
        return self.tools[ALL]

    @property
    def families(self) -> list[str]:
        """The families, in the set's order."""
        return [name for name in self.tools if name != ALL]

    def share(self, family: str, tool: str) -> float:
        """The share of a family's turns that went to a tool."""
        return self.tools[family].share.get(tool, 0.0)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Where and when an arm is evaluated: on a set of the recipe's, with its own tools and limit of turns or others.

    `before`: with the weights that training began with.
    """

    set_name: str
    temperature: float
    before: bool = False
    tools: str = ""
    max_turns: int | None = None


def measured(study: Study, arm: str, seed: int, condition: Condition) -> Measured:
    """The arm under a condition; what its run has evaluated already is read there."""
    recipe = study.recipe(arm, seed)
    if arm != "stronger" and condition.max_turns is None and not _tool_changes(study, condition):
        best = best_costs(Build(recipe).set_tasks(_chosen(recipe, condition))) if study.config.costs else {}
        return _read(study.run(arm, seed), condition, study.config.costs, best)
    changed = with_tools(recipe, study, condition)
    chosen = _chosen(changed, condition)
    key = [resolve(changed), chosen.model_dump(mode="json"), condition.temperature, condition.before]
    key += [study.config.costs] if study.config.costs else []
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    path = study.root / "evaluations" / f"{recipe.name}-s{seed}-{digest}.json"
    try:
        return Measured.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):  # not there yet, or of an earlier version
        run = None if arm == "stronger" else study.run(arm, seed)
        study.report(f"{recipe.name}-s{seed}: {_words(condition)}")
        made = _evaluate(changed, run, chosen, condition, study.config.costs)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, made.model_dump_json().encode())
        return made


def _words(condition: Condition) -> str:
    parts = [condition.set_name, sampling_name(condition.temperature)]
    parts += ["before training"] if condition.before else []
    parts += [f"tools {condition.tools}"] if condition.tools else []
    parts += [f"at most {condition.max_turns} turns"] if condition.max_turns else []
    return ", ".join(parts)


def _tool_changes(study: Study, condition: Condition) -> Table:
    return study.config.tools[condition.tools] if condition.tools else {}


def with_tools(recipe: Recipe, study: Study, condition: Condition) -> Recipe:
    """The recipe with the tools of a condition."""
    changes = _tool_changes(study, condition)
    table = recipe.table()
    known = table["tools"]
    table["tools"] = {name: {**known.get(name, {}), **changes.get(name, {})} for name in {**known, **changes}}
    return parse_recipe(table)


def _chosen(recipe: Recipe, condition: Condition) -> SetConfig:
    chosen = next(found for found in recipe.evaluation.sets if found.name == condition.set_name)
    return chosen if condition.max_turns is None else chosen.model_copy(update={"max_turns": condition.max_turns})


def _read(run: RunDirectory, condition: Condition, costs: Mapping[str, float], best: Mapping[str, float]) -> Measured:
    """A run's own evaluation, before its first step or after its last."""
    sampling = sampling_name(condition.temperature)
    found = [
        result
        for result in run.evaluations.read()
        if (result.set_name, result.sampling) == (condition.set_name, sampling)
    ]
    steps = [result.step or 0 for result in found]
    result = found[steps.index(min(steps) if condition.before else max(steps))]
    name = result_name(condition.set_name, sampling, result.step)
    return summed(result, run.trajectories.read(name), costs, best)


def best_costs(tasks: Sequence[Task]) -> dict[str, float]:
    """The cost of the best plan of each task that states it."""
    return {task.id: float(task.metadata["best_cost"]) for task in tasks if "best_cost" in task.metadata}  # type: ignore[arg-type]


def _evaluate(
    recipe: Recipe, run: RunDirectory | None, chosen: SetConfig, condition: Condition, costs: Mapping[str, float]
) -> Measured:
    build = Build(recipe)
    with event_loop(build) as run_coroutine:
        if run is not None and not (condition.before and recipe.learner.lora):  # which is the model as it was built
            load_weights(build, run, run_coroutine)
            learner = build.policy.learner
            if condition.before and learner.reference is not None:
                learner.model.load_state_dict(learner.reference.state_dict())
        work = SetEvaluation(
            chosen=chosen,
            temperature=condition.temperature,
            tasks=build.set_tasks(chosen),
            environment=build.environment(temperature=condition.temperature, chosen=chosen),
            policy="warm start" if condition.before else "trained" if run else recipe.name,
            seed=derive_seed(recipe.seed, "evaluation", chosen.name),
            trials=recipe.evaluation.trials,
        )
        groups = run_coroutine(rollout(work.environment, work.tasks, group_size=work.trials, seed=work.seed))
    summary = summary_of(work)
    for group in groups:
        summary.add(group)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return summed(summary.result(), trajectories, costs, best_costs(work.tasks))


def summed(
    result: EvaluationResult,
    trajectories: list[Trajectory],
    costs: Mapping[str, float] | None = None,
    best: Mapping[str, float] | None = None,
) -> Measured:
    """An evaluation with its use of tools; `InfrastructureError` if tasks without a result would decide it.

    With `costs` (of a call, by tool) and `best` (of the best plan, by task) also what right answers cost.
    """
    errors = [trajectory.error for trajectory in trajectories if trajectory.error]
    if len(errors) > MAX_LOST * len(trajectories):
        raise InfrastructureError(
            f"{len(errors)} of {len(trajectories)} tasks of {result.set_name} ended without a result; the first:\n"
            f"{errors[0].message}",
            code="no-results",
            fix="fix it, then start the study again: what is done is not repeated",
        )
    families: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        families.setdefault(trajectory.family, []).append(trajectory)
    groups = {ALL: trajectories, **families}
    return Measured(
        result=result,
        tools={name: Tally(members).tools() for name, members in groups.items()},
        errors=errors_of(trajectories),
        costs={name: cost for name, members in groups.items() if (cost := _cost(members, costs or {}, best or {}))},
    )


def errors_of(trajectories: Iterable[Trajectory]) -> Errors:
    """What followed the errors of these trajectories."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        failures: set[str] = set()
        before: Turn | None = None
        for turn in trajectory.turns:
            if turn.action is None or turn.error:
                continue
            failed, attempt = _failed(turn), _attempt(turn)
            if before is not None and _failed(before):
                other = not failed and turn.observation is not None and attempt != _attempt(before)
                counts.update(followed=1, recoveries=int(other))
            if failed:
                counts.update(repeats=int(attempt in failures))
                failures.add(attempt)
            before = turn
    return Errors(**counts)


def _failed(turn: Turn) -> bool:
    return turn.observation is not None and turn.observation.status == "error"


def _attempt(turn: Turn) -> str:
    """A turn's attempt, as text that is equal for equal attempts; a sub-goal only describes the attempt.

    This is its command. A turn without a valid command has its tool and context (an interleaved policy's malformed call
    has its body there), or the planner's text if that was malformed.
    """
    if turn.command is not None and turn.command.error is None:
        return turn.command.model_dump_json()
    action = turn.action or Action()
    texts = [call.completion for call in turn.calls if call.role == "planner"] if action.error else []
    return texts[-1] if texts else action.model_dump_json(exclude={"sub_goal"})


def _cost(trajectories: Sequence[Trajectory], costs: Mapping[str, float], best: Mapping[str, float]) -> Cost | None:
    """Of right answers: a wrong one may be cheap because it gave up."""
    right = [one for one in trajectories if one.task_id in best and one.reward and one.reward.value == 1]
    if not costs or not right:
        return None
    calls = Tally(right).tools().calls
    return Cost(
        spent=sum(costs[tool] * count for tool, count in calls.items()) / len(right),
        best=fmean(best[one.task_id] for one in right),
    )
