"""Damage to any file of a run is named, or does not change what anybody reads; no command ends in a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.evaluation.session import JournalStore
from midstream.runs import Journal, RunDirectory, results
from support.errors import raises
from support.evaluations import evaluated, write
from support.practice_sessions import SMALL, practise

TINY = {
    **SMALL,
    "seed": 0,
    "practice.tasks": 4,
    "practice.batch_size": 2,
    "practice.group_size": 2,
    "tasks.train": 10,
    "tasks.validation": 10,
    "tasks.test": 10,
}
# Nothing is read from them: a page and a text for people, made from the other files, and the locks.
UNPROTECTED = {"report.html", "library.md", "run.lock", "library.lock"}
Damage = Callable[[random.Random, bytes], bytes | None]


def flip(chance: random.Random, content: bytes) -> bytes:
    """Flip one bit."""
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance: random.Random, content: bytes) -> bytes:
    """Cut the file anywhere."""
    return content[: chance.randrange(len(content))]


def cut_records(chance: random.Random, content: bytes) -> bytes:
    """Cut the file after a line."""
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: chance.randrange(len(lines))])


def delete(chance: random.Random, content: bytes) -> None:
    """Delete the file."""


def delete_line(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def swap_lines(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    return b"".join([*lines[:place], *reversed(lines[place : place + 2]), *lines[place + 2 :]])


def double_line(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    return b"".join([*lines[: place + 1], *lines[place:]])


DAMAGES: tuple[Damage, ...] = (flip, flip, cut, cut_records, delete, delete_line, swap_lines, double_line)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> dict[str, Path]:
    """A finished run of each kind."""
    root = tmp_path_factory.mktemp("whole")
    practise(root / "practice", small=TINY)
    RunDirectory(root / "practice").set_status("finished")
    write(root / "evaluation", {f"t{i}": [float(i < 5), 1.0] for i in range(8)}, sampling="T=1")
    write(root / "evaluation", {f"t{i}": [float(i < 5)] for i in range(8)}, sampling="greedy")
    return {"training": finished_run, "practice": root / "practice", "evaluation": root / "evaluation"}


class Reader:
    """Runs the commands that read a run."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, whole: Path) -> None:
        self.capsys, self.caplog, self.whole = capsys, caplog, whole

    def call(self, *arguments: object) -> tuple[int, str, str]:
        """The exit code, what the command prints, and its warnings and errors."""
        self.capsys.readouterr()
        self.caplog.clear()
        code = main([str(argument) for argument in arguments])
        out, errors = self.capsys.readouterr()
        return code, out, errors + self.caplog.text

    def commands(self, run: Path) -> list[list[object]]:
        commands: list[list[object]] = [
            ["show", run, "--json"], ["show", run, "--tasks", "--json"], ["compare", run, self.whole, "--json"],
        ]  # fmt: skip
        commands += [["report", run, "--out", run.with_suffix(".html")]]
        return commands + ([["library", "show", run, "--json"]] if (self.whole / "library").exists() else [])

    def read(self, run: Path) -> list[tuple[int, str, str]]:
        """What each command says."""
        return [
            (code, out.replace(str(run), "RUN"), errors)
            for code, out, errors in (self.call(*command) for command in self.commands(run))
        ]


def damaged_copy(whole: Path, root: Path, chance: random.Random) -> tuple[str, str]:
    """Copy a run and damage one of its files; returns the kind of damage and the name of the file."""
    shutil.copytree(whole, root, copy_function=os.link)
    while True:
        path = chance.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        damage, content = chance.choice(DAMAGES), path.read_bytes()
        after = damage(chance, content) if content else content
        if after == content or path.name in UNPROTECTED:
            continue
        path.unlink()
        if after is not None:
            path.write_bytes(after)
        return damage.__name__, path.relative_to(root).as_posix()


def check_reading(kind: str, seeds: range, runs: dict[str, Path], tmp_path: Path, reader: Reader) -> list[object]:
    """Damage a run once for each seed; returns the cases in which damage went unseen."""
    shutil.copytree(runs[kind], tmp_path / "whole")
    expected = reader.read(tmp_path / "whole")
    unseen: list[object] = []
    for seed in seeds:
        root = tmp_path / f"{kind}-{seed}"
        damage, name = damaged_copy(runs[kind], root, random.Random(f"{kind} {seed}"))
        words = {Path(name).name, *(part for part in Path(name).parts if part.startswith("step-"))}
        try:
            found = reader.read(root)
            code, out, errors = reader.call("verify", root, "--json")
            files = json.loads(out)["files"] if out else []
        except Exception as error:  # noqa: BLE001 - a traceback is what this looks for
            unseen.append((seed, damage, name, repr(error)))
            continue
        bad = " ".join(file["file"] for file in files if file["state"] in ("damaged", "missing")) + errors
        equal = [
            (code, out) == (expected_code, expected_out)
            for (code, out, _), (expected_code, expected_out, _) in zip(found, expected, strict=True)
        ]
        if not (code and any(word in bad for word in words)) and not all(equal):
            unseen.append((seed, damage, name, "verify", bad))
        for command, same, (_, _, errors) in zip(reader.commands(root), equal, found, strict=True):
            if not same and not any(word in errors for word in words):
                unseen.append((seed, damage, name, command[0], errors))
        shutil.rmtree(root)
    return unseen


@pytest.fixture
def reader(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, runs: dict[str, Path]):
    return lambda kind: Reader(capsys, caplog, runs[kind])


@pytest.mark.parametrize(("kind", "cases"), [("training", 20), ("practice", 15), ("evaluation", 25)])
def test_damage_is_named_or_changes_nothing(kind, cases, runs, tmp_path, reader):
    unseen = check_reading(kind, range(cases), runs, tmp_path, reader(kind))
    assert not unseen, "\n".join(map(str, unseen))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("training", 400), ("practice", 300), ("evaluation", 300)])
def test_a_thousand_damaged_files(kind, cases, runs, tmp_path, reader):
    unseen = check_reading(kind, range(1000, 1000 + cases), runs, tmp_path, reader(kind))
    assert not unseen, "\n".join(map(str, unseen))


# --- resuming ---------------------------------------------------------------------------------------------------------


def interrupted(whole: Path, root: Path) -> RunDirectory:
    """A copy of a run that looks interrupted after its last checkpoint."""
    shutil.copytree(whole, root)
    run = RunDirectory(root)
    run.set_status("interrupted", "stopped by Ctrl-C")
    return run


def change_line(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(b"0", b"1", 1)
    path.write_bytes(b"".join(lines))


def test_training_repeats_the_steps_whose_records_are_damaged(finished_run, tmp_path, caplog):
    run = interrupted(finished_run, tmp_path / "run")
    change_line(run.metrics.path, 9)
    assert main(["resume", str(run.root), "--quiet"]) == 0
    assert "metrics.jsonl" in caplog.text
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (run.root / name).read_bytes() == (finished_run / name).read_bytes()
    assert run.damage() == {}


def test_training_refuses_damage_before_its_checkpoints_until_it_is_accepted(finished_run, tmp_path, capsys):
    run = interrupted(finished_run, tmp_path / "run")
    change_line(run.metrics.path, 3)
    assert main(["resume", str(run.root), "--quiet"]) == 2
    assert "error[file-damaged]" in capsys.readouterr().err
    assert run.status().state == "interrupted"
    assert main(["verify", str(run.root), "--accept"]) == 0
    assert [metrics.step for metrics in run.metrics.read()] == [1, 2, *range(4, 11)]
    assert (run.root / "metrics.jsonl.damaged").exists()
    run.require_whole()


def test_training_refuses_when_its_checkpoints_are_gone(finished_run, tmp_path):
    run = interrupted(finished_run, tmp_path / "run")
    shutil.rmtree(run.checkpoints.root)
    with raises("file-damaged", "checkpoints/step-000010"):
        run.require_whole()


@pytest.mark.parametrize("name", ["updates.jsonl", "evaluations.jsonl", "library/versions.jsonl", "ledger/spent.jsonl"])
def test_practice_refuses_what_nothing_restores(name, runs, tmp_path):
    run = interrupted(runs["practice"], tmp_path / "run")
    path = run.root / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with raises("file-damaged", name):
        run.require_whole()


def test_an_edited_recipe_is_named_and_not_resumed(finished_run, tmp_path, capsys, caplog):
    run = interrupted(finished_run, tmp_path / "run")
    text = run.recipe_path.read_text()
    run.recipe_path.write_text(text.replace("group_size = 4", "group_size = 2"))
    assert main(["show", str(run.root)]) == 0
    assert "recipe.toml" in caplog.text
    assert main(["resume", str(run.root), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "error[inputs-changed]" in error
    assert "training.group_size: 4 | 2" in error


def test_a_damaged_kept_trajectory_runs_again(tmp_path):
    reports = []
    store = JournalStore(tmp_path / "results.jsonl", reports.append)
    _, trajectories = evaluated({f"t{index}": [1.0] for index in range(3)})
    with Journal(store.path) as journal:
        results.append(journal, "test", trajectories)
    change_line(store.path, 2)
    store.retain(lambda name, failed: True)
    assert [result.trajectory.task_id for result in results.read(store.path)] == ["t0", "t2"]
    assert "line 2 " in reports[0]


def test_a_library_that_was_edited_or_damaged_is_named(runs, tmp_path, capsys, caplog):
    path = tmp_path / "library.json"
    path.write_text((runs["practice"] / "library" / "library.json").read_text().replace("planner", "executor", 1))
    assert main(["library", "show", str(path)]) == 0
    assert "library.json is not as midstream wrote it" in caplog.text


def test_a_run_of_an_older_midstream_has_no_checksums(runs, tmp_path, capsys):
    root = tmp_path / "run"
    shutil.copytree(runs["evaluation"], root)
    info = json.loads((root / "run.json").read_text())
    del info["checksum"]
    (root / "run.json").write_text(json.dumps({**info, "format": 1}))
    status = json.loads((root / "status.json").read_text())
    (root / "status.json").write_text(json.dumps({key: status[key] for key in ("state", "message", "updated_at")}))
    records = [json.loads(line) for line in (root / "evaluations.jsonl").read_text().splitlines()]
    lines = [json.dumps({key: value for key, value in record.items() if key != "checksum"}) for record in records]
    (root / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["verify", str(root)]) == 0
    assert "evaluations.jsonl: no checksums" in capsys.readouterr().out
    assert main(["show", str(root)]) == 0


def test_a_report_without_the_trajectories_of_the_test_names_them(
    tmp_path: Path, finished_run: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    for path in (run / "trajectories").glob("eval-test*"):
        path.unlink()
    assert main(["report", str(run)]) == 0
    assert "there is no segment eval-test" in capsys.readouterr().err + caplog.text
