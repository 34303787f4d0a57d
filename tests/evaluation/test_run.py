"""What an evaluation counts: several trials, errors, votes, a judge with a rule."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from statistics import stdev
from typing import Any

import pytest

from midstream.core.agent import RunContext
from midstream.core.errors import EngineError
from midstream.core.metrics import EvaluationResult, FamilyResult
from midstream.core.task import Task
from midstream.core.trajectory import Action, ErrorInfo, Observation, Score, StopReason, Trajectory, Turn
from midstream.evaluation.run import SetEvaluation
from midstream.evaluation.settings import EvaluationConfig, SetConfig, sampling_name
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, Group, RolloutConfig
from support.evaluations import evaluate, summarize
from support.marked_streams import Output, stream

CHOSEN = SetConfig(name="held out", split="test")


@dataclass
class Recited:
    """By question, "right", "wrong", "broken" or "late", with two turns where it is right, else one."""

    outcomes: dict[str, str]
    name: str = "recited"
    seeds: list[int] = field(default_factory=list)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        self.seeds.append(context.seed)
        outcome = self.outcomes[task.question]
        if outcome == "broken":
            raise EngineError("503")
        right, late = outcome == "right", outcome == "late"
        turns = [
            Turn(index=i, action=Action(tool="python"), observation=Observation(status="ok", text=""))
            for i in range(1, 3 if right else 2)
        ]
        stop: StopReason = "verified" if right else "time_limit" if late else "turn_limit"
        return Trajectory(
            id="x",
            task_id=task.id,
            seed=context.seed,
            turns=tuple(turns),
            answer="gold" if right else None,
            stop_reason=stop,
            status="error" if late else "ok",
        )


def run(families: dict[str, list[str]], **settings: Any) -> tuple[EvaluationResult, list[Trajectory], Recited]:
    """Evaluate on one task an outcome."""
    outcomes = {f"{name}-{i}": one for name, listed in families.items() for i, one in enumerate(listed)}
    tasks = [Task(id=key, question=key, answer="gold", family=key.split("-")[0]) for key in outcomes]
    agent = Recited(outcomes)
    env = Environment(agent=agent, tools=(), engines={}, reward=ExactMatch(), config=RolloutConfig(max_attempts=1))
    with_defaults: dict[str, Any] = {"policy": "trained", "chosen": CHOSEN, "temperature": 0.0, "seed": 3, **settings}
    result, trajectories = asyncio.run(evaluate(SetEvaluation(environment=env, tasks=tasks, **with_defaults)))
    return result, trajectories, agent


def test_success_is_the_mean_over_tasks():
    result, _, _ = run({"hop": ["right"] * 3 + ["wrong"], "sum": ["right"] + ["wrong"] * 9})
    assert result.success == pytest.approx(4 / 14)
    assert result.success == result.success_without_errors
    assert result.by_family == {
        "hop": FamilyResult(tasks=4, success=0.75, turns_mean=1.75),
        "sum": FamilyResult(tasks=10, success=0.1, turns_mean=1.1),
    }
    assert (result.tasks, result.errors) == (14, 0)


def test_a_task_without_a_result_is_wrong_and_counted():
    result, _, _ = run({"hop": ["right", "broken"], "sum": ["right", "wrong", "late", "broken"]})
    assert result.success == pytest.approx(2 / 6)
    assert result.success_without_errors == pytest.approx(2 / 3)
    assert (result.tasks, result.errors) == (6, 3)
    assert result.by_family["sum"] == FamilyResult(tasks=4, success=0.25, turns_mean=1.0)
    assert result.stop_reasons == {"error": 2, "time_limit": 1, "turn_limit": 1, "verified": 2}


def test_a_family_without_any_result_is_wrong_in_the_headline_only():
    result, _, _ = run({"hop": ["right"], "sum": ["broken", "broken"]})
    assert (result.success, result.success_without_errors, result.errors) == (pytest.approx(1 / 3), 1.0, 2)


def test_nothing_but_errors():
    result, _, _ = run({"hop": ["broken"]})
    assert (result.success, result.success_without_errors, result.errors) == (0.0, 0.0, 1)


def test_counts_turns_and_tools():
    result, trajectories, _ = run({"hop": ["right", "wrong", "broken"]})
    assert result.turns_mean == pytest.approx((2 + 1 + 0) / 3)
    assert (result.tool_use.turns, result.tool_use.share) == (3, {"python": 1.0})
    assert [one.task_id for one in trajectories] == ["hop-0", "hop-1", "hop-2"]
    assert [one.family for one in trajectories] == ["hop"] * 3


def test_says_what_was_evaluated():
    result, _, agent = run({"hop": ["right"]}, policy="warm start", temperature=1.0, seed=5, step=25)
    assert (result.policy, result.set_name, result.split) == ("warm start", "held out", "test")
    assert (result.sampling, result.seed, result.step) == ("T=1", 5, 25)
    again = run({"hop": ["right"]}, seed=5)[2].seeds
    assert agent.seeds == again  # seeds come from the evaluation's seed and the task, not from the policy
    assert agent.seeds != run({"hop": ["right"]}, seed=6)[2].seeds


@pytest.mark.parametrize(("temperature", "name"), [(0, "greedy"), (0.0, "greedy"), (1.0, "T=1"), (0.7, "T=0.7")])
def test_sampling_names(temperature, name):
    assert sampling_name(temperature) == name


def test_sets_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two evaluation sets have the same name"):
        EvaluationConfig(sets=(SetConfig(name="validation"),))


def trial(score: float | None, answer: str | None = "x", **parts: float) -> Trajectory:
    """A trial with this score; None: an infrastructure error."""
    if score is None:
        return Trajectory(id="t", task_id="t", answer=answer, status="error", stop_reason="error")
    return Trajectory(id="t", task_id="t", answer=answer, reward=Score(value=score, parts=parts))


def summed(*tasks: list[Trajectory], judged: bool = False) -> EvaluationResult:
    groups = [
        Group(task=Task(id=str(i), question="?", answer="x"), trajectories=tuple(trials))
        for i, trials in enumerate(tasks)
    ]
    about = {"policy": "p", "set_name": "s", "split": "test", "sampling": "T=1", "seed": 0, "step": None}
    return summarize(groups, **about, metric="m", judged=judged)


def test_success_is_the_mean_over_tasks_of_the_mean_over_trials():
    result = summed([trial(1.0), trial(0.0)], [trial(0.5), trial(None)])
    assert (result.tasks, result.trials, result.errors) == (2, 2, 1)
    assert result.success == pytest.approx((0.5 + 0.25) / 2)


def test_without_errors_each_task_counts_once_however_many_trials_it_lost():
    result = summed([trial(1.0), trial(None), trial(None)], [trial(0.0), trial(0.0), trial(0.0)], [trial(None)] * 3)
    assert result.success_without_errors == pytest.approx((1.0 + 0.0) / 2)


def test_reasons_of_errors_are_counted_the_most_frequent_first():
    said = ["busy\n  cause: x", "gone", "busy\n  cause: y", "slow", "odd"]
    broken = [trial(None).model_copy(update={"error": ErrorInfo(type="EngineError", message=one)}) for one in said]
    assert list(summed([*broken, trial(1.0)]).error_reasons.items()) == [("busy", 2), ("gone", 1), ("slow", 1)]


def test_a_score_with_an_error_counts_as_wrong():
    half_done = trial(1.0).model_copy(update={"status": "error"})
    assert summed([half_done]).success == 0


def test_pass_at_counts_full_scores_only():
    result = summed([trial(1.0), trial(0.9)], [trial(0.9), trial(0.9)])
    assert result.pass_at == {1: 0.25, 2: 0.5}


def test_pass_all_asks_for_every_trial_and_one_without_a_result_is_wrong():
    result = summed([trial(1.0), trial(1.0)], [trial(1.0), trial(None)], [trial(0.9), trial(1.0)])
    assert result.pass_all == pytest.approx({1: 4 / 6, 2: 1 / 3})


def test_parts_of_rewards_are_averaged_and_streams_measured():
    first, second = stream("<think>a b</think>", Output(), "5"), stream("5")
    scored = [
        one.model_copy(update={"reward": Score(value=1.0, parts=parts)})
        for one, parts in ((first, {"answer": 2.0, "math.timed_out": 1.0}), (second, {"answer": 1.0, "numeric": 0.5}))
    ]
    result = summed([*scored, trial(None)])
    assert result.reward_parts == {"answer": 1.5, "math.timed_out": 0.5, "numeric": 0.5}
    assert result.streams is not None
    assert (result.streams.trajectories, result.streams.calls) == (2, 1)
    assert summed([trial(1.0)]).streams is None


def test_the_deviation_is_that_of_whole_trials():
    result = summed([trial(1.0), trial(0.0), trial(1.0)], [trial(1.0), trial(None), trial(0.0)])
    assert result.deviation == pytest.approx(stdev([1.0, 0.0, 0.5]))
    assert summed([trial(1.0)]).deviation is None


def test_majority_only_where_there_is_something_to_vote_on():
    assert summed([trial(1.0)]).majority is None
    votes = [trial(1.0, "Paris"), trial(0.0, "Rome"), trial(1.0, "<answer>The paris.</answer>")]
    assert summed(votes, [trial(0.0, "a"), trial(0.0, "a"), trial(1.0, "b")]).majority == 0.5


def test_the_last_words_of_dialogues_are_no_votes():
    talks = [one.model_copy(update={"outcome": {"success": bool(one.answer)}}) for one in (trial(1.0), trial(0.0))]
    assert summed(talks).majority is None


def test_interval_says_how_it_was_made():
    result = summed(*[[trial(1.0)]] * 5, *[[trial(0.0)]] * 5)
    assert result.interval_method == "Wilson"
    assert result.interval == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


def test_no_task_at_all():
    result = summed()
    assert (result.success, result.interval, result.interval_method, result.pass_at) == (0.0, None, "", {})
    assert (result.pass_all, result.reward_parts) == ({}, {})


def test_the_rule_next_to_a_judge():
    tasks = [trial(1.0, rule=1.0), trial(1.0, rule=0.0)], [trial(0.0, None), trial(None)]
    result = summed(*tasks, judged=True)
    assert (result.success, result.rule_success, result.disagreements) == (0.5, 0.25, 1)
    assert summed(*tasks).rule_success is None  # a rule's own parts are no second opinion


def test_a_judge_without_a_rule():
    result = summed([trial(1.0)], judged=True)
    assert (result.rule_success, result.disagreements) == (None, None)
