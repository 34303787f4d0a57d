"""Which sandbox this machine can give: each tier is tried out for real before it is chosen."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from midstream.core.errors import MidstreamError, SandboxError, UnsupportedError
from midstream.sandbox.settings import Config, Limits, Tier
from midstream.sandbox.worker import PythonResult, Worker, WorkerDied

AUTO: tuple[Tier, ...] = ("strong", "standard")
# What has to fail, and what has to work. A container without Landlock may read its own files.
HIDDEN: dict[Tier, str] = {
    "strong": "lambda: os.listdir('/etc'), lambda: os.stat('/proc')",  # /proc: the host's files are not there
    "standard": "lambda: os.listdir('/etc')",
    "remote": "socket.socket",
}
PROBE = """
import os, socket, threading
write, fork, kill = lambda: open(os.__file__, "ab"), lambda: os.fork() or os._exit(0), lambda: os.kill(os.getppid(), 0)
for attempt in ({hidden}, write, socket.socket, fork, kill):
    try:
        attempt()
    except OSError:
        continue
    print("reached", attempt)
with open("probe", "w") as file:
    file.write("held")
thread = threading.Thread(target=lambda: print(open("probe").read(), end=""))
thread.start()
thread.join()
"""
DOCKER = 'or set sandbox.tier = "remote", with Docker'
SYSCTL = Path("/proc/sys")
# A kernel setting that forbids namespaces to ordinary users, the value that does, and the fix.
SWITCHES = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=15000"),
)
IN_A_CONTAINER = "allow user namespaces here (in a container: --security-opt seccomp=unconfined), or use tier standard"
OLD_KERNEL = "boot a kernel of version 6.2 or newer with Landlock switched on (lsm=landlock,... on its command line)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A tier that works here; `mechanisms` names what holds code back, for people to read."""

    tier: Tier
    mechanisms: str = ""
    image: str = ""


def choose(config: Config | None = None, *, unsafe: bool = False) -> Sandbox:
    """The sandbox that a recipe asks for, tried out on this machine (once a process).

    Raises:
        UnsupportedError: it does not work here; its fix is the command that makes it work.
    """
    config = config or Config()
    if config.tier == "arithmetic":
        return _arithmetic("asked for")
    if unsafe:
        return _unsafe(config)
    if config.tier == "unsafe":
        raise UnsupportedError(
            'sandbox.tier = "unsafe" was not allowed',
            cause="it runs code that a model writes as you: with your files and your network",
            fix="say --unsafe as well, or remove the line",
        )
    wanted: tuple[Tier, ...] = AUTO if config.tier == "auto" else (config.tier,)
    failures: dict[Tier, MidstreamError] = {}
    for tier in wanted:
        image = config.image if tier == "remote" else ""
        outcome = attempt(tier, image)
        if isinstance(outcome, str):
            return Sandbox(tier=tier, mechanisms=outcome, image=image)
        failures[tier] = outcome
    if config.fallback == "arithmetic":
        return _arithmetic("; ".join(f"no tier {tier}: {failure.what}" for tier, failure in failures.items()))
    raise UnsupportedError(
        f"no sandbox works on this machine (tried: {', '.join(wanted)})",
        cause="; ".join(f"{tier}: {one.what} ({one.cause})" for tier, one in failures.items()),
        fix="; or ".join(dict.fromkeys(one.fix for one in failures.values())),
    )


def _arithmetic(why: str) -> Sandbox:
    return Sandbox(tier="arithmetic", mechanisms=f"arithmetic expressions alone, in a process of their own ({why})")


def _unsafe(config: Config) -> Sandbox:
    if hasattr(os, "fork"):
        return Sandbox(tier="unsafe", mechanisms="none: limits of time, memory and output alone")
    if config.fallback == "arithmetic":
        return _arithmetic(f"{sys.platform} cannot fork")
    raise UnsupportedError(
        f"{sys.platform} cannot run Python code, not even unsafely",
        cause="a worker forks a process for every piece of code",
        fix='set sandbox.tier = "arithmetic", ' + DOCKER,
    )


@cache
def attempt(tier: Tier, image: str) -> str | MidstreamError:
    """What holds code back on a tier, after a piece of code ran there; or why it does not work, with the fix."""
    if tier != "remote" and sys.platform != "linux":
        return UnsupportedError(f"{sys.platform} is not Linux", cause="it has no such sandbox", fix=DOCKER[3:])
    try:
        with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
            hello, result = thread.submit(lambda: asyncio.run(_try_out(tier, image))).result()
    except UnsupportedError as error:
        return error
    except (SandboxError, WorkerDied) as error:
        return _explain(tier, getattr(error, "what", "the worker died over its first piece of code"))
    if result.reason not in ("ok", "raised"):
        fix = "try again on a quieter machine; if it stays, this Python does not run in the sandbox"
        return UnsupportedError(f"its first piece of code ended early: {result.text}", cause=result.reason, fix=fix)
    if result.text != "held":
        return UnsupportedError(f"it does not hold: {result.text}", cause="a rule is ignored", fix=OLD_KERNEL)
    return ", ".join([*_outer(tier, image), *_inner(hello)])


async def _try_out(tier: Tier, image: str) -> tuple[dict[str, Any], PythonResult]:
    worker = Worker(Limits(libraries=()), tier, image, "sandbox")
    try:
        return await worker.ready(), await worker.ask(PROBE.format(hidden=HIDDEN[tier]).encode())
    finally:
        await worker.kill()


def _outer(tier: Tier, image: str) -> list[str]:
    if tier == "remote":
        return [f"container of {image} without network"]
    if tier == "standard":
        return []
    told = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return [told or "bubblewrap"]


def _inner(hello: dict[str, Any]) -> list[str]:
    found = [f"Landlock ABI {hello['landlock']}"] if hello["landlock"] else []
    return [*found, f"seccomp allowlist of {hello['calls']} calls"]


def _explain(tier: Tier, what: str) -> UnsupportedError:
    """The cause and the fix of a worker that did not start."""
    if "Landlock version" in what or "landlock" in what:
        return UnsupportedError(what, cause="Linux 6.2 has version 3", fix=OLD_KERNEL)
    if "no system calls are known" in what:
        return UnsupportedError(what, cause="the list of allowed calls is for x86-64 and arm64", fix=DOCKER[3:])
    if tier == "remote":
        return UnsupportedError(
            what,
            cause="Docker or the container did not start",
            fix="start Docker, and docker pull the image of [sandbox]",
        )
    if "Unknown option" in what:
        return UnsupportedError(what, cause="bubblewrap is older than 0.5", fix="install bubblewrap 0.5 or newer")
    if tier == "strong":
        return UnsupportedError(what, cause="bubblewrap could not make its namespaces", fix=_namespaces())
    return UnsupportedError(what, cause="a process could not confine itself", fix=OLD_KERNEL)


def _namespaces() -> str:
    """The command that allows user namespaces on this machine."""
    for name, forbids, fix in SWITCHES:
        path = SYSCTL / name
        if path.is_file() and path.read_text(encoding="ascii").strip() == forbids:
            return fix
    return IN_A_CONTAINER
