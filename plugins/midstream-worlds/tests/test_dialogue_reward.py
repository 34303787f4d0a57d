"""What a dialogue's own check says is the reward; an outcome that is missing or malformed is never a 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from midstream.core.errors import RewardError
from midstream.core.source import Reward
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.trajectory import Score
from midstream_benchmarks.function_calling import ArtistFunctionCalling, FunctionCallingConfig
from midstream_worlds.dialogue_reward import DialogueSuccess
from support.errors import coded
from support.marked_streams import stream

TASK = Task(id="t", question="Fill the tank.", answer="")


def score(outcome: dict[str, Any], reward: Reward | None = None) -> Score:
    return asyncio.run((reward or DialogueSuccess()).score(TASK, stream("Done.", outcome=outcome)))


def test_success_is_the_value_and_the_shares_are_reported():
    turns = [{"state": [2, 2], "calls": [1, 1]}, {"state": [1, 3], "calls": [0, 3], "said": "text of a benchmark"}]
    assert score({"success": False, "turns": turns}) == Score(value=0.0, parts={"state": 0.6, "calls": 0.25})
    assert score({"success": True, "turns": turns}).value == 1


def test_what_else_the_check_found_is_reported_and_texts_are_not():
    outcome = {"success": False, "database": True, "outputs": False, "reason": "a flight too many"}
    assert score(outcome) == Score(value=0.0, parts={"database": 1.0, "outputs": 0.0})


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        ({}, "it scores tasks with a user and a state"),
        ({"turns": []}, "success: Field required"),
        ({"success": "maybe"}, "success: "),
        ({"success": 1}, "success: "),
        ({"success": True, "turns": [{"calls": [-1, 2]}]}, "turns.0.calls.0"),
        ({"success": True, "turns": 4}, "turns: "),
    ],
)
@pytest.mark.parametrize(
    "make",
    [DialogueSuccess, lambda: ArtistFunctionCalling(FunctionCallingConfig(), load_template("artist-function-calling"))],
)
def test_a_missing_or_malformed_outcome_is_an_error_that_names_it(
    outcome: dict[str, Any], value: str, make: Callable[[], Reward]
):
    reward = make()
    with pytest.raises(RewardError, check=coded("outcome-missing", repr(reward.name), "'t'")) as failure:
        score(outcome, reward)
    assert value in failure.value.cause
    assert not failure.value.retryable  # scoring again would find the same
