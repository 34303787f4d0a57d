"""What holds for every rule-based reward: no answer breaks it, values lie in [0, 1], gold is right."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midstream.components.kinds import registered
from midstream.core.answers import words
from midstream.rewards.exact_match import F1, ExactMatch
from midstream.rewards.multiple_choice import MultipleChoice
from midstream.rewards.numeric import Numeric
from midstream.rewards.rule import Rule
from midstream_benchmarks.gaia import Gaia
from midstream_benchmarks.game24_reward import Game24
from support.rules import value

RULES = {
    "exact_match": ExactMatch(),
    "f1": F1(),
    "numeric": Numeric(),
    "multiple_choice": MultipleChoice(),
    "gaia": Gaia(),
    "game24": Game24(),
}
METADATA = {"options": {"A": "one", "B": "4", "C": "A or B"}, "numbers": [4, 1, 6, 1]}
PIECES = [*"A B ( ) { } 4 1 6 0 24 = * ** × / - − + . , \\frac \\boxed{ <answer> </answer> e9 ٤ x $ % ! or".split()]
PIECES += [" ", "\n", "a ", "answer is "]
ANSWERS = st.one_of(st.none(), st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))


@pytest.mark.parametrize("name", RULES)
@given(answer=ANSWERS)
@example(answer="9" * 5_000)
@example(answer="1e999999999")
@example(answer="\ud800")
def test_no_answer_breaks_a_rule(name, answer):
    score = value(RULES[name], answer, "4", **METADATA)
    assert 0.0 <= score <= 1.0
    if name not in ("exact_match", "f1"):  # a quarter for many tags; any share
        assert score in (0.0, 1.0)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("end", ["", "a", "!"])
def test_a_long_answer_takes_no_time(name, end):
    for part in (*PIECES, "1,", "- ", "answer ", "4 x ", "A ", "(A ", "A or ", "\n\t", "é"):
        assert value(RULES[name], part * 2_000 + end, "7", **{**METADATA, "options": {"A": "one", "B": "7"}}) == 0.0


@given(st.text())
def test_gold_is_right_by_text_rules(gold):
    """Except a blank one, which nothing matches, and text with answer tags, of which only the inside counts."""
    if "<answer>" in gold:
        return
    right = float(bool(gold.strip()))
    assert value(ExactMatch(), gold, gold) == right
    assert value(Gaia(), gold, gold) == right


@given(st.fractions(), st.sampled_from(["", "%", " km"]))
def test_gold_is_right_by_numeric(number, unit):
    assert value(Numeric(), f"{number}{unit}", f"{number}{unit}") == 1.0


@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from("AB"))
def test_the_gold_letter_is_right_whatever_the_options_say(one, other, gold):
    options = {"A": one, "B": other}
    assert value(MultipleChoice(), gold, gold, options=options) == 1.0
    same = bool(words(one)) and words(one) == words(other)
    assert value(MultipleChoice(), "BA"["AB".index(gold)], gold, options=options) == float(same)


def test_every_rule_is_a_reward_that_no_model_gives():
    for rule in RULES.values():
        assert isinstance(rule, Rule)
        assert not rule.judged
    assert RULES.keys() <= set(registered("reward"))
