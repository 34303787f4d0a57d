import json
import math
import subprocess
import sys
from unittest import mock

import pytest

import midstream
from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming, ToolUse
from midstream.core.trajectory import Trajectory
from midstream.runs import RUN_FORMAT, RunDirectory, checkpoint
from midstream.runs.info import collect_info, git_commit
from support.errors import raises


def create(root, resolved=None, evaluation=None):
    info = collect_info("small", 1, resolved or {"train": {"lr": 0.1}}, evaluation)
    return RunDirectory.create(root, info, "seed = 1\n")


def evaluation(step: int | None) -> EvaluationResult:
    return EvaluationResult(
        policy="trained",
        set_name="world",
        split="test",
        sampling="greedy",
        seed=0,
        tasks=1,
        success=1.0,
        success_without_errors=1.0,
        errors=0,
        by_family={},
        turns_mean=2.0,
        tool_use=ToolUse(turns=2, share={"python": 1.0}),
        step=step,
    )


def train(run, first, last):
    for step in range(first, last + 1):
        run.trajectories.write(step, [Trajectory(id=f"s{step}-{index}", task_id="t") for index in range(2)])
        run.metrics.append(StepMetrics(step=step, policy_version=step, reward_mean=step / 3))
        run.timings.append(StepTiming(step=step, duration_s=1.5))
        run.evaluations.append(evaluation(step))
        with mock.patch.object(checkpoint, "KEPT", 9):
            run.checkpoints.save(step, lambda path, step=step: (path / "w").write_text(str(step)) and None)


def content(root):
    """Every file but the clock's."""
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_create_and_open(tmp_path):
    run = create(tmp_path / "a" / "b", resolved={"paths": ("x",), "lr": math.inf})
    assert RunDirectory.open(run.root).root == run.root
    info = run.info()
    assert (info.format, info.midstream, info.recipe_name, info.seed) == (RUN_FORMAT, midstream.__version__, "small", 1)
    assert info.packages["pydantic"]
    assert info.argv == tuple(sys.argv)
    assert info.resolved == {"paths": ["x"], "lr": "Infinity"}
    assert run.recipe() == "seed = 1\n"
    assert run.metrics.read() == run.timings.read() == run.evaluations.read() == run.trajectories.steps() == []
    assert run.checkpoints.load_latest(lambda directory: 1) is None


def test_create_in_an_empty_directory_but_never_in_a_used_one(tmp_path):
    run = create(tmp_path)
    before = content(tmp_path)
    with raises("run-exists", f"midstream resume {tmp_path}"):
        create(tmp_path)
    with raises("directory-unusable", run.recipe_path):
        create(run.recipe_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("names", "free"),
    [
        (["run.lock"], True),
        (["run.lock", "recipe.toml", "trajectories", ".run.json.77.tmp"], True),
        (["recipe.toml"], False),  # a recipe of the user's own
        (["run.lock", "recipe.toml", "metrics.jsonl"], False),
    ],
)
def test_create_where_a_crash_has_left_no_run(tmp_path, names, free):
    for name in names:
        (tmp_path / name).mkdir() if name == "trajectories" else (tmp_path / name).write_text("before")
    if free:
        assert create(tmp_path).recipe() == "seed = 1\n"
    else:
        with raises("run-exists", tmp_path):
            create(tmp_path)


def test_create_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with raises("write-failed", "ENOTDIR"):
        create(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["missing", "empty", "run.json"])
def test_open_what_is_no_run(tmp_path, name):
    run = create(tmp_path / "run.json")
    (tmp_path / "empty").mkdir()
    target = run.info_path if name == "run.json" else tmp_path / name
    with raises("not-a-run", target):
        RunDirectory.open(target)


def test_open_another_format_names_both_versions(tmp_path):
    run = create(tmp_path)
    raw = json.loads(run.info_path.read_text()) | {"format": 99, "midstream": "7.8.9", "news": 1}
    run.info_path.write_text(json.dumps(raw))
    with raises("run-format", "99", midstream.__version__, "midstream==7.8.9"):
        RunDirectory.open(tmp_path)


def test_open_a_run_from_before_votes_were_a_plugin(tmp_path):
    run = create(tmp_path)
    info = run.info()
    run.info_path.write_text(json.dumps(json.loads(run.info_path.read_text()) | {"votes": ""}))
    assert RunDirectory.open(tmp_path).info() == info


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", f'{{"format": {RUN_FORMAT}}}'])
def test_open_a_damaged_run(tmp_path, text):
    run = create(tmp_path)
    run.info_path.write_text(text)
    with raises("file-damaged", "run.json"):
        RunDirectory.open(tmp_path)


def test_records_round_trip(tmp_path):
    run = create(tmp_path)
    train(run, 1, 3)
    assert [metrics.reward_mean for metrics in run.metrics.read()] == [1 / 3, 2 / 3, 1.0]
    assert run.timings.read()[2] == StepTiming(step=3, duration_s=1.5)
    assert run.evaluations.read() == [evaluation(step) for step in (1, 2, 3)]
    assert run.trajectories.steps() == [1, 2, 3]
    assert [trajectory.id for trajectory in run.trajectories.read(2)] == ["s2-0", "s2-1"]
    assert run.find_trajectory("s3-1").id == "s3-1"
    run.trajectories.write("final", [Trajectory(id="e1", task_id="t")])
    assert run.find_trajectory("e").id == run.trajectories.read("final")[0].id == "e1"


def test_rewind_and_repeat_gives_the_same_bytes(tmp_path):
    run = create(tmp_path)
    train(run, 1, 2)
    run.evaluations.append(evaluation(None))
    before = content(tmp_path)
    train(run, 3, 5)
    after = content(tmp_path)
    (run.trajectories.root / ".step-000006.jsonl.gz.77.tmp").touch()
    with run.metrics.path.open("ab") as file:
        file.write(b'{"step": 6, "rew')
    for _ in range(2):
        run.rewind(2)
        assert content(tmp_path) == before
    train(run, 3, 5)
    assert content(tmp_path) == after


def test_rewind_to_the_start_and_without_directories(tmp_path):
    run = create(tmp_path)
    before = content(tmp_path)
    train(run, 1, 2)
    run.rewind(0)
    assert {path for path, data in content(tmp_path).items() if data} == {path for path, data in before.items() if data}
    run.trajectories.root.rmdir()
    run.checkpoints.root.rmdir()
    run.rewind(0)
    train(run, 1, 1)
    assert run.trajectories.steps() == [1]


def test_status(tmp_path):
    run = create(tmp_path)
    assert run.status().state == "interrupted"
    with run.lock():
        run.set_status("running", step=4)
        assert (run.status().state, run.status().step) == ("running", 4)
    assert (run.status().state, run.status().step) == ("interrupted", 4)
    run.set_status("failed", "the disk is full")
    assert (run.status().state, run.status().message) == ("failed", "the disk is full")
    run.status_path.write_text("{")
    assert run.status().state == "interrupted"


def test_git_commit(tmp_path):
    assert git_commit(tmp_path / "missing") is None

    def git(*arguments):
        settings = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *settings, *arguments], check=True, capture_output=True)

    git("init")
    assert git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first", "--no-verify")
    git("tag", "v1")
    clean = git_commit(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{clean}-dirty"
