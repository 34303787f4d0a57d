"""Choosing a tier: what is tried, what is refused and with which fix."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.core.errors import UnsupportedError
from midstream.sandbox import launch, tiers
from midstream.sandbox.settings import SandboxConfig
from midstream.sandbox.tiers import attempt, choose
from support.errors import coded, raises
from support.sandboxes import sandbox

linux = pytest.mark.skipif(sys.platform != "linux", reason="strong and standard are Linux's")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Tiers are tried again in the test, and after it."""
    attempt.cache_clear()
    yield
    attempt.cache_clear()


def test_the_tier_that_was_asked_for_says_what_holds():
    strong, standard = sandbox("strong"), sandbox("standard")
    assert choose(SandboxConfig(tier="strong")) == strong
    assert choose(SandboxConfig(tier="standard")) == standard
    assert strong.mechanisms.startswith("bubblewrap 0.")
    for tier in (strong, standard):
        assert "Landlock ABI " in tier.mechanisms
        assert "seccomp allowlist of " in tier.mechanisms


def test_auto_takes_the_strongest_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None):
    assert choose() == sandbox("strong")
    attempt.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose().tier == "standard"


def test_it_is_tried_out_once_a_process_and_from_a_running_loop(monkeypatch: pytest.MonkeyPatch):
    async def inside() -> str:
        return choose(SandboxConfig(tier="standard")).tier

    expected = sandbox("standard")
    assert asyncio.run(inside()) == "standard"
    monkeypatch.setattr(tiers, "Worker", None)
    assert choose(SandboxConfig(tier="standard")) == expected


def test_bubblewrap_that_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("no-sandbox", "tried: strong", "no bwrap on PATH", "apt-get install bubblewrap"):
        choose(SandboxConfig(tier="strong"))


@linux
@pytest.mark.parametrize(
    ("switch", "fix"), [(name, fix) for name, _, fix in tiers.SWITCHES] + [("nothing", "--security-opt")]
)
def test_namespaces_that_are_forbidden_are_fixed_by_the_right_switch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None, switch: str, fix: str
):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    values = {name: value for name, value, _ in tiers.SWITCHES}
    system = tmp_path / "sys"
    for name, value in values.items():
        path = system / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((value if name == switch else "7") + "\n")
    monkeypatch.setattr(tiers, "SYSCTL", system)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, check=coded("no-sandbox", "tried: strong")) as error:
        choose(SandboxConfig(tier="strong"))
    assert "No permissions to create new namespace" in error.value.cause
    assert fix in error.value.fix


BROKEN_BWRAP = [
    ("echo 'bwrap: Unknown option --size' >&2; exit 1", "older than 0.5"),
    ("printf 'a line of text that no zygote writes'; exit 0", "did not start"),
    ("printf '\\001\\000\\000\\000\\002no'; exit 0", "did not start"),
    ("printf '\\001\\377\\377\\377\\377'; exec sleep 60", "did not start"),
    ("printf '\\077\\000\\000\\000\\000'; exec sleep 60", "did not start"),
    # Where midstream lies beneath /tmp the scratch is /scratch, which the host's file system does not have.
    (
        "exec {bwrap} --dev-bind / / --tmpfs /tmp --ro-bind {inside} {inside} -- {after}",
        "it does not hold|No such file or directory: '/scratch'",
    ),
]


@linux
@pytest.mark.parametrize(("script", "said"), BROKEN_BWRAP)
def test_a_bubblewrap_that_is_broken_is_no_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None, script: str, said: str
):
    sandbox("strong")
    bwrap, program = shutil.which("bwrap"), tmp_path / "bwrap"
    script = script.format(bwrap=bwrap, inside=launch.INSIDE, after='"$@"')
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    attempt.cache_clear()
    with pytest.raises(UnsupportedError, check=coded("no-sandbox", "tried: strong")) as caught:
        choose(SandboxConfig(tier="strong"))
    assert re.search(said, caught.value.cause)


@linux
@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        ("the kernel has Landlock version 1, and 3 is needed", "Linux 6.2 has version 3", "6.2 or newer"),
        ("no system calls are known of a riscv64 processor", "x86-64 and arm64", "remote"),
    ],
)
def test_what_standard_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None, said: str, cause: str, fix: str
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("midstream.sandbox.launch.BOOT", f"raise OSError({said!r})")
    with pytest.raises(UnsupportedError, check=coded("no-sandbox", "tried: strong, standard")) as error:
        choose()
    assert "no bwrap on PATH" in error.value.cause
    assert said in error.value.cause
    assert cause in error.value.cause
    assert fix in error.value.fix
    assert "apt-get install bubblewrap" in error.value.fix
    arithmetic = choose(SandboxConfig(fallback="arithmetic"))
    assert arithmetic.tier == "arithmetic"
    assert said in arithmetic.mechanisms


@linux
def test_a_sandbox_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch, fresh: None):
    monkeypatch.setitem(launch.LEAST_LANDLOCK, "standard", None)  # the zygote confines nothing then
    with raises("no-sandbox", "it does not hold: reached"):
        choose(SandboxConfig(tier="standard"))


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch, fresh: None):
    monkeypatch.setattr(sys, "platform", "darwin")
    with raises("no-sandbox", "darwin", "Docker"):
        choose()
    assert choose(SandboxConfig(fallback="arithmetic")).tier == "arithmetic"


def test_unsafe_wants_to_be_said_twice():
    with raises("sandbox-not-allowed"):
        choose(SandboxConfig(tier="unsafe"))
    assert choose(SandboxConfig(tier="unsafe"), unsafe=True).tier == "unsafe"
    assert choose(unsafe=True).mechanisms.startswith("none")
    assert choose(SandboxConfig(tier="arithmetic"), unsafe=True).tier == "arithmetic"


def test_unsafe_without_fork(monkeypatch: pytest.MonkeyPatch, fresh: None):
    monkeypatch.delattr(os, "fork")
    with raises("no-sandbox", "cannot fork"):
        choose(unsafe=True)
    assert choose(SandboxConfig(fallback="arithmetic"), unsafe=True).tier == "arithmetic"


def test_arithmetic_needs_nothing():
    assert choose(SandboxConfig(tier="arithmetic")).mechanisms == "arithmetic expressions alone (asked for)"
