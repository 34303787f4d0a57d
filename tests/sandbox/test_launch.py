"""How workers are started: what each tier's command holds, and a container played by a program of ours."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.components.component import Sandbox
from midstream.sandbox import launch
from midstream.sandbox.inside import scratch
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.tiers import attempt, choose
from support.errors import raises

LIMITS = CodeLimits(memory_mb=100, disk_mb=7, libraries=())
linux = pytest.mark.skipif(sys.platform != "linux", reason="strong and standard are Linux's")

# Imitates `docker run`: keeps its options, then starts the command in bubblewrap as a daemon would in a container.
DOCKER = """#!{python}
import json, os, sys
options, command, arguments = {{}}, [], sys.argv[1:]
assert arguments.pop(0) == "run"
while arguments[0].startswith("--"):
    name = arguments.pop(0)
    options.setdefault(name, []).append(None if name in ("--rm", "--interactive", "--read-only") else arguments.pop(0))
image, *command = arguments
json.dump([options, image, command, dict(os.environ)], open({kept!r}, "w"))
if image == "no-such-image":
    sys.exit("docker: Error response from daemon: pull access denied")
mount = dict(part.partition("=")[::2] for part in options["--mount"][0].split(","))
assert "readonly" in mount
prefix = {prefix!r}
call = ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv"]
for path in ("/usr", prefix):
    call += ["--ro-bind", path, path]
for link in ("/lib", "/lib64"):
    call += ["--symlink", os.readlink(link), link] if os.path.islink(link) else ["--ro-bind", link, link]
call += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", mount["source"], mount["target"]]
call += ["--tmpfs", options["--tmpfs"][0].partition(":")[0]]
for value in options["--env"]:
    call += ["--setenv", *value.split("=", 1)]
os.execvp("bwrap", [*call, {base!r}, *command[1:]])
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake `docker` on PATH; yields the file in which it keeps its options."""
    if not shutil.which("bwrap") or not isinstance(attempt("strong", ""), str):
        pytest.skip("the container is played with bubblewrap, which does not work here")
    kept = tmp_path / "options.json"
    program = tmp_path / "docker"
    text = DOCKER.format(python=sys.executable, kept=str(kept), prefix=sys.base_prefix, base=launch.BASE_PYTHON)
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    attempt.cache_clear()
    yield kept
    attempt.cache_clear()


def test_remote_is_a_container_without_a_network(container: Path):
    chosen = choose(SandboxConfig(tier="remote", image="python:3.12-slim"))
    assert chosen.mechanisms.startswith("container of python:3.12-slim without network")
    options, image, command, environment = json.loads(container.read_text())
    assert image == chosen.image == "python:3.12-slim"
    assert command[0] == "python"
    assert {name: values[0] for name, values in options.items() if name not in ("--mount", "--env", "--tmpfs")} == {
        "--rm": None,
        "--interactive": None,
        "--read-only": None,
        "--network": "none",
        "--ipc": "none",
        "--memory": "1088m",
        "--memory-swap": "1088m",
        "--pids-limit": "256",
        "--user": "65534:65534",
        "--cap-drop": "ALL",
        "--security-opt": "no-new-privileges",
    }
    assert options["--tmpfs"][0].endswith("size=64m")
    assert "secret" not in json.dumps([options, command, environment])


def test_remote_runs_code_as_any_tier_does(container: Path):
    async def go() -> list[str]:
        pool = PythonPool(LIMITS, Sandbox(tier="remote", image="python:3.12-slim"))
        codes = (
            "print(6 * 7)",
            "open('f', 'w').close()",
            "import os\nos.listdir('.')",
            "import socket\nsocket.socket()",
        )
        texts = [(await pool.run(code)).text for code in codes]
        assert pool.libraries == ()
        await pool.close()
        return texts

    number, nothing, empty, refused = asyncio.run(go())
    assert (number, nothing, empty) == ("42", "", "[]")
    assert "PermissionError" in refused
    assert json.loads(container.read_text())[0]["--memory"] == ["619m"]  # the worker's own 512, memory_mb, disk_mb


def test_an_image_that_is_not_there_is_said(container: Path):
    with raises("no-sandbox", "pull access denied", "docker pull"):
        choose(SandboxConfig(tier="remote", image="no-such-image"))


def test_without_docker_remote_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("program-not-installed", "docker"):
        launch.launch("remote", LIMITS, "python:3.12-slim")


@linux
def test_strong_sees_what_it_needs_and_no_more(monkeypatch: pytest.MonkeyPatch):
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    start = launch.launch("strong", LIMITS)
    words = list(start.command)
    for kind in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{kind}" in words
    for option, value in (("--uid", "65534"), ("--gid", "65534"), ("--cap-drop", "ALL"), ("--size", str(7 * 2**20))):
        assert words[words.index(option) + 1] == value
    assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(words)
    assert words[words.index("--remount-ro") + 1] == "/"
    assert "--bind" not in words
    assert words[words.index("--cap-add") + 1] == "CAP_SYS_ADMIN"  # the zygote's; code has none, and no /proc either
    assert "secret" not in " ".join(words)
    assert (start.environment, start.scratch) == ({}, "")
    bound = {words[at + 1] for at, word in enumerate(words) if word == "--ro-bind"}
    assert not bound & {"/", "/home", "/root", "/etc", "/var", "/tmp", str(Path.home())}


def test_standard_makes_a_directory_that_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start = launch.launch("standard", LIMITS)
    assert start.scratch
    assert Path(start.scratch).stat().st_mode & 0o777 == 0o700
    assert start.environment["TMPDIR"] == start.environment["HOME"] == start.scratch
    settings = json.loads(start.command[-1])
    assert (settings["landlock"], settings["scratch"], settings["disk_mb"]) == (3, start.scratch, 7)
    assert json.loads(launch.launch("unsafe", LIMITS).command[-1])["landlock"] is None
    scratch.remove(start.scratch)
    scratch.remove(start.scratch)  # once more does nothing
    assert not Path(start.scratch).exists()


def test_a_zygote_empties_no_directory_that_held_files_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "precious").write_text("kept")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr("midstream.sandbox.worker.Worker._remove_scratch", lambda self: None)
    pool = PythonPool(LIMITS, Sandbox(tier="unsafe"))
    with raises("worker-not-started", "holds files"):
        asyncio.run(pool.run("1"))
    assert (tmp_path / "precious").read_text() == "kept"


def test_packages_are_where_the_libraries_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    place = tmp_path / "elsewhere"
    (place / "lib_of_mine").mkdir(parents=True)
    (place / "lib_of_mine" / "__init__.py").touch()
    (place / "module_of_mine.py").touch()
    monkeypatch.syspath_prepend(str(place))
    names = ("lib_of_mine", "module_of_mine", "no_such_library", "math", "json")
    assert launch.find_installed(names) == ("lib_of_mine", "module_of_mine", "math", "json")
    assert str(place) in launch.package_directories(["lib_of_mine"])
    assert str(place) in launch.package_directories(["module_of_mine.inner"])
    assert str(place) not in launch.package_directories(["json"])


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))))
def test_directories_within_others_are_left_out(paths: list[str]):
    kept = launch.outermost(paths)
    for path in paths:
        assert sum(path == outer or path.startswith(outer + "/") for outer in kept) == 1
