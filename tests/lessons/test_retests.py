"""Which lesson's removal an update tests by itself, of a run that learns weights, too."""

from __future__ import annotations

import pytest

from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonOrigin, LessonSet
from midstream.lessons.operations import Operation, Rules
from midstream.lessons.update import LessonLearner
from midstream.rollout import Environment, RolloutConfig
from support.reflectors import SetAnswers, settings
from support.rollouts import StubReward

SET = LessonSet(
    lessons=(
        Lesson(id="L1", text="one"),
        Lesson(id="L2", text="two", state="pinned"),
        Lesson(id="L3", text="three", state="vetoed"),
        Lesson(id="L4", text="four", module="planner.examples"),
        Lesson(id="L5", text="five", module="planner.prompt"),
        Lesson(id="L6", text="six", module="tools.search", origin=LessonOrigin(source="recipe")),
        Lesson(id="L7", text="seven", module="executor"),
    )
)


RULES = Rules(modules=("planner",))


def learner(*, retests=True, margin=0.1, **gate):
    environment = Environment(
        agent=SetAnswers([]), tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
    )
    return LessonLearner(
        config=settings(gate={"margin": margin, **gate}),
        tasks=[],
        validation=[],
        environment=environment,
        engines={},
        ledger=Ledger(),
        seed=1,
        retests=retests,
    )


def chosen(made, changes=(), lesson_set=SET):
    return [[operation.id for operation in made._retested(step, lesson_set, changes, RULES)] for step in range(1, 7)]


def test_by_turns_each_lesson_and_example_that_no_person_marked():
    made = learner()
    assert chosen(made) == [["L4"], ["L7"], ["L1"], ["L4"], ["L7"], ["L1"]]
    [operation] = made._retested(3, SET, (), RULES)
    assert (operation.kind, operation.origin.update, operation.origin.source) == ("delete", 3, "learned")


def test_none_that_another_change_of_the_update_concerns():
    changes = [Operation(kind="modify", id="L4", text="4"), Operation(kind="delete", id="L1")]
    assert chosen(learner(), changes) == [["L7"]] * 6


@pytest.mark.parametrize("made", [learner(retests=False), learner(margin=0)], ids=["lesson run", "margin 0"])
def test_none_of_a_run_that_moves_no_weights_or_may_lose_nothing(made):
    assert chosen(made) == [[]] * 6


def test_none_of_an_empty_set():
    assert chosen(learner(), lesson_set=LessonSet()) == [[]] * 6
    assert chosen(learner(), lesson_set=SET.model_copy(update={"lessons": SET.lessons[4:6]})) == [[]] * 6
