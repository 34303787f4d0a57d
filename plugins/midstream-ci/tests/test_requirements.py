"""Requirements: how they are read, and that they are decided by intervals with the stated error."""

import random
import time
from contextlib import suppress
from dataclasses import replace
from math import comb
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midstream as ms
from midstream.components.tables import parse_component
from midstream.core.errors import UsageError
from midstream.core.trajectory import ErrorInfo
from midstream.evaluation.estimates import exact_interval
from midstream.recipe.inputs import run_recipe
from midstream.report.evaluation import evaluated_trajectories
from midstream_ci.requirements import Requirement, decide, decide_bounds, exit_code, parse_requirement


@pytest.mark.parametrize(
    ("text", "set_name", "metric", "operator", "bound"),
    [
        ("success >= 0.8", None, "success", ">=", 0.8),
        ("  success>=80% ", None, "success", ">=", 0.8),
        ("hard one: pass@4 > 50%", "hard one", "pass@4", ">", 0.5),
        ("pass^2 >= 0", None, "pass^2", ">=", 0.0),
        ("cost_usd <= 2.50", None, "cost_usd", "<=", 2.5),
        ("tokens < 100000", None, "tokens", "<", 100_000.0),
        ("turns <= 3", None, "turns", "<=", 3.0),
    ],
)
def test_it_is_read(text, set_name, metric, operator, bound):
    parsed = parse_requirement(text)
    assert parsed == Requirement(
        text=text.strip(), set_name=set_name, metric=metric, operator=operator, bound=pytest.approx(bound)
    )


@pytest.mark.parametrize(
    "text",
    ["", "success", "success = 0.8", "success >= x", "succes >= 0.8", "success >= 80", "success >= -1", "a:b:c >= 1"],
)
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError, check=lambda error: error.code == "requirement-invalid" and bool(error.fix)):
        parse_requirement(text)


@pytest.mark.parametrize("text", ["success >= 1", "pass@2 > 100%", "majority <= 0", "success < 0"])
def test_what_can_never_hold_is_refused(text):
    with pytest.raises(UsageError, match="can never hold", check=lambda error: error.code == "requirement-invalid"):
        parse_requirement(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    with suppress(UsageError):
        assert parse_requirement(text).bound >= 0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["<", "<=", ">", ">="]))
def test_a_decision_is_that_of_every_value_in_the_interval(bound, one, other, operator):
    low, high = sorted((one, other))
    requirement = Requirement(text="", metric="success", operator=operator, bound=bound)
    met = {requirement.met_by(value) for value in (low, (low + high) / 2, high)}
    outcome = decide_bounds(requirement, low, high)
    assert outcome == ("holds" if met == {True} else "fails" if met == {False} else "undecided")


class TestAnEvaluation:
    """24 runs of 8 tasks, 13 right: 54.2 %, interval 30.6 to 76.0."""

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            ("success >= 0.3", "holds"),
            ("success >= 0.31", "undecided"),
            ("success >= 0.75", "undecided"),
            ("success >= 0.77", "fails"),
            ("success < 0.77", "holds"),
            ("success <= 0.3", "fails"),
            ("test: success >= 0.3", "holds"),
            ("errors <= 0", "holds"),
            ("tokens <= 10", "fails"),
            ("cost_usd <= 0", "undecided"),  # a function of its own, without a price
            ("turns <= 1", "holds"),
            ("pass@3 >= 0.6", "holds"),  # every task was right once
            ("pass^3 >= 0.9", "fails"),
            ("majority <= 1", "holds"),
        ],
    )
    def test_requirements_are_decided(self, evaluation, text, outcome):
        [decision] = decide(evaluation.directory, [parse_requirement(text)])
        assert decision.outcome == outcome
        assert exit_code([decision]) == {"holds": 0, "fails": 3, "undecided": 4}[outcome]

    def test_several_share_the_error(self, evaluation):
        alone = decide(evaluation.directory, [parse_requirement("success >= 0.3")])
        both = decide(evaluation.directory, [parse_requirement("success >= 0.3"), parse_requirement("turns <= 5")])
        assert both[0].interval[0] < alone[0].interval[0]
        assert both[0].interval[1] > alone[0].interval[1]

    @pytest.mark.parametrize("text", ["other: success >= 0.5", "pass@4 >= 0.5"])
    def test_what_the_evaluation_cannot_say_is_refused(self, evaluation, text):
        with pytest.raises(UsageError, check=lambda error: error.code == "requirement-invalid"):
            decide(evaluation.directory, [parse_requirement(text)])

    def test_lost_runs_decide_nothing(self, evaluation, monkeypatch):
        [result] = evaluation.evaluations
        every = list(evaluated_trajectories(evaluation.directory, result))
        broken = ErrorInfo(type="EngineError", message="down", retryable=True)
        lost = [trial.model_copy(update={"status": "error", "error": broken, "reward": None}) for trial in every]
        monkeypatch.setattr("midstream_ci.requirements.evaluated_trajectories", lambda run, result: lost)
        decisions = decide(
            evaluation.directory, [parse_requirement("success >= 0.1"), parse_requirement("success <= 0.9")]
        )
        assert {decision.outcome for decision in decisions} == {"undecided"}
        assert decisions[0].interval == (0.0, 1.0)

    @pytest.mark.parametrize("text", ["turns >= 1", "turns <= 0", "turns <= 5"])
    def test_turns_of_one_task_decide_nothing(self, evaluation, monkeypatch, text):
        [result] = evaluation.evaluations
        one = [next(iter(evaluated_trajectories(evaluation.directory, result)))]
        monkeypatch.setattr("midstream_ci.requirements.evaluated_trajectories", lambda run, result: one)
        [decision] = decide(evaluation.directory, [parse_requirement(text)])
        assert decision.outcome == "undecided"
        assert "from 30 such tasks on" in decision.reason

    @pytest.mark.parametrize(
        ("count", "text", "outcome"),
        [(30, "turns <= 5", "holds"), (30, "turns < 1", "fails"), (29, "turns <= 5", "undecided")],
    )
    def test_equal_turns_of_many_tasks_decide(self, evaluation, monkeypatch, count, text, outcome):
        [result] = evaluation.evaluations
        some = next(trial for trial in evaluated_trajectories(evaluation.directory, result))
        some = some.model_copy(update={"turns": some.turns[:1]})
        assert len(some.turns) == 1
        alike = [some.model_copy(update={"task_id": str(number)}) for number in range(count)]
        monkeypatch.setattr("midstream_ci.requirements.evaluated_trajectories", lambda run, result: alike)
        [decision] = decide(evaluation.directory, [parse_requirement(text)])
        assert decision.outcome == outcome
        assert f"1.000 in every one of {count} tasks" in decision.reason

    def test_advice_is_given_for_shares_alone(self, evaluation, monkeypatch):
        [result] = evaluation.evaluations
        every = list(evaluated_trajectories(evaluation.directory, result))
        lengths = {task: place % 2 for place, task in enumerate(dict.fromkeys(trial.task_id for trial in every))}
        some = next(trial.turns for trial in every if trial.turns)
        mixed = [trial.model_copy(update={"turns": some[:1] * lengths[trial.task_id]}) for trial in every]
        monkeypatch.setattr("midstream_ci.requirements.evaluated_trajectories", lambda run, result: mixed)
        [decision] = decide(evaluation.directory, [parse_requirement("turns <= 0.5")])
        assert decision.outcome == "undecided"
        assert "would decide" not in decision.reason

    @pytest.mark.parametrize(
        ("text", "cost", "prices", "outcome"),
        [
            ("cost_usd <= 2", 0.5, {}, "undecided"),
            ("cost_usd <= 2", 3.0, {}, "fails"),
            ("cost_usd <= 2", 0.5, {"price_prompt_usd": 1.0, "price_completion_usd": 2.0}, "holds"),
            ("tokens <= 1", 0.5, {}, "fails"),
        ],
    )
    def test_what_has_no_price_may_cost_more(self, evaluation, monkeypatch, text, cost, prices, outcome):
        table = {"type": "openai_compatible", "model": "of-mine", **prices}
        engines = {"main": parse_component("engine", table, "engines.main")}
        recipe = run_recipe(evaluation.directory).model_copy(update={"engines": engines})
        monkeypatch.setattr("midstream_ci.requirements.run_recipe", lambda run: recipe)
        found = [evaluation.evaluations[0].model_copy(update={"cost_usd": cost})]
        monkeypatch.setattr(type(evaluation.directory.evaluations), "read", lambda file: found)
        [decision] = decide(evaluation.directory, [parse_requirement(text)])
        assert decision.outcome == outcome
        assert ("engines.main has no price" in decision.reason) == (text.startswith("cost") and not prices)

    @pytest.mark.parametrize("text", ["cost_usd <= 2", "tokens <= 2"])
    def test_without_a_counted_request_a_sum_is_not_known(self, evaluation, monkeypatch, text):
        [result] = evaluation.evaluations
        nothing = result.model_copy(update={"cost_usd": 0.0, "prompt_tokens": 0, "completion_tokens": 0})
        monkeypatch.setattr(type(evaluation.directory.evaluations), "read", lambda file: [nothing])
        [decision] = decide(evaluation.directory, [parse_requirement(text)])
        assert decision.outcome == "undecided"
        assert "no request was counted" in decision.reason


@given(st.integers(1, 60), st.data())
def test_the_exact_interval_is_that_of_clopper_and_pearson(count, data):
    right = data.draw(st.integers(0, count))
    low, high = exact_interval(right, count, 0.05)

    def chance(numbers, share):
        return sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in numbers)

    assert low == 0 if right == 0 else chance(range(right, count + 1), low) == pytest.approx(0.025)
    assert high == 1 if right == count else chance(range(right + 1), high) == pytest.approx(0.025)


def test_the_exact_interval_of_many_tasks_is_quick():
    began = time.process_time()
    low, high = exact_interval(80_000, 100_000, 0.05)
    assert (low, high) == pytest.approx((0.7975071, 0.8024755), abs=1e-6)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("count", "rate"), [(40, 0.8), (60, 0.5), (90, 0.9)])
def test_of_a_thousand_builds_at_the_threshold_few_are_decided(count, rate):
    draws = random.Random(3)
    requirement = replace(parse_requirement("success >= 0.5"), bound=rate)
    outcomes = {"holds": 0, "fails": 0, "undecided": 0}
    for _ in range(1000):
        values = [float(draws.random() < rate) for _ in range(count)]
        outcomes[decide_bounds(requirement, *exact_interval(round(sum(values)), count, 0.05))] += 1
    # At most 2.5 % on either side, and 1,000 builds spread by 0.5 %: three of these are room for chance.
    assert outcomes["holds"] <= 40
    assert outcomes["fails"] <= 40
    assert outcomes["undecided"] >= 920


def test_far_from_the_threshold_builds_are_decided_right():
    draws = random.Random(4)
    for rate, right in ((0.6, "fails"), (0.95, "holds")):
        decided = []
        for _ in range(1000):
            values = [float(draws.random() < rate) for _ in range(90)]
            interval = exact_interval(round(sum(values)), 90, 0.05)
            decided.append(decide_bounds(parse_requirement("success >= 0.8"), *interval))
        assert fmean(outcome == right for outcome in decided) > 0.9
        assert decided.count("fails" if right == "holds" else "holds") == 0


def test_no_requirement_holds():
    assert exit_code([]) == 0


def test_the_python_surface_has_the_run(evaluation):
    assert isinstance(evaluation, ms.Run)
