"""Rows: whose calls they hold, which advantage they get, and that their weights are the aggregate."""

import asyncio
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from midstream.core.engine import Request
from midstream.core.trajectory import Call, ErrorInfo, Message, Sampling, Score, Trajectory, Turn
from midstream.engines.local.engine import TransformersLocal
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.training.losses import Aggregation, PolicyLoss
from midstream.training.rows import build_rows, group_advantages, split_minibatches
from midstream.training.settings import OverlongConfig, TrainingConfig
from support.errors import raises
from support.llm_server import LLMServer

MAX_TOKENS = 9
CASES = json.loads((Path(__file__).parent / "golden" / "rl.json").read_text())["cases"]
BROADCAST = next(case for case in CASES if case["kind"] == "flow_grpo_broadcast")


def built(groups, *, role="planner", seed=0, loss=None, **settings):
    """`build_rows` with some settings of the recipe changed."""
    if "aggregation" in settings:
        loss = {**(loss or {}), "aggregation": settings.pop("aggregation")}
    return build_rows(groups, TrainingConfig(loss=PolicyLoss(**(loss or {})), **settings), role=role, seed=seed)


def call(n, *, role="planner", ids=True, temperature=0.5):
    tokens = tuple(range(10, 10 + n)) if ids else ()
    return Call(
        role=role,
        prompt_ids=(1, 2, 3) if ids else (),
        completion_ids=tokens,
        logprobs=(-0.5,) * len(tokens),
        sampling=Sampling(temperature=temperature, max_tokens=MAX_TOKENS),
    )


def trajectory(name, reward, turns, *, task="t", status="ok", error=None):
    """`turns` holds the planner's token counts, or calls."""
    calls = [one if isinstance(one, Call) else call(one) for one in turns]
    return Trajectory(
        id=name,
        task_id=task,
        turns=tuple(Turn(index=i, calls=(one, call(2, role="verifier"))) for i, one in enumerate(calls, start=1)),
        closing_calls=(call(4, role="generator"),),
        reward=None if reward is None else Score(value=reward),
        status=status,
        error=error,
    )


def failed(name):
    return trajectory(name, None, [2], status="error", error=ErrorInfo(type="EngineError", message="HTTP 503"))


def golden_groups():
    groups = defaultdict(list)
    for i, one in enumerate(BROADCAST["input"]["rollouts"]):
        groups[one["query"]].append(trajectory(str(i), one["reward"], one["turns"], task=one["query"]))
    return list(groups.values())


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("trajectories", "row_advantage_group_over_rollouts"),
        ("turns", "row_advantage_group_over_turn_rows"),
    ],
)
def test_broadcast_agrees_with_verl(over, expected):
    batch = built(golden_groups(), advantage_over=over)
    assert [len(row.completion_ids) for row in batch.rows] == [row["n_tokens"] for row in BROADCAST["input"]["rows"]]
    assert [row.advantage for row in batch.rows] == pytest.approx(BROADCAST["expected"][expected], abs=1e-9)


def test_advantages_over_trajectories_do_not_depend_on_turn_counts():
    short = built([[trajectory("a", 1.0, [2]), trajectory("b", 0.0, [2])]])
    long = built([[trajectory("a", 1.0, [2] * 5), trajectory("b", 0.0, [2])]])
    assert {row.advantage for row in short.rows} == {row.advantage for row in long.rows}


def test_a_row_holds_one_planner_call_as_it_was_sampled():
    batch = built([[trajectory("a", 1.0, [3, 1]), trajectory("b", 0.0, [2])]])
    first = batch.rows[0]
    assert (first.prompt_ids, first.completion_ids) == ((1, 2, 3), (10, 11, 12))
    assert first.old_logprobs == (-0.5, -0.5, -0.5)
    assert (first.temperature, first.trajectory_id) == (0.5, "a")
    assert [row.trajectory_id for row in batch.rows] == ["a", "a", "b"]
    assert (batch.groups, batch.groups_uniform, batch.groups_broken, batch.trajectories) == (1, 0, 0, 2)
    assert batch.left_out == {}


def test_another_role_can_be_trained():
    batch = built([[trajectory("a", 1.0, [3]), trajectory("b", 0.0, [3])]], role="generator")
    assert [len(row.completion_ids) for row in batch.rows] == [4, 4]


def test_greedy_calls_record_logprobs_of_temperature_one():
    group = [trajectory(name, reward, [call(2, temperature=0.0)]) for name, reward in (("a", 1.0), ("b", 0.0))]
    assert [row.temperature for row in built([group]).rows] == [1.0, 1.0]


def test_final_credit_goes_to_the_last_call_alone_and_keeps_the_kl():
    group = [trajectory("a", 1.0, [3, 1, 2]), trajectory("b", 0.0, [2])]
    final, broadcast = built([group], credit="final"), built([group])
    high = group_advantages([1.0, 0.0])[0]
    assert [row.advantage for row in final.rows] == [0.0, 0.0, high, -high]
    assert [row.advantage for row in broadcast.rows] == [high, high, high, -high]
    assert [row.kl_weight for row in final.rows] == [row.kl_weight for row in broadcast.rows]
    assert all(row.kl_weight > 0 for row in final.rows)


def test_final_credit_is_not_passed_on_when_the_last_call_cannot_be_trained():
    group = [trajectory("a", 1.0, [3, call(2, ids=False)]), trajectory("b", 0.0, [2])]
    assert [row.advantage > 0 for row in built([group], credit="final").rows] == [False, False]


def test_what_failed_is_left_out_of_the_statistics_and_counted():
    alive = [trajectory("a", 1.0, [2]), trajectory("b", 0.0, [3])]
    unscored = trajectory("c", None, [2])
    mixed = built([[*alive, unscored, failed("d"), failed("e")]])
    assert mixed.rows == built([alive]).rows
    assert mixed.left_out == {"trajectory error: EngineError": 2, "trajectory without a reward": 1}
    assert mixed.trajectories == 2


def test_a_group_with_one_finished_trajectory_is_broken():
    whole = [trajectory("a", 1.0, [2]), trajectory("b", 0.0, [3])]
    batch = built([whole, [trajectory("c", 1.0, [2]), failed("d")], [failed("e"), failed("f")]])
    assert batch.rows == built([whole]).rows
    assert (batch.groups, batch.groups_broken, batch.trajectories) == (3, 2, 2)
    assert batch.left_out == {
        "group with fewer than two finished trajectories": 1,
        "trajectory error: EngineError": 3,
    }


def test_nothing_usable_gives_no_rows():
    for mode in get_args(Aggregation):
        batch = built([[failed("a"), failed("b")]], aggregation=mode)
        assert (batch.rows, batch.groups_broken) == ((), 1)


def test_a_row_without_a_gradient_is_left_out_and_changes_no_other():
    """Without a KL term: of uniform groups, of turns without credit. A loss of your own may need them."""
    groups = [[trajectory("a", 1.0, [2, 3]), trajectory("b", 0.0, [4])], *uniform_groups(2)]
    with_kl = built(groups, credit="final")
    without = built(groups, credit="final", loss={"kl_coefficient": 0.0})
    kept = [row for row in with_kl.rows if row.advantage]
    assert without.rows == tuple(kept)
    assert (len(kept), len(with_kl.rows)) == (2, 11)
    assert without.left_out == {"row whose gradient is 0 (advantage 0, no KL term)": 9}
    assert (without.trajectories, without.groups_uniform) == (with_kl.trajectories, 2)
    assert built(uniform_groups(2), loss={"kl_coefficient": 0.0}).rows == ()

    class Own(PolicyLoss):
        pass

    assert len(build_rows(groups, TrainingConfig(loss=Own(kl_coefficient=0.0), credit="final")).rows) == 11


def test_a_reward_that_is_not_finite_stops_training():
    with raises("not-finite", "nan", "place 1", "'t'"):
        built([[trajectory("a", 1.0, [2]), trajectory("b", float("nan"), [2])]])


def test_calls_without_ids_are_counted_and_the_rest_is_trained():
    group = [trajectory("a", 1.0, [3, call(2, ids=False)]), trajectory("b", 0.0, [call(2, ids=False)])]
    batch = built([group])
    assert [(row.trajectory_id, len(row.completion_ids)) for row in batch.rows] == [("a", 3)]
    assert batch.left_out == {
        "call without token ids": 2,
        "trajectory without a row (its reward still counts in its group)": 1,
    }
    assert batch.rows[0].advantage > 0
    assert batch.rows[0].weight * 3 == pytest.approx(1.0)


def test_an_engine_without_token_ids_is_refused():
    group = [trajectory(name, reward, [call(2, ids=False)]) for name, reward in (("a", 1.0), ("b", 0.0))]
    with raises("token-ids-missing", "2 planner calls", "token_exact"):
        built([group])


def test_a_role_that_never_spoke_is_refused():
    with raises("unknown-role", "writer", "generator, planner"):
        built([[trajectory("a", 1.0, [2]), trajectory("b", 0.0, [2])]], role="writer")


def test_ids_and_logprobs_of_different_numbers_are_an_engine_error():
    crooked = call(3).model_copy(update={"logprobs": (-0.5,)})
    with raises("token-ids-missing", "trajectory a has 3", "but 1"):
        built([[trajectory("a", 1.0, [crooked]), trajectory("b", 0.0, [2])]])


# -- what was sampled is what is trained: never the tokens of its text ------------------------------------------------

A, B, AB, END = range(4)  # the tokenizer writes "ab" as one token, a model may say it as two


@pytest.fixture
def merging():
    """A tokenizer that merges "a" and "b"."""
    inner = Tokenizer(models.BPE(vocab={"a": A, "b": B, "ab": AB, "<end>": END}, merges=[("a", "b")]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    assert tokenizer.encode("ab") == [AB]
    return tokenizer


def retokenized(tokenizer, call):
    """The ids of a call's text, with the end token where it was sampled."""
    ended = call.completion_ids[-1] == END
    return (*tokenizer.encode(call.completion), *((END,) if ended else ()))


async def sample_and_close(engine, requests):
    try:
        return [await engine.sample(request) for request in requests]
    finally:
        await engine.close()


def rows_of(calls):
    group = [trajectory(str(i), float(i % 2), [one]) for i, one in enumerate(calls)]
    return built([group]).rows


def test_ids_sampled_in_process_are_trained_though_their_text_has_others(merging):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=32, bos_token_id=None, eos_token_id=END,
    )  # fmt: skip
    engine = TransformersLocal(LlamaForCausalLM(config), merging)
    sampling = Sampling(temperature=0.9, max_tokens=MAX_TOKENS)
    requests = [Request(role="planner", prompt="ba", sampling=sampling, seed=seed) for seed in range(20)]
    calls = asyncio.run(sample_and_close(engine, requests))
    drifted = [call for call in calls if call.completion_ids != retokenized(merging, call)]
    assert any((A, B) in zip(call.completion_ids, call.completion_ids[1:], strict=False) for call in drifted)
    for row, call in zip(rows_of(drifted), drifted, strict=True):
        assert (row.prompt_ids, row.completion_ids) == ((B, A), call.completion_ids)
        with torch.no_grad():
            logits = engine.model(torch.tensor([row.prompt_ids + row.completion_ids])).logits[0, 1:-1] / 0.9
        own = logits.log_softmax(-1).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        assert row.old_logprobs == pytest.approx(own.tolist(), abs=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_sampled_by_a_server_are_trained_though_their_text_has_others(merging, stream):
    ids, logprobs, prompt_ids = [A, B, AB, END], [-0.5, -1.5, -0.25, -2.0], [B, A, B]

    def reply(body):
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "abab"},
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": value} for value in logprobs]},
        }
        return {"choices": [choice], "prompt_token_ids": prompt_ids}

    request = Request(role="planner", messages=(Message(role="user", content="bab"),))
    with LLMServer(reply) as server:
        config = OpenAIConfig(model="m", base_url=server.base_url, token_ids=True, stream=stream)
        calls = asyncio.run(sample_and_close(OpenAICompatibleEngine(config, "planner"), [request, request]))
    assert retokenized(merging, calls[0]) == (AB, AB, END) != tuple(ids)
    for row in rows_of(calls):
        assert (row.prompt_ids, row.completion_ids) == (tuple(prompt_ids), tuple(ids))
        assert row.old_logprobs == tuple(logprobs)


# -- weights ---------------------------------------------------------------------------------------------------------


def by_loops(trajectories, mode):
    """The aggregate written out: `trajectories` holds turns, a turn holds its tokens' values."""
    turns = [turn for one in trajectories for turn in one]
    if mode == "token-mean":
        return sum(map(sum, turns)) / sum(map(len, turns))
    if mode == "seq-mean-token-mean":
        return sum(sum(turn) / len(turn) for turn in turns) / len(turns)
    if mode == "seq-mean-token-sum":
        return sum(map(sum, turns)) / len(turns)
    if mode == "seq-mean-token-sum-norm":
        return sum(map(sum, turns)) / len(turns) / MAX_TOKENS
    means = [sum(sum(turn) / len(turn) for turn in one) / len(one) for one in trajectories]
    return sum(means) / len(means)


lengths = st.lists(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=2, max_size=4), min_size=1, max_size=4
)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("mode", get_args(Aggregation))
@given(shape=lengths, seed=st.integers(0, 2**31))
def test_weights_make_the_summed_loss_the_aggregate(mode, shape, seed):
    draws = torch.Generator().manual_seed(seed)
    groups = [
        [
            trajectory("same id everywhere", torch.rand((), generator=draws).item(), turns, task=str(g))
            for turns in group
        ]
        for g, group in enumerate(shape)
    ]
    rows = built(groups, aggregation=mode).rows
    width = max(len(row.completion_ids) for row in rows)
    values = torch.randn(len(rows), width, dtype=torch.float64, generator=draws)
    mask = torch.tensor([[j < len(row.completion_ids) for j in range(width)] for row in rows])

    weights = torch.tensor([row.weight for row in rows], dtype=torch.float64)[:, None]
    summed = (weights * values * mask).sum()
    kept = iter(row[chosen].tolist() for row, chosen in zip(values, mask, strict=True))
    written_out = by_loops([[next(kept) for _ in turns] for group in shape for turns in group], mode)
    assert summed.item() == pytest.approx(written_out, abs=1e-12)
    assert [row.kl_weight for row in rows] == [row.weight for row in rows]


def loss_at_ratio_one(rows, reference_gap):
    """The summed loss where the policy is the sampling policy and the reference `reference_gap` below it."""

    def spread(name):
        return torch.tensor([getattr(row, name) for row in rows for _ in row.completion_ids], dtype=torch.float64)

    policy = torch.tensor([value for row in rows for value in row.old_logprobs], dtype=torch.float64)
    weights, kl_weights = spread("weight"), spread("kl_weight")
    loss = PolicyLoss(kl_coefficient=0.1)
    return loss.per_token(policy, policy, policy - reference_gap, spread("advantage"), weights, kl_weights).loss.sum()


def test_the_loss_of_a_batch_is_the_papers_objective():
    """-J = -mean_i A_i + beta * mean KL, and advantages cancel whatever the number of turns and tokens."""
    group = [trajectory("a", 1.0, [2]), trajectory("b", 0.0, [1, 3, 2])]
    k3 = torch.tensor(-1.0, dtype=torch.float64).exp().item()
    assert loss_at_ratio_one(built([group]).rows, 1.0).item() == pytest.approx(0.1 * k3, abs=1e-12)
    by_token = loss_at_ratio_one(built([group], aggregation="token-mean").rows, 1.0)
    assert by_token.item() > 0.1 * k3 + 0.1  # averages over tokens favor the longer one, which failed


# -- uniform groups --------------------------------------------------------------------------------------------------


def uniform_groups(count):
    return [[trajectory(f"{g}/{i}", 1.0, [2, 3], task=str(g)) for i in range(2)] for g in range(count)]


def test_uniform_groups_have_no_advantage_and_keep_their_kl():
    contrast = [trajectory("a", 1.0, [2]), trajectory("b", 0.0, [2])]
    batch = built([contrast, *uniform_groups(1)])
    assert batch.groups_uniform == 1
    assert [row.advantage for row in batch.rows[2:]] == [0.0] * 4
    assert all(row.kl_weight == row.weight > 0 for row in batch.rows)


def test_drawn_uniform_groups_are_reweighted_without_bias():
    groups = uniform_groups(400)
    whole = built(groups)
    drawn = built(groups, uniform_kl_fraction=0.25, seed=1)
    kept = len(drawn.rows) / len(whole.rows)
    assert 0.19 < kept < 0.31
    assert {row.kl_weight / row.weight for row in drawn.rows} == {4.0}
    assert sum(row.kl_weight * len(row.completion_ids) for row in drawn.rows) == pytest.approx(kept / 0.25)
    assert {row.weight for row in drawn.rows} == {row.weight for row in whole.rows}  # averaged before the draw
    assert drawn.trajectories == whole.trajectories == 800
    left = drawn.left_out["uniform group whose KL term was not drawn"]
    assert left + len(drawn.rows) / 2 == 800
    again = built(groups, uniform_kl_fraction=0.25, seed=2)
    assert {row.trajectory_id for row in again.rows} != {row.trajectory_id for row in drawn.rows}


def test_groups_with_contrast_are_never_drawn():
    contrast = [trajectory("a", 1.0, [2]), trajectory("b", 0.0, [2])]
    batch = built([contrast, *uniform_groups(3)], uniform_kl_fraction=1e-12)
    assert [row.trajectory_id for row in batch.rows] == ["a", "b"]
    assert [row.weight for row in batch.rows] == [1 / 16, 1 / 16]  # 8 trajectories, 1 turn, 2 tokens
    assert batch.left_out == {"uniform group whose KL term was not drawn": 6}


# -- mini-batches ----------------------------------------------------------------------------------------------------


@given(size=st.integers(1, 40), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_minibatches_partition_the_groups_evenly(size, count, seed):
    groups = list(range(size))
    if count > size:
        with pytest.raises(ValueError, match=f"cannot split {size} groups into {count}"):
            split_minibatches(groups, count, seed)
        return
    parts = split_minibatches(groups, count, seed)
    assert Counter(one for part in parts for one in part) == Counter(groups)
    assert len(parts) == count
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == split_minibatches(groups, count, seed)


def test_minibatches_are_shuffled_by_their_seed():
    first, second = (split_minibatches(list(range(20)), 2, seed) for seed in (0, 1))
    assert first != second
    assert first[0] != sorted(first[0])
    with pytest.raises(ValueError, match="into 0"):
        split_minibatches([1], 0, 0)


def test_a_split_changes_no_advantage_and_each_part_averages_over_itself():
    contrast = [
        [trajectory(f"{g}/{i}", float(i == g), [i + 1, g + 1], task=str(g)) for i in range(3)] for g in range(3)
    ]
    groups = contrast + uniform_groups(2)
    whole = built(groups, uniform_kl_fraction=0.5)
    parts = [built(part, uniform_kl_fraction=0.5) for part in split_minibatches(groups, 2, seed=4)]
    by_row = Counter((row.trajectory_id, row.completion_ids, row.advantage) for row in whole.rows)
    assert by_row == Counter(
        (row.trajectory_id, row.completion_ids, row.advantage) for part in parts for row in part.rows
    )
    assert sum(part.trajectories for part in parts) == whole.trajectories
    for part in split_minibatches(groups, 2, seed=4):
        rows = built(part).rows
        assert sum(row.weight * len(row.completion_ids) for row in rows) == pytest.approx(1.0)


# -- streams: one row a trajectory -----------------------------------------------------------------------------------


def stream(name, reward, *parts, task="t", finish="stop", stop_reason="answered"):
    """A policy's trajectory; `parts` are (tokens appended, tokens sampled), the last of them the closing call's."""
    calls, ids = [], (1, 2, 3)
    for appended, sampled in parts:
        ids += tuple(range(50, 50 + appended))
        tokens = tuple(range(10, 10 + sampled))
        calls.append(
            Call(
                role="policy",
                prompt_ids=ids,
                completion_ids=tokens,
                logprobs=(-0.5,) * sampled,
                sampling=Sampling(max_tokens=MAX_TOKENS),
                finish_reason="stop",
            )
        )
        ids += tokens
    calls[-1] = calls[-1].model_copy(update={"finish_reason": finish})
    return Trajectory(
        id=name,
        task_id=task,
        turns=tuple(Turn(index=i, calls=(one,)) for i, one in enumerate(calls[:-1], start=1)),
        closing_calls=(calls[-1],),
        reward=Score(value=reward),
        stop_reason=stop_reason,
    )


def build(*group, turns="merged", **settings):
    return built([list(group)], role="policy", turns=turns, **settings)


def test_a_stream_is_one_row_and_its_output_is_masked():
    batch = build(stream("a", 1.0, (0, 3), (4, 2), (5, 1)), stream("b", 0.0, (0, 2)))
    first, second = batch.rows
    mask = [True] * 3 + [False] * 4 + [True] * 2 + [False] * 5 + [True]
    assert (list(first.sampled), second.sampled) == (mask, ())
    assert [value for value, one in zip(first.old_logprobs, mask, strict=True) if one] == [-0.5] * 6
    assert (batch.trajectories, batch.left_out) == (2, {})


@pytest.mark.parametrize(
    ("turns", "expected"),
    [("calls", [1 / 4, 1 / 12, 1 / 4, 1 / 12]), ("merged", [1 / 8, 1 / 4, 1 / 12])],
)
def test_a_call_that_continues_another_is_a_turn_of_equation_5_unless_calls_are_merged(turns, expected):
    """1 / (G T_i |a_t|), with G = 2: both trajectories took two turns, of 1 and 3 tokens."""

    def asked(prompt, *reply):
        return call(len(reply)).model_copy(update={"prompt_ids": prompt, "completion_ids": reply})

    group = [
        trajectory("a", 1.0, [asked((1, 2), 3), asked((1, 2, 3, 4), 5, 6, 7)]),
        trajectory("b", 0.0, [asked((1, 2), 9), asked((1, 2, 8, 4), 5, 6, 7)]),
    ]
    rows = built([group], turns=turns).rows
    assert [row.weight for row in rows] == pytest.approx(expected)
    assert sum(row.weight * sum(row.sampled or [1] * len(row.completion_ids)) for row in rows) == pytest.approx(1)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("trajectory-turn-token", [1 / (2 * 6), 1 / (2 * 2)]),
        ("token-mean", [1 / 8, 1 / 8]),
        ("seq-mean-token-mean", [1 / (2 * 6), 1 / (2 * 2)]),
        ("seq-mean-token-sum", [1 / 2, 1 / 2]),
        ("seq-mean-token-sum-norm", [1 / (2 * MAX_TOKENS), 1 / (2 * MAX_TOKENS)]),
    ],
)
def test_weights_of_a_stream_count_sampled_tokens_alone(mode, expected):
    group = stream("a", 1.0, (0, 3), (4, 2), (5, 1)), stream("b", 0.0, (0, 2))
    assert [row.weight for row in build(*group, aggregation=mode).rows] == pytest.approx(expected)


def test_a_call_without_ids_in_a_stream_is_read_and_not_learnt():
    whole = stream("a", 1.0, (0, 3), (4, 2), (5, 1))
    [unknown] = whole.turns[1].calls
    bare = unknown.model_copy(update={"logprobs": (), "completion_ids": (), "prompt_ids": ()})
    broken = whole.model_copy(update={"turns": (whole.turns[0], Turn(index=2, calls=(bare,)))})
    batch = build(broken, stream("b", 0.0, (0, 2)))
    assert batch.rows[0].sampled == (True,) * 3 + (False,) * 11 + (True,)
    assert batch.left_out == {"call without token ids": 1}


def test_final_credit_of_a_stream_is_its_rows():
    group = stream("a", 1.0, (0, 3), (4, 2)), stream("b", 0.0, (0, 2))
    assert [row.advantage for row in build(*group, credit="final").rows] == [
        row.advantage for row in build(*group).rows
    ]


def test_leaving_one_out_is_passed_on():
    group = [stream(str(i), float(i == 0), (0, 2)) for i in range(3)]
    rows = build(*group, baseline="leave_one_out", normalize_by_std=False).rows
    assert [row.advantage for row in rows] == pytest.approx([1.0, -0.5, -0.5])


def test_length_costs_reward_where_advantages_are_taken_and_nowhere_else():
    """6 sampled tokens and 9 of output: 15 after the prompt, 5 into a buffer of 10."""
    long, short = stream("a", 1.0, (0, 3), (4, 2), (5, 1)), stream("b", 1.0, (0, 2))
    batch = build(long, short, overlong=OverlongConfig(limit=20, buffer=10), normalize_by_std=False)
    assert [row.advantage for row in batch.rows] == pytest.approx([-0.25, 0.25])
    assert (batch.groups_uniform, long.reward.value) == (0, 1.0)
    assert build(long, short).groups_uniform == 1


def test_the_length_of_a_planners_trajectory_is_that_of_its_longest_reply():
    group = [trajectory("a", 1.0, [2, 7, 3]), trajectory("b", 1.0, [4, 4, 4])]
    batch = built([group], overlong=OverlongConfig(limit=8, buffer=4), normalize_by_std=False)
    assert {row.trajectory_id: row.advantage for row in batch.rows} == pytest.approx({"a": -0.375, "b": 0.375})


@pytest.mark.parametrize(
    "how",
    [{"finish": "length"}, *({"stop_reason": reason} for reason in ("token_limit", "context_limit", "time_limit"))],
    ids=str,
)
def test_what_was_cut_off_can_be_masked_and_counts_in_its_group(how):
    cut, others = stream("a", 0.0, (0, 3), **how), [stream("b", 1.0, (0, 2)), stream("c", 0.0, (0, 2))]
    plain, masked = build(cut, *others), build(cut, *others, mask_cut_off=True)
    assert [row.trajectory_id for row in masked.rows] == ["b", "c"]
    assert [row.advantage for row in masked.rows] == [row.advantage for row in plain.rows[1:]]
    assert [row.weight for row in masked.rows] == pytest.approx([1 / 4, 1 / 4])
    assert masked.left_out == {"trajectory that a limit ended (its reward still counts in its group)": 1}
    assert (masked.trajectories, len(plain.rows), plain.left_out) == (2, 3, {})


def test_a_refused_request_is_no_row_and_not_the_last_reply():
    refused = Call(role="policy", error=ErrorInfo(type="PromptTooLongError", message=""))
    full, other = stream("a", 1.0, (0, 3), stop_reason="context_limit"), stream("b", 0.0, (0, 2))
    group = full.model_copy(update={"closing_calls": (*full.closing_calls, refused)}), other
    last = build(*group, credit="final")
    assert [row.advantage for row in last.rows] == [row.advantage for row in build(full, other).rows]
    assert last.rows[0].advantage > 0
    assert last.left_out == {}


def test_a_reply_that_was_cut_off_before_the_last_is_no_cut_off_trajectory():
    group = stream("a", 0.0, (0, 3), (1, 2)), stream("b", 1.0, (0, 2))
    early = group[0].turns[0].calls[0].model_copy(update={"finish_reason": "length"})
    continued = group[0].model_copy(update={"turns": (Turn(index=1, calls=(early,)),)})
    assert len(build(continued, group[1], mask_cut_off=True).rows) == 2


def test_several_roles_have_averages_of_their_own():
    """By hand: three quarters for the planner's three calls in two trajectories, a quarter for the two generators'."""
    group = [trajectory("a", 1.0, [3, 1]), trajectory("b", 0.0, [2])]
    batch = built([group], roles={"planner": {"share": 3.0}, "generator": {"kl": 2.0}})
    high = group_advantages([1.0, 0.0])[0]
    assert [(row.role, len(row.completion_ids), row.advantage) for row in batch.rows] == [
        ("planner", 3, high), ("planner", 1, high), ("planner", 2, -high),
        ("generator", 4, high), ("generator", 4, -high),
    ]  # fmt: skip
    shares = [0.75 / 2 / 2 / 3, 0.75 / 2 / 2 / 1, 0.75 / 2 / 2, 0.25 / 2 / 4, 0.25 / 2 / 4]
    assert [row.weight for row in batch.rows] == pytest.approx(shares)
    assert [row.kl_weight for row in batch.rows] == pytest.approx([*shares[:3], 2 * shares[3], 2 * shares[4]])
    assert (batch.trajectories, batch.groups) == (2, 1)


def test_a_role_without_calls_has_no_share_and_roles_without_any_are_refused():
    group = [trajectory("a", 1.0, [3]), trajectory("b", 0.0, [2])]
    failed_call = call(2, role="critic").model_copy(update={"error": ErrorInfo(type="EngineError", message="too long")})
    asked = [one.model_copy(update={"closing_calls": (failed_call,)}) for one in group]
    for trajectories in (group, asked):
        batch = built([trajectories], roles=["planner", "critic"])
        assert [row.weight for row in batch.rows] == pytest.approx([1 / 2 / 3, 1 / 2 / 2])
    with raises("token-ids-missing", "critic"):
        built([asked], roles=["critic"])
    with raises("unknown-role", "critic", "judge"):
        built([group], roles=["critic", "judge"])


def test_calls_of_one_row_keep_their_advantages():
    first = call(2)
    second = call(1).model_copy(update={"prompt_ids": (1, 2, 3, 10, 11, 7, 8)})
    group = [trajectory("a", 1.0, [first, second]), trajectory("b", 0.0, [2])]

    def advantage(rewards, trajectories, calls):
        assert [len(own) for own in calls] == [2, 1]
        return [[0.5, -1.0], 0.25]

    rows = build_rows([group], TrainingConfig(turns="merged"), advantage=advantage).rows
    assert (rows[0].advantages, rows[0].sampled) == ((0.5, 0.5, 0.0, 0.0, -1.0), (True, True, False, False, True))
    assert (rows[1].advantages, rows[1].advantage) == ((), 0.25)
    apart = build_rows([group], TrainingConfig(), advantage=advantage).rows
    assert [(row.advantage, row.advantages) for row in apart] == [(0.5, ()), (-1.0, ()), (0.25, ())]


def test_calls_of_a_uniform_group_keep_their_advantages_where_its_kl_term_is_not_drawn():
    group = [trajectory("a", 1.0, [2]), trajectory("b", 1.0, [3])]
    config = TrainingConfig(uniform_kl_fraction=0.25)
    kept = [
        build_rows([group], config, seed=seed, advantage=lambda rewards, trajectories, calls: [[0.5], [0.0]])
        for seed in range(40)
    ]
    drawn = [batch for batch in kept if len(batch.rows) == 2]
    others = [batch for batch in kept if len(batch.rows) == 1]
    assert len(drawn) + len(others) == 40
    assert 3 < len(drawn) < 20
    assert all(row.kl_weight == pytest.approx(4 * row.weight) for batch in drawn for row in batch.rows)
    assert {(row.advantage, row.weight, row.kl_weight) for batch in others for row in batch.rows} == {(0.5, 0.25, 0.0)}
