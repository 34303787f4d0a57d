"""The atlas's reflector, asked as a lesson run asks it, about rollouts of the teacher in an atlas with hidden rules."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.trajectory import Message
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.operations import Rules
from midstream.lessons.settings import LessonsConfig
from midstream.lessons.update import LessonLearner
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_worlds.atlas.reflector import reply
from midstream_worlds.atlas.rules import Rule, rules_in

HIDDEN = {"population": "plus 18", "area": "minus 2", "height": "times 5", "length": "times 8"}
TRUE = {attribute: Rule(attribute, rule.split()[0], int(rule.split()[1])) for attribute, rule in HIDDEN.items()}
FALSE = Rule("height", "plus", 9)


def propose(rules, lesson_set=None, families=("lookup", "hop"), **settings):
    """Operations of one update on 24 tasks, in an atlas with hidden rules."""
    table = ", ".join(f"{attribute} = '{rule}'" for attribute, rule in rules.items())
    build = Build(
        load_recipe(
            "atlas-teacher",
            [
                "tasks.regions=1",
                "sandbox.tier=arithmetic",
                f"tasks.rules={{ {table} }}",
                "agent.policy.share=0.5",
                "engines.reflector={ type = 'simulated', plays = 'reflector' }",
            ],
        )
    )
    tasks = build.source.fixed("validation", seed=1, families=families, count=24)
    lessons = LessonLearner(
        config=LessonsConfig.model_validate(
            {
                "group_size": 3,
                "skip_uniform": False,
                "modules": ["policy"],
                "reflector": {"engine": "reflector"},
                **settings,
            }
        ),
        tasks=[],
        validation=[],
        environment=build.environment(),
        engines=dict.fromkeys(("summariser", "critic", "merger"), build.engine("reflector")),
        ledger=Ledger(),
        seed=1,
    )
    proposal = asyncio.run(lessons.propose(1, tasks, lesson_set or LessonSet(), Rules(modules=lessons.config.modules)))
    assert not proposal.broken
    assert not proposal.unreadable
    return proposal.operations


def stated(operations, kind="add"):
    rules = [rule for change in operations if change.kind == kind for rule, _ in rules_in(change.text).values()]
    assert len(rules) == sum(change.kind == kind for change in operations)
    return {rule.attribute: rule for rule in rules}


def test_it_finds_the_hidden_rules():
    operations = propose(HIDDEN)
    assert stated(operations) == TRUE
    assert {change.module for change in operations} == {"policy"}


@pytest.mark.slow
def test_without_rules_or_from_calculations_it_finds_none():
    assert propose({}) == []
    assert stated(propose(HIDDEN, families=("scale", "arith", "compare"))) == {}


def test_it_keeps_a_lesson_that_is_true_and_deletes_one_that_is_not():
    text = {rule: rule_text(rule) for rule in (TRUE["area"], FALSE)}
    lesson_set = LessonSet(
        lessons=tuple(Lesson(id=f"L{number}", text=text[rule], module="policy") for number, rule in enumerate(text, 1)),
        next_number=3,
    )
    operations = propose({"area": HIDDEN["area"], "height": HIDDEN["height"]}, lesson_set)
    assert {(change.kind, change.id) for change in operations if change.id} == {("keep", "L1"), ("delete", "L2")}
    assert stated(operations) == {"height": TRUE["height"]}


def rule_text(rule):
    return f"{rule.attribute.capitalize()} {rule.word} {rule.number}."


def test_without_rollouts_it_writes_any_rules():
    assert stated(propose(HIDDEN, lessons_from="model"))


@pytest.mark.parametrize("text", ["# Plan", "You are helpful."])
def test_another_prompt_gets_an_empty_object(text):
    assert reply([Message(role="system", content=text), Message(role="user", content="")], 1) == "{}"
