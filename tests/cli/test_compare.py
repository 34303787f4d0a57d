"""`midstream compare`: directories in, a verdict out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.report import comparison
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from support.errors import coded, printed
from support.evaluations import write

WEAK = {f"t{i}": [float(i < 10)] for i in range(40)}
STRONG = {f"t{i}": [float(i < 30)] for i in range(40)}


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def compare(capsys, *arguments: str) -> str:
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments: str) -> str:
    assert main(["compare", *arguments]) == 2
    return capsys.readouterr().err


def test_two_evaluations(capsys):
    write(Path("a"), WEAK, resolved={"agent": {"max_turns": 3}, "tools": {"python": {"timeout_s": 2.0}}})
    write(Path("b"), STRONG, resolved={"agent": {"max_turns": 10}, "tools": {"python": {"timeout_s": 2.0}}})
    text = compare(capsys, "a", "b")
    assert "B is better than A by 50.0 points (95% interval" in text
    assert "agent.max_turns: 3 | 10" in text
    assert "python" not in text
    assert "t25" not in text
    assert "B is better on t25" in compare(capsys, "a", "b", "--tasks")


def test_json_has_everything(capsys):
    write(Path("a"), WEAK)
    write(Path("b"), STRONG)
    found = json.loads(compare(capsys, "a", "b", "--json"))
    [one] = found["compared"]
    assert (one["first"], one["other"], one["verdict"], one["wins"]) == ("a", "b", "better", 20)
    assert one["said"].startswith("B is better than A by 50.0 points")
    assert "differing" not in one
    [one] = json.loads(compare(capsys, "a", "b", "--json", "--tasks"))["compared"]
    assert len(one["differing"]) == 20


def test_the_share_of_turns_by_tool(capsys):
    """Every run of A searches; of B, every second one computes."""
    for name, tools in (("a", ["search"]), ("b", ["search", "python"])):
        write(Path(name), WEAK, tools=tools)
    text = compare(capsys, "a", "b")
    assert "share of turns by tool" in text
    assert [line.split() for line in text.splitlines() if "search " in line or "python " in line] == [
        ["python", "0.0%", "50.0%", "+50.0", "+50.0", "to", "+50.0"],
        ["search", "100.0%", "50.0%", "-50.0", "-50.0", "to", "-50.0"],
    ]
    [one] = json.loads(compare(capsys, "a", "b", "--json"))["compared"]
    assert one["tools"]["python"] == {"first": 0.0, "other": 0.5, "interval": [0.5, 0.5]}


def test_an_evaluation_with_itself(capsys):
    write(Path("a"), WEAK)
    assert "B and A are the same" in compare(capsys, "a", "a")


def test_a_run_is_compared_at_its_last_evaluated_step_or_the_one_named(capsys):
    write(Path("run"), WEAK, step=0, trained=True)
    write(Path("run"), STRONG, step=300, trained=True)
    write(Path("run"), WEAK, step=0, trained=True, sampling="greedy")
    text = compare(capsys, "run@0", "run")
    assert "B is better than A by 50.0 points" in text
    assert "A has held-out greedy, B has not" in text
    assert "run has no finished evaluation at step 7\n  cause: it was evaluated at 0, 300" in refused(
        capsys, "run", "run@7"
    )


def test_an_evaluation_of_a_checkpoint_with_its_run(capsys):
    write(Path("run"), WEAK, step=0, trained=True)
    write(Path("of-300"), STRONG, step=300)
    assert "B is better than A by 50.0 points" in compare(capsys, "run", "of-300")


def test_a_directory_may_have_an_at_sign_in_its_name(capsys):
    write(Path("run@0"), WEAK)
    assert "are the same" in compare(capsys, "run@0", "run@0")


def test_three_share_the_confidence(capsys):
    for name, scores in (("a", WEAK), ("b", STRONG), ("c", WEAK)):
        write(Path(name), scores)
    text = compare(capsys, "a", "b", "c")
    assert "B is better than A" in text
    assert "C and A are the same" in text
    assert "97.5% interval" in text
    assert "wider (Bonferroni)" in text


def test_what_only_one_has_is_named(capsys):
    write(Path("a"), WEAK)
    write(Path("a"), WEAK, sampling="greedy")
    write(Path("b"), {name: [1.0, 0.0] for name in WEAK})
    text = compare(capsys, "a", "b")
    assert "A has held-out greedy, B has not" in text
    assert "held-out T=1: 1 trial a task in A, 2 in B" in text


def test_what_cannot_be_compared(capsys):
    write(Path("a"), WEAK)
    write(Path("greedy"), WEAK, sampling="greedy")
    write(Path("judged"), WEAK, judged=True, metric="judge (model)")
    assert coded("not-comparable", "a and greedy")(printed(refused(capsys, "a", "greedy")))
    assert coded("not-comparable", "'held-out'", "exact match in a")(printed(refused(capsys, "a", "judged")))
    assert coded("not-a-run", "nowhere")(printed(refused(capsys, "a", "nowhere")))
    assert coded("missing-option", "27")(printed(refused(capsys, *["a"] * 27)))


def test_a_set_that_cannot_be_compared_does_not_hide_the_others(capsys):
    for name, scores in (("a", WEAK), ("b", STRONG)):
        write(Path(name), scores)
        write(Path(name), scores, set_name="other", metric=f"metric of {name}")
        write(Path(name), {f"{name} {task}": value for task, value in scores.items()}, set_name="third")
    text = " ".join(compare(capsys, "a", "b").split())
    assert "B is better than A by 50.0 points" in text
    assert "not compared: 'other' was scored by metric of a in a and by metric of b in b" in text
    assert "not compared: a and b have no task of 'third' in common" in text
    assert len(json.loads(compare(capsys, "a", "b", "--json"))["compared"]) == 1


def test_one_that_is_not_finished_says_so(capsys):
    write(Path("a"), WEAK)
    RunDirectory(write(Path("b"), STRONG)).set_status("interrupted")
    text = compare(capsys, "a", "b")
    assert "B is interrupted: its results so far are compared" in text
    assert "A is" not in text


def test_an_evaluation_without_a_finished_set(capsys):
    write(Path("a"), WEAK)
    write(Path("b"), WEAK)
    Path("b/evaluations.jsonl").unlink()
    assert coded("no-evaluation", "b ")(printed(refused(capsys, "a", "b")))


def test_printed_in_python_it_is_the_screen_without_colors(capsys):
    for name, score in (("a", 1.0), ("b", 0.0)):
        write(Path(name), {f"t{i}": [score] for i in range(4)})
    text = str(comparison.compare("a", "b"))
    assert text.split() == compare(capsys, "a", "b").split()
    assert "\x1b" not in text


def test_tasks_of_a_run_that_was_not_evaluated_are_an_error(capsys):
    RunDirectory.create(Path("run"), collect_info("mine", 0, {}), "")
    assert main(["show", "run", "--tasks"]) == 2
    assert printed(capsys.readouterr().err).code == "no-evaluation"


def test_agents_of_two_kinds_stand_side_by_side(capsys):
    modular = {
        "type": "agentflow", "max_turns": 3, "planner": {"type": "prompted"}, "executor": {"type": "arguments"},
    }  # fmt: skip
    stream = {"type": "interleaved", "template": "artist-math", "max_turns": 10, "policy": {"type": "model"}}
    write(Path("a"), WEAK, resolved={"agent": modular})
    write(Path("b"), STRONG, resolved={"agent": stream})
    text = compare(capsys, "a", "b")
    assert "A  a (agent)" in text
    assert "B is better than A by 50.0 points" in text
    assert 'agent.type: "agentflow" | "interleaved"' in text
    assert 'agent.template: - | "artist-math"' in text
    assert "agent.max_turns: 3 | 10" in text
    assert "agent.planner" not in text, "what only one kind has is no setting that differs"
    effort = text[text.index("held-out, T=1: what a task took") :]
    assert [line.split()[:2] for line in effort.splitlines() if line.strip()[:2] in ("A ", "B ")] == [
        ["A", "0.00"],
        ["B", "0.00"],
    ]


def groups_on_disk() -> None:
    """Three seeds of each, b 20 to 30 points above a; another group with other seeds."""
    for seed, (weak, strong) in enumerate(((10, 18), (12, 24), (8, 18))):
        for name, right in (("a", weak), ("b", strong)):
            scores = {f"t{i}": [float(i < right)] for i in range(40)}
            resolved = {"agent": {"max_turns": 3 if name == "a" else 5}, "seed": seed}
            write(Path(f"runs/{name}-s{seed}"), scores, run_seed=seed, resolved=resolved)
    Path("runs/a-notes").mkdir()


def test_groups_of_runs(capsys):
    groups_on_disk()
    text = compare(capsys, "--group", "a=runs/a-*", "b=runs/b-*")
    assert "b is better than a by 25.0 points (95% interval" in text
    assert "differences paired by seed" in text
    assert "45.0  60.0  45.0" in text
    assert "settings that differ (a | b):\n  agent.max_turns: 3 | 5" in text
    again = ["--group", "a=runs/a-s0", "--group", "a=runs/a-s[12]", "--group", "b=runs/b-*", "--json"]
    [found] = json.loads(compare(capsys, *again))["compared"]
    assert found["first_values"] == [0.25, 0.3, 0.2]
    assert found["said"] in text


def test_groups_of_steps_of_the_same_runs(capsys):
    for seed, right in enumerate((10, 12, 9)):
        for step in (0, 300):
            scores = {f"t{i}": [float(i < right + step // 30)] for i in range(40)}
            write(Path(f"runs/a-s{seed}"), scores, step=step, trained=True, run_seed=seed)
    write(Path("runs/a-s2"), WEAK, step=600, trained=True)
    text = compare(capsys, "--group", "before=runs/a-*@0", "after=runs/a-*")
    assert "differences paired by seed" in text
    assert "25.0  30.0  22.5" in text
    assert "50.0  55.0  25.0" in text
    assert "after holds runs at several steps: 300, 600" in text


def test_groups_with_one_run_have_no_interval_and_three_share_the_confidence(capsys):
    groups_on_disk()
    text = compare(capsys, "--group", "a=runs/a-s0", "b=runs/b-s0")
    assert "b has +20.0 points against a\n  no interval over runs: a group has one" in text
    write(Path("runs/c-s7"), WEAK, run_seed=7)
    write(Path("runs/c-s8"), STRONG, run_seed=8)
    text = compare(capsys, "--group", "a=runs/a-*", "b=runs/b-*", "c=runs/c-*")
    assert "97.5% interval" in text
    assert "not paired" in text


@pytest.mark.matrix(6)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["runs/a-s0"], "missing-option"),
        (["--group", "a=runs/a-*"], "missing-option"),
        (["runs/a-s0", "--group", "a=runs/a-*", "b=runs/b-*"], "missing-option"),
        (["--group", "a=runs/a-*", "b=runs/none-*"], "file-not-found"),
        (["--group", "runs/a-*", "b=runs/b-*"], "file-not-found"),
        (["--group", "a=runs/a-*", "b=runs/a-s0"], "name-clash"),
    ],
)
def test_groups_that_cannot_be_compared(arguments, code, capsys):
    groups_on_disk()
    assert printed(refused(capsys, *arguments)).code == code
