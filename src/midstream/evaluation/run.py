"""Evaluations of an agent on a fixed set of tasks, and the numbers that sum up its trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Protocol

from midstream.components.component import Component
from midstream.core.metrics import EvaluationResult, FamilyResult, Tally, tools_of
from midstream.core.seeds import derive_seed
from midstream.core.source import Reward
from midstream.core.task import Task, task_keys
from midstream.core.trajectory import ErrorInfo, Trajectory, usage_of
from midstream.evaluation.estimates import majority, mean_interval, pass_all, pass_at, value
from midstream.evaluation.leakage import repeats_question
from midstream.evaluation.settings import OWN, EvaluationConfig, SetConfig, sampling_name
from midstream.rewards.composite import PerTask
from midstream.rollout import Environment, Group
from midstream.runs.segments import result_name

RULE = "rule"  # the part of a judge's reward that the rule-based reward gives
_REASONS = 3


class MakeEnvironment(Protocol):
    """Builds an environment around the trained planner, or another `planner`, with some settings changed."""

    def __call__(
        self, *, planner: Component | None = None, temperature: float | None = None, chosen: SetConfig | None = None
    ) -> Environment:
        """None leaves the recipe's own; `planner` is a table like `agent.planner`, `chosen` an evaluation set."""
        ...


@dataclass(frozen=True, kw_only=True)
class SetEvaluation:
    """One set at one temperature under one policy, ready to run.

    `policy` names what is evaluated, after `step` steps of learning. `numbered`: the run evaluates the set
    at several steps, so the step is part of `name`.
    """

    chosen: SetConfig
    temperature: float | str  # or "own"
    tasks: Sequence[Task]
    environment: Environment
    policy: str
    seed: int
    step: int | None = None
    trials: int = 1
    numbered: bool = True
    # Why the policy knows these tasks: its result is no evidence of what it can do on new ones.
    learned: str = ""

    @property
    def name(self) -> str:
        """Name of the files that hold its trajectories."""
        return result_name(self.chosen.name, sampling_name(self.temperature), self.step if self.numbered else None)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Set, sampling and step, which identify its result in the run directory."""
        return self.chosen.name, sampling_name(self.temperature), self.step


def every_set(
    config: EvaluationConfig,
    set_tasks: Callable[[SetConfig], Sequence[Task]],
    make_environment: MakeEnvironment,
    *,
    policy: str,
    seed: int,
    step: int | None = None,
) -> Iterator[SetEvaluation]:
    """Every set of a recipe at every temperature; `seed` is the run's."""
    for chosen in config.sets:
        tasks = set_tasks(chosen)
        for temperature in config.temperatures:
            yield SetEvaluation(
                chosen=chosen,
                temperature=temperature,
                tasks=tasks,
                environment=make_environment(temperature=None if temperature == OWN else temperature, chosen=chosen),
                policy=policy,
                seed=derive_seed(seed, "evaluation", chosen.name),
                step=step,
                trials=config.trials,
            )


def separate_learned(evaluations: Sequence[SetEvaluation], learned: Mapping[str, str]) -> list[SetEvaluation]:
    """Return the evaluations with the tasks that the policy learned from in separate sets, named `SET-learned`.

    `learned` gives keys of tasks (`core.task.task_keys`) the reason. The other tasks run as usual.
    """
    found: list[SetEvaluation] = []
    for part in evaluations:
        keys = {task.id: sorted(task_keys(task.id, task.question) & learned.keys()) for task in part.tasks}
        reasons = {name: learned[known[-1]] for name, known in keys.items() if known}
        if new := [task for task in part.tasks if task.id not in reasons]:
            found.append(replace(part, tasks=new))
        if known := [task for task in part.tasks if task.id in reasons]:
            chosen = part.chosen.model_copy(update={"name": f"{part.chosen.name}-learned"})
            why = ", ".join(dict.fromkeys(reasons.values()))
            found.append(replace(part, chosen=chosen, tasks=known, learned=why))
    return found


def metric_of(evaluation: SetEvaluation) -> str:
    """The name of what scores a set. Raises `RecipeError` if a task names a reward that does not exist."""
    return ", ".join(dict.fromkeys(reward.name for reward in _rewards_of(evaluation)))


def _rewards_of(evaluation: SetEvaluation) -> Sequence[Reward]:
    reward = evaluation.environment.reward
    return (reward.used(evaluation.tasks) if isinstance(reward, PerTask) else ()) or [reward]


def summary_of(evaluation: SetEvaluation) -> Summary:
    """Return an empty summary. Call this before any work: it raises as `metric_of` does."""
    return Summary(
        policy=evaluation.policy,
        set_name=evaluation.chosen.name,
        split=evaluation.chosen.split,
        sampling=sampling_name(evaluation.temperature),
        seed=evaluation.seed,
        step=evaluation.step,
        metric=metric_of(evaluation),
        judged=_rewards_of(evaluation)[0].judged,
        learned=evaluation.learned,
    )


class Summary:
    """Sums up groups, each all trials of one task, and keeps numbers only; `EvaluationResult` defines each.

    `identity` are its fields that the groups do not hold: policy, set, split, sampling, metric, seed, step.
    """

    def __init__(self, *, judged: bool, **identity: Any) -> None:
        self.identity, self.judged = identity, judged
        self.trajectories = self.errors = 0
        self.first_error: ErrorInfo | None = None
        self.first_malformed: Trajectory | None = None
        # One number a task, in the order of tasks. Tasks without any result are left out of `without_errors`.
        self._values: list[float] = []
        self._without_errors: list[float] = []
        self._right: list[int] = []
        self._votes: list[float] = []
        self._rules: list[float] = []
        self._by_trial: list[list[float]] = []  # of each trial, one value a task that has it
        self._families: dict[str, tuple[list[float], list[int]]] = {}  # success of tasks, turns of trajectories
        self._with_rule = self._disagreements = 0
        self._dialogues = False
        self._reasons: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()  # of whole numbers, by field of the result
        self._costs: list[float] = []
        self._tally = Tally()

    def add(self, group: Group) -> None:
        """Count all trials of one task."""
        trials = group.trajectories
        values = list(map(value, trials))
        self._values.append(fmean(values))
        self._right.append(sum(each >= 1 for each in values))
        with_result = [each for each, trial in zip(values, trials, strict=True) if trial.status == "ok"]
        if with_result:
            self._without_errors.append(fmean(with_result))
        self._votes.append(majority(trials))
        self._rules.append(fmean(map(_rule, trials)))
        while len(self._by_trial) < len(trials):
            self._by_trial.append([])
        for column, each in zip(self._by_trial, values, strict=False):
            column.append(each)
        success, turns = self._families.setdefault(group.task.family, ([], []))
        success.append(self._values[-1])
        turns += [len(trial.turns) for trial in trials]
        self.trajectories += len(trials)
        self.errors += len(trials) - len(with_result)
        for trial in trials:
            if trial.error:
                self.first_error = self.first_error or trial.error
                self._reasons[trial.error.summary] += 1
            if trial.status == "ok" and self.judged and trial.reward and RULE in trial.reward.parts:
                self._with_rule += 1
                self._disagreements += (value(trial) >= 1) != (_rule(trial) >= 1)
            # The last words of a dialogue are no answer, so its majority means nothing.
            self._dialogues |= "success" in trial.outcome
            if self.first_malformed is None and "malformed" in tools_of(trial):
                self.first_malformed = trial
            self._tally.add(trial)
            self._stop_reasons[trial.stop_reason] += 1
            usage = usage_of(trial.calls)
            self._counts.update(
                leaks=int(repeats_question(trial)),
                request_failures=trial.request_failures,
                replies_repaired=trial.replies_repaired,
                replies_cached=sum("cached" in call.sent for call in trial.calls),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
            if trial.cost_usd:
                self._costs.append(trial.cost_usd)

    def result(self) -> EvaluationResult:
        """The numbers of all groups."""
        trials, values = len(self._by_trial), self._values
        interval, method = mean_interval(values) if values else (None, "")
        turns = sum(sum(turns) for _, turns in self._families.values())
        return EvaluationResult(
            **self.identity,
            **dict[str, Any](self._counts),
            judged=self.judged,
            tasks=len(values),
            trials=trials,
            success=fmean(values or [0.0]),
            success_without_errors=fmean(self._without_errors or [0.0]),
            interval=interval,
            interval_method=method,
            pass_at=pass_at(self._right, trials) if values else {},
            pass_all=pass_all(self._right, trials) if values else {},
            majority=fmean(self._votes) if trials > 1 and not self._dialogues else None,
            deviation=stdev(map(fmean, self._by_trial)) if trials > 1 else None,
            rule_success=fmean(self._rules) if self._with_rule else None,
            disagreements=self._disagreements if self._with_rule else None,
            errors=self.errors,
            error_reasons=dict(self._reasons.most_common(_REASONS)),
            by_family={
                name: FamilyResult(tasks=len(success), success=fmean(success), turns_mean=fmean(turns))
                for name, (success, turns) in self._families.items()
            },
            turns_mean=turns / max(1, self.trajectories),
            tool_use=self._tally.tools(),
            reward_parts=self._tally.parts(),
            streams=self._tally.streams(),
            stop_reasons=dict(sorted(self._stop_reasons.items())),
            cost_usd=sum(self._costs),
        )


def _rule(trajectory: Trajectory) -> float:
    """The rule-based reward next to a judge's; 0 if there is no score at all, as in the headline."""
    return trajectory.reward.parts.get(RULE, 0.0) if trajectory.reward and trajectory.status == "ok" else 0.0
