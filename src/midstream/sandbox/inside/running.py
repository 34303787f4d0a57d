"""Run one piece of foreign code in a forked child: its output, its last value, or the error that it raised."""

import _ast
import _thread
import io
import os
import sys
import types

# Part of the protocol with the host, which imports these from here.
PLAIN, PROGRAM = range(2)  # kinds of requests
REASONS = ("killed", "ok", "raised", "timeout", "output_limit", "memory", "disk")
KILLED, OK, RAISED, TIMEOUT, OUTPUT_LIMIT, MEMORY, DISK = range(len(REASONS))
# Exit code of a child that is out of memory: it may not even be able to write its answer.
MEMORY_EXIT = 77
ERROR_LIMIT = 2000  # characters of an error's description
FRAMES = 3  # innermost frames shown of a traceback
READY = b"+"
# Wall-clock seconds for each CPU-second: a loaded machine must not time out honest code.
WALL_FACTOR = 5
CALL_LIMIT = 1_000_000  # bytes of one call's arguments
FILENAME = "<python>"


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
        """Keep `text`, or its beginning up to the limit, and then stop the code."""
        super().write(text[: self.left])
        self.cut = self.cut or len(text) > self.left
        self.left = max(0, self.left - len(text))
        if self.cut:
            raise OutputLimitReached
        return len(text)


def execute(source: str, limit: int, given: dict[str, object]) -> tuple[int, str]:
    """Run `source` as the main module, in which the names `given` are defined; returns the reason and the text."""
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
        # `output.cut` records it, also where the code swallowed the exception.
        pass
    except BaseException as error:  # noqa: BLE001 - code can raise anything, SystemExit and KeyboardInterrupt too
        if not isinstance(error, SystemExit) or error.code:
            failure = describe(error, source)[-ERROR_LIMIT:]
    printed = output.getvalue().removesuffix("\n")
    if output.cut:
        # The host adds that it is cut.
        return OUTPUT_LIMIT, printed
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
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - as above
        message = "<its text cannot be made>"
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
    """The program's function for the tool: it writes a call into `channel` and waits for the reply."""
    import json

    # A program with threads must not mix its calls.
    lock = _thread.allocate_lock()

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
    """A program's source, and the names that are defined for it: the tool's function, which `tool.execute` is too."""
    import json

    program = json.loads(request)
    name = program["name"]
    send(channel, READY)
    call = tool_function(channel, name, program["parameters"])
    return program["code"], {"ToolError": ToolError, "tool": types.SimpleNamespace(execute=call), name: call}


def read(fd: int, size: int) -> bytes | None:
    """Exactly `size` bytes, or None at the end of the stream."""
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return None
        data += piece
    return data


def send(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    while data:
        data = data[os.write(fd, data) :]
