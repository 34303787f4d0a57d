"""The worker that `pool.PythonPool` starts: one lean process that forks a child for every piece of code.

Run as a script (`python -s -S -P -B zygote.py FD TIMEOUT_S MEMORY_MB OUTPUT_LIMIT`), never imported: it knows the
standard library alone, so that a fork has few pages to copy. FD is our end of a socket (lengths are big-endian):

    request   4 bytes length | code, UTF-8
    answer    1 byte reason (an index of `REASONS`) | 4 bytes length | text, UTF-8

The child leaves its answer in memory that it shares with the zygote and ends at once; the zygote reaps it, and sends.
If it left none, the way it ended says why: the clock, the memory limit, a signal.
"""

import _ast
import _signal as signal  # pyright: ignore[reportMissingImports] - not `signal`, whose enums touch many pages
import gc
import io
import math
import mmap
import os
import resource
import sys
import types

REASONS = ("killed", "ok", "raised", "timeout", "output_limit", "memory")
KILLED, OK, RAISED, TIMEOUT, OUTPUT_LIMIT, MEMORY = range(len(REASONS))
MEMORY_EXIT = 77  # exit code of a child that is out of memory: it may not even be able to write its answer
ERROR_LIMIT = 2000  # characters of an error's description
WALL_FACTOR = 5  # wall-clock seconds for each CPU-second: a loaded machine must not time out honest code
FRAMES = 3  # innermost frames shown of a traceback
HEADER = 5  # bytes before an answer's text
FILENAME = "<python>"
PRELOADED = ("collections", "math", "random", "re")  # what code imports most; each makes every fork a little dearer


class OutputLimitReached(BaseException):
    """The code printed too much; not an `Exception`, so that `except Exception` does not swallow it."""


class Output(io.StringIO):
    """Collects what code prints, up to `limit` characters."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit
        self.cut = False

    def write(self, text: str, /) -> int:
        """Keep `text`; or its beginning, and stop the code."""
        super().write(text[: self.left])
        self.cut = self.cut or len(text) > self.left
        self.left = max(0, self.left - len(text))
        if self.cut:
            raise OutputLimitReached
        return len(text)


def execute(code: bytes, limit: int) -> tuple[int, str]:
    """Run `code` as the main module; its reason and text."""
    output = Output(limit)
    sys.stdout = sys.stderr = output
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    source, failure = code.decode("utf-8", "surrogatepass"), ""
    try:
        evaluate(source, main.__dict__, output)
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except OutputLimitReached:
        pass  # `output.cut` says it, also where the code swallowed the exception
    except BaseException as error:  # noqa: BLE001 - code can raise anything, SystemExit and KeyboardInterrupt too
        if not isinstance(error, SystemExit) or error.code:
            failure = describe(error, source)[-ERROR_LIMIT:]
    printed = output.getvalue().removesuffix("\n")
    if output.cut:
        return OUTPUT_LIMIT, f"{printed}\n[output cut after {limit} characters]"
    if failure:
        return RAISED, f"{printed}\n{failure}" if printed else failure
    return OK, printed


def evaluate(source: str, namespace: dict[str, object], output: Output) -> None:
    """Run statements; a last one that is an expression shows its value as a REPL does."""
    tree = compile(source, FILENAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, _ast.Module)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, _ast.Expr):
        tree.body.pop()
    exec(compile(tree, FILENAME, "exec", dont_inherit=True), namespace)
    if isinstance(last, _ast.Expr):
        value = eval(compile(_ast.Expression(last.value), FILENAME, "eval", dont_inherit=True), namespace)
        if value is not None:
            output.write(repr(value))


def describe(error: BaseException, source: str) -> str:
    """The traceback's frames in the code itself, innermost last, then the error. (`traceback` would be many pages.)"""
    lines = source.splitlines()
    places, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILENAME:
            places.append((trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == FILENAME:
        places.append((error.lineno or 0, "<module>"))
        message = error.msg
    shown = []
    for number, name in places[-FRAMES:]:
        shown.append(f"  line {number}" + (f", in {name}" if name != "<module>" else ""))
        if 0 < number <= len(lines):
            shown.append(f"    {lines[number - 1].strip()}")
    return "\n".join([*shown, f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__])


def limit_resource(kind: int, value: int) -> None:
    """Set a soft and hard limit; a system that does not know this one (macOS: memory) goes without."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:  # noqa: SIM105 - every child comes by here, and contextlib has pages of its own
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        pass


class Zygote:
    """Answers requests one at a time until the other end of the socket is gone."""

    def __init__(self, socket_fd: int, timeout_s: float, memory_mb: int, output_limit: int) -> None:
        self.socket_fd, self.timeout_s, self.output_limit = socket_fd, timeout_s, output_limit
        self.shared = mmap.mmap(-1, HEADER + 4 * (output_limit + ERROR_LIMIT + 100))  # 4 bytes: the longest character
        self.child = 0
        self.expired = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's program, which then closes the socket
        signal.signal(signal.SIGALRM, self.expire)
        limit_resource(resource.RLIMIT_AS, memory_mb * 1024 * 1024)
        limit_resource(resource.RLIMIT_FSIZE, 0)
        limit_resource(resource.RLIMIT_NOFILE, 64)
        limit_resource(resource.RLIMIT_CORE, 0)

    def expire(self, *_: object) -> None:
        """End the child: its time is up."""
        self.expired = True
        try:  # noqa: SIM105
            os.kill(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass  # reaped in this very moment

    def serve(self) -> None:
        """Read, fork, wait, answer."""
        while (code := self.receive()) is not None:
            self.shared[:HEADER] = bytes(HEADER)
            self.expired = False
            self.child = os.fork()
            if not self.child:
                self.run_child(code)
            signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * self.timeout_s)
            status = os.waitpid(self.child, 0)[1]
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.send(self.answer(status))

    def run_child(self, code: bytes) -> None:
        """Run `code` in this fresh child, leave the answer in shared memory, and end."""
        try:
            os.close(self.socket_fd)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seconds = math.ceil(self.timeout_s)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # a signal that says why, then the end
            limit_resource(resource.RLIMIT_NPROC, 0)  # no processes or threads of its own (root is exempt)
            gc.enable()
            reason, text = execute(code, self.output_limit)
            answer = text.encode("utf-8", "backslashreplace")[: len(self.shared) - HEADER]
            self.shared[1 : HEADER + len(answer)] = len(answer).to_bytes(4, "big") + answer
            self.shared[0] = reason
        finally:
            os._exit(0)

    def answer(self, status: int) -> bytes:
        """The child's answer, or why it left none."""
        if self.shared[0] != KILLED:
            return self.shared[: HEADER + int.from_bytes(self.shared[1:HEADER], "big")]
        code = os.waitstatus_to_exitcode(status)
        if self.expired or code == -signal.SIGXCPU:
            reason, text = TIMEOUT, f"TimeoutError: not finished after {self.timeout_s:g} s"
        elif code == MEMORY_EXIT:
            reason, text = MEMORY, "MemoryError: out of memory"
        else:
            reason, text = KILLED, f"the process ended early ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        return bytes([reason]) + len(text).to_bytes(4, "big") + text.encode()

    def receive(self) -> bytes | None:
        """The next request's code, or None if the other end is gone."""
        header = self.read(4)
        return self.read(int.from_bytes(header, "big")) if header is not None else None

    def read(self, size: int) -> bytes | None:
        """Exactly `size` bytes, or None at the end of the stream."""
        data = b""
        while len(data) < size:
            piece = os.read(self.socket_fd, size - len(data))
            if not piece:
                return None
            data += piece
        return data

    def send(self, data: bytes) -> None:
        """Write all of `data`."""
        while data:
            data = data[os.write(self.socket_fd, data) :]


def warm_up() -> None:
    """Do once what every child would do again: import, set up the compiler, run every path of `execute`."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None  # `random` would reseed in every child
    for name in PRELOADED:
        __import__(name)
    os.register_at_fork = register
    sys.modules["random"].seed(0)  # code that draws numbers draws the same ones whenever it is run
    execute(b"def f(x): return 1 / x\nfor i in (1, 0):\n  print(f'{i}')\n  f(i)", 100)
    execute(b"1 + 1", 100)
    gc.collect()
    gc.disable()
    gc.freeze()  # or the collector would write to every page


def main() -> None:
    """Serve until the parent closes its end or is gone; then end whatever is left of this session."""
    socket_fd, timeout_s, memory_mb, output_limit = sys.argv[1:]
    sys.argv = [""]
    zygote = Zygote(int(socket_fd), float(timeout_s), int(memory_mb), int(output_limit))
    warm_up()
    try:
        zygote.serve()
    except OSError:
        pass  # the parent went away in the middle of an answer
    finally:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
