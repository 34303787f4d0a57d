"""A sandbox of Inspect that runs Python in midstream's. It needs midstream where inspect is, unlike the adapter.

Each command has a new process (`midstream.sandbox.pool`), which gets a sample's files and returns those that it
changed. It can start no other program, so what is no Python is refused with an error. The error ends the sample: no
score is made of a command that did not run.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import posixpath
import shlex
from dataclasses import dataclass
from typing import Any, ClassVar

from inspect_ai.util import ExecResult, SandboxEnvironment, SandboxUserUnsupportedError, sandboxenv

from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.tiers import choose
from midstream.sandbox.worker import PythonResult, Worker

NAME = "midstream"
# Of a command that states none.
TIMEOUT_S = 180.0
# The end of what a command prints; bytes of the files that it changes.
KEPT, CHANGED = 200_000, 400_000
# Their code would run in another directory, or import other modules; all else of these flags holds anyway.
FLAGS = {"-u", "-B", "-s", "-S", "-E", "-I", "-P"}
# How the tool `python` of inspect starts it.
SHELLS = ("bash", "sh")

# Runs inside. What code prints is in streams of its own, and the one text that midstream's sandbox returns is this
# program's.
INSIDE = """
import base64, io, json, os, runpy, sys, traceback, types

def work(asked, kept, most):
    top = os.getcwd()
    sys.dont_write_bytecode = True
    for name, data in asked["files"].items():
        path = os.path.join(top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
    place = os.path.join(top, asked["cwd"])
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    os.environ.update(asked["env"])
    streams = sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(base64.b64decode(asked["input"])), "utf-8")
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", "replace", write_through=True) for _ in streams)
    printed, status = (sys.stdout.buffer, sys.stderr.buffer), 0
    sys.argv, sys.path[:0] = asked["argv"], [os.path.join(place, asked["near"])]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        if asked["module"]:
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        else:
            exec(compile(asked["source"], asked["name"], "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    said = [stream.getvalue().decode("utf-8", "replace")[-kept:] for stream in printed]
    sys.stdout, sys.stderr = streams
    changed, seen, size = {}, set(), 0
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            short = os.path.relpath(path, top)
            # A link, or a pipe that nobody writes to.
            if not os.path.isfile(path) or os.path.islink(path) or not os.access(path, os.R_OK):
                continue
            seen.add(short)
            with open(path, "rb") as file:
                data = file.read(most + 1)
            text = base64.b64encode(data).decode()
            if asked["files"].get(short) != text:
                changed[short] = text
                size += len(data)
    gone = [name for name in asked["files"] if name not in seen]
    print(json.dumps({"status": status, "said": said, "changed": changed if size <= most else None, "gone": gone}))
"""


@dataclass
class Asked:
    """A command of Python: its source and name, or a module, and its arguments."""

    source: str = ""
    name: str = "<string>"
    module: str = ""
    near: str = ""
    argv: tuple[str, ...] = ()


@sandboxenv(name=NAME)
class MidstreamSandbox(SandboxEnvironment):
    """A sample's files, and the Python that runs with them."""

    pool: ClassVar[PythonPool | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, bytes] = {}

    @classmethod
    def open(cls) -> None:
        """Choose the sandbox of this machine. Raises `UnsupportedError` where none works."""
        limits = CodeLimits(
            workers=os.cpu_count() or 1,
            # The wall clock decides: commands state its limit.
            timeout_s=86_400,
            memory_mb=1024,
            output_limit=1_000_000,
            libraries=(),
        )
        cls.pool = PythonPool(limits, choose(), queue_s=None, table="tasks")

    @classmethod
    async def sample_init(
        cls, task_name: str, config: object, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """The sandbox of one sample."""
        return {"default": cls()}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: object, environments: object, interrupted: bool) -> None:
        """Nothing: its files are in memory."""

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command of Python.

        Raises:
            RuntimeError: it is another command, or changes more than it may.
            TimeoutError: it takes longer than `timeout`.
        """
        if user is not None:
            raise SandboxUserUnsupportedError("midstream's sandbox has one user")
        given = input.encode() if isinstance(input, str) else input or b""
        asked = command(cmd, given)
        place = beneath(cwd or ".")
        if asked is None:
            raise RuntimeError(f"midstream's sandbox runs Python alone, not {shlex.join(cmd)[:200]!r}")
        if asked.name != "<string>" and asked.name != "<stdin>":
            file = beneath(posixpath.join(place, asked.name))
            if file not in self._files:
                words = f"{cmd[0]}: can't open file '{asked.name}': [Errno 2] No such file or directory\n"
                return ExecResult(False, 2, "", words)
            asked.source, asked.near = self._files[file].decode("utf-8", "replace"), posixpath.dirname(asked.name)
        sent = {
            **vars(asked),
            "cwd": place,
            "env": env or {},
            "input": base64.b64encode(b"" if asked.name == "<stdin>" else given).decode(),
            "files": {name: base64.b64encode(data).decode() for name, data in self._files.items()},
        }
        code = f"{INSIDE}\nwork(json.loads({json.dumps(sent)!r}), {KEPT}, {CHANGED})"
        return self._result(await run(code, timeout or TIMEOUT_S))

    def _result(self, result: PythonResult) -> ExecResult[str]:
        """What a command returned; its files are kept."""
        if result.reason in ("timeout", "memory", "disk", "killed"):
            # The code's doing: it ended its process, or asked for more than there is.
            return ExecResult(False, 137, "", result.text)
        if result.reason != "ok":
            raise RuntimeError(f"midstream's sandbox failed: {result.text[-500:]}")
        try:
            said: dict[str, Any] = json.loads(result.text)
        except ValueError:
            # Only code that looked for this program's stream could write into it.
            return ExecResult(False, 137, "", result.text[:KEPT])
        if said["changed"] is None:
            raise RuntimeError(f"a command changed files of more than {CHANGED} bytes in midstream's sandbox")
        self._files |= {name: base64.b64decode(text) for name, text in said["changed"].items()}
        for name in said["gone"]:
            del self._files[name]
        return ExecResult(said["status"] == 0, said["status"], *said["said"])

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Keep a file for the commands to come."""
        self._files[beneath(file)] = contents.encode() if isinstance(contents, str) else contents

    async def read_file(self, file: str, text: bool = True) -> Any:
        """A file. Raises `FileNotFoundError`."""
        if (data := self._files.get(beneath(file))) is None:
            raise FileNotFoundError(2, "No such file or directory", file)
        return data.decode() if text else data


async def run(code: str, limit_s: float) -> PythonResult:
    """Run code in the sandbox; the start of its worker does not count. Raises `TimeoutError`."""
    assert MidstreamSandbox.pool is not None

    async def job(worker: Worker) -> PythonResult:
        await worker.ready()
        async with asyncio.timeout(limit_s):
            return await worker.ask(code.encode("utf-8", "surrogatepass"))

    return await MidstreamSandbox.pool.on_worker(job)


def command(cmd: list[str], given: bytes) -> Asked | None:
    """The Python that a command runs, None if it is something else."""
    words = [*cmd]
    if words and words[0] in SHELLS and words[-2:-1] == ["-c"] and set(words[1:-2]) <= {"--login", "-l"}:
        words = shlex.split(words[-1])
    if not words or posixpath.basename(words[0]).rstrip("0123456789.") != "python":
        return None
    rest = words[1:]
    while rest and rest[0] in FLAGS:
        rest = rest[1:]
    if not rest or rest[0] == "-":
        return Asked(source=given.decode(), name="<stdin>", argv=("-", *rest[1:]))
    if rest[0] in ("-c", "-m") and len(rest) > 1:
        one = {"source" if rest[0] == "-c" else "module": rest[1]}
        return Asked(**one, argv=(rest[0], *rest[2:]))
    # A shell would read anything else in its text: pipes, redirections, several commands.
    if rest[0].startswith("-") or (words != cmd and len(rest) > 1):
        return None
    return Asked(name=rest[0], argv=tuple(rest))


def beneath(file: str) -> str:
    """A path in the sample's directory. Raises `RuntimeError` for one elsewhere."""
    path = posixpath.normpath(posixpath.join("/tmp", file))
    if path != "/tmp" and not path.startswith("/tmp/"):
        raise RuntimeError(f"midstream's sandbox has files of its own directory alone, not {file!r}")
    return posixpath.relpath(path, "/tmp")
