"""Damage to any file of a run is named, or does not change what anybody reads; no command ends in a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import RunError
from midstream.evaluation.session import JournalStore
from midstream.runs import Journal, RunDirectory, results
from support.damages import damage
from support.errors import coded, raises
from support.evaluations import evaluated, write
from support.failing_disk import Died, failing_disk
from support.tiny_runs import Cli, commands, numbers_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, ten_steps: Path) -> dict[str, Path]:
    """A finished run of each kind; the evaluation's trajectories are made up."""
    root = tmp_path_factory.mktemp("whole")
    for kind in ("training", "lessons"):
        assert main([*commands(ten_steps)[kind], "--out", str(root / kind)]) == 0
    write(root / "evaluation", {f"t{i}": [float(i < 5), 1.0] for i in range(8)}, sampling="T=1")
    write(root / "evaluation", {f"t{i}": [float(i < 5)] for i in range(8)}, sampling="greedy")
    return {kind: root / kind for kind in ("training", "lessons", "evaluation")}


class Reader:
    """Runs the commands that read a run."""

    def __init__(self, call: Cli, whole: Path) -> None:
        self.call, self.whole = call, whole

    def words(self, run: Path) -> list[list[object]]:
        commands: list[list[object]] = [
            ["show", run, "--json"], ["show", run, "--tasks", "--json"], ["compare", run, self.whole, "--json"],
        ]  # fmt: skip
        commands += [["view", run, "--file", run.with_suffix(".html")]]
        return commands + ([["lessons", "show", run, "--json"]] if (self.whole / "lessons").exists() else [])

    def read(self, run: Path) -> list[tuple[int, str, str]]:
        """What each command says."""
        return [
            (code, out.replace(str(run), "RUN"), errors)
            for code, out, errors in (self.call(*command) for command in self.words(run))
        ]


def check_reading(kind: str, seeds: range, runs: dict[str, Path], tmp_path: Path, reader: Reader) -> list[object]:
    """Damage a run once for each seed; returns the cases in which a command ended in a traceback."""
    failed: list[object] = []
    for seed in seeds:
        root = tmp_path / f"{kind}-{seed}"
        shutil.copytree(runs[kind], root, copy_function=os.link)
        change, name = damage(root, random.Random(f"{kind} {seed}"))
        try:
            reader.read(root)
            reader.call("check", root, "--json")
        except Exception as error:  # noqa: BLE001 - a traceback is what this looks for
            failed.append((seed, change, name, repr(error)))
        shutil.rmtree(root)
    return failed


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Cli:
    return Cli(capsys, caplog)


@pytest.fixture
def reader(cli: Cli, runs: dict[str, Path]) -> Callable[[str], Reader]:
    return lambda kind: Reader(cli, runs[kind])


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("kind", "cases"), [("training", 1), ("lessons", 1), ("evaluation", 6)])
def test_damage_ends_no_command_in_a_traceback(kind, cases, runs, tmp_path, reader):
    failed = check_reading(kind, range(cases), runs, tmp_path, reader(kind))
    assert not failed, "\n".join(map(str, failed))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("training", 400), ("lessons", 300), ("evaluation", 300)])
def test_a_thousand_damaged_files(kind, cases, runs, tmp_path, reader):
    failed = check_reading(kind, range(1000, 1000 + cases), runs, tmp_path, reader(kind))
    assert not failed, "\n".join(map(str, failed))


# --- resuming ---------------------------------------------------------------------------------------------------------

# The operation on the disk after which a run of each kind dies: in the middle, with something in every file.
DIES_AFTER = {
    "training": ("rename checkpoints/step-000002", 1),
    "lessons": ("write updates.jsonl", 2),
    "evaluation": ("write results.jsonl", 4),
}


@pytest.fixture(scope="module")
def begun(ten_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, object]]:
    """A run of a kind that died in the middle, and the numbers of one that did not."""

    @cache
    def make(kind: str) -> tuple[Path, object]:
        root = tmp_path_factory.mktemp(kind)
        with pytest.MonkeyPatch.context() as patch:
            with failing_disk(patch, root / "whole") as disk:
                assert main([*commands(ten_steps)[kind], "--out", str(root / "whole")]) == 0
            operation, time = DIES_AFTER[kind]
            at = [number for number, name in enumerate(disk.operations, start=1) if name == operation][time - 1]
            with failing_disk(patch, root / "begun", at, "die after"), suppress(Died, BaseExceptionGroup):
                main([*commands(ten_steps)[kind], "--out", str(root / "begun")])
        return root / "begun", numbers_of(root / "whole")

    return make


def check_resuming(kind: str, seeds: range, begun, cli: Cli, tmp_path: Path) -> list[object]:
    """Damage a run that was interrupted once for each seed; returns the cases in which `resume` did wrong."""
    whole, _ = begun(kind)
    wrong: list[object] = []
    for seed in seeds:
        root = tmp_path / f"{kind}-{seed}"
        shutil.copytree(whole, root)
        change, name = damage(root, random.Random(f"resume {kind} {seed}"))
        try:
            code, _, errors = cli("resume", root, "--quiet")
            if code and "error[" not in errors:
                wrong.append((seed, change, name, "refused", errors))
        except Exception as error:  # noqa: BLE001 - a traceback is what this looks for
            wrong.append((seed, change, name, repr(error)))
        shutil.rmtree(root)
    return wrong


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("kind", "cases"), [("training", 1), ("lessons", 1), ("evaluation", 4)])
def test_resume_ends_or_says_why_not(kind, cases, begun, cli, tmp_path):
    wrong = check_resuming(kind, range(cases), begun, cli, tmp_path)
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("training", 100), ("lessons", 100), ("evaluation", 100)])
def test_resume_three_hundred_damaged_runs(kind, cases, begun, cli, tmp_path):
    wrong = check_resuming(kind, range(1000, 1000 + cases), begun, cli, tmp_path)
    assert not wrong, "\n".join(map(str, wrong))


def interrupted(whole: Path, root: Path) -> RunDirectory:
    """A copy of a run that looks interrupted after its last checkpoint."""
    shutil.copytree(whole, root)
    run = RunDirectory(root)
    run.set_status("interrupted", "stopped by Ctrl-C")
    return run


def break_line(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = b"[" + lines[number - 1][1:]
    path.write_bytes(b"".join(lines))


def test_training_refuses_an_unreadable_line(runs, tmp_path, capsys):
    run = interrupted(runs["training"], tmp_path / "run")
    break_line(run.metrics.path, 1)
    assert main(["resume", str(run.root), "--quiet"]) == 2
    assert "error[file-damaged]" in capsys.readouterr().err
    assert run.status().state == "interrupted"


@pytest.mark.parametrize("name", ["updates.jsonl", "evaluations.jsonl", "lessons/versions.jsonl", "ledger/spent.jsonl"])
def test_lessons_refuses_an_unreadable_line(name, runs, tmp_path):
    run = interrupted(runs["lessons"], tmp_path / "run")
    path = run.root / name
    path.write_bytes(b"[]\n" + path.read_bytes())
    with raises("file-damaged", name, "line 1"):
        run.require_whole()


def test_an_edited_recipe_is_not_resumed(runs, tmp_path, capsys):
    run = interrupted(runs["training"], tmp_path / "run")
    text = run.recipe_path.read_text()
    run.recipe_path.write_text(text.replace("group_size = 2", "group_size = 3"))
    assert main(["resume", str(run.root), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "error[inputs-changed]" in error
    assert "training.group_size: 2 | 3" in error


def test_a_damaged_kept_trajectory_runs_again(tmp_path):
    reports = []
    store = JournalStore(tmp_path / "results.jsonl", reports.append)
    _, trajectories = evaluated({f"t{index}": [1.0] for index in range(3)})
    with Journal(store.path) as journal:
        results.append(journal, "test", trajectories)
    break_line(store.path, 2)
    store.retain(lambda name, failed: True)
    assert [result.trajectory.task_id for result in results.read(store.path)] == ["t0", "t2"]
    assert "line 2 " in reports[0]


def test_a_report_without_the_trajectories_of_the_test_names_them(
    tmp_path: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["training"], run)
    for path in (run / "trajectories").glob("eval-test*"):
        path.unlink()
    assert main(["view", str(run), "--file"]) == 0
    assert "there is no segment eval-test" in capsys.readouterr().err + caplog.text


@pytest.mark.slow
def test_a_report_with_too_many_trajectories_of_the_test_names_them(finished_run, tmp_path, capsys, caplog):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    for path in (run / "trajectories").glob("eval-test*-0*"):
        path.write_bytes(path.read_bytes() * 2)
    assert main(["view", str(run), "--file"]) == 0
    assert "has more trajectories than the other" in capsys.readouterr().err + caplog.text


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("training", "metrics.jsonl", lambda path: path.write_bytes(b"[" + path.read_bytes())),
        ("training", "trajectories/step-000001*", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("training", "checkpoints/step-000002/learner.pt", lambda path: path.write_bytes(b"PK" + bytes(99))),
        ("training", "status.json", lambda path: path.write_text("{")),
        ("training", "recipe.toml", lambda path: path.write_text("a =")),
    ],
    ids=["journal", "segment", "checkpoint", "status", "recipe"],
)
def test_check_names_each_file_that_cannot_be_read(kind, name, change, runs, tmp_path, cli):
    root = tmp_path / "run"
    shutil.copytree(runs[kind], root)
    assert not cli.verify(root)
    [path] = root.glob(name)
    change(path)
    assert [text.split(":")[0] for text in cli.verify(root)] == [path.relative_to(root).as_posix()]


def test_check_finds_flipped_bits_of_a_checkpoint(runs, tmp_path, cli):
    shutil.copytree(runs["training"], tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-000002" / "learner.pt"
    data = bytearray(path.read_bytes())
    middle = slice(len(data) // 2, len(data) // 2 + 128)  # more than the padding between two tensors
    data[middle] = bytes(byte ^ 1 for byte in data[middle])
    path.write_bytes(data)
    assert "learner.pt" in " ".join(cli.verify(tmp_path / "run"))


def test_a_pipe_or_device_in_a_run_is_not_read(runs, tmp_path):
    for name, make in {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}.items():
        root = tmp_path / name
        shutil.copytree(runs["evaluation"], root)
        (root / "evaluations.jsonl").unlink()
        make(root / "evaluations.jsonl")
        with pytest.raises(RunError, check=coded("file-damaged", "evaluations.jsonl")):
            RunDirectory.open(root).evaluations.read()


def test_a_report_replaces_no_other_file(runs, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(runs["evaluation"], run)
    assert main(["view", str(run), "--file", str(run / "run.json")]) == 2
    assert "error[file-exists]" in capsys.readouterr().err
    assert main(["view", str(run), "--file", str(tmp_path / "a.html")]) == 0
    assert main(["view", str(run), "--file", str(tmp_path / "a.html")]) == 0
