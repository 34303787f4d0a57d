"""Every variant's gradient, from groups of trajectories to the model's weights, against plain loops in float64."""

from __future__ import annotations

import copy
import random
import statistics

import pytest
import torch

from midstream.core.trajectory import Call, Sampling, Score, Trajectory, Turn
from midstream.training.rows import build_rows, runs_of
from midstream.training.settings import VARIANTS, LearnerConfig, TrainingConfig
from support.exact import VOCABULARY, learner_of, model_of

MAX_TOKENS = 5
OWN = {
    "flow-grpo": {},
    "roles": {"roles": {"planner": {"share": 2.0}, "writer": {"kl": 3.0}}, "loss": {"kl_coefficient": 0.1}},
    "entropy": {"loss": {"entropy_coefficient": 0.05, "kl_coefficient": 0.0}},
    "gspo with entropy and roles": {
        "variant": "gspo",
        "roles": ["planner", "writer"],
        "loss": {"entropy_coefficient": 0.05, "kl_coefficient": 0.2, "clip_low": 0.1, "clip_high": 0.1},
    },
    "gigpo with errors": {"advantage": {"type": "gigpo", "error_cost": 0.3, "normalize_by_std": False}},
    "return_to_go": {"advantage": {"type": "return_to_go", "discount": 0.9}},
    "gigpo in one row": {"variant": "gigpo", "turns": "merged"},
    "gigpo with sequence ratios": {
        "variant": "gspo",
        "advantage": {"type": "gigpo"},
        "loss": {"clip_low": 0.2, "clip_high": 0.2},
    },
}
CASES = {name: {"variant": name} for name in VARIANTS} | OWN


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attention", ["auto", "rows"])
def test_a_batch_has_the_gradient_of_plain_loops(name, attention):
    assert all(check(CASES[name], seed, attention) > 1e-4 for seed in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_batches_have_the_gradient_of_plain_loops(name):
    sizes = [check(CASES[name], seed, "auto" if seed % 2 else "rows") for seed in range(100, 200)]
    # Of a batch whose trajectories cancel out nothing is left.
    assert sum(size > 1e-4 for size in sizes) > 95


def check(table, seed, attention):
    """Compare one batch; returns the largest entry of its gradient."""
    config = TrainingConfig.model_validate(table)
    learner = learner_of(model_of("llama", seed=seed), LearnerConfig(attention=attention, chunk_tokens=60))
    groups = drawn(learner.model, seed)
    own = config.advantage
    batch = build_rows(groups, config, advantage=own and own.config.build(None))
    wanted = plain(learner, groups, config)
    stats = learner.forward_backward(batch.rows, config.loss)
    assert stats.loss == pytest.approx(wanted.item(), abs=1e-10)
    policy = learner.model
    expected = torch.autograd.grad(wanted, list(wanted.policy.parameters()))
    for got, one in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(got.grad, one, atol=1e-10, rtol=0)
    return max(one.abs().max().item() for one in expected)


# -- groups ------------------------------------------------------------------------------------------------------------


def drawn(model, seed):
    """Groups whose planners meet equal states, talk in one growing chat, and whose recorded ratios differ from 1."""
    draw = random.Random(seed)

    def ids(size):
        return tuple(draw.choices(range(2, VOCABULARY), k=size))

    groups = []
    for task in range(2):
        question, results = ids(4), [ids(2) for _ in range(2)]
        group = []
        for place in range(3):
            prompt, turns = question, []
            for _ in range(draw.randint(1, 3)):
                said = draw.choice([(5, 6), (5, 7, 1), ids(3)])
                status = draw.choice(["ok", "error"])
                calls = [call(model, draw, "planner", prompt, said)]
                if draw.random() < 0.7:
                    calls.append(call(model, draw, "writer", question, ids(draw.randint(1, 3))))
                observation = {"status": status, "text": "."}
                turns.append(Turn(index=len(turns) + 1, calls=tuple(calls), observation=observation))
                prompt = prompt + said + draw.choice(results)
            reward = Score(draw.choice([0.0, 0.5, 1.0]) if place else 1.0)
            group.append(Trajectory(id=f"{task}-{place}", task_id=str(task), turns=tuple(turns), reward=reward))
        group.append(group[0].model_copy(update={"id": f"{task}-low", "reward": Score(0.0)}))
        groups.append(group)
    return groups


def call(model, draw, role, prompt, completion):
    with torch.no_grad():
        now = logprobs_of(model, prompt, completion)[0].tolist()
    return Call(
        role=role,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(value + draw.gauss(0, 0.2) for value in now),
        sampling=Sampling(temperature=1.0, max_tokens=MAX_TOKENS),
    )


# -- plain loops -------------------------------------------------------------------------------------------------------


def logprobs_of(model, prompt, completion):
    """Of a completion's tokens, and the entropies of what they were drawn from, by one forward pass."""
    every = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return every[range(len(completion)), list(completion)], -(every.exp() * every).sum(-1)


def plain(learner, groups, config):
    """The loss, written out: `.policy` is the copy of the model that it is a function of."""
    policy, reference = copy.deepcopy(learner.model), copy.deepcopy(learner.reference)
    policy.zero_grad()
    roles = {name: (one.share, one.kl) for name, one in config.roles.items()} or {"planner": (1.0, 1.0)}
    total = torch.zeros((), dtype=torch.float64)
    for role, (share, kl) in roles.items():
        # Trajectories with rows; a row is a list of calls with their advantages.
        trajectories = []
        for group in groups:
            calls = [[one for one in each.calls if one.role == role] for each in group]
            for own, values in zip(calls, advantages_of(group, calls, config), strict=True):
                by_call = {id(one): value for one, value in zip(own, values, strict=True)}
                rows = [[(one, by_call[id(one)]) for one in run] for run in runs_of(own, config.turns)]
                trajectories += [rows] if rows else []
        for rows in trajectories:
            for row in rows:
                weight = weight_of(row, rows, trajectories, config.loss.aggregation)
                total = total + share / sum(one for one, _ in roles.values()) * weight * of_row(
                    policy, reference, row, config.loss, kl
                )
    total.policy = policy
    return total


def of_row(policy, reference, row, loss, kl):
    """The sum over a row's tokens."""
    parts = []
    for one, advantage in row:
        new, entropy = logprobs_of(policy, one.prompt_ids, one.completion_ids)
        before = logprobs_of(reference, one.prompt_ids, one.completion_ids)[0].detach()
        parts.append((new, torch.tensor(one.logprobs, dtype=torch.float64), before, entropy, advantage))
    differences = torch.cat([new - old for new, old, *_ in parts])
    of_sequence = differences.mean().exp()
    total = torch.zeros((), dtype=torch.float64)
    for new, old, before, entropy, advantage in parts:
        for t in range(len(new)):
            ratio = (new[t] - old[t]).exp()
            if loss.surrogate == "cispo":
                surrogate = min(ratio.item(), 1 + loss.clip_high) * advantage * new[t]
            else:
                if loss.surrogate == "gspo":
                    # GSPO-token: the sequence's value, the token's gradient.
                    ratio = of_sequence.detach() * (new[t] - new[t].detach()).exp()
                bounded = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
                surrogate = torch.minimum(ratio * advantage, bounded * advantage)
            difference = before[t] - new[t]
            penalty = difference.exp() - difference - 1
            total = total - surrogate + loss.kl_coefficient * kl * penalty - loss.entropy_coefficient * kl * entropy[t]
    return total


def weight_of(row, rows, trajectories, aggregation):
    tokens = sum(len(one.completion_ids) for one, _ in row)
    every = [each for one in trajectories for each in one]
    return {
        "trajectory-turn-token": 1 / len(trajectories) / len(rows) / tokens,
        "token-mean": 1 / sum(len(one.completion_ids) for each in every for one, _ in each),
        "seq-mean-token-mean": 1 / len(every) / tokens,
        "seq-mean-token-sum": 1 / len(every),
        "seq-mean-token-sum-norm": 1 / len(every) / MAX_TOKENS,
    }[aggregation]


def normalized(values, by_std=True):
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean, std = statistics.fmean(values), statistics.stdev(values) + 1e-6
    return [(value - mean) / (std if by_std else 1.0) for value in values]


def returns_of(group, rewards, calls, discount, cost):
    """A list a trajectory: what each call earned, and those after it, less the costs of errors."""
    found = []
    for i, own in enumerate(calls):
        failed = [turn for turn in group[i].turns if turn.observation.status == "error"]
        bad = [any(one is each for turn in failed for each in turn.calls) for one in own]
        found.append(
            [
                rewards[i] * discount ** (len(own) - 1 - t)
                - sum(cost * discount ** (u - t) for u in range(t, len(own)) if bad[u])
                for t in range(len(own))
            ]
        )
    return found


def advantages_of(group, calls, config):
    """A list a trajectory, of a number a call."""
    rewards = [each.reward.value for each in group]
    kind = config.advantage.type if config.advantage else None
    if kind == "gigpo":
        by_std = config.advantage.config.normalize_by_std
        returns = returns_of(group, rewards, calls, 0.95, config.advantage.config.error_cost)
        episodes = normalized(rewards, by_std)
        found = []
        for i, own in enumerate(calls):
            found.append([])
            for t, one in enumerate(own):
                others = [
                    returns[j][u]
                    for j, theirs in enumerate(calls)
                    for u, other in enumerate(theirs)
                    if other.prompt_ids == one.prompt_ids
                ]
                step = 0.0
                if len(set(others)) > 1:
                    spread = statistics.stdev(others) + 1e-6 if by_std else 1.0
                    step = (returns[i][t] - statistics.fmean(others)) / spread
                found[-1].append(episodes[i] + step)
        return found
    if kind == "return_to_go":
        returns = returns_of(group, rewards, calls, 0.9, 0.1)
        found = []
        for own in returns:
            found.append([])
            for t, value in enumerate(own):
                same = [other[t] for other in returns if len(other) > t]
                spread = statistics.stdev(same) + 1e-6 if len(set(same)) > 1 else 1.0
                found[-1].append((value - statistics.fmean(same)) / spread if len(set(same)) > 1 else 0.0)
        return found
    if config.baseline == "leave_one_out":
        values = [
            value - statistics.fmean(rewards[:i] + rewards[i + 1 :]) if len(set(rewards)) > 1 else 0.0
            for i, value in enumerate(rewards)
        ]
    else:
        values = normalized(rewards, config.normalize_by_std)
    return [[value] * len(own) for value, own in zip(values, calls, strict=True)]
