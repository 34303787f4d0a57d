"""Thumbs and notes, which are kept in the run, and choices between answers."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.cli.main import main
from midstream.evaluation.estimates import exact_interval
from midstream.lessons import feedback
from midstream.lessons.commit import History
from midstream.runs.feedback import add_feedback, read_feedback
from support.evaluations import write
from support.learned import write_run, write_waiting
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
    assert main(["check", str(root), "--json"]) == 0
    files = {file["file"]: file["state"] for file in json.loads(capsys.readouterr().out)["files"]}
    assert files["feedback.jsonl"] == "ok"
    path = root / "feedback.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    assert main(["check", str(root)]) == 1
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


def test_a_thumb_on_a_lesson_is_kept_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = list[tuple[str, str]]()
    counts = SimpleNamespace(judged=lambda run, lesson, thumb: judged.append((lesson.text, thumb)))
    run = write_run(tmp_path / "run")
    with viewing(run.root) as client:
        monkeypatch.setattr(feedback, "installed", lambda: counts)
        client.post("run/run/feedback", {"lesson": "L1", "vote": "down", "note": "too vague"})
        client.post("run/run/feedback", {"lesson": "L1", "vote": "down", "note": "much too vague"})
        client.post("run/run/feedback", {"lesson": "L1", "vote": "", "note": "much too vague"})
        client.post("run/run/feedback", {"lesson": "L2", "vote": "", "note": "no thumb"})
        client.post("run/run/feedback", {"lesson": "L9", "vote": "up"}, status=404)
        monkeypatch.setattr(feedback, "installed", lambda: None)
        said = client.post("run/run/feedback", {"lesson": "L2", "vote": "up"})
        assert said == {"vote": "up", "note": "no thumb"}
    text = "Look numbers up before you calculate."
    assert judged == [(text, "down"), (text, "")]
    assert {entry.lesson: entry.vote for entry in read_feedback(run.root).values()} == {"L1": "", "L2": "up"}


def evaluations(place: Path) -> tuple[Path, Path]:
    """Two evaluations of six tasks, of which one has the same answer in both."""
    scores = {f"t{number}": [float(number % 2)] for number in range(6)}
    other = {name: [1.0 - score] for name, [score] in scores.items()} | {"t0": scores["t0"]}
    return write(place / "first", scores), write(place / "other", other)


def test_a_person_chooses_between_answers_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = evaluations(tmp_path)
    address, asked = "compare/first/other/choices", list[dict[str, Any]]()
    with viewing(first, other) as client:
        found = client.get(address)
        assert (found["count"], found["decided"], found["place"], found["choice"]) == (5, 0, 0, "")
        while found["place"] < 5:
            # As a person does who likes the right answer.
            choice = "second" if found["answers"][0] == "not known" else "first"
            asked.append(found)
            found = client.post(address, {"id": found["id"], "choice": choice if len(asked) < 5 else "equal"})
        assert {tuple(each["answers"]) for each in asked} == {("Paris", "not known"), ("not known", "Paris")}
        assert "question t0?" not in {each["question"] for each in asked}
        for body in ({"id": "7", "choice": "first"}, {"id": asked[0]["id"], "choice": "A"}, {}, []):
            assert client.post(address, body, status=404)["code"] == "unknown-name"
    with viewing(first, other) as client:  # a restarted server knows what was chosen, and takes it back
        again = client.get(f"{address}?place=1")
        assert (again["id"], again["decided"]) == (asked[1]["id"], 5)
        assert again["choice"] == ("second" if again["answers"][0] == "not known" else "first")
        assert client.post(address, {"id": again["id"], "choice": ""})["place"] == 1
        assert client.get(f"{address}?place=1")["choice"] == ""
        # The other way round each choice is the same one.
        turned = [client.get(f"compare/other/first/choices?place={place}") for place in range(5)]
        chosen = {each["question"]: each["choice"] for each in turned}
        assert sorted(map(bool, chosen.values())) == [False, True, True, True, True]
        assert all(
            each["answers"][each["choice"] == "second"] == "Paris"
            for each in turned
            if each["choice"] in ("first", "second")
        )
        page = client.get("compare/first/other")
        assert "preference" in [section["key"] for section in page["sections"]]
    decided = {asked[place]["question"] for place in (0, 2, 3)}
    right = decided & {"question t2?", "question t4?"}  # which the other run answers right
    assert main(["compare", str(first), str(other), "--json"]) == 0
    [compared] = json.loads(capsys.readouterr().out)["compared"]
    counts = {"preferred": len(right), "decided": 3, "equal": 1, "asked": 5}
    assert compared["preference"] == {**counts, "interval": [*exact_interval(len(right), 3)]}
    assert main(["compare", str(first), str(other)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"a person preferred B to A on {len(right)} of 3 tasks (exact 95% interval" in words
    assert "A person's preference, not the reward." in words
    assert read_feedback(first) == {}


def test_a_person_approves_and_rejects_changes_that_wait(tmp_path: Path) -> None:
    run = write_waiting(tmp_path / "run")
    with viewing(run.root) as client:
        page = client.get("run/run")["page"]
        [blocks] = [section["blocks"] for section in page["sections"] if section["key"] == "waiting"]
        assert [block["lesson"] for block in blocks if block["kind"] == "change"] == ["L5", "L1"]
        assert blocks[1]["blocks"][0] == {"kind": "difference", "lines": ["+Write <b>units</b> down."]}
        said = {"lesson": "L5", "update": 2, "verdict": "yes"}
        assert client.post("run/run/feedback", {**said, "verdict": "perhaps"}, status=400)["code"] == "body-invalid"
        for other in ({"lesson": "L9"}, {"update": 1}):
            assert client.post("run/run/feedback", {**said, **other}, status=404)["code"] == "unknown-name"
        path, form = f"{client.base}api/run/run/feedback", {"Content-Type": "application/json"}
        assert client.send(path, method="POST", body=said, headers=form)[0] == 403  # without the page's header
        assert not run.approvals_path.exists() or not run.approvals_path.read_bytes()
        with client.events() as changes:
            assert client.post("run/run/feedback", said) == {"applied": True}
            assert changes.get(timeout=10) == ["run"]
        assert client.post("run/run/feedback", {**said, "lesson": "L1", "verdict": "no"}) == {"applied": True}
        assert client.post("run/run/feedback", said, status=404)["code"] == "unknown-name"  # it was decided
        assert "waiting" not in {section["key"] for section in client.get("run/run")["page"]["sections"]}
    lessons = {lesson.id: lesson.text for lesson in History(run.lessons_dir).get().lesson_set.lessons}
    assert lessons["L5"] == "Write <b>units</b> down."
    assert lessons["L1"] == "Look numbers up before you calculate."
    assert read_feedback(run.root) == {}
