"""People's thumbs as a reward, and other rewards where nobody judged an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from midstream.components.tables import parse_component
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.recipe.build import Build
from midstream.recipe.overrides import changed_recipe
from midstream.rewards.composite import Composite
from midstream.rewards.exact_match import ExactMatch
from midstream.runs.feedback import add_feedback
from midstream_extra.thumbs import Thumbs, thumbs_of
from support.errors import raises
from support.rollouts import StubReward
from support.tiny_runs import LESSONS_TABLE, settings
from support.viewing import viewing

TASK = Task(id="t", question="How many?", answer="12")


def judge(root: Path, *given: tuple[str, str | None, str], question: str = TASK.question) -> Path:
    root.mkdir(exist_ok=True)
    for number, (name, answer, vote) in enumerate(given):
        entry = {"part": f"step-{number}", "id": name, "question": question, "answer": answer, "vote": vote}
        add_feedback(root, entry)
    return root


def value(reward: Thumbs, answer: str | None) -> float:
    return asyncio.run(reward.score(TASK, Trajectory(id="x", task_id="t", answer=answer))).value


def thumbs(*roots: Path) -> Thumbs:
    return Thumbs(thumbs_of(roots), Composite({"right": (1.0, ExactMatch())}))


def test_a_judged_answer_has_its_thumbs_and_any_other_the_other_reward(tmp_path: Path) -> None:
    reward = thumbs(judge(tmp_path / "a", ("1", "about a dozen", "up"), ("2", "12", "down"), ("3", "7", "")))
    assert value(reward, "About a dozen.") == 1  # the same words
    assert value(reward, "the 12") == 0  # a person overrides the rule
    assert value(reward, "7") == 0  # no thumb: exact match
    assert value(reward, "13") == 0
    assert value(reward, None) == 0
    other = Task(id="u", question="How old?", answer="12")
    assert asyncio.run(reward.score(other, Trajectory(id="x", task_id="u", answer="12"))).value == 1


def test_a_choice_between_two_answers_is_no_thumb(tmp_path: Path) -> None:
    root = judge(tmp_path / "a", ("1", "12", "down"))
    for vote in ("up", "equal"):
        add_feedback(root, {"question": TASK.question, "answer": "12", "against": "13", "vote": vote})
    assert value(thumbs(root), "12") == 0


def test_where_people_disagree_it_is_the_mean_and_the_last_thumb_of_a_trajectory_counts(tmp_path: Path) -> None:
    first = judge(tmp_path / "a", ("1", "12", "up"), ("2", "12", "up"), ("3", "12", "down"))
    second = judge(tmp_path / "b", ("1", "12", "down"))
    assert value(thumbs(first), "12") == 2 / 3
    assert value(thumbs(first, second), "12") == 1 / 2
    add_feedback(first, {"part": "step-2", "id": "3", "question": TASK.question, "answer": "12", "vote": "up"})
    assert value(thumbs(first), "12") == 1


def test_a_judge_that_fails_is_not_asked_and_fails_as_before(tmp_path: Path) -> None:
    def broken(task: Task, trajectory: Trajectory) -> float:
        raise RuntimeError("down")

    reward = Thumbs(thumbs_of((judge(tmp_path / "a", ("1", "12", "up")),)), StubReward(judge=broken))
    assert value(reward, "12") == 1
    with pytest.raises(RuntimeError, match="down"):
        value(reward, "13")


def test_without_a_thumb_it_is_refused(tmp_path: Path) -> None:
    table = {"type": "thumbs", "runs": [str(tmp_path)], "parts": {"right": {"type": "exact_match"}}}
    with raises("no-thumbs", str(tmp_path)):
        parse_component("reward", table, "reward").config.build(None)  # type: ignore[arg-type]  # before it is used


def test_thumbs_from_the_viewer_are_the_reward_of_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from midstream.cli.main import main

    monkeypatch.chdir(tmp_path)
    base = ["lessons-simulated", "--quiet", *settings(LESSONS_TABLE)]
    assert main(["train", *base, "--out", "first"]) == 0
    with viewing(Path("first")) as client:
        entries = client.get("run/first/part/step-000001")["entries"]
        wrong = next(entry for entry in entries if entry["reward"] == 0 and entry["answer"])
        client.post("run/first/feedback", {"part": "step-000001", "id": wrong["id"], "vote": "up", "note": ""})
    reward = 'reward={type="thumbs", runs=["first"], parts={right={type="exact_match"}}}'
    recipe = changed_recipe("lessons-simulated", overrides=[*settings(LESSONS_TABLE)[1::2], reward])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the path in the recipe is absolute
    with Build(recipe) as build:
        task = Task(id="new", question=wrong["question"], answer="something else")
        scored = build.environment().reward.score(task, Trajectory(id="x", task_id="new", answer=wrong["answer"]))
        assert asyncio.run(scored).value == 1
    monkeypatch.chdir(tmp_path)
    assert main(["train", *base, "--set", reward, "--out", "second"]) == 0
    with viewing(Path("second")) as client:
        again = [
            entry["reward"]
            for entry in client.get("run/second/part/step-000001")["entries"]
            if (entry["question"], entry["answer"]) == (wrong["question"], wrong["answer"])
        ]
    assert again
    assert set(again) == {1.0}
