"""A trajectory of many turns in one line is shown in windows; for one that is too large there is a command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from midstream.core.trajectory import Action, Call, Observation, Score, Trajectory, Turn
from midstream.runs import RunDirectory
from midstream.view.documents import Documents
from midstream.view.entries import Filter
from support.errors import raises
from support.viewing import viewing

TURNS = 30_000


@pytest.mark.slow
def test_a_window_of_a_long_trajectory_and_its_neighbors(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "evaluation", tmp_path / "run")
    texts = [f"{number * 2654435761 % 2**32:08x} " * 120 for number in range(TURNS)]
    turns = tuple(
        Turn(
            index=number + 1,
            action=Action(sub_goal="find", tool="search"),
            observation=Observation(status="ok", text=texts[number]),
            calls=(Call(role="planner", completion=str(number)),),
        )
        for number in range(TURNS)
    )
    long = Trajectory(id="long", task_id="long", question="q", turns=turns, answer="42", reward=Score(value=1.0))
    short = [Trajectory(id=name, task_id=name, question=name) for name in ("before", "behind")]
    RunDirectory(tmp_path / "run").trajectories.write("long", [short[0], long, short[1]])
    del turns, long
    part = "run/run/part/eval-long"
    with viewing(tmp_path) as client:
        listed = client.get(part)["entries"]
        assert [(entry["id"], entry["question"]) for entry in listed] == [
            ("before", "before"), ("long", "q"), ("behind", "behind"),
        ]  # fmt: skip
        first = client.get(f"{part}/trajectory/1?turn=0&limit=50")
        assert [turn["index"] for turn in first["turns"]] == list(range(1, 51))
        assert first["reward"] == 1
        whole = client.get(f"{part}/trajectory/1?limit=1")
        assert (whole["turns_total"], whole["answer"]) == (TURNS, "42")
        last = client.get(f"{part}/trajectory/1?turn={TURNS - 2}&limit=50")
        assert [turn["rows"][-1]["text"] for turn in last["turns"]] == texts[-2:]
        assert [call["n"] for turn in last["turns"] for call in turn["calls"]] == [TURNS - 2, TURNS - 1]
        assert client.get(f"{part}/trajectory/1/call/{TURNS - 1}")["previous"] == TURNS - 2
        assert client.get(f"{part}/trajectory/2")["id"] == "behind"
        assert len(client.get(f"{part}?tool=search&text={texts[-1][:8]}")["entries"]) == 1


def test_a_trajectory_that_is_too_large_names_the_command_that_prints_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midstream.view.parts.LARGEST", 5_000)
    shutil.copytree(runs / "evaluation", tmp_path / "run")
    large = Trajectory(id="large", task_id="t", question="q", answer="x" * 9_000)
    small = Trajectory(id="small", task_id="t", question="q", answer="x")
    RunDirectory(tmp_path / "run").trajectories.write("some", [large, small])
    documents = Documents([tmp_path])
    listed = documents.part("run", "eval-some", Filter())["entries"]
    assert [entry["id"] for entry in listed] == ["large", "small"]
    assert [rollout["answer"] for rollout in documents.group("run", "eval-some", "t")["rollouts"]] == [None, "x"]
    with raises("too-large", "midstream show RUN large --json"):
        documents.trajectory("run", "eval-some", 0)
