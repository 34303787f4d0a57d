"""What the doctor's attacks on the sandbox aim at, and their code.

All of it is made here, tagged at random and taken away again: files in a temporary directory, sockets on 127.0.0.1, an
environment variable, a process that has it. Each piece of code tries several ways and prints what became of each.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_CANARY = "MIDSTREAM_DOCTOR_CANARY"
_VICTIM = "import sys; sys.stdin.read()"  # lives until its standard input is closed
_PRELUDE = """
def attempt(name, action):
    try:
        print(name, "done", action())
    except BaseException as error:
        print(name, "refused", type(error).__name__)
"""
READ = """
import os
attempt("open", lambda: open(folder + "/secret").read())
attempt("upwards", lambda: open("../" * 20 + folder + "/secret").read())
attempt("descriptor", lambda: os.read(os.open(folder + "/secret", os.O_RDONLY), 100))
attempt("root", lambda: open(f"/proc/{host}/root{folder}/secret").read())
attempt("copy", lambda: __import__("shutil").copyfile(folder + "/secret", "copy") and open("copy").read())
"""
WRITE = """
import os
attempt("create", lambda: open(folder + "/new", "w").write("x"))
attempt("append", lambda: open(folder + "/kept", "a").write("x"))
attempt("remove", lambda: os.remove(folder + "/kept"))
attempt("rename", lambda: os.rename(folder + "/kept", folder + "/moved"))
attempt("directory", lambda: os.mkdir(folder + "/directory"))
attempt("link", lambda: os.symlink("/", folder + "/link"))
attempt("mode", lambda: os.chmod(folder + "/kept", 0o777))
"""
CONNECT = """
import socket
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", tcp), 1).sendall(b"x"))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", udp)))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect(folder + "/door"))
"""
START = """
import os, subprocess, time
shell = ["/bin/sh", "-c", "sleep 1; :", tag]
def fork():
    child = os.fork()
    if not child:
        time.sleep(1)
        os._exit(0)
    return child
attempt("fork", fork)
attempt("spawn", lambda: os.posix_spawn(shell[0], shell, {}))
attempt("shell", lambda: subprocess.Popen(shell).pid)
attempt("exec", lambda: os.execv(shell[0], shell))
"""
SPY = """
import os
def of_others():
    found = set()
    for one in os.listdir("/proc"):
        try:
            with open(f"/proc/{one}/environ", "rb") as file:
                found |= {pair for pair in file.read().split(b"\\0") if pair.startswith(canary.encode())}
        except OSError:
            pass
    return found or 1 / 0
attempt("own", lambda: os.environ[canary])
attempt("others", of_others)
"""


@dataclass(frozen=True, kw_only=True)
class Bait:
    """What the attacks aim at; `secret` stands in a file, `canary` in the environment."""

    folder: Path
    secret: str
    canary: str
    tag: str
    doors: tuple[socket.socket, ...]

    def code(self, attack: str) -> str:
        """An attack, told where its bait is."""
        tcp, udp = (door.getsockname()[1] for door in self.doors[:2])
        known = {
            "folder": str(self.folder),
            "tcp": tcp,
            "udp": udp,
            "tag": self.tag,
            "canary": _CANARY,
            "host": os.getpid(),
        }
        return "".join(f"{name} = {value!r}\n" for name, value in known.items()) + _PRELUDE + attack

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Mode and content by name."""
        return {
            path.name: (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in self.folder.iterdir()
        }

    def reached(self) -> bool:
        """Whether anything came to one of the doors."""
        for door in self.doors:
            with suppress(BlockingIOError):
                door.recvfrom(1) if door.type == socket.SOCK_DGRAM else door.accept()[0].close()
                return True
        return False

    def started(self) -> bool:
        """Whether a process with the tag on its command line lives."""
        tag = self.tag.encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                if tag in path.read_bytes():
                    return True
        return False


@contextmanager
def laid_bait() -> Iterator[Bait]:
    """Bait, until the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="midstream-doctor-")))
        secret, canary = secrets.token_hex(), secrets.token_hex()
        (folder / "secret").write_text(secret, encoding="utf-8")
        (folder / "kept").write_text("kept", encoding="utf-8")
        doors = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
        doors[1].bind(("127.0.0.1", 0))
        if hasattr(socket, "AF_UNIX"):
            doors.append(socket.socket(socket.AF_UNIX))
            doors[2].bind(str(folder / "door"))
            doors[2].listen()
        for door in doors:
            stack.enter_context(door)
            door.setblocking(False)
        os.environ[_CANARY] = canary
        stack.callback(os.environ.pop, _CANARY)
        command = [sys.executable, "-I", "-S", "-c", _VICTIM]
        stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
        yield Bait(folder=folder, secret=secret, canary=canary, tag=secrets.token_hex(8), doors=tuple(doors))
