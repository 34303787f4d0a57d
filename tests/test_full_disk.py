"""A full disk, or a death at any write of a run, is no damage, and `resume` ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.practice.commit import read_updates
from midstream.runs import RunDirectory
from support.failing_disk import DEATHS, FULL, Died, Failure, failing_disk
from support.practice_sessions import SMALL, trajectories

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

TRAINING = {
    "tasks.countries": 20,
    "engines.policy.hidden_size": 8,
    "warm_start.transcripts": 4,
    "warm_start.steps": 1,
    "warm_start.batch_size": 2,
    "agent.max_turns": 1,
    "agent.planner.sampling.max_tokens": 3,
    "training.steps": 2,
    "training.tasks_per_step": 1,
    "training.minibatches": 1,
    "training.group_size": 2,
    "training.checkpoint_every": 1,
    "training.validate_every": 2,
    "evaluation.temperatures": "[0.0]",
    "evaluation.validation": '{name="validation",split="validation",per_family=1,seed=7}',
    "evaluation.sets": '[{name="test",split="test",per_family=1,seed=9}]',
}
PRACTICE = {
    **SMALL,
    "seed": 0,
    "practice.tasks": 4,
    "practice.batch_size": 2,
    "practice.group_size": 2,
    "tasks.train": 10,
    "tasks.validation": 10,
    "tasks.test": 10,
    "evaluation.sets": '[{name="test",split="test",count=2}]',
}
Whole = tuple[dict[str, object], list[str]]


def result_of(root: Path) -> dict[str, object]:
    """What a run has found out, without times and what was spent."""
    run = RunDirectory(root)
    files = ("metrics.jsonl", "evaluations.jsonl", "recipe.toml", "library/library.json", "policy/model.safetensors")
    updates = [record.model_copy(update={"spent": None}) for record in read_updates(run)]
    found: dict[str, object] = {name: (root / name).read_bytes() for name in files if (root / name).exists()}
    return found | {"updates": updates, "trajectories": trajectories(root), "state": run.status().state}


def fine(file: Mapping[str, str]) -> bool:
    """Whether a crash may leave what `midstream verify` says of a file."""
    if "a crash cut its last record short" in file["problem"]:
        return file["file"].endswith(".jsonl")
    return file["problem"] in {"", "it has no checksum", "it can be made again"}


class Cli:
    """Runs commands in this process; each returns its exit code, and its warnings and errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self.capsys, self.caplog = capsys, caplog

    def __call__(self, *words: object) -> tuple[int, str]:
        self.capsys.readouterr()
        self.caplog.clear()
        code = main([str(word) for word in words])
        self.out, errors = self.capsys.readouterr()
        return code, errors + self.caplog.text

    def verify(self, run: Path) -> list[str]:
        """The files that `midstream verify` does not call whole, but for those without a checksum."""
        _, said = self("verify", run, "--json")
        if not self.out:
            return [said]
        assert self.out.startswith("{"), self.out[:300]
        return [f"{file['file']}: {file['problem']}" for file in json.loads(self.out)["files"] if not fine(file)]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Cli:
    return Cli(capsys, caplog)


def settings(table: Mapping[str, object]) -> list[str]:
    return [word for key, value in table.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def commands(ten_steps: Path) -> dict[str, list[str]]:
    """The command that begins a run of each kind, without its directory."""
    return {
        "training": ["train", str(ten_steps), *settings(TRAINING)],
        "practice": ["train", "training-free-simulated", *settings(PRACTICE)],
        "evaluation": ["eval", "training-free-simulated", "--count", "2", "--set", "rollout.concurrency=1"],
    }


@pytest.fixture(scope="module")
def whole(commands: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The run of a kind that nothing disturbs: its result, and the operations that it made on the disk."""

    @cache
    def make(kind: str) -> Whole:
        root = tmp_path_factory.mktemp("whole") / kind
        with pytest.MonkeyPatch.context() as patch, failing_disk(patch, root) as disk:
            assert main([*commands[kind], "--quiet", "--out", str(root)]) == 0
        return result_of(root), disk.operations

    return make


def died(failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return any(map(died, failure.exceptions))
    return isinstance(failure, Died)


def problems(cli: Cli, begin: list[str], root: Path, expected: object, at: int, failure: Failure) -> Iterator[object]:
    """Begin a run on a disk that fails, resume it, and yield what was not as it should be."""
    with pytest.MonkeyPatch.context() as patch, failing_disk(patch, root, at, failure):
        try:
            code, said = cli(*begin, "--quiet", "--out", root)
        except BaseException as error:
            if not died(error):
                raise
            code, said = -1, ""
    if failure in FULL and not (code == 0 or (code == 1 and "error[disk-full]" in said)):
        yield "disk-full", code, said
    if (root / "run.json").exists():
        if bad := cli.verify(root):
            yield "verify", bad
        for command in (["show", root], ["resume", root, "--quiet"]):
            code, said = cli(*command)
            if code or "damage" in said:
                yield command[0], code, said
    else:
        code, said = cli("resume", root)
        if not code or "error[" not in said:
            yield "resume of nothing", code, said
        code, said = cli(*begin, "--quiet", "--out", root)
        if code:
            yield "the command again", code, said
    found = result_of(root) if (root / "run.json").exists() else {}
    if different := [key for key in expected if expected[key] != found.get(key)]:
        yield "another result", different
    elif bad := cli.verify(root):
        yield "verify after resume", bad


def check(kind: str, cases: Iterable[tuple[int, Failure]], commands, whole, cli, tmp_path) -> None:
    expected, operations = whole(kind)
    found = []
    for at, failure in cases:
        root = tmp_path / f"{at}-{failure}"
        try:
            wrong = list(problems(cli, commands[kind], root, expected, at, failure))
        except Exception as error:  # noqa: BLE001 - a traceback is what this looks for
            wrong = [("traceback", repr(error))]
        found += [(at, operations[at - 1], failure, *one) for one in wrong]
        shutil.rmtree(root, ignore_errors=True)
    assert not found, f"{len(found)}\n" + "\n".join(map(str, found))


def drawn(kind: str, count: int, operations: Sequence[str]) -> list[tuple[int, Failure]]:
    chance = random.Random(kind)
    return [(chance.randrange(len(operations)) + 1, chance.choice(DEATHS + FULL)) for _ in range(count)]


@pytest.mark.parametrize(("kind", "count"), [("training", 8), ("practice", 8), ("evaluation", 24)])
def test_a_failing_disk_loses_nothing(kind, count, commands, whole, cli, tmp_path):
    check(kind, drawn(kind, count, whole(kind)[1]), commands, whole, cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failures"), [("training", 2), ("practice", 2), ("evaluation", 6)])
def test_a_disk_that_fails_at_every_operation(kind, failures, commands, whole, cli, tmp_path):
    chance, operations = random.Random(kind), whole(kind)[1]
    cases = [
        (at, failure) for at in range(1, len(operations) + 1) for failure in chance.sample(DEATHS + FULL, failures)
    ]
    check(kind, cases, commands, whole, cli, tmp_path)
