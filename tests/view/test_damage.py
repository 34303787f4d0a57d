"""Damaged, half-written and hostile runs open as far as they go; no address answers with a 500."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from midstream.core.trajectory import Action, Call, Command, ErrorInfo, Observation, Score, Trajectory, Turn
from midstream.runs import RunDirectory
from midstream.runs.segments import Segments
from support.damages import damage
from support.viewing import Client, viewing

HOSTILE = (
    "<script>alert(1)</script>", "javascript:alert(1)", "\x1b[2J\x1b]0;title\x07", "\u202eevil\u2066", "a\u200bb",
    '"},{"index":9,"turns":[', "\u2028\u2029", "</script><!--", "x" * 100_000,
)  # fmt: skip


def read_all(client: Client) -> list[int]:
    """Ask for every document there is; the statuses."""
    statuses = []

    def ask(path: str) -> dict[str, Any]:
        status, _, body = client.send(f"{client.base}api/{path}")
        assert status in (200, 404, 422), (path, status, body)
        statuses.append(status)
        return json.loads(body)

    for run in ask("runs")["runs"]:
        whole = f"run/{quote(run['run'], safe='')}"
        for part in ask(whole).get("parts", ()):
            name = f"{whole}/part/{quote(part['name'], safe='')}"
            for query in ("", "?text=a", "?error=*", "?reward=1"):
                ask(name + query)
            for entry in ask(f"{name}?limit=3").get("entries", ()):
                ask(f"{name}/group/{quote(entry['task'], safe='')}")
                place = f"{name}/trajectory/{entry['place']}"
                calls = [call for turn in ask(place).get("turns", ()) for call in turn["calls"]]
                for call in calls[:1]:
                    ask(f"{place}/call/{call['n']}")
                    ask(f"{place}/call/{call['n']}/tokens")
    return statuses


@pytest.mark.matrix(1)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.slow)], ids=["one", "eleven"])
@pytest.mark.parametrize("kind", ["evaluation", "training", "deeper/lessons"])
def test_damage_to_any_file_is_named_or_harmless(runs: Path, tmp_path: Path, kind: str, seeds: range) -> None:
    for seed in seeds:
        root = tmp_path / f"{seed}" / "run"
        shutil.copytree(runs / kind, root)
        what = damage(root, random.Random(seed))
        with viewing(root.parent) as client:
            try:
                assert 200 in read_all(client)
            except AssertionError as error:
                raise AssertionError(what) from error


@pytest.mark.parametrize("name", ["run.json", "recipe.toml", "status.json"])
def test_a_file_that_is_gone_is_named(runs: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(runs / "training", tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with viewing(tmp_path) as client:
        [run] = client.get("runs")["runs"]
        document = client.get("run/run")
        words = " ".join([*run["damage"], *document["warnings"]])
        assert name.partition(".")[0] in words or "evaluated" in words
        assert [part["name"] for part in document["parts"]][:2] == ["step-000001", "step-000002"]
        assert client.get("run/run/part/step-000001/trajectory/0")["turns"]


def test_a_half_written_run_is_listed(tmp_path: Path, runs: Path) -> None:
    half = tmp_path / "half"
    (half / "trajectories").mkdir(parents=True)
    shutil.copy(runs / "training" / "recipe.toml", half)
    shutil.copy(runs / "training" / "trajectories" / "step-000001.jsonl.gz", half / "trajectories")
    (half / "trajectories" / ".step-000002.jsonl.gz.1.tmp").write_bytes(b"\x1f\x8b")
    with viewing(tmp_path) as client:
        [run] = client.get("runs")["runs"]
        assert run["state"] == "interrupted"
        assert any("run.json" in words for words in run["damage"])
        assert [part["name"] for part in client.get("run/half")["parts"]] == ["step-000001"]


def test_a_missing_segment_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "training", tmp_path / "run")
    for name in ("step-000004", "eval-test-greedy-10"):
        (tmp_path / "run" / "trajectories" / f"{name}.jsonl.gz").unlink()
    with viewing(tmp_path) as client:
        warnings = client.get("run/run")["warnings"]
        assert "the trajectories of step 4 are missing" in warnings
        assert "the trajectories of test greedy, step 10 are missing" in warnings


def test_a_segment_that_is_cut_shows_what_is_left(runs: Path, tmp_path: Path) -> None:
    segments = Segments(tmp_path / "run" / "trajectories")

    def turns() -> tuple[Turn, ...]:
        texts = (os.urandom(500).hex() for _ in range(9))
        return tuple(
            Turn(index=at, observation=Observation(status="ok", text=text)) for at, text in enumerate(texts, 1)
        )

    segments.root.mkdir(parents=True)
    shutil.copy(runs / "evaluation" / "run.json", tmp_path / "run")
    segments.write("t", [Trajectory(id=f"a{at}", task_id="t", question="q", turns=turns()) for at in range(5)])
    path = segments.path("t")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with viewing(tmp_path) as client:
        listed = client.get("run/run/part/eval-t")
        assert [entry["id"] for entry in listed["entries"]] == ["a0", "a1"]
        assert listed["warnings"]
        assert client.get("run/run/part/eval-t/trajectory/1")["turns_total"] == 9
        assert client.get("run/run/part/eval-t/trajectory/4", status=422)["code"] == "file-damaged"


def test_pipes_are_not_read(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "evaluation", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    with viewing(tmp_path) as client:
        assert client.get("runs")["runs"][0]["damage"] == [
            "metrics.jsonl is damaged: it is a link, a pipe or a device, not a file"
        ]
        assert client.get("run/run")["parts"] == []


def test_hostile_texts_come_back_as_plain_text(tmp_path: Path, runs: Path) -> None:
    shutil.copytree(runs / "evaluation", tmp_path / "run")
    every = "".join(HOSTILE)
    trajectory = Trajectory(
        id=every[:200],
        task_id="../../etc/passwd?#/ %2F",
        question=every,
        answer=every,
        turns=(
            Turn(
                index=1,
                action=Action(sub_goal=every, tool=every),
                command=Command(tool="t", arguments={every[:50]: every}),
                observation=Observation(status="error", text=every),
                calls=(Call(role=every, completion=every, prompt=every, sent={"model": every}),),
                error=ErrorInfo(type="X", message=every),
            ),
        ),
        reward=Score(value=1.0, feedback=every),
    )
    RunDirectory(tmp_path / "run").trajectories.write("hostile", [trajectory] * 2)
    with viewing(tmp_path) as client:
        part = "run/run/part/eval-hostile"
        [entry, _] = client.get(part)["entries"]
        group = client.get(f"{part}/group/{quote(entry['task'], safe='')}")
        shown = client.get(f"{part}/trajectory/0")
        call = client.get(f"{part}/trajectory/0/call/0")
        texts = [
            entry["question"], group["question"], shown["question"], shown["answer"], shown["feedback"],
            *(row["text"] for row in shown["turns"][0]["rows"]), call["messages"][0]["pieces"][0]["text"],
        ]  # fmt: skip
        for text in texts:
            assert not set("\x1b\u202e\u2066\u2028\x07") & set(text)
        assert "<script>alert(1)</script>" in shown["question"]  # text stays text: nothing is escaped as HTML
        assert "\\x1b[2J" in shown["question"]
        assert len(shown["answer"]) > 100_000
        assert len(client.get(f"{part}?text={quote('</SCRIPT><!--')}")["entries"]) == 2


def test_failures_of_a_damaged_part_say_what_cannot_be_read(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "training", tmp_path / "run")
    file, failures = tmp_path / "run" / "trajectories" / "step-000002.jsonl.gz", "run/run/part/step-000002/failures"
    whole = file.read_bytes()
    with viewing(tmp_path) as client:
        before = client.get(failures)
        file.write_bytes(whole[: len(whole) // 2])
        cut = client.get(failures)
        assert "step-000002.jsonl.gz is damaged" in " ".join(cut["warnings"])
        assert cut["count"] < before["count"]
        # A line that the index can read, and that is no trajectory.
        place = before["causes"][0]["rollouts"][0]["place"]
        lines = [json.loads(line) for line in gzip.decompress(whole).splitlines()]
        lines[place]["turns"] = 5
        file.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
        found = client.get(failures)
        assert (found["unread"], found["warnings"], found["count"]) == (1, [], before["count"])
        listed = [rollout["place"] for group in found["causes"] for rollout in group["rollouts"]]
        assert len(listed) == sum(len(group["rollouts"]) for group in before["causes"]) - 1
        assert place not in listed
