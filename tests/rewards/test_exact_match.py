"""What counts as the same answer, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rewards.exact_match import ExactMatch


def value(answer: str | None, gold: str) -> float:
    task = Task(id="a", question="?", answer=gold)
    return asyncio.run(ExactMatch().score(task, Trajectory(id="a", task_id="a", answer=answer))).value


@pytest.mark.parametrize(
    ("answer", "gold"), [("112", "112"), (" New\n york ", "new  York"), ("-5", "-5"), ("ÉCOLE", "école")]
)
def test_case_and_white_space_do_not_matter(answer, gold):
    assert value(answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"), [("113", "112"), ("1,000", "1000"), ("112.", "112"), ("the 112", "112"), ("1 12", "112")]
)
def test_everything_else_does(answer, gold):
    assert value(answer, gold) == 0.0


def test_no_answer_is_wrong_even_where_gold_is_empty():
    assert value(None, "") == 0.0
    assert value("", "112") == 0.0
