"""The five attacks: held back by real sandboxes, and seen to get through where nothing holds them back."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.core.errors import SandboxError, UnsupportedError
from midstream.doctor import attacks
from midstream.doctor.attacks import ATTACKS, Sighting, attacked, check_sandbox, laid_bait
from midstream.report.doctor import Check
from midstream.sandbox.settings import Config, Tier
from midstream.sandbox.tiers import Sandbox, attempt, choose
from midstream.sandbox.worker import PythonResult

CODES = [attack.code for attack in ATTACKS]


def usable(tier: Tier) -> Sandbox:
    """The sandbox of that tier, or a skip with the reason."""
    try:
        return choose(Config(tier=tier))
    except UnsupportedError as failure:
        pytest.skip(str(failure))


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("midstream-doctor-")]


@pytest.mark.parametrize("tier", ["strong", "standard"])
def test_a_sandbox_holds_all_of_them_back(tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = usable(tier)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = asyncio.run(attacked(sandbox))
    assert [(check.code, check.status) for check in found] == [(code, "ok") for code in CODES]
    assert [check.words for check in found] == [f"held back, tried in {n} ways" for n in (5, 7, 3, 4, 2)]
    assert leftovers(tmp_path) == []
    assert "MIDSTREAM_DOCTOR_CANARY" not in os.environ


def test_without_a_sandbox_they_get_through() -> None:
    """The attacks work: what holds them back is the sandbox. They aim at the doctor's own bait alone."""
    found = {check.code: check for check in asyncio.run(attacked(Sandbox(tier="unsafe")))}
    through = {code for code, check in found.items() if check.status == "failed"}
    processes = {"MS414"} if os.geteuid() == 0 else set()  # a limit of zero processes binds everybody but root
    assert through == {"MS411", "MS412", "MS413", "MS415"} | processes
    assert all(found[code].words.startswith("got through: ") for code in through)
    assert found["MS411"].fix == "--set sandbox.tier=arithmetic"


def test_processes_are_seen_from_outside() -> None:
    with laid_bait() as bait:
        assert not bait.started()
        command = [sys.executable, "-c", "print(1, flush=True); input()", bait.tag]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin
            assert child.stdout
            child.stdout.readline()
            assert bait.started()
            child.communicate(b"\n")
        assert not bait.started()


def test_bait_is_taken_away_also_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), laid_bait() as bait:
        assert 1 / (os.environ["MIDSTREAM_DOCTOR_CANARY"] != bait.canary), "never reached"
    assert leftovers(tmp_path) == []
    assert "MIDSTREAM_DOCTOR_CANARY" not in os.environ
    gc.collect()  # an open socket or a process would warn


@pytest.mark.parametrize(("change", "seen"), [("new", True), ("secret", True), ("", False)])
def test_any_change_to_the_files_is_seen(change: str, seen: bool) -> None:
    with laid_bait() as bait:
        sighting = Sighting(bait, bait.files())
        if change:
            (bait.folder / change).write_text("other")
        assert ATTACKS[1].through(sighting) is seen


class Pool:
    """A pool that says what it is told to."""

    tier = "strong"

    def __init__(self, said: str, reason: str, after: str = "42") -> None:
        self.said, self.reason, self.after, self.attacked = said, reason, after, False

    async def run(self, code: str) -> PythonResult:
        if code != "6 * 7":
            self.attacked = True
            return PythonResult(False, self.said, self.reason)  # type: ignore[arg-type]
        return PythonResult(True, self.after if self.attacked else "42", "ok")


def came_to(said: str, reason: str, after: str = "42") -> Check:
    return asyncio.run(attacks._attack(Pool(said, reason, after), ATTACKS[2]))  # type: ignore[arg-type]


def test_an_attack_that_never_ran_is_no_success() -> None:
    check = came_to("SyntaxError: invalid", "raised")
    assert (check.status, check.words) == ("failed", "not known: the code ended early (raised): SyntaxError: invalid")
    assert check.fix.startswith("midstream doctor")
    assert came_to("tcp refused PermissionError", "timeout").status == "failed"
    assert came_to("a refused X\nb refused X\nc done None", "ok").status == "ok", "done, and nobody was reached"
    assert came_to("", "killed").status == "ok", "ended by the kernel"
    assert came_to("", "killed", after="nothing").status == "failed", "no code runs any more"


def checked(config: Config, *, wanted: bool = False) -> list[Check]:
    found = asyncio.run(check_sandbox(config, wanted=wanted))
    assert [check.code for check in found] == ["MS401", *CODES]
    return found


def test_the_tier_is_named_with_what_holds() -> None:
    usable("standard")
    tier, *tried = checked(Config(tier="standard"))
    assert (tier.status, tier.words.split(":")[0]) == ("ok", "standard")
    assert {check.status for check in tried} == {"ok"}


def test_arithmetic_and_unsafe_run_no_attack() -> None:
    for config in (Config(tier="arithmetic"), Config(tier="unsafe")):
        tier, *tried = checked(config)
        assert tier.status == "warning"
        assert {(check.status, check.words) for check in tried} == {("not checked", "not run: there is no sandbox")}


def test_a_machine_without_a_sandbox_fails_only_who_wants_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(config: Config) -> Sandbox:
        raise UnsupportedError("no sandbox works", cause="the kernel is old", fix="boot a newer one")

    monkeypatch.setattr(attacks, "choose", none)
    for wanted, status in ((False, "warning"), (True, "failed")):
        tier = checked(Config(), wanted=wanted)[0]
        assert (tier.status, tier.fix) == (status, "boot a newer one")
        assert tier.words == "no sandbox works, so code that a model writes will not run: the kernel is old"


def test_where_strong_does_not_work_its_mend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usable("standard")
    attempt.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        tier, *tried = checked(Config())
    finally:
        attempt.cache_clear()
    assert tier.status == "warning"
    assert tier.words.startswith("standard: ")
    assert "bubblewrap" in tier.fix
    assert {check.status for check in tried} == {"ok"}


def test_a_pool_that_breaks_down_is_a_failed_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    usable("standard")

    async def broken(sandbox: Sandbox) -> list[Check]:
        raise SandboxError("the worker died", fix="free some memory")

    monkeypatch.setattr(attacks, "attacked", broken)
    tier, *tried = checked(Config(tier="standard"))
    assert (tier.status, tier.words, tier.fix) == ("failed", "the worker died", "free some memory")
    assert {check.words for check in tried} == {"not run: the sandbox failed"}


def test_where_no_bait_can_be_laid_no_attack_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    usable("strong")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    tier, *tried = checked(Config(tier="strong"))
    assert tier.status == "ok"
    assert {check.status for check in tried} == {"not checked"}
    assert "/nowhere" in tried[0].words


def test_a_sandbox_that_is_too_slow_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    usable("standard")
    monkeypatch.setattr(attacks, "LIMIT_S", 0.001)
    tier, *tried = checked(Config(tier="standard"))
    assert tier.status == "failed"
    assert {check.status for check in tried} == {"not checked"}
