"""Choosing the sandbox: each tier is tried with real code on this machine before it is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from midstream.components.component import Sandbox, Tier
from midstream.core.errors import MidstreamError, SandboxError, UnsupportedError
from midstream.core.threads import start_thread
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.worker import Hello, PythonResult, Worker, WorkerDied

AUTO: tuple[Tier, ...] = ("strong", "standard")
# The probe: attempts that must fail, then work that must succeed. A container without Landlock may read its own files.
HIDDEN: dict[Tier, str] = {
    # The host's files are not even there.
    "strong": "lambda: os.listdir('/etc'), lambda: os.stat('/etc/passwd')",
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


def choose(config: SandboxConfig | None = None, *, unsafe: bool = False) -> Sandbox:
    """The sandbox that a recipe asks for, tried on this machine (once a process).

    Raises `UnsupportedError` if it does not work here; the fix is the command that makes it work.
    """
    config = config or SandboxConfig()
    if config.tier == "arithmetic":
        return Sandbox(tier="arithmetic", mechanisms="arithmetic expressions alone (asked for)")
    if config.tier == "unsafe" and not unsafe:
        raise UnsupportedError(
            'sandbox.tier = "unsafe" was not allowed',
            code="sandbox-not-allowed",
            fix="remove the line, or say --unsafe as well: code that a model writes then has your files and network",
        )
    wanted: tuple[Tier, ...] = ("unsafe",) if unsafe else AUTO if config.tier == "auto" else (config.tier,)
    failures: dict[Tier, MidstreamError] = {}
    for tier in wanted:
        image = config.image if tier == "remote" else ""
        outcome = attempt(tier, image)
        if isinstance(outcome, str):
            return Sandbox(tier=tier, mechanisms=outcome, image=image)
        failures[tier] = outcome
    if config.fallback == "arithmetic":
        why = "; ".join(f"no tier {tier}: {failure.what}" for tier, failure in failures.items())
        return Sandbox(tier="arithmetic", mechanisms=f"arithmetic expressions alone ({why})")
    raise UnsupportedError(
        f"no sandbox works on this machine (tried: {', '.join(wanted)})",
        code="no-sandbox",
        cause="; ".join(f"{tier}: {failure.what}" for tier, failure in failures.items()),
        fix="; or ".join(dict.fromkeys(failure.fix for failure in failures.values())),
    )


@cache
def attempt(tier: Tier, image: str) -> str | MidstreamError:
    """Run the probe on a tier; returns what holds code back there, or the error with its fix."""
    if tier == "unsafe":
        if hasattr(os, "fork"):
            return "none: limits of time, memory and output alone"
        fix = 'set sandbox.tier = "arithmetic", ' + DOCKER
        return _unusable(f"{sys.platform} cannot fork a process for every piece of code", "even unsafe needs it", fix)
    if tier != "remote" and sys.platform != "linux":
        return _unusable(f"{sys.platform} is not Linux", "it has no such sandbox", DOCKER[3:])

    async def probe() -> tuple[Hello, PythonResult]:
        worker = Worker(CodeLimits(libraries=()), tier, image, "sandbox")
        try:
            return await worker.ready(), await worker.ask(PROBE.format(hidden=HIDDEN[tier]).encode())
        finally:
            await worker.kill()

    try:
        # This thread may already run an event loop.
        hello, result = start_thread(lambda: asyncio.run(probe()), "probe").result()
    except UnsupportedError as error:
        return error
    except (SandboxError, WorkerDied) as error:
        return _explain(tier, getattr(error, "what", "the worker died during its first piece of code"))
    if result.reason not in ("ok", "raised"):
        fix = "try again on a quieter machine; if it stays, this Python does not run in the sandbox"
        return _unusable(f"its first piece of code ended early: {result.text}", result.reason, fix)
    if result.text != "held":
        return _unusable(f"it does not hold: {result.text}", "a rule is ignored", OLD_KERNEL)
    mechanisms: list[str] = []
    if tier == "remote":
        mechanisms.append(f"container of {image} without network")
    elif tier == "strong":
        version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
        mechanisms.append(version or "bubblewrap")
    if hello["landlock"]:
        mechanisms.append(f"Landlock ABI {hello['landlock']}")
    if hello["namespaces"]:
        mechanisms.append("a file system for each call")
    return ", ".join([*mechanisms, f"seccomp allowlist of {hello['calls']} calls"])


def _explain(tier: Tier, what: str) -> UnsupportedError:
    """The cause and the fix of a worker that did not start."""
    cause, fix = "bubblewrap could not make its namespaces", IN_A_CONTAINER
    if "landlock" in what.lower():
        cause, fix = "Linux 6.2 has version 3", OLD_KERNEL
    elif "no system calls are known" in what:
        cause, fix = "the list of allowed calls is for x86-64 and arm64", DOCKER[3:]
    elif tier == "remote":
        cause, fix = "Docker or the container did not start", "start Docker, and docker pull the image of [sandbox]"
    elif "Unknown option" in what:
        cause, fix = "bubblewrap is older than 0.5", "install bubblewrap 0.5 or newer"
    elif tier == "standard":
        cause, fix = "a process could not confine itself", OLD_KERNEL
    else:
        for name, forbids, command in SWITCHES:
            switch = SYSCTL / name
            if switch.is_file() and switch.read_text(encoding="ascii").strip() == forbids:
                cause, fix = "a kernel setting forbids bubblewrap's namespaces", command
    return _unusable(what, cause, fix)


def _unusable(what: str, cause: str, fix: str) -> UnsupportedError:
    return UnsupportedError(f"{what} ({cause})", code="no-sandbox", fix=fix)
