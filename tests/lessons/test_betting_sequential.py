"""The sequential test: its error rate whatever the values are like, and what it finds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UsageError
from midstream.lessons.betting import SHARES, Bets, Sequential

Draw = Callable[[random.Random, int], float]  # the i-th value

values = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]) | st.floats(-1, 1), max_size=40)


def looked(level: float = 0.05, min_effect: float = 0.02, futility: float = 0.1) -> Sequential:
    return Sequential(level=level, min_effect=min_effect, futility=futility)


def fair(draw: random.Random, i: int) -> float:
    return draw.choice((-1.0, 0.0, 1.0))


def rare_and_large(draw: random.Random, i: int) -> float:
    return 1.0 if draw.random() < 0.05 else -1 / 19


def often_and_small(draw: random.Random, i: int) -> float:
    return -1.0 if draw.random() < 0.05 else 1 / 19


def nearly_all_ties(draw: random.Random, i: int) -> float:
    return draw.choice((-1.0, 1.0)) if draw.random() < 0.03 else 0.0


def uniform(draw: random.Random, i: int) -> float:
    return draw.uniform(-1, 1)


def drifting(draw: random.Random, i: int) -> float:
    """Worse at first, then as good, of another spread every time."""
    size = (1.0, 0.2, 0.6)[i % 3]
    return draw.choice((-size, size)) - (0.1 if i < 50 and size < 1 else 0)


def share(verdict: str, draw: Draw, make: Callable[[], Sequential], *, runs: int, pairs: int, block: int) -> float:
    """How many runs ever say it, with a look after every block."""
    found = 0
    for seed in range(runs):
        chance, one = random.Random(seed), make()
        for start in range(0, pairs, block):
            if one.add([draw(chance, i) for i in range(start, start + block)]) != "undecided":
                break
        found += one.verdict == verdict
    return found / runs


def slack(rate: float, runs: int) -> float:
    """What a share over so many runs exceeds its rate by in one of 1,000 cases."""
    return rate + NormalDist().inv_cdf(0.999) * math.sqrt(rate * (1 - rate) / runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        rare_and_large,
        drifting,
        *(pytest.param(draw, marks=pytest.mark.slow) for draw in (fair, often_and_small, nearly_all_ties, uniform)),
    ],
)
def test_no_effect_is_accepted_at_the_stated_rate_at_most(draw: Draw):
    found = share("better", draw, lambda: looked(level=0.1, futility=1e-9), runs=2000, pairs=160, block=8)
    assert found <= slack(0.1, 2000)


@pytest.mark.slow
def test_looks_at_every_value_cost_no_errors():
    found = share("better", fair, lambda: looked(level=0.2, futility=1e-9), runs=1000, pairs=100, block=1)
    assert 0.05 < found <= slack(0.2, 1000)


@pytest.mark.slow
def test_an_effect_worth_having_is_given_up_at_the_stated_rate_at_most():
    def worth(draw: random.Random, i: int) -> float:
        return 1.0 if draw.random() < 0.6 else -1.0  # mean 0.2

    found = share("not better", worth, lambda: looked(level=1e-9, min_effect=0.2), runs=2000, pairs=240, block=8)
    assert 0.02 < found <= slack(0.1, 2000)


@pytest.mark.parametrize(("with_it", "least"), [(0.45, 0.5), (0.5, 0.9), (0.6, 0.99)])
def test_clear_gains_are_found(with_it: float, least: float):
    def gain(draw: random.Random, i: int) -> float:
        return float(draw.random() < with_it) - float(draw.random() < 0.35)

    assert share("better", gain, lambda: looked(level=0.05 / 6), runs=200, pairs=800, block=32) >= least


def test_clear_harm_is_given_up_soon():
    def harm(draw: random.Random, i: int) -> float:
        return float(draw.random() < 0.15) - float(draw.random() < 0.35)

    assert share("not better", harm, looked, runs=300, pairs=192, block=32) >= 0.95


@pytest.mark.parametrize(("gain", "loss", "chance"), [(1.0, -1.0, 0.5), (1.0, -0.25, 0.2), (0.1, -0.9, 0.9)])
def test_a_fair_bet_keeps_its_stake_on_average(gain: float, loss: float, chance: float):
    """Exactly, over all ways that eight values can fall: the whole guarantee rests on this."""
    stake = 0.0
    for ways in product((True, False), repeat=8):
        wins = sum(ways)
        stake += chance**wins * (1 - chance) ** (8 - wins) * math.exp(Bets().add({gain: wins, loss: 8 - wins}))
    assert stake == pytest.approx(1.0)


def test_bets_are_products():
    expected = sum((1 + one * 0.5) * (1 - one) / len(SHARES) for one in SHARES)
    assert math.exp(Bets().add({0.5: 1, -1.0: 1})) == pytest.approx(expected)


@given(values, st.randoms(use_true_random=False), st.integers(1, 10))
def test_neither_order_nor_blocks_matter(found: list[float], draw: random.Random, size: int):
    shuffled = draw.sample(found, len(found))
    bets, last = Bets(), 0.0
    for start in range(0, len(shuffled), size):
        last = bets.add(Counter(shuffled[start : start + size]))
    assert last == pytest.approx(Bets().add(Counter(found)), abs=1e-9)


@given(values.filter(bool), st.data())
def test_a_higher_value_is_never_worse_evidence(found: list[float], data: st.DataObject):
    place = data.draw(st.integers(0, len(found) - 1))
    raised = [*found[:place], data.draw(st.floats(found[place], 1)), *found[place + 1 :]]
    assert Bets().add(Counter(raised)) >= Bets().add(Counter(found)) - 1e-9


def test_the_first_verdict_stays():
    one = looked()
    assert one.add([1.0] * 40) == "better"
    assert one.add([-1.0] * 400) == "better"
    assert one.evidence >= one.needed == pytest.approx(math.log(20))
    other = looked()
    assert other.add([-1.0] * 40) == "not better"
    assert other.add([1.0] * 400) == "not better"


def test_ties_decide_nothing_soon():
    one = looked()
    assert one.add([0.0] * 100) == "undecided"
    assert one.evidence == 0.0


def test_differences_of_rewards_beyond_0_and_1_are_refused():
    with pytest.raises(UsageError) as caught:
        looked().add([0.0, 1.5])
    assert caught.value.code == "reward-out-of-range"
    assert "1.5" in caught.value.what
