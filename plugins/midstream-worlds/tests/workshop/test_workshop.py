"""The workshop's closed form, by hand on small worlds, and what makes its tasks and lessons safe to read back."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies.gate import best_lessons

from midstream.core.errors import RecipeError
from midstream.sources.finite import SPLITS
from midstream_worlds.workshop.models import DOMAINS, MOST_RULES
from midstream_worlds.workshop.tasks import LEAST, MOST, Workshop, WorkshopConfig
from support.errors import coded

UNKNOWN = "When in doubt, think twice."


def world(**settings):
    return Workshop(WorkshopConfig(**settings))


def all_tasks(workshop):
    return [task for split in SPLITS for task in workshop.tasks(split)]


def first_rule(workshop, task):
    return workshop.order(task.question).rules[0]


@pytest.fixture(scope="module")
def plain():
    """Every rule matters for every order, and all orders are equally hard: effects can be added up by hand."""
    return world(rules=3, base=0.5, spread=0.0, reach=1.0, help=0.1, harm=0.2, clutter=0.01)


def test_orders_are_the_same_in_every_world_of_a_seed_and_others_in_another():
    one, same, other = world(seed=1), world(seed=1), world(seed=2)
    assert all_tasks(one) == all_tasks(same)
    assert one.rules == same.rules
    assert {task.answer for task in one.tasks("test")}.isdisjoint(task.answer for task in other.tasks("test")[:50])


def test_no_question_and_no_id_is_in_two_splits_or_twice_in_one():
    tasks = all_tasks(world(domains=DOMAINS, train=30, validation=20, test=40))
    assert len(tasks) == 4 * 90
    assert len({task.id for task in tasks}) == len({task.question for task in tasks}) == len(tasks)
    assert all(task.answer not in task.question for task in tasks)
    assert {task.family for task in tasks} == set(DOMAINS)


def test_an_order_can_be_read_back_from_any_text_that_holds_its_question():
    workshop = world()
    for task in workshop.tasks("train")[:20]:
        order = workshop.order(f"# Query\n\n{task.question}\n\n# Memory\n")
        assert order is not None
        assert (f"{order.domain}-{order.number}", order.code) == (task.id, task.answer)
        assert [rule.mark for rule in order.rules if rule.mark not in task.question] == []
    with pytest.raises(RecipeError, check=coded("foreign-prompt")):
        workshop.order("How high is Amberbank ?")


def test_an_order_without_marks_has_no_rules():
    workshop = world(reach=0.0)
    [task] = workshop.tasks("train")[:1]
    assert "nothing special" in task.question
    assert workshop.mean_success([task], [rule.true for rule in workshop.rules]) == LEAST  # 64 lines of clutter


def test_half_of_the_orders_bear_a_mark_and_their_base_is_spread_around_the_mean():
    workshop = world(test=2000, reach=0.5, base=0.35, spread=0.15)
    orders = [workshop.order(task.question) for task in workshop.tasks("test")]
    rule = workshop.rules_of("press")[0]
    assert sum(rule in order.rules for order in orders) / 2000 == pytest.approx(0.5, abs=0.05)
    assert sum(order.base for order in orders) / 2000 == pytest.approx(0.35, abs=0.01)
    assert min(order.base for order in orders) >= 0.2
    assert max(order.base for order in orders) <= 0.5


@given(seed=st.integers(0, 50))
def test_every_lesson_means_its_own_rule_and_nothing_else(seed):
    workshop = world(seed=seed, rules=MOST_RULES)
    assert len({lesson for rule in workshop.rules for lesson in rule.lessons}) == 5 * len(workshop.rules)
    for rule in workshop.rules:
        for which, lesson in enumerate(rule.lessons):
            assert workshop.meaning(lesson) == ((rule.number, which),)


def test_a_lesson_in_other_words_or_padded_keeps_its_meaning():
    workshop = world()
    rule = workshop.rules[0]
    reworded = f"REMEMBER  this of the {rule.domain}: with {rule.mark},\n always {rule.methods[0]}." + " Always." * 50
    assert workshop.meaning(reworded) == ((rule.number, 0),)
    assert workshop.meaning(UNKNOWN) == ()


def test_effects_add_up(plain):
    [task] = plain.tasks("test")[:1]
    rule, other, _ = plain.rules_of("press")
    cases = {
        (): 0.5,
        (rule.true,): 0.5 + 0.1 - 0.01,
        (rule.false[0],): 0.5 - 0.2 - 0.01,
        (rule.true, other.true): 0.5 + 0.2 - 0.02,
        (rule.true, rule.true): 0.5 + 0.1 - 0.02,  # works once, clutters twice
        (rule.false[1], rule.false[1]): 0.5 - 0.2 - 0.02,
        (rule.true, rule.false[0]): 0.5 + 0.1 - 0.2 - 0.02,
        (rule.false[0], rule.false[1]): 0.5 - 0.4 - 0.02,
        (UNKNOWN, UNKNOWN): 0.5 - 0.02,
    }
    assert {lessons: round(plain.mean_success([task], lessons), 9) for lessons in cases} == {
        lessons: round(value, 9) for lessons, value in cases.items()
    }


def test_a_lesson_works_on_orders_with_its_mark_alone():
    workshop = world(reach=0.5, clutter=0.0, help=0.1)
    rule = workshop.rules_of("press")[0]
    tasks = workshop.tasks("test")
    gains = {task.id: workshop.mean_success([task], [rule.true]) - workshop.mean_success([task], []) for task in tasks}
    marked = {task.id for task in tasks if rule.mark in task.question}
    assert 0 < len(marked) < len(tasks)
    assert {name for name, gain in gains.items() if gain > 0.09} == marked
    assert all(gain == 0 for name, gain in gains.items() if name not in marked)


def test_what_is_learned_at_the_press_is_clutter_at_the_kiln():
    workshop = world(domains=("press", "kiln"), reach=1.0, clutter=0.01, spread=0.0)
    lesson = workshop.rules_of("press")[0].true
    gain = {
        task.family: workshop.mean_success([task], [lesson]) - workshop.mean_success([task], [])
        for task in workshop.tasks("test")
    }
    assert gain == {"press": pytest.approx(0.05), "kiln": pytest.approx(-0.01)}


@given(
    picks=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 4)), max_size=40),
    help_=st.floats(0, 1),
    harm=st.floats(0, 1),
)
def test_success_stays_within_its_bounds_and_true_lessons_never_do_more_harm_than_their_line(picks, help_, harm):
    workshop = world(help=help_, harm=harm, test=3)
    rules = workshop.rules_of("press")
    lessons = [rules[rule].lessons[which] for rule, which in picks]
    for task in workshop.tasks("test"):
        before = workshop.mean_success([task], lessons)
        after = workshop.mean_success([task], [*lessons, first_rule(workshop, task).true])
        assert LEAST <= before <= MOST
        assert after >= max(LEAST, before - workshop.config.clutter) - 1e-12


def test_the_mean_is_the_mean_of_all_tasks():
    workshop = world(test=50)
    tasks, lessons = workshop.tasks("test"), [rule.true for rule in workshop.rules_of("press")[:5]]
    assert workshop.mean_success(tasks, lessons) == pytest.approx(
        sum(workshop.mean_success([task], lessons) for task in tasks) / 50
    )


def test_the_best_lesson_set_is_better_than_every_other():
    workshop = world(rules=5, reach=0.3, clutter=0.018, help=0.06, test=60, seed=4)
    tasks = workshop.tasks("test")
    best = best_lessons(workshop, tasks)
    every = [lesson for rule in workshop.rules_of("press") for lesson in rule.lessons[:2]]
    value = max(
        workshop.mean_success(tasks, chosen) for size in range(len(every) + 1) for chosen in combinations(every, size)
    )
    assert 0 < len(best) < 5  # a rule that is too rare is not worth its line
    assert workshop.mean_success(tasks, best) == pytest.approx(value)


@pytest.mark.parametrize("settings", [{"domains": ("press", "bakery")}, {"train": 9_000, "test": 9_000}])
def test_a_world_that_cannot_be_made_is_refused(settings):
    with pytest.raises(RecipeError):
        world(**settings)


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(RecipeError, check=coded("unknown-split", "'dev'")):
        world().tasks("dev")
