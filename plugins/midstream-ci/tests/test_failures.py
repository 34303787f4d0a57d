"""Failures: one cause a run, chosen by cause or expression, and written as tasks that evaluate."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midstream as ms
from midstream.cli.main import main
from midstream.core.errors import UsageError
from midstream.core.trajectory import Action, ErrorInfo, Observation, Score, Trajectory, Turn, Verdict
from midstream_ci.causes import cause_of, choose, group_by_cause


def turn(**fields) -> Turn:
    return Turn(index=1, **{"action": Action(tool="python"), **fields})


def trajectory(**fields) -> Trajectory:
    usual = {"id": "t#0", "task_id": "t", "question": "?", "answer": "5", "gold": "6", "stop_reason": "answered"}
    return Trajectory(**{**usual, "reward": Score(0.0), "seed": 1, **fields})


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


def test_causes_are_ordered_by_their_runs():
    runs = [trajectory(answer=None), trajectory(), trajectory(task_id="other"), trajectory()]
    causes = group_by_cause(runs)
    assert [(cause.name, len(cause.runs), cause.tasks) for cause in causes] == [
        ("wrong answer", 3, ["t", "other"]), ("no answer", 1, ["t"])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "count"),
    [("reward < 1", 2), ("turns == 1 and 'python' in tools", 1), ("len(answer) > 0", 1), ("cause == 'no answer'", 1)],
)
def test_an_expression_chooses(expression, count):
    runs = [trajectory(turns=(turn(),)), trajectory(answer=None)]
    assert len(list(choose(runs, expression))) == count


@pytest.mark.parametrize(
    "expression",
    ["", "reward <", "other > 1", "turns.__class__", "__import__('os')", "1 / 0", "9 ** 9 ** 9", "question + 1"],
)
def test_any_other_expression_is_refused(expression):
    with pytest.raises(UsageError, check=lambda error: error.code == "expression-invalid"):
        list(choose([trajectory()], expression))


@given(st.text(max_size=200))
def test_any_message_is_a_cause_in_one_line(message):
    cause = cause_of(trajectory(reward=Score(0.0, feedback=message)))
    assert len(cause.splitlines()) == 1
    assert len(cause) < 200


class TestTheCommand:
    def test_the_chosen_tasks_evaluate(self, project, evaluation, tmp_path, capsys):
        tasks = tmp_path / "made" / "hard.jsonl"
        assert main(["failures", str(evaluation.path), "--tasks", str(tasks), "--json"]) == 0
        [cause] = json.loads(capsys.readouterr().out)
        assert cause["cause"] == "wrong answer"
        assert len(cause["runs"]) == 11
        rows = [json.loads(line) for line in tasks.read_text(encoding="utf-8").splitlines()]
        assert [row["id"] for row in rows] == cause["tasks"]
        again = ms.evaluate(str(project / "offline.toml"), ms.tasks(tasks).test, out=tmp_path / "again", quiet=True)
        assert {run.task_id for run in again.trajectories()} == set(cause["tasks"])

    @pytest.mark.parametrize(
        ("words", "code"),
        [(["--eval-set", "other"], "no-evaluation"), (["--where", "other > 1"], "expression-invalid")],
    )
    def test_what_is_not_there_is_said(self, evaluation, capsys, words, code):
        assert main(["failures", str(evaluation.path), *words]) == 2
        assert f"error[{code}]" in capsys.readouterr().err

    def test_an_empty_file_is_not_written(self, evaluation, tmp_path, capsys):
        words = ["--cause", "tool", "--tasks", str(tmp_path / "none.jsonl")]
        assert main(["failures", str(evaluation.path), *words]) == 2
        assert not (tmp_path / "none.jsonl").exists()
