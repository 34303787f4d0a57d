"""Causes: one a run; expressions that choose runs; the tasks that runs make."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UsageError
from midstream.core.trajectory import Action, ErrorInfo, Observation, Score, Trajectory, Turn, Verdict
from midstream.report.causes import add_task, cause_of, matches
from midstream.sources.file import FileTasksConfig


def turn(**fields) -> Turn:
    return Turn(index=1, **{"action": Action(tool="python"), **fields})


def trajectory(**fields) -> Trajectory:
    usual = {"id": "t#0", "task_id": "t", "question": "?", "answer": "5", "gold": "6", "stop_reason": "answered"}
    return Trajectory(**{**usual, "reward": Score(0.0), "seed": 1, **fields})


def tasks_of(runs: list[Trajectory]) -> dict[str, str]:
    lines, ids = dict[str, str](), dict[str, str]()
    for run in runs:
        assert add_task(run, lines, ids) in lines
    return lines


ERROR = Observation(status="error", text="NameError: name 'x3' is not defined, line 12")
SURE = Verdict(result_valid=True, memory_sufficient=True)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (
            {"error": ErrorInfo(type="EngineError", message="port 80 is closed"), "status": "error"},
            "error: port N is closed",
        ),
        ({"turns": (turn(action=Action(error="no Tool Name")),)}, "malformed: no Tool Name"),
        ({"turns": (turn(observation=ERROR),)}, "tool python: NameError: name '...' is not defined, line N"),
        ({"stop_reason": "turn_limit"}, "stopped: turn_limit"),
        ({"answer": None}, "no answer"),
        ({"turns": (turn(verdict=SURE),), "stop_reason": "verified"}, "verifier against reward"),
        ({"reward": Score(0.0, feedback="It is 7 too much.")}, "reward: It is N too much."),
        ({}, "wrong answer"),
        ({"reward": Score(1.0), "turns": (turn(observation=ERROR),)}, "right"),
        ({"turns": (turn(observation=ERROR), turn(observation=Observation(status="ok", text="5")))}, "wrong answer"),
    ],
)
def test_a_run_has_one_cause(fields, cause):
    assert cause_of(trajectory(**fields)) == cause


def test_runs_of_a_task_make_one_line_that_is_safe_to_print():
    runs = [trajectory(question="\x9b?", family="sum"), trajectory(question="\x9b?", family="sum")]
    assert tasks_of(runs) == {"t": '{"id": "t", "question": "\\u009b?", "answer": "6", "family": "sum"}'}
    assert json.loads(tasks_of(runs)["t"])["question"] == "\x9b?"


def test_any_tasks_make_a_file_that_is_read(tmp_path):
    runs = [
        trajectory(task_id="a", question="2 + 4?"),
        trajectory(task_id="a", question="3 + 4?", gold="7"),  # of another set
        trajectory(task_id="a-2", question="4 + 4?", gold="8"),
        trajectory(task_id="a", question="5 + 4?", gold="9"),
        trajectory(task_id="b", question="2 +  4?"),  # again under another id
        trajectory(task_id="c", question="2 + 4?", gold="six"),  # and with another answer
    ]
    lines = tasks_of(runs)
    answers = {"a": "6", "a-2": "7", "a-2-2": "8", "a-3": "9"}
    assert {name: json.loads(line)["answer"] for name, line in lines.items()} == answers
    (tmp_path / "t.jsonl").write_text("\n".join(lines.values()), encoding="utf-8")
    tasks = FileTasksConfig(path=tmp_path / "t.jsonl").build().tasks("test")
    assert {task.id: task.answer for task in tasks} == answers


def test_tasks_without_a_question_stay_apart():
    assert [*tasks_of([trajectory(task_id=task, question="") for task in "aba"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("expression", "count"),
    [("reward < 1", 2), ("turns == 1 and 'python' in tools", 1), ("len(answer) > 0", 1), ("cause == 'no answer'", 1)],
)
def test_an_expression_chooses(expression, count):
    runs = [trajectory(turns=(turn(),)), trajectory(answer=None)]
    assert sum(matches(run, expression) for run in runs) == count


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "reward <",
        "other > 1",
        "turns.__class__",
        "__import__('os')",
        "1 / 0",
        "9 ** 9 ** 9",
        "question + 1",
        "-" * 5000 + "1",
    ],
)
def test_any_other_expression_is_refused(expression):
    with pytest.raises(UsageError, check=lambda error: error.code == "expression-invalid"):
        matches(trajectory(), expression)


def test_an_expression_that_fails_on_one_run_names_it():
    with pytest.raises(UsageError, match=r"cannot be evaluated for t#0: ") as raised:
        matches(trajectory(), "1 / turns > 0")
    assert raised.value.code == "expression-invalid"
    assert matches(trajectory(turns=(turn(),)), "1 / turns > 0")


@given(st.text(max_size=200))
def test_any_message_is_a_cause_in_one_line(message):
    cause = cause_of(trajectory(reward=Score(0.0, feedback=message)))
    assert len(cause.splitlines()) == 1
    assert len(cause) < 200
