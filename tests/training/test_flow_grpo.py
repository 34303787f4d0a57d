"""One step of Flow-GRPO on the real loop, the real tools and a small random planner, under scripted rewards."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from midstream.core.engine import Request
from midstream.core.errors import RewardError
from midstream.core.trajectory import Sampling, Score, Trajectory, Turn
from midstream.prefix_tree.tree import tree_of
from midstream.recipe.sessions import parts_of
from midstream.rollout import shuffle_rewards
from midstream.training import flow_grpo
from midstream.training.flow_grpo import MAX_LOGPROB_GAP, SUCCESS_MEMORY, FlowGRPO
from midstream.training.rows import build_rows
from midstream.training.supervised import SupervisedTraining
from support.errors import raises


class Scripted:
    """A reward that is a function of the trajectory."""

    def __init__(self, value):
        self.value = value

    async def score(self, task, trajectory):
        return Score(value=self.value(trajectory))


def first_ids(trajectory):
    return trajectory.calls[0].completion_ids


def parity(trajectory):
    return float(first_ids(trajectory)[0] % 2)


def share_of_words(make_build):
    """Of what was sampled, the share that is no number and no name: what a random planner can learn in few steps."""
    first_number = make_build().engine("policy").model.config.midstream_redrawn[0][0]

    def share(trajectory):
        ids = [token for call in trajectory.calls for token in call.completion_ids]
        return sum(token < first_number for token in ids) / len(ids)

    return Scripted(share)


STAGES = 'training.stages=[["arith"], ["lookup"]]'


@pytest.fixture
def make(make_build):
    """`make(reward, *overrides)` gives the algorithm and what it was wired from."""

    def build(reward, *overrides):
        parts = parts_of(make_build(*overrides))
        algorithm = FlowGRPO(
            config=parts.training,
            learner=parts.learner,
            environment=replace(parts.make_environment(), reward=reward),
            source=parts.source,
            publish=parts.publish,
            seed=parts.seed,
        )
        return algorithm, parts

    return build


def run(algorithm, steps=1):
    """The outcomes of the first steps; closes what the environment holds."""

    async def play():
        try:
            return [await algorithm.step(step) for step in range(1, steps + 1)]
        finally:
            await algorithm.environment.close()

    return asyncio.run(play())


def groups_of(trajectories):
    groups = defaultdict(list)
    for one in trajectories:
        groups[one.task_id].append(one)
    return list(groups.values())


def test_a_steps_numbers_are_those_of_its_trajectories(make):
    algorithm, parts = make(Scripted(parity), "training.uniform_kl_fraction=1.0", "training.minibatches=1")
    [outcome] = run(algorithm)
    metrics, trajectories = outcome.metrics, outcome.trajectories
    groups = groups_of(trajectories)
    rewards = [one.reward.value for one in trajectories]
    calls = [call for one in trajectories for call in one.calls]
    assert 0 < sum(rewards) < 16, "the test needs rewards that differ"
    assert (metrics.step, metrics.policy_version) == (1, 0)
    assert (metrics.trajectories, metrics.groups, [len(group) for group in groups]) == (16, 4, [4] * 4)
    assert metrics.reward_mean == pytest.approx(sum(rewards) / 16)
    by_family = Counter(one.family for one in trajectories)
    assert sum(metrics.reward_by_family[name] * count for name, count in by_family.items()) == pytest.approx(
        sum(rewards)
    )
    assert metrics.groups_uniform == sum(len({one.reward.value for one in group}) == 1 for group in groups)
    assert (metrics.groups_broken, metrics.trajectories_error, metrics.samples_left_out) == (0, 0, {})
    assert metrics.rows == len(calls) == sum(len(one.turns) for one in trajectories)
    assert metrics.turns_mean == pytest.approx(metrics.rows / 16)
    assert metrics.prompt_tokens == sum(len(call.prompt_ids) for call in calls)
    assert metrics.completion_tokens == sum(len(call.completion_ids) for call in calls)
    tree = tree_of([call.prompt_ids + call.completion_ids for call in calls])
    assert metrics.total_tokens == tree.total == metrics.prompt_tokens + metrics.completion_tokens
    assert metrics.unique_tokens == tree.unique < tree.total
    assert sum(metrics.tool_use.share.values()) == pytest.approx(1.0)
    assert metrics.learning_rate == pytest.approx(parts.training.learning_rate / parts.training.warmup_steps)
    # The rows are on-policy: every ratio is 1, nothing is clipped, and policy and reference are still one.
    assert metrics.kl == pytest.approx(0.0, abs=1e-6)
    assert metrics.logprob_gap == pytest.approx(0.0, abs=1e-5)
    assert metrics.clip_fraction == 0.0
    assert metrics.loss == pytest.approx(0.0, abs=1e-4)
    assert metrics.grad_norm > 0.01
    assert outcome.rollout_s > 0


def test_what_was_sampled_is_what_is_trained(make):
    """Recorded log-probabilities are the learner's own, so rho is 1 at the first update."""
    algorithm, parts = make(Scripted(parity), "training.minibatches=1", "training.uniform_kl_fraction=1.0")
    seen = []
    inner = parts.learner.forward_backward

    def spy(rows, loss):
        seen.append((rows, parts.learner.logprobs(rows)))
        return inner(rows, loss)

    parts.learner.forward_backward = spy
    [outcome] = run(algorithm)
    [(rows, logprobs)] = seen
    calls = Counter(
        (call.prompt_ids, call.completion_ids, call.logprobs) for o in outcome.trajectories for call in o.calls
    )
    assert Counter((row.prompt_ids, row.completion_ids, row.old_logprobs) for row in rows) == calls
    for row, own in zip(rows, logprobs, strict=True):
        assert row.old_logprobs == pytest.approx(own, abs=1e-4)


def test_uniform_rewards_teach_nothing(make):
    algorithm, parts = make(Scripted(lambda one: 1.0), "training.uniform_kl_fraction=1.0")
    weights = [parameter.detach().clone() for parameter in parts.learner.parameters]
    [outcome] = run(algorithm)
    assert outcome.metrics.groups_uniform == outcome.metrics.groups == 4
    assert outcome.metrics.rows > 0
    assert outcome.metrics.grad_norm == pytest.approx(0.0, abs=1e-6)
    parts.learner.before_step(0)
    moved = max(
        (now - before).abs().max().item() for now, before in zip(parts.learner.parameters[1:], weights[1:], strict=True)
    )
    assert moved < 1e-3


def test_a_step_of_uniform_groups_without_a_kl_term_makes_no_update(make):
    algorithm, parts = make(
        Scripted(lambda one: 1.0), "training.loss.kl_coefficient=0", "training.uniform_kl_fraction=1"
    )
    made = []
    for name in ("forward_backward", "optimizer_step"):
        setattr(parts.learner, name, lambda *_, name=name: made.append(name))
    outcomes = run(algorithm, 2)
    assert made == []
    rates = [outcome.metrics.learning_rate for outcome in outcomes]
    assert rates == [algorithm._learning_rate(step) for step in (1, 2)], "the schedule counts steps"
    [reason] = outcomes[0].metrics.samples_left_out
    assert (outcomes[0].metrics.rows, outcomes[0].metrics.groups_uniform) == (0, 4)
    assert reason.startswith("row whose gradient is 0")


@pytest.mark.slow
def test_rewards_raise_what_they_reward_and_shuffled_ones_do_not(make, make_build):
    settings = ("training.learning_rate=1e-2", "training.tasks_per_step=8", "training.loss.kl_coefficient=0.0")
    plain, _ = make(share_of_words(make_build), *settings)
    shuffled, _ = make(share_of_words(make_build), *settings, "training.shuffle_rewards=true")
    rewards = [[outcome.metrics.reward_mean for outcome in run(one, 10)] for one in (plain, shuffled)]
    assert rewards[0][-1] > rewards[0][0] + 0.15
    assert rewards[1][-1] < rewards[1][0] + 0.1


def test_shuffled_rewards_are_the_same_rewards_of_others(make):
    algorithm, _ = make(Scripted(parity))
    [outcome] = run(algorithm)
    groups = groups_of(outcome.trajectories)
    shuffled = shuffle_rewards(groups, 1)
    flat = [one for group in shuffled for one in group]
    assert sorted(one.reward.value for one in flat) == sorted(parity(one) for one in flat)
    assert [one.reward.value for one in flat] != [parity(one) for one in flat]
    assert [one.id for one in flat] == [one.id for group in groups for one in group]
    assert shuffle_rewards(groups, 1) == shuffled
    # The numbers that are shown stay those of the true rewards.
    control, _ = make(Scripted(parity), "training.shuffle_rewards=true")
    assert run(control)[0].metrics.reward_mean == outcome.metrics.reward_mean


def test_failed_rewards_break_their_group_and_are_counted(make):
    class Failing:
        """Scores one rollout of the first task and none but two of the second."""

        async def score(self, task, trajectory):
            number = int(task.id.rsplit("-", 1)[1])
            if (number == 0 and parity(trajectory)) or number == 1:
                raise RewardError("the judge is down")
            return Score(value=parity(trajectory))

    algorithm, _ = make(Failing(), "rollout.max_attempts=1", "training.uniform_kl_fraction=1.0")
    [outcome] = run(algorithm)
    metrics = outcome.metrics
    failed = [one for one in outcome.trajectories if one.status == "error"]
    finished = [sum(one.status == "ok" for one in group) for group in groups_of(outcome.trajectories)]
    assert {one.error.type for one in failed} == {"RewardError"}
    assert metrics.trajectories_error == len(failed) >= 4
    assert metrics.groups_broken == sum(count < 2 for count in finished) >= 1
    assert metrics.samples_left_out["trajectory error: RewardError"] == len(failed)
    assert metrics.trajectories == 16
    assert metrics.rows == sum(
        len(one.turns)
        for group in groups_of(outcome.trajectories)
        for one in group
        if one.status == "ok" and sum(other.status == "ok" for other in group) > 1
    )


def test_a_step_without_any_usable_group_stops_the_run(make):
    class Down:
        async def score(self, task, trajectory):
            raise RewardError("the judge is down")

    algorithm, parts = make(Down(), "rollout.max_attempts=1")
    before = [parameter.detach().clone() for parameter in parts.learner.parameters[1:]]
    with raises("reward-failed", "last 5", "judge is down"):
        run(algorithm)
    assert all(torch.equal(a, b) for a, b in zip(before, parts.learner.parameters[1:], strict=True))


def drifted(monkeypatch, nats):
    """Every recorded log-probability is off by so much, as those of a server with other weights are."""

    def wrong(*arguments, **settings):
        batch = build_rows(*arguments, **settings)
        rows = [replace(row, old_logprobs=tuple(old - nats for old in row.old_logprobs)) for row in batch.rows]
        return replace(batch, rows=rows)

    monkeypatch.setattr(flow_grpo, "build_rows", wrong)


def test_the_gap_to_the_recorded_log_probabilities_is_reported(make, monkeypatch):
    algorithm, _ = make(Scripted(parity), "training.minibatches=2")
    drifted(monkeypatch, MAX_LOGPROB_GAP / 2)
    [outcome] = run(algorithm)
    assert outcome.metrics.logprob_gap == pytest.approx(MAX_LOGPROB_GAP / 2, abs=1e-4)


def test_other_weights_than_those_that_sampled_stop_the_first_step_before_its_update(make, monkeypatch):
    algorithm, parts = make(Scripted(parity))
    drifted(monkeypatch, 2 * MAX_LOGPROB_GAP)
    with raises("logprob-gap", "0.200") as caught:
        run(algorithm)
    assert "processed_logprobs" in caught.value.fix
    assert not parts.learner.optimizer.state, "no step was made"


@pytest.mark.slow
def test_later_steps_are_reported_but_not_stopped(make, monkeypatch):
    """Off-policy drift is for the caller who reads the metrics: the check is of how things were wired."""
    algorithm, _ = make(Scripted(parity))
    run(algorithm)
    drifted(monkeypatch, 2 * MAX_LOGPROB_GAP)
    outcome = asyncio.run(algorithm.step(2))
    assert outcome.metrics.logprob_gap == pytest.approx(2 * MAX_LOGPROB_GAP, abs=1e-2)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_metrics_byte_for_byte(make):
    def texts(*overrides):
        algorithm, parts = make(Scripted(parity), *overrides)
        lines = [outcome.metrics.model_dump_json() for outcome in run(algorithm, 3)]
        return lines, [parameter.detach() for parameter in parts.learner.parameters]

    (lines, weights), (again, same), (other, _) = texts(), texts(), texts("seed=4")
    assert lines == again
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert lines != other


def test_every_minibatch_makes_one_optimizer_step(make):
    algorithm, parts = make(Scripted(parity), "training.minibatches=4", "training.uniform_kl_fraction=1.0")
    rates = []
    inner = parts.learner.optimizer_step
    parts.learner.optimizer_step = lambda rate: rates.append(rate) or inner(rate)
    run(algorithm, 2)
    rate, warmup = parts.training.learning_rate, parts.training.warmup_steps
    assert rates == pytest.approx([rate / warmup] * 4 + [2 * rate / warmup] * 4)


def test_the_learning_rate_rises_and_falls(make):
    settings = ("training.learning_rate=1.0", "training.warmup_steps=4", "training.steps=10")
    algorithm, _ = make(Scripted(parity), *settings, "training.decay_steps=4")
    rates = [algorithm._learning_rate(step) for step in range(1, 11)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.1])
    constant, _ = make(Scripted(parity), *settings, "training.decay_steps=0")
    assert constant._learning_rate(10) == 1.0


def test_families_are_drawn_by_their_failures(make):
    settings = ("training.family_sampling=failure", "training.learning_rate=1e-9")
    algorithm, parts = make(Scripted(lambda one: float(one.question.startswith("What is"))), *settings)
    drawn = []
    inner = parts.source.sample

    def spy(split, count, seed, weights=None):
        drawn.append(weights)
        return inner(split, count, seed, weights)

    parts.source.sample = spy
    [first, second] = run(algorithm, 2)
    assert drawn[0] == {"arith": 1.1, "lookup": 1.1}
    expected = dict.fromkeys(("arith", "lookup"), 0.0)
    for one in first.trajectories:
        expected[one.family] += SUCCESS_MEMORY * (one.reward.value - expected[one.family])
    assert drawn[1] == pytest.approx({family: 1.1 - rate for family, rate in expected.items()})
    fresh, _ = make(Scripted(parity), *settings)
    fresh.load_state_dict(algorithm.state_dict())
    assert fresh.success == algorithm.success != drawn[1]
    assert second.trajectories


@pytest.mark.slow
@pytest.mark.matrix(1)
@pytest.mark.parametrize("sampling", ["failure", "uniform"])
def test_a_stage_begins_once_the_one_before_succeeds(make, sampling, monkeypatch):
    monkeypatch.setattr(flow_grpo, "STAGE_SUCCESS", 0.3)
    right = Scripted(lambda one: 1.0)
    algorithm, _ = make(right, f"training.family_sampling={sampling}", "training.learning_rate=1e-9", STAGES)
    first, second = algorithm.success
    outcomes = run(algorithm, 6)
    seen = [{one.family for one in outcome.trajectories} for outcome in outcomes]
    assert seen[:2] == [{first}, {first}]
    assert second in set().union(*seen[2:])
    assert [outcome.metrics.schedules["training.stages"] for outcome in outcomes] == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    fresh, _ = make(right)
    fresh.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert (fresh.success, fresh.stage) == (algorithm.success, 1)


def test_progress_counts_the_families_that_are_trained_on_now(make):
    algorithm, _ = make(Scripted(parity), STAGES)
    first, _ = algorithm.success
    algorithm.success[first] = 0.7
    run(algorithm)
    assert algorithm.progress.success == 0.7


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["failure", "uniform"])
def test_a_family_in_no_stage_is_not_trained_on(make, sampling):
    algorithm, _ = make(Scripted(parity), f"training.family_sampling={sampling}", 'training.stages=[["lookup"]]')
    assert list(algorithm.success) == ["lookup"]
    assert {one.family for outcome in run(algorithm, 3) for one in outcome.trajectories} == {"lookup"}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("count", [2, 5])
def test_balanced_steps_hold_every_family_equally(make, count):
    settings = ("training.family_sampling=balanced", f"training.tasks_per_step={count}")
    algorithm, _ = make(Scripted(parity), *settings)
    first, second = algorithm.success
    (outcome,) = run(algorithm)
    asked = Counter(dict.fromkeys(algorithm.success, 0))
    for task in {one.task_id: one for one in outcome.trajectories}.values():
        asked[task.family] += 1
    assert sorted(asked.values()) == [count // 2, count - count // 2]
    assert {first, second} == set(asked)


@pytest.mark.slow
def test_every_step_samples_other_tasks_and_names_its_policy(make):
    algorithm, parts = make(Scripted(parity))
    first, second = run(algorithm, 2)
    assert {one.question for one in first.trajectories} != {one.question for one in second.trajectories}
    assert {call.policy_version for one in second.trajectories for call in one.calls} == {1}
    assert second.metrics.policy_version == 1
    places = {name for split in ("validation", "test") for name in parts.source.names(split)}
    assert not any(places & set(one.question.split()) for one in [*first.trajectories, *second.trajectories])


# -- groups with equal rewards ---------------------------------------------------------------------------------------


class Indexed:
    """Distinguishes the rollouts of a share of all tasks, by their number; the others' are rewarded alike."""

    def __init__(self, share):
        self.share = share

    async def score(self, task, trajectory):
        distinguished = random.Random(task.id).random() < self.share
        return Score(value=float(trajectory.seed % 2) if distinguished else 1.0)


def alike(group):
    return len({one.reward.value for one in group}) == 1


def test_other_tasks_are_rolled_out_in_the_place_of_uniform_groups(make):
    algorithm, _ = make(Indexed(0.4), "training.resample_uniform=20", "training.uniform_kl_fraction=1.0")
    [outcome] = run(algorithm)
    metrics, groups = outcome.metrics, groups_of(outcome.trajectories)
    uniform = [group for group in groups if alike(group)]
    assert len(groups) - len(uniform) == 4 < len(groups)
    assert (metrics.groups, metrics.groups_uniform) == (len(groups), len(uniform))
    assert metrics.trajectories == 4 * len(groups)
    assert metrics.samples_left_out == {"uniform group, left out (training.resample_uniform)": 4 * len(uniform)}
    assert metrics.rows == sum(len(one.turns) for group in groups if not alike(group) for one in group)
    assert metrics.reward_mean == pytest.approx(
        sum(one.reward.value for one in outcome.trajectories) / len(outcome.trajectories)
    )
    assert metrics.grad_norm > 0


def test_without_the_setting_uniform_groups_stay(make):
    algorithm, _ = make(Indexed(0.4), "training.uniform_kl_fraction=1.0")
    [outcome] = run(algorithm)
    assert outcome.metrics.groups == 4 > outcome.metrics.groups_uniform > 0
    assert outcome.metrics.samples_left_out == {}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_step_that_finds_nothing_to_learn_from_ends_and_changes_nothing(make, rounds):
    algorithm, parts = make(Indexed(0.0), f"training.resample_uniform={rounds}")
    [outcome] = run(algorithm)
    metrics = outcome.metrics
    assert (metrics.groups, metrics.groups_uniform, metrics.rows) == (4 * (rounds + 1),) * 2 + (0,)
    assert (metrics.grad_norm, metrics.loss) == (0.0, 0.0)
    assert metrics.samples_left_out == {"uniform group, left out (training.resample_uniform)": 16 * (rounds + 1)}
    assert not parts.learner.optimizer.state, "no step was made"


def test_a_step_continues_with_the_groups_it_found(make):
    """Fewer than there are mini-batches: each group is one."""
    algorithm, parts = make(Indexed(0.2), "training.resample_uniform=1", "training.minibatches=4", "seed=2")
    steps = []
    inner = parts.learner.optimizer_step
    parts.learner.optimizer_step = lambda rate: steps.append(rate) or inner(rate)
    [outcome] = run(algorithm)
    assert len(steps) == outcome.metrics.groups - outcome.metrics.groups_uniform
    assert 0 < len(steps) < 4


def test_broken_groups_are_not_replaced(make):
    class Broken:
        """Scores one rollout of each task."""

        scored: ClassVar[set[str]] = set()
        # The same failure five times in a row would stop the run.
        state = itertools.cycle(("down", "busy"))

        async def score(self, task, trajectory):
            if task.id in self.scored:
                raise RewardError(f"the judge is {next(self.state)}")
            self.scored.add(task.id)
            return Score(value=1.0)

    algorithm, _ = make(Broken(), "rollout.max_attempts=1", "training.resample_uniform=3")
    with raises("all-rollouts-failed", "12 of 16"):
        run(algorithm)


def test_a_task_is_not_drawn_twice_in_a_step(make):
    algorithm, parts = make(Indexed(0.0), "training.resample_uniform=2")
    drawn = parts.source.sample("train", 4, 1)
    parts.source.sample = lambda *given: drawn
    [outcome] = run(algorithm)
    assert (outcome.metrics.groups, len(groups_of(outcome.trajectories))) == (4, 4)


@pytest.mark.slow
def test_drawing_again_continues_where_it_stopped(make, tmp_path):
    settings = ("training.resample_uniform=3", "training.family_sampling=failure")
    whole, _ = make(Indexed(0.5), *settings)
    expected = [outcome.metrics for outcome in run(whole, 3)]
    first, parts = make(Indexed(0.5), *settings)
    run(first, 2)
    parts.learner.save(tmp_path)
    second, other = make(Indexed(0.5), *settings)
    other.learner.load(tmp_path)
    second.load_state_dict(first.state_dict())

    async def third():
        try:
            return (await second.step(3)).metrics
        finally:
            await second.environment.close()

    assert asyncio.run(third()) == expected[2]


# -- a variant and its settings ----------------------------------------------------------------------------------------


def rows_of_step(make, *overrides, agent=None):
    """The rows and the loss of one step, and its outcome; `agent` is one whose policy is trained."""
    turns = "training.turns=calls" if agent is None else "training.turns=merged"
    usual = ("training.minibatches=1", "training.uniform_kl_fraction=1.0", turns)
    algorithm, parts = make(Scripted(parity), *usual, *overrides)
    if agent is not None:
        algorithm.role, algorithm.environment = "policy", replace(algorithm.environment, agent=agent)
    seen = []
    inner = parts.learner.forward_backward
    parts.learner.forward_backward = lambda rows, loss: seen.append((rows, loss)) or inner(rows, loss)
    [outcome] = run(algorithm)
    [(rows, loss)] = seen
    return rows, loss, outcome


def test_a_variant_reaches_rows_and_loss(make):
    settings = ("training.variant=dr_grpo", "training.loss={kl_coefficient=0.0}")
    rows, loss, outcome = rows_of_step(make, *settings)
    rewards = {one.id: one.reward.value for one in outcome.trajectories}
    means = {one.id: sum(map(parity, group)) / 4 for group in groups_of(outcome.trajectories) for one in group}
    assert [row.advantage for row in rows] == pytest.approx(
        [rewards[row.trajectory_id] - means[row.trajectory_id] for row in rows]
    )
    left_out = sum(outcome.metrics.samples_left_out.values())  # of uniform groups
    horizon = max(
        call.sampling.max_tokens for one in outcome.trajectories for call in one.calls if call.role == "planner"
    )
    assert {row.weight for row in rows} == {1 / ((len(rows) + left_out) * horizon)}
    assert (loss.aggregation, loss.kl_coefficient) == ("seq-mean-token-sum-norm", 0.0)


def test_leaving_one_out_reaches_the_rows(make):
    rows, _, outcome = rows_of_step(make, "training.variant=rloo")
    others = {
        one.id: (sum(map(parity, group)) - parity(one)) / 3
        for group in groups_of(outcome.trajectories)
        for one in group
    }
    rewards = {one.id: one.reward.value for one in outcome.trajectories}
    assert [row.advantage for row in rows] == pytest.approx(
        [rewards[row.trajectory_id] - others[row.trajectory_id] for row in rows]
    )


# -- a policy that writes one stream ---------------------------------------------------------------------------------


class TwoStretches:
    """An agent that samples, puts a number into the stream, and samples on: token in, token out."""

    name = "two stretches"

    async def run(self, task, context):
        engine, seed = context.engines["planner"], context.seed
        asked = Request(role="policy", prompt="Question", sampling=Sampling(max_tokens=6), order=context.order)
        first = await engine.sample(replace(asked, seed=seed))
        ids = (*first.prompt_ids, *first.completion_ids, *engine.codec.encode_text(" 105\n"))
        limit = Sampling(max_tokens=1 + seed % 5)
        second = await engine.sample(replace(asked, prompt_ids=ids, seed=seed + 1, sampling=limit))
        return Trajectory(
            id=str(seed),
            task_id=task.id,
            family=task.family,
            turns=(Turn(index=1, calls=(first,), appended=" 105\n"),),
            closing_calls=(second.model_copy(update={"finish_reason": "stop"}),),
            stop_reason="answered" if seed % 2 else "token_limit",
        )

    async def close(self):
        pass


def test_a_stream_is_trained_as_it_was_sampled(make):
    """The learner finds the recorded log-probabilities behind tool output too, and no row holds a token twice."""
    rows, _, outcome = rows_of_step(make, agent=TwoStretches())
    metrics = outcome.metrics
    calls = [call for one in outcome.trajectories for call in one.calls]
    output = 2 * 16  # its two tokens in each of 16 streams
    assert metrics.rows == len(rows) == 16
    assert sum(row.sampled.count(False) for row in rows) == output
    assert metrics.completion_tokens == sum(len(call.completion_ids) for call in calls)
    assert metrics.prompt_tokens == 16 * len(calls[0].prompt_ids) + output
    assert metrics.logprob_gap == pytest.approx(0.0, abs=1e-5)
    assert metrics.clip_fraction == 0.0
    assert metrics.grad_norm > 0.01


class AsksTwice(TwoStretches):
    """Samples from the first prompt again, and once more without receiving the reply."""

    async def run(self, task, context):
        made = await super().run(task, context)
        [first] = made.turns[0].calls
        seed, order = context.seed + 2, context.order
        asked = Request(role="policy", prompt_ids=first.prompt_ids, sampling=first.sampling, order=order, seed=seed)
        again = await context.engines["planner"].sample(asked)
        lost = again.model_copy(update={"delivered": False})
        return made.model_copy(update={"closing_calls": (again, lost, *made.closing_calls)})


def test_splits_are_counted_and_lost_replies_are_not_trained(make):
    rows, _, outcome = rows_of_step(make, agent=AsksTwice())
    assert outcome.metrics.rows == len(rows) == 2 * 16
    assert outcome.metrics.rows_split == {"branch": 16}
    assert outcome.metrics.samples_left_out == {"call whose reply the agent never received": 16}
    calls = [call for one in outcome.trajectories for call in one.calls if call.delivered]
    sampled = [sum(row.sampled) if row.sampled else len(row.completion_ids) for row in rows]
    assert sum(sampled) == sum(len(call.completion_ids) for call in calls)


def length(trajectory):
    """Of a stream after its prompt: 2 tokens of output, the others sampled."""
    return 2 + sum(len(call.completion_ids) for call in trajectory.calls)


def test_length_costs_advantage_and_not_the_recorded_reward(make):
    settings = ("training.normalize_by_std=false", "training.overlong={limit=12,buffer=4}")
    rows, _, outcome = rows_of_step(make, *settings, agent=TwoStretches())
    assert all(one.reward.value == parity(one) for one in outcome.trajectories)
    shaped = {one.id: parity(one) - min(1.0, max(0, length(one) - 8) / 4) for one in outcome.trajectories}
    assert len({parity(one) - shaped[one.id] for one in outcome.trajectories}) > 2
    means = {
        one.id: sum(shaped[other.id] for other in group) / 4
        for group in groups_of(outcome.trajectories)
        for one in group
    }
    assert [row.advantage for row in rows] == pytest.approx(
        [shaped[row.trajectory_id] - means[row.trajectory_id] for row in rows], abs=1e-9
    )
    assert outcome.metrics.reward_mean == pytest.approx(sum(map(parity, outcome.trajectories)) / 16)


def test_what_was_cut_off_has_no_row_where_that_is_asked(make):
    rows, _, outcome = rows_of_step(make, "training.mask_cut_off=true", agent=TwoStretches())
    cut = {one.id for one in outcome.trajectories if one.stop_reason == "token_limit"}
    assert 0 < len(cut) < 16
    assert {row.trajectory_id for row in rows} == {one.id for one in outcome.trajectories} - cut
    [(reason, count)] = outcome.metrics.samples_left_out.items()
    assert (reason.startswith("trajectory that a limit ended"), count) == (True, len(cut))
    assert outcome.metrics.limits == {}  # those of the agent's own settings are not counted there


# -- the supervised control --------------------------------------------------------------------------------------------


def supervised(make_build, *overrides):
    parts = parts_of(make_build("training.algorithm=supervised", "training.supervised.transcripts=30", *overrides))
    return SupervisedTraining(
        config=parts.training,
        learner=parts.learner,
        environment=parts.make_environment(planner=parts.teacher),
        source=parts.source,
        student=parts.student,
        seed=parts.seed,
        report=lambda text: None,
        learned=lambda tasks: None,
    )


@pytest.mark.slow
def test_the_supervised_control_makes_as_many_updates_and_learns(make_build):
    algorithm = supervised(make_build)
    steps = []
    inner = algorithm.learner.optimizer_step
    algorithm.learner.optimizer_step = lambda rate: steps.append(rate) or inner(rate)
    outcomes = run(algorithm, 12)
    assert steps == [algorithm.config.supervised.learning_rate] * 24
    losses = [outcome.metrics.loss for outcome in outcomes]
    assert losses[-1] < 0.7 * losses[0]
    assert all(outcome.trajectories == () for outcome in outcomes)


def test_the_supervised_control_continues_where_it_stopped(make_build, tmp_path):
    whole = supervised(make_build)
    expected = [outcome.metrics for outcome in run(whole, 4)]
    first, second = supervised(make_build), supervised(make_build)
    run(first, 2)
    first.learner.save(tmp_path)
    second.learner.load(tmp_path)

    async def continued():
        try:
            return [(await second.step(step)).metrics for step in (3, 4)]
        finally:
            await second.environment.close()

    assert asyncio.run(continued()) == expected[2:]


def test_a_step_records_its_schedules_and_the_marks(make):
    """Noise rises linearly from 0 to 1 over ten steps; the reward sees what the metrics count."""
    settings = "wrappers.local_search.simulated={documents=1, noise={start=0, end=1, shape='linear'}}"
    algorithm, _ = make(Scripted(parity), "training.steps=10", settings)
    outcomes = run(algorithm, steps=2)
    shown = [outcome.metrics.schedules["wrappers.local_search.simulated.noise"] for outcome in outcomes]
    assert shown == pytest.approx([0.1, 0.2])
    for outcome in outcomes:
        turns = [turn for trajectory in outcome.trajectories for turn in trajectory.turns]
        marks = Counter(mark for turn in turns if turn.observation for mark in turn.observation.marks)
        assert outcome.metrics.tool_marks == marks


def test_a_step_on_tools_as_they_are_records_none(make):
    algorithm, _ = make(Scripted(parity))
    [outcome] = run(algorithm)
    assert not {"schedules", "tool_marks"} & outcome.metrics.model_dump().keys()


def test_success_drives_a_schedule(make):
    settings = "wrappers.local_search.degraded.error={start=0, end=1, shape='success'}"
    algorithm, _ = make(Scripted(lambda trajectory: 1.0), settings)
    shown = [outcome.metrics.schedules["wrappers.local_search.degraded.error"] for outcome in run(algorithm, steps=2)]
    assert shown[0] == 0
    assert shown[1] == pytest.approx(sum(algorithm.success.values()) / len(algorithm.success), abs=0.2)
    assert shown[1] > 0
