"""From trajectories to numbers: several trials, errors, votes, a judge beside a rule."""

from __future__ import annotations

from statistics import stdev

import pytest

from midstream.core.metrics import EvaluationResult
from midstream.core.task import Task
from midstream.core.trajectory import ErrorInfo, Score, Trajectory
from midstream.evaluation.run import summarize
from midstream.rollout import Group
from support.marked_streams import Output, stream


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


def test_a_score_beside_an_error_counts_as_wrong():
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
        for one, parts in ((first, {"answer": 2.0, "timed_out": 1.0}), (second, {"answer": 1.0}))
    ]
    result = summed([*scored, trial(None)])
    assert result.reward_parts == {"answer": 1.5, "timed_out": 0.5}
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


def test_what_the_rule_says_beside_a_judge():
    tasks = [trial(1.0, rule=1.0), trial(1.0, rule=0.0)], [trial(0.0, None), trial(None)]
    result = summed(*tasks, judged=True)
    assert (result.success, result.rule_success, result.disagreements) == (0.5, 0.25, 1)
    assert summed(*tasks).rule_success is None  # a rule's own parts are no second opinion


def test_a_judge_without_a_rule_beside_it():
    result = summed([trial(1.0)], judged=True)
    assert (result.rule_success, result.disagreements) == (None, None)
