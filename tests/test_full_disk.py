"""A full disk, or a death at any write of a run, is no damage, and `resume` ends as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from midstream.cli.main import main
from support.failing_disk import DEATHS, FULL, Died, Failure, failing_disk
from support.tiny_runs import Cli, commands, result_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Whole = tuple[dict[str, object], list[str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Cli:
    return Cli(capsys, caplog)


@pytest.fixture(scope="module")
def whole(ten_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The run of a kind that nothing disturbs: its result, and the operations that it made on the disk."""

    @cache
    def make(kind: str) -> Whole:
        root = tmp_path_factory.mktemp("whole") / kind
        with pytest.MonkeyPatch.context() as patch, failing_disk(patch, root) as disk:
            assert main([*commands(ten_steps)[kind], "--out", str(root)]) == 0
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
            code, _, said = cli(*begin, "--out", root)
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
            code, _, said = cli(*command)
            if code or "damage" in said:
                yield command[0], code, said
    else:
        code, _, said = cli("resume", root)
        if not code or "error[" not in said:
            yield "resume of nothing", code, said
        code, _, said = cli(*begin, "--out", root)
        if code:
            yield "the command again", code, said
    found = result_of(root) if (root / "run.json").exists() else {}
    if different := [key for key in expected if expected[key] != found.get(key)]:
        yield "another result", different
    elif bad := cli.verify(root):
        yield "verify after resume", bad


def check(kind: str, cases: Iterable[tuple[int, Failure]], ten_steps, whole, cli, tmp_path) -> None:
    expected, operations = whole(kind)
    found = []
    for at, failure in cases:
        root = tmp_path / f"{at}-{failure}"
        try:
            wrong = list(problems(cli, commands(ten_steps)[kind], root, expected, at, failure))
        except Exception as error:  # noqa: BLE001 - a traceback is what this looks for
            wrong = [("traceback", repr(error))]
        found += [(at, operations[at - 1], failure, *one) for one in wrong]
        shutil.rmtree(root, ignore_errors=True)
    assert not found, f"{len(found)}\n" + "\n".join(map(str, found))


def drawn(kind: str, count: int, operations: Sequence[str]) -> list[tuple[int, Failure]]:
    chance = random.Random(kind)
    return [(chance.randrange(len(operations)) + 1, chance.choice(DEATHS + FULL)) for _ in range(count)]


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("kind", "count"), [("training", 1), ("lessons", 1), ("evaluation", 4)])
def test_a_failing_disk_loses_nothing(kind, count, ten_steps, whole, cli, tmp_path):
    check(kind, drawn(kind, count, whole(kind)[1]), ten_steps, whole, cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failures"), [("training", 2), ("lessons", 2), ("evaluation", 6)])
def test_a_disk_that_fails_at_every_operation(kind, failures, ten_steps, whole, cli, tmp_path):
    chance, operations = random.Random(kind), whole(kind)[1]
    cases = [
        (at, failure) for at in range(1, len(operations) + 1) for failure in chance.sample(DEATHS + FULL, failures)
    ]
    check(kind, cases, ten_steps, whole, cli, tmp_path)
