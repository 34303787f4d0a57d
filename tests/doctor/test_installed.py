"""What is installed: against made-up distributions, a made-up PyTorch and a made-up nvidia-smi."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from midstream.core.kinds import registered
from midstream.doctor import checks
from midstream.doctor.checks import (
    EXTRAS,
    check_extras,
    check_requirements,
    check_training,
    requirements,
    run_briefly,
)
from midstream.report.doctor import Check

GPU = "class P:\n    name, total_memory = 'NVIDIA H200', 143771 << 20\n"


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    """What pip leaves of an installed package, for `importlib.metadata` to find."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), ""]))


def torch(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name, found before the real one by the process that is asked."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def torch_code(*, version: str = "2.13.0+cu130", cuda: str = "'13.0'", gpus: int = 0) -> str:
    return f"""{GPU}
class cuda:
    is_available = staticmethod(lambda: {gpus} > 0)
    device_count = staticmethod(lambda: {gpus})
    get_device_properties = staticmethod(lambda i: P)
class version:
    cuda, hip = {cuda}, None
class backends:
    class mps:
        is_available = staticmethod(lambda: False)
__version__ = {version!r}
print("a greeting that a library may print")
"""


def smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def trained() -> tuple[Check, Check]:
    extra, gpu = asyncio.run(check_training())
    assert (extra.code, gpu.code) == ("MS201", "MS202")
    return extra, gpu


def test_everything_is_there_in_this_environment() -> None:
    assert check_requirements().status == "ok"
    assert {check.code: check.status for check in check_extras()} == dict.fromkeys(
        ["MS111", "MS112", "MS113", "MS114"], "ok"
    )
    [torch] = [requirement for requirement in requirements("train") if requirement.name == "torch"]
    assert str(torch.specifier).startswith("==")


def test_an_extra_that_is_absent_is_no_trouble_and_half_of_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["nothere-a>=1; extra == 'web'", "nothere-b; extra == 'web'", "half>=2,<3; extra == 'math'", "pydantic>=2"]
    distribution(tmp_path, "midstream", "9", *wanted)
    distribution(tmp_path, "half", "1.9")
    monkeypatch.syspath_prepend(tmp_path)
    math, web, mcp, _ = check_extras()
    assert (math.status, math.fix) == ("warning", "pip install 'midstream[math]'")
    assert math.words.startswith("half 1.9 is not <3,>=2; it is for ")
    assert (web.status, web.words, web.fix) == ("ok", "not installed", "pip install 'midstream[web]'")
    assert (mcp.status, mcp.words) == ("not checked", "see MS102")
    web = check_extras({"web_search", "python"})[1]
    assert (web.status, web.words) == ("warning", "not installed; it is for web_search")


def test_the_tools_that_need_an_extra_exist() -> None:
    assert {tool for _, _, tools in EXTRAS.values() for tool in tools} <= set(registered("tool"))


def test_a_package_that_does_not_fit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "midstream", "9", "pydantic>=99", "nothere>=1")
    monkeypatch.syspath_prepend(tmp_path)
    check = check_requirements()
    assert check.status == "failed"
    assert "nothere is not installed" in check.words
    assert ">=99" in check.words
    assert check.fix.startswith("pip install ")


def test_midstream_may_run_from_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert check_requirements().status == "warning"
    assert {check.status for check in check_extras()} == {"not checked"}


def test_without_torch_the_demo_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    extra, gpu = trained()
    assert (extra.status, extra.fix) == ("warning", "pip install 'midstream[train]'")
    assert "the demo" in extra.words
    assert gpu.status == "ok"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("import os; os._exit(139)", "exit code 139"),
        ("import os; os.abort()", "exit code -6"),
        ("print('no object'); raise SystemExit(0)", "exit code 0"),
    ],
)
def test_a_torch_that_breaks_does_not_break_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    torch(tmp_path, code, monkeypatch)
    extra, _ = trained()
    assert extra.status == "failed"
    assert said in extra.words
    assert extra.fix == "pip install --force-reinstall --no-deps torch"


def test_a_torch_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(tmp_path, "import time; time.sleep(60)", monkeypatch)
    monkeypatch.setattr(checks, "PROBE_LIMIT_S", 0.3)
    extra, _ = trained()
    assert extra.status == "failed"
    assert "not finished" in extra.words


def test_a_gpu_that_torch_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(tmp_path, torch_code(gpus=2), monkeypatch)
    extra, gpu = trained()
    assert (extra.status, gpu.status) == ("ok", "ok")
    assert "2.13.0+cu130" in extra.words
    assert gpu.words == "NVIDIA H200, 140 GiB, NVIDIA H200, 140 GiB"


@pytest.mark.parametrize(
    ("build", "fix"),
    [
        (torch_code(version="2.13.0+cpu", cuda="None"), "pip install --force-reinstall 'torch==2.13.0'"),
        (torch_code(), "python -m torch.utils.collect_env   # its driver may be older than that"),
    ],
)
def test_a_gpu_that_torch_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, fix: str) -> None:
    torch(tmp_path, build, monkeypatch)
    smi(tmp_path, 'echo "NVIDIA RTX A2000 Laptop, 4096"', monkeypatch)
    _, gpu = trained()
    assert (gpu.status, gpu.fix) == ("warning", fix)
    assert gpu.words.startswith("NVIDIA RTX A2000 Laptop, 4 GiB: not seen by PyTorch 2.13.0")


@pytest.mark.parametrize("script", ["echo driver mismatch; exit 9", "echo", "echo 'N/A, [N/A]'"])
def test_an_nvidia_smi_that_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    torch(tmp_path, torch_code(version="2.13.0+cpu", cuda="None"), monkeypatch)
    smi(tmp_path, script, monkeypatch)
    assert trained()[1].words.startswith("none")


def test_what_a_command_says() -> None:
    assert asyncio.run(run_briefly("/bin/sh", "-c", "echo a; echo b >&2; echo c >&2; exit 3")) == (3, "a\n", "c")
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_briefly("/nowhere/at/all"))
