"""The worker that `pool.PythonPool` starts: one lean process that forks a child for every piece of code.

Run as a script (`python -s -S -P -B zygote.py FD TIMEOUT_S MEMORY_MB OUTPUT_LIMIT`), never imported: it knows the
standard library alone, so that a fork has few pages to copy. FD is our end of a socket (lengths are big-endian):

    request   1 byte kind | 4 bytes length | code, UTF-8
    answer    1 byte reason (an index of `REASONS`) | 4 bytes length | text, UTF-8

The child leaves its answer in memory that it shares with the zygote and ends at once; the zygote reaps it, and sends.
If it left none, the way it ended says why: the clock, the memory limit, a signal.

A request of kind `PROGRAM` is code with a tool: after its length comes one byte that carries a file descriptor, the
child's end of a channel to the host that no other process has; the rest is {"code", "name", "parameters"} as JSON. The
host keeps such a child's clock, because it alone knows how long the tool takes. What passes through the channel:

    ready     1 byte, once, when the code is about to run
    call      4 bytes length | arguments, a JSON object
    reply     4 bytes length | {"ok": bool, "text": str, "end": bool}
"""

import _ast
import _signal as signal  # pyright: ignore[reportMissingImports] - not `signal`, whose enums touch many pages
import _thread
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
HEADER = 5  # bytes before a request's code and an answer's text
PLAIN, PROGRAM = range(2)  # kinds of requests
READY = b"+"
CALL_LIMIT = 1_000_000  # bytes of one call's arguments
LOOK_S = 1.0  # a program's zygote looks this often whether the host is still there
FILENAME = "<python>"
PRELOADED = ("collections", "math", "random", "re")  # what code imports most; each makes every fork a little dearer


class OutputLimitReached(BaseException):
    """The code printed too much; not an `Exception`, so that `except Exception` does not swallow it."""


class CallLimitReached(BaseException):
    """The program called its tool too often; not an `Exception` either."""


class ToolError(Exception):
    """The tool has no result; its text says why."""


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


def execute(source: str, limit: int, given: dict[str, object]) -> tuple[int, str]:
    """Run `source` as the main module, in which the names `given` stand; its reason and text."""
    output = Output(limit)
    sys.stdout = sys.stderr = output
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(given)
    failure = ""
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


def tool_function(channel: int, name: str, parameters: list[str]) -> types.FunctionType:
    """The tool as a program sees it: a function that writes a call into `channel` and waits for the reply."""
    import json

    lock = _thread.allocate_lock()  # a program with threads must not mix its calls

    def call(*values: object, **arguments: object) -> str:
        if len(values) > len(parameters) or not arguments.keys().isdisjoint(parameters[: len(values)]):
            raise TypeError(f"{name}() takes each of these arguments once: {', '.join(parameters)}")
        body = json.dumps({**dict(zip(parameters, values, strict=False)), **arguments}, allow_nan=False).encode()
        if len(body) > CALL_LIMIT:
            raise ValueError(f"{name}() takes {CALL_LIMIT} bytes of arguments at most, not {len(body)}")
        with lock:
            send(channel, len(body).to_bytes(4, "big") + body)
            header = read(channel, 4)
            text = header and read(channel, int.from_bytes(header, "big"))
        if not text:
            raise ConnectionError(f"{name}() got no reply")
        reply = json.loads(text)
        if reply["end"]:
            raise CallLimitReached(reply["text"])
        if not reply["ok"]:
            raise ToolError(reply["text"])
        return reply["text"]

    call.__name__ = call.__qualname__ = name
    return call


def unpack(request: bytes, channel: int) -> tuple[str, dict[str, object]]:
    """A program's source, and the names it is given."""
    import json

    program = json.loads(request)
    name = program["name"]
    send(channel, READY)
    return program["code"], {"ToolError": ToolError, name: tool_function(channel, name, program["parameters"])}


def read(fd: int, size: int) -> bytes | None:
    """Exactly `size` bytes, or None at the end of the stream."""
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return None
        data += piece
    return data


def send(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    while data:
        data = data[os.write(fd, data) :]


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
        self.channel: int | None = None  # of the program that runs
        self.host = os.getppid()
        self.expired = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's program, which then closes the socket
        signal.signal(signal.SIGALRM, self.expire)
        limit_resource(resource.RLIMIT_AS, memory_mb * 1024 * 1024)
        limit_resource(resource.RLIMIT_FSIZE, 0)
        limit_resource(resource.RLIMIT_NOFILE, 64)
        limit_resource(resource.RLIMIT_CORE, 0)

    def expire(self, *_: object) -> None:
        """End the child: its time is up. A program, whose clock the host keeps, ends if the host is gone."""
        if self.channel is not None and os.getppid() == self.host:
            return
        self.expired = True
        try:  # noqa: SIM105
            os.kill(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass  # reaped in this very moment

    def serve(self) -> None:
        """Read, fork, wait, answer."""
        while (request := self.receive()) is not None:
            self.shared[:HEADER] = bytes(HEADER)
            self.expired = False
            self.child = os.fork()
            if not self.child:
                self.run_child(request)
            if self.channel is None:
                signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * self.timeout_s)
            else:
                os.close(self.channel)
                signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
            status = os.waitpid(self.child, 0)[1]
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(self.socket_fd, self.answer(status))

    def run_child(self, request: bytes) -> None:
        """Run the code in this fresh child, leave the answer in shared memory, and end."""
        try:
            os.close(self.socket_fd)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seconds = math.ceil(self.timeout_s)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # a signal that says why, then the end
            limit_resource(resource.RLIMIT_NPROC, 0)  # no processes or threads of its own (root is exempt)
            gc.enable()
            if self.channel is None:
                source, given = request.decode("utf-8", "surrogatepass"), {}
            else:
                source, given = unpack(request, self.channel)
            reason, text = execute(source, self.output_limit, given)
            answer = text.encode("utf-8", "backslashreplace")[: len(self.shared) - HEADER]
            self.shared[1 : HEADER + len(answer)] = len(answer).to_bytes(4, "big") + answer
            self.shared[0] = reason
        finally:
            os._exit(0)

    def answer(self, status: int) -> bytes:
        """The child's answer, or why it left none."""
        size = int.from_bytes(self.shared[1:HEADER], "big")
        if KILLED < self.shared[0] < len(REASONS) and size <= len(self.shared) - HEADER:  # else code forged it
            return self.shared[: HEADER + size]
        code = os.waitstatus_to_exitcode(status)
        if self.expired or code == -signal.SIGXCPU:
            reason, text = TIMEOUT, f"TimeoutError: not finished after {self.timeout_s:g} s"
        elif code == MEMORY_EXIT:
            reason, text = MEMORY, "MemoryError: out of memory"
        else:
            reason, text = KILLED, f"the process ended early ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        return bytes([reason]) + len(text).to_bytes(4, "big") + text.encode()

    def receive(self) -> bytes | None:
        """The next request, and with it `channel`; or None if the other end is gone."""
        header = read(self.socket_fd, HEADER)
        if header is None:
            return None
        self.channel = self.receive_channel() if header[0] == PROGRAM else None
        return read(self.socket_fd, int.from_bytes(header[1:], "big"))

    def receive_channel(self) -> int:
        """The file descriptor that comes with a program."""
        import _socket  # here, so that workers without programs do without both

        __import__("json")  # for the children
        size = 4
        socket = _socket.socket(fileno=self.socket_fd)
        try:
            [(_, _, carried)] = socket.recvmsg(1, _socket.CMSG_SPACE(size))[1]
        finally:
            socket.detach()
        return int.from_bytes(carried[:size], sys.byteorder)


def warm_up() -> None:
    """Do once what every child would do again: import, set up the compiler, run every path of `execute`."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None  # `random` would reseed in every child
    for name in PRELOADED:
        __import__(name)
    os.register_at_fork = register
    sys.modules["random"].seed(0)  # code that draws numbers draws the same ones whenever it is run
    execute("def f(x): return 1 / x\nfor i in (1, 0):\n  print(f'{i}')\n  f(i)", 100, {})
    execute("1 + 1", 100, {})
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
