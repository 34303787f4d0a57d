"""The text of a strategy, and the vote of its chains."""

from __future__ import annotations

import itertools
import random

import pytest

from midstream.components.tables import parse_strategy
from midstream_extra.dser import Dser, is_decided, winner
from support.errors import raises


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("dser:K=8,T=4", Dser(K=8, T=4)),
        (" dser: T = 4 , K = 8", Dser(K=8, T=4)),
        ("dser:K=3,T=0,early_stop=no", Dser(K=3, T=0, early_stop=False)),
    ],
)
def test_a_text_is_a_strategy_and_a_strategy_a_text(text: str, strategy: Dser):
    assert parse_strategy(text) == strategy
    assert parse_strategy(str(strategy)) == strategy


@pytest.mark.parametrize(
    "text",
    ["", "dser", "dser:K=8", "dser:T=4", "dser:K=0,T=4", "dser:K=8,T=-1", "dser:K=8,T=4,K=2", "vote:K=8,T=4",
     "dser:K=8,T=4,stop=no", "dser:K=eight,T=4", "dser:K=8;T=4", "dser:K=8.5,T=4"],
)  # fmt: skip
def test_another_text_is_refused(text: str):
    with raises("strategy-invalid"):
        parse_strategy(text)


def test_a_task_takes_k_times_one_and_two_t_runs():
    assert Dser(K=8, T=4).agent_runs == 72
    assert Dser(K=5, T=0).agent_runs == 5


def test_the_most_frequent_answer_wins_and_of_a_tie_the_lowest_chain():
    assert winner({1: "a", 2: "b", 3: "b"}) == 2
    assert winner({3: "b", 1: "a", 2: "b", 4: "a"}) == 1  # in any order
    assert winner({1: None, 2: "b", 3: None}) == 2
    assert winner({1: None}) is None
    assert winner({}) is None


@pytest.mark.matrix(2)
@pytest.mark.parametrize("chains", [1, 2, 3, 4, 5])
def test_a_vote_is_decided_exactly_if_no_further_answers_change_it(chains: int):
    """Every vote of up to five chains, with every set of pending ones, against all completions."""
    answers, decided, waits = [None, "a", "b", "c"], 0, 0
    for pending in itertools.chain.from_iterable(
        itertools.combinations(range(1, chains + 1), size) for size in range(chains + 1)
    ):
        known = [chain for chain in range(1, chains + 1) if chain not in pending]
        for given in itertools.product(answers, repeat=len(known)):
            keys = dict(zip(known, given, strict=True))
            best = winner(keys)
            completions = itertools.product([*answers, "new"], repeat=len(pending))
            wholes = [keys | dict(zip(pending, rest, strict=True)) for rest in completions]
            unchanged = {winner(whole) for whole in wholes} == {best}
            assert is_decided(keys, pending) == unchanged, (keys, pending)
            decided += unchanged and bool(pending)
            # The answer is known, but a lower chain may write it in another way.
            waits += not unchanged and len({whole.get(winner(whole) or 0) for whole in wholes}) == 1
    assert (decided > 0 and waits > 0) or chains < 3


def test_a_decided_vote_stays_for_many_chains():
    draw, stopped = random.Random(0), 0
    for _ in range(500):
        chains = draw.randrange(2, 40)
        votes = {chain: draw.choice(["a", "a", "b", "c", None]) for chain in range(1, chains + 1)}
        order = draw.sample(list(votes), chains)
        for ended in range(chains + 1):
            known = {chain: votes[chain] for chain in order[:ended]}
            if is_decided(known, order[ended:]):
                assert winner(known) == winner(votes)
                stopped += ended < chains
                break
    assert stopped > 100
