"""As a trie or as padded rows: what costs less, estimated without a clock."""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.support import Choice
from midstream.prefix_tree.tree import tree_of
from midstream.training.passes import padded_chunks, plan_of
from midstream.training.protocols import Row
from midstream.training.settings import LOGITS, LearnerConfig

LARGE = Cost(token=10**8, pair=10**4, predicted=10**7, call=10**7, vocabulary=1000)
CASCADE = Choice("cascade")


def rows_of(count, shared, own):
    """`count` rows that begin with `shared` tokens alike and end with `own` of their own."""
    return [
        Row(
            prompt_ids=tuple(range(1, shared + 1)), completion_ids=tuple(range(i * own, (i + 1) * own)),
            old_logprobs=(0.0,) * own, advantage=1.0, weight=1.0, kl_weight=1.0,
        )
        for i in range(count)
    ]  # fmt: skip


def planned(rows, choice=CASCADE, cost=LARGE, **settings):
    tree = tree_of([row.prompt_ids + row.completion_ids for row in rows])
    return plan_of(rows, tree, choice, cost, LearnerConfig(**settings))


def test_a_shared_prompt_is_computed_once():
    plan = planned(rows_of(8, 400, 20))
    assert plan.backend == "cascade"
    assert sum(stage.end - stage.start for stage in plan.stages) == 400 + 8 * 20


def test_rows_that_share_nothing_are_padded():
    rows = [replace(row, prompt_ids=(1000 + i,) * 50) for i, row in enumerate(rows_of(8, 50, 20))]
    assert planned(rows).backend is None


def test_what_a_small_model_would_save_is_left():
    small = Cost(token=10**6, pair=10**3, predicted=10**4, call=10**6, vocabulary=1000)
    assert planned(rows_of(8, 400, 20), cost=small).backend is None
    assert planned(rows_of(8, 400, 20), cost=small, attention="cascade").backend == "cascade"


def test_many_short_calls_can_cost_more_than_they_save():
    slow_calls = Cost(token=10**8, pair=10**4, predicted=10**7, call=10**12, vocabulary=1000)
    assert planned(rows_of(8, 400, 20), cost=slow_calls).backend is None


def test_a_model_that_cannot_and_rows_beyond_its_window_are_padded():
    rows = rows_of(8, 400, 20)
    assert planned(rows, Choice(None, "cannot")).backend is None
    assert planned(rows, Choice("cascade", longest=419)).backend is None
    assert planned(rows, Choice("cascade", longest=420)).backend == "cascade"


def test_padded_rows_are_distinct_sorted_and_within_the_budget():
    rows = [*rows_of(3, 5, 4), *rows_of(3, 5, 4), *rows_of(2, 30, 6)]
    plan = planned(rows, Choice(None, "cannot"), chunk_tokens=40)
    lengths = [len(plan.batch.tree.ids[one.start : one.end]) for one in plan.batch.tree.segments]
    assert lengths == [9, 9, 9, 36, 36]
    assert [(stage.first, stage.last) for stage in plan.stages] == [(0, 3), (3, 4), (4, 5)]
    assert plan.batch.rows == tuple(rows)


def test_logits_are_made_a_bounded_number_at_a_time():
    assert planned(rows_of(2, 400, 20)).heads_at_once == LOGITS // 1000
    huge = Cost(token=10**8, pair=10**4, predicted=10**7, call=10**7, vocabulary=2 * LOGITS)
    assert planned(rows_of(2, 400, 20), cost=huge).heads_at_once == 1


@pytest.mark.parametrize(
    ("lengths", "limit", "chunks"),
    [
        ([], 10, []),
        ([3, 3, 3], 6, [(0, 2), (2, 3)]),
        ([2, 5, 5], 10, [(0, 2), (2, 3)]),
        ([20, 1], 10, [(0, 1), (1, 2)]),
    ],
)
def test_chunks_count_padding(lengths, limit, chunks):
    assert [(one.start, one.stop) for one in padded_chunks(lengths, limit)] == chunks


def test_operations_are_those_of_the_matrices():
    """By hand: 3 layers of q, k, v, o (8x8, 4x8, 4x8, 8x8) and three 8x16; 11 tokens; embeddings are looked up."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    for tied in (True, False):
        config = Qwen2Config(num_hidden_layers=3, vocab_size=11, tie_word_embeddings=tied, **sizes)
        cost = Cost.of(Qwen2ForCausalLM(config))
        assert cost.token == 2 * 3 * (64 + 32 + 32 + 64 + 3 * 128)
        assert (cost.pair, cost.predicted, cost.vocabulary) == (4 * 8 * 3, 2 * 8 * 11, 11)
