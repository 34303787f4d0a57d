"""Tasks that an agent learned from are found wherever they are from, and nothing else is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from midstream import api
from midstream.core.errors import UsageError
from midstream.core.events import Note
from midstream.core.task import Task, task_keys
from midstream.evaluation.leakage import learned_tasks, record_learned
from midstream.lessons.editing import to_json
from midstream.lessons.lesson_set import Lesson, LessonOrigin, LessonSet
from midstream.recipe.lessons import learned_keys
from midstream.report.comparison import compare, compare_groups
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from midstream.runs.segments import result_name
from midstream.sources.questions import Fields, make_task
from support.errors import coded
from support.learned import write_recipe
from support.question_server import QuestionServer

QUESTION = "How many legs has a spider ?"


def task(question: str = QUESTION, prefix: str = "mine", instruction: str = "", **fields: object) -> Task:
    made = Fields(question=question, answer="8", **fields)  # type: ignore[arg-type]
    return make_task(made, prefix=prefix, reward="", instruction=instruction)


def run_of(root: Path, purpose: str = "training", learned: Task | None = None, **resolved: object) -> RunDirectory:
    run = RunDirectory.create(root, collect_info("x", 0, dict(resolved)), "")
    record_learned(run, purpose, [learned or task()])
    return run


def test_a_file_that_a_model_is_named_by_is_no_lesson_set(tmp_path):
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert learned_keys({"engines": {"model": {"model": str(tmp_path / "small.gguf")}}}, None) == {}


def lessons_file(path: Path, *tasks: str) -> Path:
    path.write_text(
        to_json(LessonSet(lessons=(Lesson(id="L1", text="Count.", origin=LessonOrigin(tasks=tasks)),), next_number=2))
    )
    return path


def found(asked: Task, resolved: dict[str, object], run: RunDirectory | None = None) -> bool:
    return bool(task_keys(asked.id, asked.question) & learned_keys(resolved, run).keys())


@pytest.fixture
def cases(tmp_path):
    """The agent's recipe and run, with a task that it learned from and one that it did not, by case."""
    known, base = task(), run_of(tmp_path / "base")
    lessons = run_of(tmp_path / "lessons", "lessons")
    started = run_of(tmp_path / "started", "gate", task("Another ?"), lessons={"start": f"{tmp_path / 'lessons'}"})
    trained = run_of(
        tmp_path / "trained", "training", task("Another ?"), engines={"p": {"model": str(base.root / "policy")}}
    )
    (base.root / "policy").mkdir()
    file = lessons_file(tmp_path / "lessons.json", known.id)
    return {
        "the same file": (known, {}, base),
        "another file": (task(prefix="other"), {}, base),
        "other case and white space": (task("  how MANY legs\n has a spider ?"), {}, base),
        "a benchmark that adds an instruction": (task(prefix="bench", instruction="Answer in a word."), {}, base),
        "lessons": (known, {"agent": {"lessons": str(lessons.root)}}, None),
        "the gate": (known, {}, run_of(tmp_path / "gated", "gate")),
        "validation": (known, {}, run_of(tmp_path / "validated", "validation")),
        "a lesson set in a file": (known, {"agent": {"lessons": str(file)}}, None),
        "a run that began with a lesson set": (known, {"agent": {"lessons": str(started.root)}}, None),
        "a run that began with weights": (known, {}, trained),
    }


def test_learned_tasks_are_found_in_ten_of_ten_cases_and_in_none_of_ten_others(cases):
    assert [name for name, (asked, resolved, run) in cases.items() if not found(asked, resolved, run)] == []
    others = [
        task("How many legs has an ant ?"), task("How many legs has a spider"), task("many legs has a spider ?"),
        task("How many legs have spiders ?"), task("How many arms has a spider ?"),
        Task(id="1", question="?", answer=""),
        task(QUESTION + " And a crab ?"), task("Spider: how many legs ?"), task("8"),
        task("How many legs has a spider plant ?"),
    ]  # fmt: skip
    wrong = [name for (name, (_, *where)), asked in zip(cases.items(), others, strict=True) if found(asked, *where)]
    assert wrong == []
    assert not any(found(asked, *where) for _, *where in cases.values() for asked in others)


def test_equal_ids_of_other_questions_are_other_tasks(tmp_path):
    run = run_of(tmp_path / "run", learned=Task(id="7", question="First ?", answer=""))
    assert not found(Task(id="7", question="Second ?", answer=""), {}, run)


def test_a_task_is_recorded_once_with_its_purpose(finished_run, tmp_path):
    run = run_of(tmp_path / "run")
    before = run.learned.path.read_bytes()
    record_learned(run, "training", [task()])
    assert run.learned.path.read_bytes() == before
    recorded = learned_tasks(RunDirectory.open(finished_run))
    assert set(recorded.values()) == {"training", "warm start", "validation"}


def test_eval_sets_learned_tasks_apart_and_compare_leaves_them_out(tmp_path):
    table = {f"Question {number:03d} ?": str(number) for number in range(6)}
    files = {}
    for name, rows in {"some": list(table)[:4], "known": list(table)[:2]}.items():
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("\n".join(json.dumps({"question": q, "answer": table[q]}) for q in rows))
    with QuestionServer(table) as server:
        recipe = str(write_recipe(tmp_path, server.base_url, lessons=False))
        first = api.evaluate(
            recipe, out=tmp_path / "first", task_files=[str(files["some"]), str(files["known"])]
        ).directory
        lessons = lessons_file(tmp_path / "lessons.json", *[f"x-{key}" for key in _ids(first)])
        notes: list[str] = []
        words = {
            "lessons": str(lessons),
            "listener": lambda event: notes.append(event.text) if isinstance(event, Note) else None,
        }
        other = api.evaluate(recipe, out=tmp_path / "other", task_files=[str(files["some"])], **words).directory
        again = api.evaluate(recipe, out=tmp_path / "again", task_files=[str(files["some"])], **words).directory
        alone = api.evaluate(recipe, out=tmp_path / "alone", task_files=[str(files["known"])], **words).directory
    assert any("2 tasks of some were learned from" in text for text in notes)
    results = {result.set_name: result for result in other.evaluations.read()}
    assert {name: (result.tasks, bool(result.learned)) for name, result in results.items()} == {
        "some": (2, False), "some-learned": (2, True),
    }  # fmt: skip
    comparison = compare(first, other)
    assert [(pair.set_name, pair.tasks) for pair in comparison.found] == [("some", 2)]
    assert [error.code for error in comparison.refused] == ["tasks-learned"]
    with pytest.raises(UsageError, check=coded("tasks-learned", 2)):
        compare(first, alone)
    groups = compare_groups({"other": [other], "again": [again]})
    assert [pair.set_name for pair in groups.found] == ["some"]
    left_out = [note for note in groups.notes if note.startswith("not compared")]
    assert len(left_out) == 2
    assert all("some-learned" in note for note in left_out)
    with pytest.raises(UsageError, check=coded("tasks-learned", 2)):
        compare_groups({"first": [first], "alone": [alone]})
    assert os.path.exists(other.root / "trajectories")


def _ids(run: RunDirectory) -> list[str]:
    known = next(result for result in run.evaluations.read() if result.set_name == "known")
    segment = run.trajectories.open(result_name("known", known.sampling))
    return [trajectory.task_id.rpartition("-")[2] for trajectory in segment]
