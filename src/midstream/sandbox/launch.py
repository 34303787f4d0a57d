"""How to start a worker's process on each tier: its command, its environment, its scratch directory.

    strong      bubblewrap: new namespaces for users, files, processes, network, IPC and names; the only files are the
                system's and Python's, read-only, and a scratch of `disk_mb` in memory
    standard    the process itself, with a scratch directory of the host's
    remote      a container: `docker run`, without a network
    unsafe      as standard, and the zygote confines nothing

On strong and standard every child is held by Landlock and seccomp as well (`inside.confinement`), on remote as far as
the container's kernel can.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from midstream.components.component import Tier
from midstream.core.errors import UnsupportedError
from midstream.sandbox.settings import CodeLimits

INSIDE = Path(__file__).with_name("inside")
BOOT = "import sys; sys.path.insert(0, {place!r}); from inside.zygote import main; del sys.path[0]; main()"
PYTHON_FLAGS = ("-s", "-S", "-P", "-B", "-c")
# A virtual environment's own is only a link.
BASE_PYTHON: str = getattr(sys, "_base_executable", sys.executable)
LEAST_LANDLOCK: dict[Tier, int | None] = {"strong": 1, "standard": 3, "remote": 0, "unsafe": None}
# Without them some interpreters do not start.
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
VARIABLES = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    # Bound now, not in every child.
    "LD_BIND_NOW": "1",
    # Otherwise every thread takes 64 MB of its limit.
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
NOBODY = "65534"
# Of the tiers with a file system of their own.
SCRATCH = "/tmp"
# Where Python or a package lies beneath /tmp, and in images, whose /tmp keeps its own mode.
OTHER_SCRATCH = "/scratch"
SYSTEM = ("/usr", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
ROOT_LINKS = ("/lib", "/lib32", "/lib64", "/libx32")
CONTAINER_PLACE = "/midstream"
# For the worker itself, on top of its code's memory.
CONTAINER_MEMORY_MB = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command, its environment, and a directory of the host's to remove afterwards, if it has one."""

    command: tuple[str, ...]
    environment: dict[str, str]
    scratch: str = ""


def launch(tier: Tier, limits: CodeLimits, image: str = "") -> Launch:
    """The command and environment of one worker; creates its scratch directory where that is the host's.

    Raises `UnsupportedError` if the program that the tier needs (bwrap, docker) is not installed, `OSError` if no
    scratch directory could be made.
    """
    if tier == "remote":
        return _container(limits, image)
    packages = package_directories(limits.libraries)
    if tier == "strong":
        return _bubblewrap(limits, packages)
    scratch = tempfile.mkdtemp(prefix="midstream-")
    command = _zygote(BASE_PYTHON, tier, limits, scratch, packages)
    return Launch(command=command, environment=_variables(scratch), scratch=scratch)


def find_installed(libraries: Iterable[str]) -> tuple[str, ...]:
    """Those of `libraries` that this Python can import; imports none of them."""
    return tuple(name for name in libraries if _spec_places(name))


def package_directories(libraries: Iterable[str]) -> list[str]:
    """The directories that code may import from: those of this Python's packages, and of `libraries`."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    for name in libraries:
        found += _spec_places(name)
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(path)]


def _spec_places(name: str) -> list[str]:
    """The directories of sys.path that hold a module or package."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    inside = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]
    return [os.path.dirname(inside[0])] if inside else [os.path.dirname(os.__file__)]


def _zygote(python: str, tier: Tier, limits: CodeLimits, scratch: str, packages: list[str] | None) -> tuple[str, ...]:
    """The command of the zygote with its settings (see `inside.zygote.Zygote`); no `packages`: that Python's own."""
    settings = limits.model_dump(include={"timeout_s", "memory_mb", "disk_mb", "output_limit", "libraries"})
    settings["packages"] = packages
    settings["readable"] = [*SYSTEM, *ROOT_LINKS, *([] if packages is None else _prefixes())]
    settings["landlock"] = LEAST_LANDLOCK[tier]
    settings["scratch"] = scratch
    settings["own_namespaces"] = tier == "strong"
    place = CONTAINER_PLACE if tier == "remote" else str(INSIDE.parent)
    return (python, *PYTHON_FLAGS, BOOT.format(place=place), json.dumps(settings))


def _variables(scratch: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | VARIABLES | {"HOME": scratch, "TMPDIR": scratch}


def _prefixes() -> list[str]:
    """The directories of this Python itself."""
    return [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.path.realpath(BASE_PYTHON))]


def _bubblewrap(limits: CodeLimits, packages: list[str]) -> Launch:
    program = _find("bwrap", "bubblewrap", "apt-get install bubblewrap   # dnf, pacman, apk: the same name")
    seen = [path for path in (*SYSTEM, *_prefixes(), *packages, str(INSIDE)) if os.path.exists(path)]
    command = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox", "--cap-drop", "ALL"]
    command += ["--die-with-parent", "--new-session", "--clearenv"]
    # The zygote, not the code, administers its namespaces (`inside.namespaces`); a bwrap with the set-user-ID bit
    # gives such rights to root alone.
    if not os.getuid() or not os.stat(program).st_mode & stat.S_ISUID:
        command += ["--cap-add", "CAP_SYS_ADMIN", "--proc", "/proc"]
    beneath = any(f"{path}/".startswith(f"{SCRATCH}/") for path in seen)
    scratch = OTHER_SCRATCH if beneath else SCRATCH
    for path in outermost(seen):
        command += ["--ro-bind", path, path]
    for link in ROOT_LINKS:
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            command += ["--ro-bind", link, link]
    for device in ("null", "zero", "urandom"):
        command += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
    command += ["--size", str(limits.disk_mb * 1024 * 1024), "--tmpfs", scratch, "--remount-ro", "/"]
    for name, value in _variables(scratch).items():
        command += ["--setenv", name, value]
    command += ["--chdir", "/", "--"]
    return Launch(command=(*command, *_zygote(BASE_PYTHON, "strong", limits, scratch, packages)), environment={})


def outermost(paths: Iterable[str]) -> list[str]:
    """The directories that do not lie in another of the directories."""
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths), key=len):
        if not any(path.startswith(outer.rstrip("/") + "/") for outer in kept):
            kept.append(path)
    return kept


def _container(limits: CodeLimits, image: str) -> Launch:
    program = _find("docker", "docker", "install Docker (https://docs.docker.com/engine/install), or another tier")
    memory = f"{limits.memory_mb + limits.disk_mb + CONTAINER_MEMORY_MB}m"
    command = [program, "run", "--rm", "--interactive", "--network", "none", "--ipc", "none", "--read-only"]
    command += ["--memory", memory, "--memory-swap", memory, "--pids-limit", "256", "--user", f"{NOBODY}:{NOBODY}"]
    command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    command += ["--tmpfs", f"{OTHER_SCRATCH}:rw,nosuid,nodev,noexec,mode=1777,size={limits.disk_mb}m"]
    command += ["--mount", f"type=bind,source={INSIDE},target={CONTAINER_PLACE}/inside,readonly"]
    for name, value in (VARIABLES | {"HOME": OTHER_SCRATCH, "TMPDIR": OTHER_SCRATCH}).items():
        command += ["--env", f"{name}={value}"]
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "PATH") or name.startswith("DOCKER_")}
    zygote = _zygote("python", "remote", limits, OTHER_SCRATCH, None)
    return Launch(command=(*command, image, *zygote), environment=kept)


def _find(program: str, package: str, fix: str) -> str:
    found = shutil.which(program)
    if found is None:
        what = f"{package} is not installed: no {program} on PATH"
        raise UnsupportedError(what, code="program-not-installed", fix=fix)
    return found
