"""Every hand of the Game of 24, and its solution."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product

import pytest

from midstream.core.errors import RecipeError
from midstream_benchmarks.game24 import Game24Config, GameOf24, solutions, solve, values
from midstream_benchmarks.game24_reward import solves
from support.errors import coded


@pytest.fixture
def game():
    return GameOf24(Game24Config())


def test_1362_of_1820_hands_have_a_solution_and_the_reward_accepts_each():
    hands = list(combinations_with_replacement(range(1, 14), 4))
    assert len(hands) == 1820
    assert len(solutions()) == 1362
    assert set(solutions()) < set(hands)
    assert [hand for hand, found in solutions().items() if not solves(found, hand)] == []


def reachable(hand):
    """Whether 24 can be made, the slow way: every order, every operator, all five ways to set brackets."""

    def apply(sign, a, b):
        if a is None or b is None or (sign == "/" and b == 0):
            return None
        return {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[sign]

    for a, b, c, d in set(permutations(map(Fraction, hand))):
        for p, q, r in product("+-*/", repeat=3):
            results = (
                apply(r, apply(q, apply(p, a, b), c), d),
                apply(r, apply(p, a, apply(q, b, c)), d),
                apply(q, apply(p, a, b), apply(r, c, d)),
                apply(p, a, apply(r, apply(q, b, c), d)),
                apply(p, a, apply(q, b, apply(r, c, d))),
            )
            if 24 in results:
                return True
    return False


@pytest.mark.parametrize(
    "hand", [(1, 1, 1, 1), (13, 13, 13, 13), (1, 6, 7, 10), (3, 3, 8, 8), (1, 5, 5, 5), (1, 1, 5, 5)]
)
def test_the_solver_agrees_with_trying_everything(hand):
    assert (solve(hand) is not None) == reachable(hand)


def test_hard_hands_need_fractions():
    assert solve((3, 3, 8, 8)) == "8/(3-8/3)"
    assert solve((1, 5, 5, 5)) == "5*(5-1/5)"
    assert solve((1, 1, 1, 1)) is None


def test_values_are_all_that_can_be_made():
    made = values((2, 4))
    assert set(made) == {6, 8, 2, -2, Fraction(1, 2)}
    assert made[Fraction(1, 2)][0] == "2/4"
    assert values((0, 3)).keys() == {3, -3, 0}, "nothing is divided by zero"


def test_brackets_are_those_that_are_needed():
    texts = {text for text, _ in values((1, 2, 3)).values()}
    assert {"1+2+3", "1*2*3", "(1+2)*3"} & texts
    assert not any(text.startswith("(") and text.endswith(")") and text.count("(") == 1 for text in texts)


def test_splits_are_apart_and_whole(game):
    tasks = {split: game.fixed(split, seed=1) for split in ("train", "validation", "test")}
    assert {split: len(all_) for split, all_ in tasks.items()} == {"train": 912, "validation": 177, "test": 273}
    hands = [tuple(task.metadata["numbers"]) for all_ in tasks.values() for task in all_]
    assert set(hands) == set(solutions())
    assert len(set(hands)) == len(hands) == 1362


def test_the_splits_hang_on_the_seed_alone(game):
    again, other = GameOf24(Game24Config()), GameOf24(Game24Config(seed=1))
    assert again.fixed("test", seed=1) == game.fixed("test", seed=1)
    assert other.fixed("test", seed=1) != game.fixed("test", seed=1)


def test_a_task_says_the_rules_and_has_what_its_reward_needs(game):
    for task in game.sample("train", 20, seed=3):
        a, b, c, d = task.metadata["numbers"]
        assert f"numbers {a}, {b}, {c} and {d}." in task.question
        assert "24" in task.question
        assert task.reward == task.family == "game24"
        assert task.id == f"game24-{a}-{b}-{c}-{d}"
        assert solves(task.answer, [a, b, c, d])
        assert task.answer not in task.question


def test_draws(game):
    assert list(game.families) == ["game24"]
    assert game.sample("train", 30, seed=1) == game.sample("train", 30, seed=1) != game.sample("train", 30, seed=2)
    assert len({task.id for task in game.fixed("test", seed=1, count=40)}) == 40
    with pytest.raises(RecipeError, check=coded("too-few-tasks", "274 tasks of the Game of 24")):
        game.fixed("test", seed=1, count=274)
    with pytest.raises(RecipeError, check=coded("unknown-split", "'dev'")):
        game.sample("dev", 1, seed=1)
