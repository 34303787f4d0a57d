"""Checks of this machine's sandbox."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.errors import UnsupportedError
from midstream.doctor.checks import check_sandbox
from midstream.doctor.servers import Check
from midstream.sandbox import tiers
from midstream.sandbox.settings import SandboxConfig
from support import sandboxes


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
