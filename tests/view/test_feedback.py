"""Thumbs and notes: kept in the run, votes of the project, rewards."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.lessons.feedback import VoteFile, read_votes
from midstream.runs import RunDirectory
from midstream.runs.feedback import add_feedback, read_feedback
from support.learned import write_run
from support.viewing import viewing

PART = "step-000001"


@pytest.fixture
def root(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "training", tmp_path / "run")
    return tmp_path / "run"


def test_the_last_entry_counts_and_a_restarted_server_knows_it(root: Path) -> None:
    with viewing(root) as client:
        first, second = client.get(f"run/run/part/{PART}?limit=2")["entries"]
        address = f"run/run/part/{PART}/trajectory"
        assert client.get(f"{address}/0")["vote"] is None
        for vote, note in (("up", "good"), ("down", "no: it guessed\n<b>x</b>")):
            said = client.post("run/run/feedback", {"part": PART, "id": first["id"], "vote": vote, "note": note})
            assert said == {"vote": vote, "note": note}
        client.post("run/run/feedback", {"part": PART, "id": second["id"], "vote": "up"})
        client.post("run/run/feedback", {"part": PART, "id": second["id"], "vote": ""})
        kept = client.post("run/run/feedback", {"part": PART, "id": first["id"], "note": "no: it guessed"})
        assert kept == {"vote": "down", "note": "no: it guessed"}  # a thumb of another page stays
    with viewing(root) as client:
        assert client.get(f"{address}/0")["vote"] == {"vote": "down", "note": "no: it guessed"}
        assert client.get(f"{address}/1")["vote"] is None  # taken back
        group = client.get(f"run/run/part/{PART}/group/{first['task']}")
        assert [rollout["vote"] for rollout in group["rollouts"]] == ["down", "", "", ""]
    kept = read_feedback(root)[PART, first["id"], ""]
    assert (kept.task, kept.question, kept.answer) == (first["task"], first["question"], first["answer"])


@pytest.mark.parametrize(
    "body",
    [
        [], "up", {}, {"part": PART, "id": "x", "vote": "sideways"}, {"part": PART, "id": "x", "vote": 1},
        {"part": PART, "vote": "up"}, {"id": "x", "vote": "up"},
        {"part": PART, "lesson": "L1", "vote": "up"}, {"part": PART, "id": "x", "lesson": "L1", "vote": "up"},
        {"part": PART, "id": "x", "vote": "up", "more": "y"}, {"part": PART, "id": "x", "note": "n" * 10_001},
    ],
)  # fmt: skip
def test_bodies_of_another_form_are_refused(root: Path, body: object) -> None:
    with viewing(root) as client:
        assert client.post("run/run/feedback", body, status=400)["code"] == "body-invalid"
        assert not (root / "feedback.jsonl").exists()


def test_what_is_not_there_gets_no_vote(root: Path) -> None:
    with viewing(root) as client:
        for body in ({"part": PART, "id": "none"}, {"part": "none", "id": "x"}, {"lesson": "L1"}):
            problem = client.post("run/run/feedback", {**body, "vote": "up"}, status=404 if "id" in body else 422)
            assert problem["what"]
        client.post("run/none/feedback", {"lesson": "L1", "vote": "up"}, status=404)
        assert not (root / "feedback.jsonl").exists()


def test_verify_knows_the_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for vote in ("up", "down"):
        add_feedback(root, {"part": PART, "id": "a", "vote": vote})
    assert main(["show", str(root), "--check", "--json"]) == 0
    files = {file["file"]: file["state"] for file in json.loads(capsys.readouterr().out)["files"]}
    assert files["feedback.jsonl"] == "ok"
    path = root / "feedback.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    assert main(["show", str(root), "--check"]) == 1
    assert read_feedback(root)[PART, "a", ""].vote == "down"  # what is whole is read


def test_many_at_once_leave_a_whole_journal(tmp_path: Path) -> None:
    def say(number: int) -> None:
        for place in range(10):
            add_feedback(tmp_path, {"part": "p", "id": f"{number}-{place}", "vote": "up"})

    threads = [threading.Thread(target=say, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    from midstream.runs.journal import read_records

    assert len(list(read_records(tmp_path / "feedback.jsonl"))) == 80  # it raises for a line out of its place


def test_a_thumb_on_a_lesson_is_a_vote_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run")
    votes = Path(".midstream/votes.sqlite")
    with viewing(run.root) as client:
        client.post("run/run/feedback", {"lesson": "L1", "vote": "down", "note": "too vague"})
        client.post("run/run/feedback", {"lesson": "L2", "vote": "up", "note": ""})
        client.post("run/run/feedback", {"lesson": "L9", "vote": "up"}, status=404)
        [against, favor] = read_votes(votes)
        assert (against.lesson, against.value, against.by, against.run) == ("L1", "against", "person", str(run.root))
        assert (favor.lesson, favor.value) == ("L2", "for")
        # The same as by hand: another vote on the same item.
        assert main(["lessons", "vote", str(run.root), "L1", "for"]) == 0
        assert {vote.lesson: vote.value for vote in read_votes(votes)} == {"L2": "for", "L1": "for"}
        client.post("run/run/feedback", {"lesson": "L1", "vote": "up", "note": "better"})  # it stands already
        client.post("run/run/feedback", {"lesson": "L2", "vote": ""})
        assert {vote.lesson: vote.value for vote in read_votes(votes)} == {"L1": "for"}
    file = VoteFile(votes)
    file.add([favor.model_copy(update={"by": "gate"})])  # a person took a vote back: the gate has none on it
    file.close()
    assert {vote.lesson for vote in read_votes(votes)} == {"L1"}
    assert RunDirectory(run.root).status().state == "finished"
