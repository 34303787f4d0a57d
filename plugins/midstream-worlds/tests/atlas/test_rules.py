"""Rules of the atlas: their texts, the answers that follow from them, and a teacher that follows them."""

from __future__ import annotations

import asyncio
import re
from random import Random

import pytest
from pydantic import ValidationError

from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream_worlds.atlas.questions import Asked
from midstream_worlds.atlas.rules import NUMBERS, RULED, Rule, draw_lessons, rules_in, warm_lessons, wordings
from midstream_worlds.atlas.tasks import AtlasConfig
from midstream_worlds.planning.lessons import lines

HIDDEN = {"population": "plus 12", "area": "minus 4", "height": "times 3", "length": "times 7"}
RULES = {attribute: Rule(attribute, *rule.split()[:1], int(rule.split()[1])) for attribute, rule in HIDDEN.items()}
SETTINGS = ["tasks.regions=1", "sandbox.tier=arithmetic"]


def words(part):
    return set(re.findall(r"[a-z]+", part.lower()))


def parts(which=("seen", "held_out")):
    """The parts of statements, by the word of their rule."""
    return {word: [part for kind in which for part in wordings()[word][kind]] for word in NUMBERS}


def test_a_text_states_one_rule():
    every = [
        (rule.statement(part), rule)
        for word, statements in parts().items()
        for part in statements
        for attribute in RULED
        for rule in (Rule(attribute, word, number) for number in NUMBERS[word])
    ]
    assert len({text for text, _ in every}) == len(every)
    ends = [*wordings()["ends"]["seen"], *wordings()["ends"]["held_out"]]
    for place, end in enumerate(ends):
        for text, rule in (*every[:10], *every[place :: len(ends)]):  # some with every end
            assert rules_in(lines([f"{text}{end}."])) == {rule.attribute: (rule, text)}


def test_a_number_stands_at_most_a_word_behind_its_attribute_which_comes_first():
    for statements in parts().values():
        for part in statements:
            assert re.match(r"\{0\}(,|:| [a-z]+)? \{1\}", part)


def test_held_out_parts_have_no_word_that_training_does_not_meet():
    kinds = ("times", "plus", "minus", "ends")
    met = {word for kind in kinds for part in wordings()[kind]["seen"] for word in words(part)}
    for kind in kinds:
        held_out = wordings()[kind]["held_out"]
        assert len(held_out) >= 2
        assert not {*held_out} & {*wordings()[kind]["seen"]}
        assert all(words(part) <= met for part in held_out)


def test_the_later_of_two_lessons_counts_and_strange_ones_do_not():
    text = lines(["Area plus 4.", "Stay calm.", "Aria plus 4.", "Area counts 2 times here.", "area plus 4."])
    assert rules_in(text) == {"area": (Rule("area", "times", 2), "Area counts 2 times")}


def test_warm_starts_see_no_held_out_rule_or_wording():
    drawn = warm_lessons([f"t{number}" for number in range(2000)], 0.5, seed=1)
    shown = [lessons["policy"] for lessons in drawn.values() if lessons]
    assert 900 < len(shown) < 1100
    rules = {rule for text in shown for rule, _ in rules_in(text).values()}
    assert {rule.attribute for rule in rules} == {*RULED}
    assert not any(rule.held_out for rule in rules)
    held_out = {rule.held_out for word in NUMBERS for number in NUMBERS[word] for rule in [Rule("area", word, number)]}
    assert held_out == {True, False}
    kept = {rule.lesson(Random(seed), held_out=True) for rule in rules for seed in range(40)}
    assert not kept & {line.removeprefix("- ") for text in shown for line in text.splitlines()}
    assert drawn == warm_lessons([*drawn], 0.5, seed=1)


def world(**rules):
    return AtlasConfig(regions=1, rules=rules).build(None)


def test_hidden_rules_change_answers_and_nothing_else():
    plain, ruled = (made.fixed("test", seed=3, per_family=20) for made in (world(), world(**HIDDEN)))
    assert [task.question for task in plain] == [task.question for task in ruled]
    asked = Asked(family="diff", places=("A", "B"), attribute="height", sign="-")
    atlas = world()
    atlas.facts = {("A", "height"): "30", ("B", "height"): "10"}
    assert atlas.answer(asked, {}) == "20"
    assert atlas.answer(asked, RULES) == "60"
    changed = {task.family for task, other in zip(plain, ruled, strict=True) if task.answer != other.answer}
    assert changed == {"lookup", "hop", "scale", "sum", "diff"}


@pytest.mark.parametrize("rule", ["times 0", "over 3", "times 300", "times"])
def test_a_rule_of_another_form_is_refused(rule):
    with pytest.raises(ValidationError):
        AtlasConfig(rules={"height": rule})


@pytest.fixture(scope="module")
def ruled():
    """The recipe of the teacher in an atlas with hidden rules, its tasks, and how to play it with lessons."""
    hidden = ", ".join(f"{attribute} = '{rule}'" for attribute, rule in HIDDEN.items())
    build = Build(load_recipe("atlas-teacher", [*SETTINGS, f"tasks.rules={{ {hidden} }}"]))
    tasks = build.source.fixed("test", seed=3, per_family=10)

    def play(lessons):
        groups = asyncio.run(rollout(build.environment(), tasks, seed=1, lessons=lessons))
        return [group.trajectories[0] for group in groups]

    return tasks, play


@pytest.mark.slow
def test_the_teacher_answers_by_the_rules_in_its_prompt(ruled):
    tasks, play = ruled
    lessons = {"policy": lines(RULES[attribute].lesson(Random(1), held_out=True) for attribute in RULED)}
    played = play({task.id: lessons for task in tasks})
    assert {trajectory.reward.value for trajectory in played} == {1.0}
    lookup = next(trajectory for trajectory in played if trajectory.family == "lookup")
    assert re.search(r"<think>Rule: \w+\b.*\d.*\. Now I ", lookup.calls[1].completion)


def test_without_the_lesson_it_cannot_and_lessons_about_others_change_nothing(ruled):
    tasks, play = ruled
    of_values = {task.id for task in tasks if task.family in ("lookup", "hop", "sum")}
    plain = play({task.id: {} for task in tasks})
    assert not any(trajectory.reward.value for trajectory in plain if trajectory.task_id in of_values)
    assert not any("Rule" in call.completion for trajectory in plain for call in trajectory.calls)
    others = {"policy": lines(["Stay calm."])}
    unmoved = play({task.id: others for task in tasks})
    assert [trajectory.answer for trajectory in unmoved] == [trajectory.answer for trajectory in plain]


def test_a_clumsy_teacher_forgets_rules_now_and_then():
    build = Build(load_recipe("atlas-teacher", [*SETTINGS, "agent.policy.share=1"]))
    tasks = build.source.fixed("test", seed=3, families=["lookup"], count=40)
    _, lessons = draw_lessons(RULED, Random(1), held_out=False)
    groups = asyncio.run(rollout(build.environment(), tasks, seed=1, lessons={task.id: lessons for task in tasks}))
    said = [call.completion for group in groups for call in group.trajectories[0].calls]
    assert any(" as found. I can answer." in text for text in said)
    assert any(re.search(r"Rule: .*\d", text) for text in said)
