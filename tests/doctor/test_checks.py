"""Checks of the machine: real directories, a limit of open files that is really lowered, this machine's sandbox."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from midstream.core.errors import UnsupportedError
from midstream.doctor.checks import (
    FILES_PER_TRAJECTORY,
    OTHER_FILES,
    check_open_files,
    check_runs,
    check_sandbox,
)
from midstream.report.doctor import Check
from midstream.sandbox import tiers
from midstream.sandbox.settings import SandboxConfig
from support import sandboxes


def test_a_place_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    check = check_runs(tmp_path / "a" / "b")
    assert check.status == "ok"
    assert check.words.endswith(f" GiB free in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_fails(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    check = check_runs(tmp_path / "runs")
    assert check.status == "failed"
    assert "Not a directory" in check.words
    assert "--out DIRECTORY" in check.fix


def test_a_place_where_nobody_can_write_fails() -> None:
    assert check_runs(Path("/proc/midstream-runs")).status == "failed"


def test_a_directory_that_is_gone_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    check = check_runs()
    monkeypatch.chdir(tmp_path)
    assert (check.status, check.words) == ("failed", "runs cannot be written to: No such file or directory")


def test_a_directory_that_may_not_be_searched_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:  # root may search everything
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "exists", refuse)
    assert check_runs(tmp_path / "runs").words.endswith("cannot be written to: no")


@pytest.mark.parametrize(("free_mb", "status"), [(10, "failed"), (500, "warning"), (3000, "ok")])
def test_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free_mb << 20))
    check = check_runs(tmp_path / "with space")
    assert check.status == status
    assert bool(check.fix) is (status != "ok")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """An open-file limit of 200, as macOS has 256."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    yield 200
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_open_files_are_a_warning(soft_limit: int) -> None:
    few = (soft_limit - OTHER_FILES) // FILES_PER_TRAJECTORY
    assert check_open_files(few).status == "ok"
    check = check_open_files(few + 1)
    assert (check.status, check.fix) == ("warning", "ulimit -n 4096")
    assert check.words.startswith(f"200 allowed; {few + 1} trajectories")


# --- the sandbox ------------------------------------------------------------------------------------------------------


def sandbox(config: SandboxConfig, *, wanted: bool = False) -> Check:
    [check] = asyncio.run(check_sandbox(config, wanted=wanted))
    assert check.code == "MS401"
    return check


def test_the_tier_is_named_with_its_mechanisms() -> None:
    sandboxes.sandbox("standard")
    check = sandbox(SandboxConfig(tier="standard"))
    assert (check.status, check.words.split(":")[0]) == ("ok", "standard")
    assert "seccomp" in check.words


@pytest.mark.parametrize("config", [SandboxConfig(tier="arithmetic"), SandboxConfig(tier="unsafe")])
def test_a_tier_that_holds_no_code_back_is_a_warning(config: SandboxConfig) -> None:
    assert sandbox(config).status == "warning"


def test_a_machine_without_a_sandbox_fails_only_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(config: SandboxConfig) -> tiers.Sandbox:
        raise UnsupportedError("no sandbox works", cause="the kernel is old", fix="boot a newer one")

    monkeypatch.setattr(tiers, "choose", none)
    for wanted, status in ((False, "warning"), (True, "failed")):
        check = sandbox(SandboxConfig(), wanted=wanted)
        assert (check.status, check.fix) == (status, "boot a newer one")
        assert "no sandbox works" in check.words
        assert "the kernel is old" in check.words


def test_where_strong_does_not_work_its_fix_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes.sandbox("standard")
    tiers.attempt.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        check = sandbox(SandboxConfig())
    finally:
        tiers.attempt.cache_clear()
    assert check.status == "warning"
    assert check.words.startswith("standard: ")
    assert "bubblewrap" in check.fix
