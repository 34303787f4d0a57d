"""Rollouts to learn from: pairs, shuffled rewards, and what a spent budget means for a piece of work."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.agent import lessons_digest
from midstream.core.errors import BudgetError
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet, render_modules
from midstream.lessons.runner import Match, Runner
from midstream.rollout import Environment, RolloutConfig
from midstream.runs.budget import Budget, BudgetConfig, BudgetedAgent
from support.errors import coded
from support.reflectors import FAILS, SetAnswers
from support.rollouts import TASKS, StubReward, flat

LESSONS = LessonSet(lessons=(Lesson(id="L1", text="look first"),))
SEEN = lessons_digest(render_modules(LESSONS))


def runner(answers, ledger=None, *, limit=None, **named):
    agent = SetAnswers(answers)
    if limit is not None:
        agent = BudgetedAgent(agent, Budget(BudgetConfig(rollouts=limit)))
    environment = Environment(
        agent=agent, tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
    )
    return Runner(environment, ledger or Ledger(), 1, **named)


def played(work):
    return asyncio.run(asyncio.wait_for(work, timeout=30))


def match(place, first=LESSONS, other=LESSONS):
    task = TASKS[place]
    return Match(task=task.model_copy(update={"id": f"{task.id}@whole-{place}"}), first=first, other=other)


def test_a_pair_has_each_lesson_set_in_its_own_prompts_and_a_failed_one_has_no_result():
    ledger = Ledger()
    pairs = [match(0, other=LessonSet()), match(1), match(2)]
    values = played(runner(["0", "no", "1", FAILS, "2", None], ledger).pairs("gate-1-whole-1", pairs))
    assert values == [(1.0, 0.0), None, (1.0, 0.0)]
    lessons = {one.task_id: one.lessons for one in ledger.gathered("gate-1-")}
    assert (lessons["t0@whole-0~first"], lessons["t0@whole-0~other"]) == (SEEN, "")
    assert len(lessons) == 6


def test_what_is_in_the_ledger_is_not_run_again_unless_its_lessons_were_others():
    ledger = Ledger()
    first = played(runner(["0", "1"], ledger).groups("step-1", TASKS[:2], LESSONS, 1))
    again = runner(["never asked"], ledger)
    assert played(again.groups("step-1", TASKS[:2], LESSONS, 1)) == first
    assert again.environment.agent.runs == []
    other = runner(["x", "y"], ledger)
    played(other.groups("step-1", TASKS[:2], LessonSet(), 1))
    assert len(other.environment.agent.runs) == 2


def test_rewards_are_dealt_out_among_all_and_what_is_kept_has_its_own():
    ledger, answers = Ledger(), ["0"] * 4 + ["x"] * 4 + ["2"] * 4
    groups = played(runner(answers, ledger, shuffle=True).groups("step-1", TASKS[:3], LESSONS, 4))
    values = [[trajectory.reward.value for trajectory in group.trajectories] for group in groups]
    assert sorted(value for group in values for value in group) == [0.0] * 4 + [1.0] * 8
    assert values != [[1.0] * 4, [0.0] * 4, [1.0] * 4]
    assert {one.task_id: one.reward.value for one in ledger.gathered("step-1")} == {"t0": 1.0, "t1": 0.0, "t2": 1.0}


def test_a_failed_rollout_gets_no_reward_from_the_shuffle():
    groups = played(runner(["0", FAILS, "x"], shuffle=True).groups("step-1", TASKS[:1], LESSONS, 3))
    assert [one.reward is None for one in flat(groups)] == [False, True, False]


def test_a_spent_budget_ends_the_work_and_what_had_ended_is_kept():
    ledger = Ledger()
    with pytest.raises(BudgetError, check=coded("budget-spent", "2 (rollouts)")) as failure:
        played(runner(["0", "1", "2"], ledger, limit=2).groups("step-1", TASKS[:3], LESSONS, 1))
    assert failure.value.fix == '--budget "MORE rollouts"'
    assert len(ledger.kept("step-1")) == 2


def test_the_work_says_how_far_it_is():
    said = []
    played(runner(["0", "1"], report=said.append).groups("step-4", TASKS[:2], LESSONS, 1))
    assert said == ["rollouts 0/2", "rollouts 1/2", "rollouts 2/2"]
    said.clear()
    played(runner(["0", "1"], report=said.append).pairs("gate-4-whole-1", [match(0)]))
    assert said[-1] == "gate, whole-1: rollouts 2/2"
