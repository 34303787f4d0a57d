"""What is installed: against a made-up PyTorch and a made-up nvidia-smi."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from midstream.doctor import checks
from midstream.doctor.checks import check_training, run_briefly
from midstream.doctor.servers import Check

GPU = "class P:\n    name, total_memory = 'NVIDIA H200', 143771 << 20\n"


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


def test_without_torch_training_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    extra, gpu = trained()
    assert (extra.status, extra.fix) == ("warning", "pip install 'midstream[train]'")
    assert "training" in extra.words
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
