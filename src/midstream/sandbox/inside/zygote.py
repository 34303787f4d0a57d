"""The zygote that `worker.Worker` starts: one process that forks a child for every piece of code.

It imports little besides the configured libraries, so that a fork has few pages to copy. `main` takes its settings as
JSON (`launch` writes them) and talks to the host through standard input and output, which are a socket, or, in a
container, pipes (lengths are big-endian):

    hello     an answer whose text is JSON: {"libraries": [...], "landlock": version, "calls": how many are allowed,
              "namespaces": whether each call has its own file system}
    request   1 byte kind | 4 bytes length | code, UTF-8
    answer    1 byte reason (an index of `REASONS`) | 4 bytes length | text, UTF-8

The child confines itself before it runs anything (`confinement`), leaves its answer in memory that it shares with the
zygote, and ends at once; the zygote reaps it, sends the answer, and empties the scratch directory. If the child left
none, its exit status gives the reason: the clock, the memory limit, a signal. The zygote and its child end as soon as
the other end of the input is closed, and whenever the zygote cannot guarantee a clean next child.

A request of kind `PROGRAM` is code with a tool: after its length comes one byte that carries a file descriptor, the
child's end of a channel to the host that no other process has; the rest is {"code", "name", "parameters"} as JSON. The
host keeps such a child's clock, because only the host knows how long the tool takes. Messages in the channel:

    ready     1 byte, once, when the code is about to run
    call      4 bytes length | arguments, a JSON object
    reply     4 bytes length | {"ok": bool, "text": str, "end": bool}
"""

import _signal as signal  # pyright: ignore[reportMissingImports] - not `signal`, whose enums touch many pages
import gc
import json
import math
import mmap
import os
import resource
import select
import sys
import time
import types

from . import running, scratch
from .running import read, send

HEADER = 5  # bytes before a request's code and an answer's text
PAGE = mmap.PAGESIZE
MEGABYTE = 1024 * 1024
OPEN_FILES = 64
# Between two looks at a child: what it has written to a disk, or nothing.
WATCH_S, HOUR_S = 0.01, 3600.0
SECTOR = 512  # bytes of a block in `ru_oublock`
CHANNEL = 3  # the file descriptor of a program's channel, in its child
# The most frequent imports; each makes every fork slower.
PRELOADED = ("collections", "math", "random", "re")
SYMPY = "import sympy\nx = sympy.Symbol('x')\nsympy.integrate(x**2, x), sympy.solve(x**2 - 1, x), sympy.sin(x).diff(x)"
# The work that a library does on first use, done before the fork; and its random numbers, the same in every child.
PRIMED = {
    "numpy": "import numpy\nimport numpy.linalg\nnumpy.random.seed(0)\nnumpy.ones((2, 2)) @ numpy.ones(2)",
    "sympy": f"from sympy.core.random import seed\n{SYMPY}\nseed(0)",
    # Its parsers' tables and patterns, and its first warning, that it has no time-out.
    "math_verify": "import logging, math_verify as m\nlogging.getLogger('math_verify').setLevel('ERROR')\n"
    "both = [m.parse(text, parsing_timeout=0) for text in ('$\\\\frac{1}{3}x$', '1/3')]\n"
    "m.verify(*both, timeout_seconds=0)",
}


class HostGone(Exception):
    """The other end of the input is closed."""


class Zygote:
    """Answers requests one at a time until the other end of its input is gone.

    `settings` are the host's (`launch`): limits of a child; `packages` and `readable`, directories that it may read;
    `landlock`, the least version that is accepted, or None for no confinement at all; `scratch`.
    """

    def __init__(self, settings: types.SimpleNamespace, source: int, sink: int) -> None:
        self.settings, self.source, self.sink = settings, source, sink
        # A character takes up to 6 bytes: half a surrogate pair as \\udc80.
        size = HEADER + 6 * (settings.output_limit + running.ERROR_LIMIT + 100)
        self.shared = mmap.mmap(-1, size)
        self.child = 0
        self.channel: int | None = None  # of the program that runs
        self.id = os.getpid()
        self.passed = ""  # the time after which the last child was ended, in words
        if os.listdir(settings.scratch):
            raise OSError(f"the scratch directory {settings.scratch} holds files, which would be removed")
        self.confinement, self.namespaces, self.watched = None, None, False
        if settings.landlock is not None:
            from .confinement import DEVICES, Confinement
            from .namespaces import Namespaces

            places = [*settings.packages, *settings.readable, sys.prefix, sys.exec_prefix]
            self.confinement = Confinement(places, settings.landlock)
            seen = [*places, *DEVICES]
            try:
                self.namespaces = Namespaces(settings.scratch, settings.disk_mb, seen, own=settings.own_namespaces)
            except OSError:
                # The directory itself has to do, and what a child writes to it is counted.
                self.watched = True
        self.scratch = self.open_scratch()
        self.held, self.holding = os.pipe()
        self.woken, waking = os.pipe()
        for end in (self.held, self.woken, waking):
            os.set_blocking(end, False)
        # Ctrl-C is for the user's program, which then closes the socket.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking)
        self.events = select.poll()
        self.events.register(self.woken, select.POLLIN)
        # Only the end of it: another request may come early.
        self.events.register(source, 0)
        self.memory = address_space() + settings.memory_mb * MEGABYTE

    def open_scratch(self) -> int:
        """Open the scratch directory that is there now, for this process and its children."""
        os.chdir(self.settings.scratch)
        if self.confinement is not None:
            self.confinement.allow(".")
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY)

    def serve(self) -> None:
        """Read, fork, wait, answer, clean up."""
        while (size := self.receive()) is not None:
            # No child sees what another one answered.
            self.shared[:] = bytes(len(self.shared))
            if self.namespaces is not None:
                self.namespaces.prepare(self.scratch)
            self.child = os.fork()
            if not self.child:
                self.run_child(size)
            if self.channel is not None:
                os.close(self.channel)
            exceeded, status = self.wait()
            # The child reports its confinement, which it does before it runs anything foreign.
            try:
                os.read(self.held, 1)
            except BlockingIOError as error:
                # It may have left a part of its request, so the input cannot be used.
                raise OSError("a child was not confined") from error
            answer = self.answer(exceeded, status)
            if self.namespaces is None:
                # First: the reader of the answer finds it empty.
                scratch.empty(self.scratch)
            send(self.sink, answer)
            if self.namespaces is not None and self.namespaces.renew(self.scratch):
                self.scratch = self.open_scratch()
            # The next child could read them in this frame.
            del exceeded, status, answer

    def wait(self) -> tuple[int | None, int]:
        """Wait for the child; returns the limit that it exceeded (`running.TIMEOUT`, `DISK`, or None) and its status.

        Raises `HostGone` once the host has closed the stream; the child is gone too.
        """
        exceeded, most = None, self.settings.disk_mb * MEGABYTE
        # Unless the clock is first.
        self.passed = f"{math.ceil(self.settings.timeout_s)} s of CPU time"
        wall_s = running.WALL_FACTOR * self.settings.timeout_s if self.channel is None else math.inf
        until = time.monotonic() + wall_s
        while True:
            left_s = min(max(0.0, until - time.monotonic()), WATCH_S if self.watched else HOUR_S)
            ready = [fd for fd, _ in self.events.poll(1000 * left_s)]
            if self.woken in ready:
                os.read(self.woken, 64)
            gone = self.source in ready
            if time.monotonic() >= until:
                exceeded, self.passed = running.TIMEOUT, f"{wall_s:g} s"
            elif self.watched and written(self.child) > most:
                exceeded = running.DISK
            if gone or exceeded:
                os.kill(self.child, signal.SIGKILL)
            child, status, usage = os.wait4(self.child, 0 if gone or exceeded else os.WNOHANG)
            if gone:
                raise HostGone
            if child:
                if usage.ru_utime + usage.ru_stime >= math.ceil(self.settings.timeout_s):
                    exceeded = running.TIMEOUT
                if self.watched and usage.ru_oublock * SECTOR > most:
                    exceeded = running.DISK
                return exceeded, status

    def run_child(self, size: int) -> None:
        """Read the request in this fresh child and run its code, leave the answer in shared memory, and end.

        The zygote itself never holds a request or an answer: later children could find them in their memory.
        """
        try:
            request = read(self.source, size)
            if request is None:
                return  # the host is gone
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            seconds = math.ceil(self.settings.timeout_s)
            # SIGXCPU, which names the reason, then SIGKILL.
            limit(resource.RLIMIT_CPU, seconds, seconds + 1)
            limit(resource.RLIMIT_AS, self.memory)
            if self.confinement is not None:
                self.confinement.enter(self.id, watched=self.watched)
            os.write(self.holding, b"+")
            # Opened here: flags and locks set on the zygote's would stay.
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in range(CHANNEL):
                os.dup2(nothing, standard)
            if self.channel is not None:
                os.dup2(self.channel, CHANNEL)
            os.closerange(CHANNEL if self.channel is None else CHANNEL + 1, OPEN_FILES)
            gc.enable()
            if self.channel is None:
                source, given = request.decode("utf-8", "surrogatepass"), {}
            else:
                source, given = running.unpack(request, CHANNEL)
            reason, text = running.execute(source, self.settings.output_limit, given)
            answer = text.encode("utf-8", "backslashreplace")[: len(self.shared) - HEADER]
            self.shared[1 : HEADER + len(answer)] = len(answer).to_bytes(4, "big") + answer
            self.shared[0] = reason
        finally:
            os._exit(0)

    def answer(self, exceeded: int | None, status: int) -> bytes | memoryview:
        """The child's answer, or the reason why it left none."""
        size = int.from_bytes(self.shared[1:HEADER], "big")
        code = os.waitstatus_to_exitcode(status)
        # Anything else was forged by code, whose text may be forged too: the host cuts it (`Worker.result`).
        said = self.shared[0] in (running.OK, running.RAISED, running.OUTPUT_LIMIT)
        if said and size <= len(self.shared) - HEADER and code == 0 and exceeded is None:
            return memoryview(self.shared)[: HEADER + size]
        if exceeded == running.DISK:
            return frame(running.DISK, f"OSError: more than {self.settings.disk_mb} MB written to files")
        if exceeded == running.TIMEOUT or code == -signal.SIGXCPU:
            return frame(running.TIMEOUT, f"TimeoutError: not finished after {self.passed}")
        if code == running.MEMORY_EXIT:
            return frame(running.MEMORY, "MemoryError: out of memory")
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return frame(running.KILLED, f"the process ended early ({ended})")

    def receive(self) -> int | None:
        """The size of the next request, which its child reads, and `channel`; or None if the other end is gone."""
        header = read(self.source, HEADER)
        if header is None:
            return None
        self.channel = None
        if header[0] == running.PROGRAM:
            # Here, so that workers without programs need not load it.
            import _socket

            size = 4  # of a file descriptor
            socket = _socket.socket(fileno=self.source)
            try:
                [(_, _, carried)] = socket.recvmsg(1, _socket.CMSG_SPACE(size))[1]
            finally:
                socket.detach()
            self.channel = int.from_bytes(carried[:size], sys.byteorder)
        return int.from_bytes(header[1:], "big")


def written(child: int) -> int:
    """The bytes of changed pages of files and directories on disks, deleted or not; 0 of a process that has ended."""
    try:
        with open(f"/proc/{child}/io", "rb", 0) as file:
            return int(file.read().split()[11])
    except OSError:
        return 0


def frame(reason: int, text: str) -> bytes:
    """An answer as it is sent."""
    body = text.encode()
    return bytes([reason]) + len(body).to_bytes(4, "big") + body


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a soft and a hard limit; a system that does not know this one (macOS: memory) goes without."""
    allowed = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), min(hard, allowed)
    try:  # noqa: SIM105 - every child runs this, and contextlib would cost more memory pages
        resource.setrlimit(kind, (soft, hard))
    except (ValueError, OSError):
        pass


def address_space() -> int:
    """Bytes of address space that this process holds: the least limit under which one more page can be mapped.

    Found by trying, because /proc may be missing. 0 on a system that does not bound it.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 2**47 // PAGE
    if not _fits(high * PAGE, before[1]):
        return 0
    try:
        while low < high:
            middle = (low + high) // 2
            if _fits(middle * PAGE, before[1]):
                high = middle
            else:
                low = middle + 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return low * PAGE


def _fits(size: int, hard: int) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
        mmap.mmap(-1, PAGE).close()
    except (OSError, MemoryError, ValueError):
        return False
    return True


def warm_up(libraries: list[str]) -> list[str]:
    """Do once what every child would repeat: import, set up the compiler, run every path of `execute`.

    Returns those of `libraries` that are installed; each was imported and used once.
    """
    # `random` would reseed in every child.
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    for name in PRELOADED:
        __import__(name)
    found = []
    for name in libraries:
        try:
            __import__(name)
        except ImportError:
            continue
        exec(PRIMED.get(name, ""), {})
        found.append(name)
    os.register_at_fork = register
    streams = sys.stdout, sys.stderr
    running.execute("def f(x): return 1 / x\nfor i in (1, 0):\n  print(f'{i}')\n  f(i)", 100, {})
    running.execute("1 + 1", 100, {})
    sys.stdout, sys.stderr = streams
    # Code that draws numbers draws the same ones whenever it is run.
    sys.modules["random"].seed(0)
    gc.collect()
    gc.disable()
    # Otherwise the collector would write to every page.
    gc.freeze()
    return found


def main() -> None:
    """Serve until the other end is gone; then remove the scratch directory and end all processes of this session."""
    settings = types.SimpleNamespace(**json.loads(sys.argv[1]))
    # This Python is not the host's.
    if settings.packages is None:
        import site

        settings.packages = [path for path in site.getsitepackages() if os.path.isdir(path)]
    sys.argv = [""]
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    sys.path += settings.packages
    limit(resource.RLIMIT_FSIZE, settings.disk_mb * MEGABYTE)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    # No file is that small, and of 1 byte the kernel does not start a handler either.
    limit(resource.RLIMIT_CORE, 1)
    found = warm_up(settings.libraries)
    zygote = Zygote(settings, source, sink)
    confined = zygote.confinement
    landlock, calls = (confined.landlock, confined.calls) if confined else (0, 0)
    hello = {"libraries": found, "landlock": landlock, "calls": calls, "namespaces": zygote.namespaces is not None}
    # Until here, stderr explains to the host why a worker did not start.
    os.dup2(nothing, 2)
    try:
        send(sink, frame(running.OK, json.dumps(hello)))
        zygote.serve()
    except (OSError, HostGone):
        # The host is gone, or this worker cannot continue, which the host sees by the end of the stream.
        pass
    finally:
        try:
            scratch.empty(zygote.scratch)
            if zygote.namespaces is not None:
                zygote.namespaces.leave()
            os.rmdir(settings.scratch)
        except OSError:
            # A mount point (a sandbox's own file system goes with it anyway), or the host removes it.
            pass
        finally:
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            # Nothing here needs the interpreter's cleanup.
            os._exit(0)
