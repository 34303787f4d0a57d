"""Containers for the tasks of Harbor, by the commands of docker or podman.

A container's first process reads its standard input, which this process holds: once that is closed, by `kill -9` too,
the container ends, and the runtime removes it. If that happens while it is being created, the command that creates it
continues: the container starts, reads the end of its input, and ends. What runs in it is started with `exec`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import uuid4

from midstream.core.errors import InfrastructureError, UnsupportedError

RUNTIMES = ("docker", "podman")
LABEL = "midstream.harbor"
# A runtime that is there answers at once; one whose daemon hangs never does.
_ANSWER_S = 30.0
_REMOVE_S = 30.0
# For the command that runs a container to end once that is removed.
_END_S = 2.0
_READY = b"midstream-ready"
# Of what a command prints, for an error.
_KEPT = 2000
_FILES = "/tmp/.midstream"
# The command has a process group of its own, so that it can be ended with all that it started, and its output goes to a
# file: a server that it leaves behind keeps no pipe open. The last bytes of the output are printed, then a line that
# keeps the command's exit code apart from the runtime's.
_RUN = f"""mkdir -p /tmp; set -m
bash -c "$1" </dev/null >{_FILES}-$2.out 2>&1 &
set +m; echo $! >{_FILES}-$2.group
[ ! -e {_FILES}-$2.end ] || kill -9 -- -$!
wait $!; code=$?; size=$(wc -c <{_FILES}-$2.out)
tail -c "$3" {_FILES}-$2.out; rm -f {_FILES}-$2.*
printf '\\n%s %s %s' "$4" $code $size"""
# It may come before the command has begun, which then ends itself.
_END = f"""mkdir -p /tmp; touch {_FILES}-$1.end
[ ! -e {_FILES}-$1.group ] || kill -9 -- -"$(cat {_FILES}-$1.group)"
[ ! -e {_FILES}-$1.out ] || tail -c "$2" {_FILES}-$1.out"""


@dataclass(frozen=True)
class Ran:
    """What a command in a container printed, and its exit code; None if it was ended because it took too long."""

    text: str
    code: int | None


@dataclass(frozen=True)
class Machine:
    """What a container is made with.

    `image` is pulled where it is not there; without one, it is built of the `context`, a folder with a Dockerfile.
    """

    name: str
    image: str = ""
    context: Path | None = None
    build_s: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    network: bool = True
    workdir: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


class Runtime:
    """A container runtime that answers, by its command."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._built: dict[str, asyncio.Lock] = {}
        self._images: set[str] = set()

    async def run(self, *words: str, limit_s: float, variables: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Run a command of the runtime; its exit code and output. Raises `TimeoutError`; the command is then ended."""
        process = await asyncio.create_subprocess_exec(
            self.command,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | dict(variables or {}),
            # Ctrl-C is for the run, which then ends its containers.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, output

    async def expect(self, *words: str, limit_s: float, what: str) -> bytes:
        """The output of a command that must succeed within `limit_s`. Raises `InfrastructureError`."""
        try:
            code, output = await self.run(*words, limit_s=limit_s)
        except TimeoutError:
            raise failed(f"{what} took more than {limit_s:g} s") from None
        if code:
            raise failed(f"{what} failed with exit code {code}", output)
        return output

    async def image(self, machine: Machine) -> str:
        """The image of a machine, which is built once for each content of its folder."""
        if machine.image or machine.context is None:
            return machine.image
        tag = f"midstream-harbor-{machine.name}"
        async with self._built.setdefault(tag, asyncio.Lock()):
            if tag not in self._images:
                words = ["build", "--quiet", "--tag", tag, str(machine.context)]
                await self.expect(*words, limit_s=machine.build_s, what=f"the image of {machine.context}")
                self._images.add(tag)
        return tag

    async def open(self, machine: Machine) -> Container:
        """Start a container. Raises `InfrastructureError`."""
        image, name = await self.image(machine), f"midstream-{uuid4().hex[:12]}"
        words = ["run", "--rm", "--interactive", "--name", name, "--label", f"{LABEL}={os.getpid()}"]
        words += ["--cpus", f"{machine.cpus:g}"] if machine.cpus is not None else []
        words += ["--memory", f"{machine.memory_mb}m"] * (machine.memory_mb is not None)
        words += ["--network", "none"] * (not machine.network)
        words += ["--workdir", machine.workdir] if machine.workdir else []
        # Values are taken from the command's own variables, so that no list of processes shows them.
        words += [word for variable in machine.variables for word in ("--env", variable)]
        words += ["--entrypoint", "sh", image, "-c", f"echo {_READY.decode()}; cat >/dev/null"]
        # A file: nobody reads what is printed while an image is pulled.
        with tempfile.TemporaryFile() as printed:
            process = await asyncio.create_subprocess_exec(
                self.command,
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printed,
                env=os.environ | dict(machine.variables),
                start_new_session=True,
            )
            container = Container(self, name, process)
            try:
                async with asyncio.timeout(machine.build_s):
                    assert process.stdout is not None
                    if (await process.stdout.readline()).strip() == _READY:
                        return container
                what = f"no container of {image} started"
            except TimeoutError:
                what = f"the image {image} gave no container within {machine.build_s:g} s"
            except asyncio.CancelledError:
                await container.close()
                raise
            await container.close()
            printed.seek(0)
            raise failed(what, printed.read())


class Container:
    """A container that runs until it is closed, or this process ends."""

    def __init__(self, runtime: Runtime, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._runtime, self._process, self._numbers = runtime, process, count(1)

    async def run(
        self,
        command: str,
        *,
        limit_s: float,
        user: str = "",
        variables: Mapping[str, str] | None = None,
        kept: int = 30_000,
    ) -> Ran:
        """Run a command of bash, and end it after `limit_s`; of its output the last `kept` bytes.

        Raises:
            InfrastructureError: the container is gone, or the runtime failed.
        """
        number, mark = str(next(self._numbers)), uuid4().hex
        words = ["exec", *(["--user", user] if user else [])]
        words += [word for variable in variables or {} for word in ("--env", variable)]
        words += [self.name, "bash", "-c", _RUN, "midstream", command, number, str(kept), mark]
        try:
            code, output = await self._runtime.run(*words, limit_s=limit_s, variables=variables)
        except TimeoutError:
            ended = ["exec", self.name, "bash", "-c", _END, "midstream", number, str(kept)]
            output = await self._runtime.expect(*ended, limit_s=_ANSWER_S, what="to end a command in a container")
            return Ran(_text(output), None)
        text, _, end = output.rpartition(b"\n")
        if not end.startswith(mark.encode()):
            raise failed(f"{self._runtime.command} exec failed with exit code {code}", output)
        _, exit_code, size = end.split()
        cut = f"[cut: the first {int(size) - kept:,} bytes are left out]\n" if int(size) > kept else ""
        return Ran(cut + _text(text), int(exit_code))

    async def copy(self, folder: Path, place: str) -> None:
        """Copy what a folder holds into one in the container."""
        words = ["cp", f"{folder}/.", f"{self.name}:{place}"]
        await self._runtime.expect(*words, limit_s=_ANSWER_S * 4, what=f"to copy {folder} into a container")

    async def close(self) -> None:
        """Remove the container; repeating does nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._remove()
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            # It does not end with its container: it may have created that only after there was none to remove, and
            # killed before it starts it, nothing else would remove it.
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            await self._remove()

    async def _remove(self) -> None:
        with suppress(TimeoutError):
            # One that ended by itself is gone already.
            await self._runtime.run("rm", "--force", self.name, limit_s=_REMOVE_S)


async def runtime_of(wanted: str) -> Runtime:
    """The runtime of that name, or with "auto" the first that answers. Raises `UnsupportedError`."""
    said: list[str] = []
    for command in RUNTIMES if wanted == "auto" else (wanted,):
        if shutil.which(command) is None:
            said.append(f"{command} is not installed")
            continue
        runtime = Runtime(command)
        try:
            code, output = await runtime.run("info", limit_s=_ANSWER_S)
        except TimeoutError:
            said.append(f"{command} info gave no answer within {_ANSWER_S:g} s")
            continue
        if code == 0:
            return runtime
        said.append(f"{command} info: {(_text(output).strip().splitlines() or ['no answer'])[-1]}")
    raise UnsupportedError(
        "tasks of Harbor run in containers, and no container runtime answers here",
        code="container-runtime-missing",
        cause="; ".join(said),
        fix="start Docker or Podman",
    )


def failed(what: str, output: bytes = b"", *, retryable: bool = True) -> InfrastructureError:
    """The error of a container, with the last that was printed."""
    return InfrastructureError(
        what,
        code="environment-failed",
        cause=_text(output).strip()[-_KEPT:],
        fix="correct what its output names",
        retryable=retryable,
    )


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")
