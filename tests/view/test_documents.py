"""Documents of real runs: lists, filters, groups, trajectories, calls, tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from midstream.core.sequences import joined
from midstream.core.trajectory import Trajectory
from midstream.report.causes import add_task, cause_of
from midstream.report.trajectory import turn_rows
from midstream.runs import RunDirectory
from midstream.training.rows import group_advantages
from midstream.view.documents import Documents
from midstream.view.entries import Filter
from support.viewing import Client, names

STEP = "run/training/part/step-000003"


@pytest.fixture(scope="module")
def step(runs: Path) -> list[Trajectory]:
    return RunDirectory(runs / "training").trajectories.read(3)


def test_runs_of_every_kind_are_listed(client: Client) -> None:
    found = {run["run"]: run for run in client.get("runs")["runs"]}
    assert set(found) == {"training", "lessons", "evaluation"}
    assert {name: run["kind"] for name, run in found.items()} == {name: name for name in found}
    training = found["training"]
    assert (training["recipe"], training["seed"], training["state"]) == ("ten-steps", 3, "finished")
    assert (training["step"], training["steps"], len(training["spark"])) == (10, 10, 10)
    assert training["success"] is not None
    assert training["before"] is not None
    assert found["evaluation"]["success"] == 13 / 16
    assert found["evaluation"]["before"] is None
    assert all(run["damage"] == [] for run in found.values())


def test_runs_of_one_name_are_distinguished(runs: Path, tmp_path: Path) -> None:
    from support.viewing import viewing

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for place in ("a", "b"):
        shutil.copytree(runs / "evaluation", tmp_path / place / "run")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)  # of which nothing is shown twice
    with viewing(tmp_path) as client:
        assert {run["run"] for run in client.get("runs")["runs"]} == {"run", "run~2"}
        assert client.get("run/run~2")["summary"]["path"] == str(tmp_path / "b" / "run")


def test_parts_of_a_run(client: Client, runs: Path) -> None:
    run = client.get("run/training")
    parts = {part["name"]: part for part in run["parts"]}
    assert [name for name in parts if name.startswith("step")] == [f"step-{step:06d}" for step in range(1, 11)]
    assert parts["step-000003"]["count"] == 16
    [third] = [step for step in RunDirectory(runs / "training").metrics.read() if step.step == 3]
    assert parts["step-000003"]["mean"] == third.reward_mean
    assert parts["eval-test-greedy-10"]["title"] == "test greedy, step 10"
    assert run["warnings"] == []
    assert set(run["page"]) == {"title", "lead", "sections"}
    lessons = {part["name"]: part for part in client.get("run/lessons")["parts"]}
    assert "step-000001" in lessons
    assert lessons["step-000001"]["count"] > 0


def test_a_list_comes_in_pages(client: Client, step: list[Trajectory]) -> None:
    found, start = [], 0
    while start is not None:
        page = client.get(f"{STEP}?from={start}&limit=5")
        assert len(page["entries"]) <= 5
        found += page["entries"]
        start = page["next"]
    assert names(found) == list(range(16))
    assert [(entry["id"], entry["question"], entry["answer"], entry["turns"]) for entry in found] == [
        (each.id, each.question, each.answer, len(each.turns)) for each in step
    ]


def test_a_list_has_no_holes_when_time_is_up(runs: Path) -> None:
    documents = Documents([runs])
    whole = documents.part("training", "step-000003", Filter(seconds=-1))
    assert names(whole["entries"]) == list(range(16))
    assert whole["next"] is None
    first = documents.part("training", "step-000003", Filter(start=2, limit=5, seconds=-1))
    assert (names(first["entries"]), first["next"]) == (list(range(2, 7)), 7)
    filtered = documents.part("training", "step-000003", Filter(text="e", limit=5, seconds=-1))
    assert (len(filtered["entries"]), filtered["next"]) == (1, 1)


def test_filters(client: Client, step: list[Trajectory]) -> None:
    def places(query: str) -> list[int]:
        return names(client.get(f"{STEP}?{query}")["entries"])

    def where(*wanted: bool) -> list[int]:
        return [place for place, one in enumerate(wanted) if one]

    rewards = [each.reward.value if each.reward else None for each in step]
    assert places("reward=1") == where(*(value == 1 for value in rewards)) != []
    assert places("reward=%3C1") == where(*(value is not None and value < 1 for value in rewards)) != []
    assert places("reward=none") == []
    assert places("status=error") == []
    assert places("status=ok&reward=0") == where(*(value == 0 for value in rewards))
    tools = [{turn.action.tool for turn in each.turns if turn.action} for each in step]
    assert places("tool=python") == where(*("python" in used for used in tools)) != []
    word = step[4].question.split()[-2]
    assert set(places(f"text={quote(word.upper())}")) >= {4}
    assert places("text=no%20such%20words") == []
    wrong = [
        any(
            (turn.action and turn.action.error) or (turn.observation and turn.observation.status == "error")
            for turn in each.turns
        )
        for each in step
    ]
    assert places("error=*") == where(*wrong) != []
    assert client.get(f"{STEP}?reward=many", status=422)["code"] == "setting-range"
    assert places("reward=wrong") == where(*(value != 1 for value in rewards)) != []
    family = step[0].family
    assert places(f"family={quote(family)}") == where(*(each.family == family for each in step)) != []
    assert places("where=turns%20%3E%201") == where(*(len(each.turns) > 1 for each in step)) != []
    assert client.get(f"{STEP}?where=other%20%3E%201", status=422)["code"] == "expression-invalid"


def test_failures_have_causes_that_open_lists_and_tasks_that_evaluate(client: Client, step: list[Trajectory]) -> None:
    found = client.get(f"{STEP}/failures")
    wrong = [place for place, each in enumerate(step) if not each.reward or each.reward.value < 1]
    assert found["count"] == len(step)
    assert sorted(place for group in found["causes"] for place in names(group["rollouts"])) == wrong != []
    for group in found["causes"]:
        listed = client.get(f"{STEP}?cause={quote(group['cause'])}")["entries"]
        assert names(listed) == names(group["rollouts"])
        assert {cause_of(step[place]) for place in names(listed)} == {group["cause"]}
        assert group["rollouts"][0]["gold"] == step[names(listed)[0]].gold
    tasks, ids = dict[str, str](), dict[str, str]()
    for place in wrong:
        add_task(step[place], tasks, ids)
    assert found["tasks"] == tasks
    assert (found["unread"], found["warnings"]) == (0, [])
    lines = {rollout["place"]: rollout["line"] for group in found["causes"] for rollout in group["rollouts"]}
    for place, line in lines.items():
        assert json.loads(found["tasks"][line])["question"] == step[place].question


def test_a_group_has_the_advantages_of_training(client: Client, step: list[Trajectory]) -> None:
    seen = 0
    for task in dict.fromkeys(each.task_id for each in step):
        group = client.get(f"{STEP}/group/{quote(task, safe='')}")
        ours = [each for each in step if each.task_id == task]
        rewards = [each.reward.value for each in ours if each.reward]
        assert [rollout["reward"] for rollout in group["rollouts"]] == rewards
        values = [rollout["advantage"] for rollout in group["rollouts"]]
        assert values == pytest.approx(group_advantages(rewards), rel=1e-12, abs=1e-12)
        uniform = len(set(rewards)) == 1
        assert bool(group["left_out"]) == uniform
        seen += not uniform
        acts = [[(turn.action, turn.command) for turn in each.turns] for each in ours]
        differing = next(
            (place for place in range(max(map(len, acts))) if len({str(one[place : place + 1]) for one in acts}) > 1),
            None,
        )
        assert group["first_difference"] == differing
        assert [len(rollout["turns"]) for rollout in group["rollouts"]] == list(map(len, acts))
    assert seen


def test_a_trajectory_shows_the_rows_of_the_terminal(client: Client, step: list[Trajectory]) -> None:
    for place in (0, 7):
        shown, recorded = client.get(f"{STEP}/trajectory/{place}"), step[place]
        assert (shown["id"], shown["answer"], shown["gold"]) == (recorded.id, recorded.answer, recorded.gold)
        assert shown["turns_total"] == len(recorded.turns)
        for turn, document in zip(recorded.turns, shown["turns"], strict=True):
            assert [(row["label"], row["text"]) for row in document["rows"]] == [
                (row.label, row.text) for row in turn_rows(turn)
            ]
        assert [call["n"] for turn in shown["turns"] for call in turn["calls"]] == list(range(len(recorded.calls)))
        assert all(call["trained"] for turn in shown["turns"] for call in turn["calls"])
        [stopped] = [row["text"] for row in shown["end"] if row["label"] == "stopped"]
        assert stopped.startswith(shown["stop"])


def test_a_window_of_turns(client: Client, step: list[Trajectory]) -> None:
    place, longest = max(enumerate(step), key=lambda pair: len(pair[1].turns))
    assert len(longest.turns) > 2
    window = client.get(f"{STEP}/trajectory/{place}?turn=1&limit=1")
    assert [turn["index"] for turn in window["turns"]] == [2]
    assert window["first_turn"] == 1
    assert window["turns"][0]["calls"][0]["n"] == len(longest.turns[0].calls)
    assert window["turns_total"] == len(longest.turns)


def test_a_call_shows_what_changed_since_the_one_before(client: Client, step: list[Trajectory]) -> None:
    place, longest = max(enumerate(step), key=lambda pair: len(pair[1].turns))
    first, second = (client.get(f"{STEP}/trajectory/{place}/call/{number}") for number in (0, 1))
    assert first["previous"] is None
    assert second["previous"] == 0
    assert second["settings"]["max_tokens"] == 20
    [message] = second["messages"]
    before = "".join(piece["text"] for piece in message["pieces"] if piece["op"] in ("same", "gone"))
    after = "".join(piece["text"] for piece in message["pieces"] if piece["op"] in ("same", "new"))
    assert (before, after) == (longest.calls[0].prompt, longest.calls[1].prompt)
    assert {piece["op"] for piece in message["pieces"]} >= {"same", "new"}


def test_tokens_with_texts_and_rows(client: Client, step: list[Trajectory]) -> None:
    place, longest = max(enumerate(step), key=lambda pair: len(pair[1].turns))
    call = longest.calls[1]
    found = client.get(f"{STEP}/trajectory/{place}/call/1/tokens")
    assert [token[0] for token in found["prompt"]] == list(call.prompt_ids)
    assert [token[0] for token in found["sampled"]] == list(call.completion_ids)
    assert [token[2] for token in found["sampled"]] == pytest.approx(call.logprobs)
    assert all(token[2] is None for token in found["prompt"])
    assert found["texts"]
    # The vocabulary is the run's own, and joins to what the engine recorded.
    assert "".join(token[1] for token in found["sampled"]).removesuffix("<eos>") == call.completion
    rows = joined(longest.calls)
    assert (found["row"], found["rows"]) == (next(at for at, row in enumerate(rows) if call in row), len(rows))
    assert found["split"]  # a planner is asked from scratch, and its prompts begin alike
    assert found["trained"]
    evaluated = client.get("run/training/part/eval-test-greedy-10/trajectory/0/call/0/tokens")
    assert not evaluated["trained"]
    assert evaluated["advantage"] is None
