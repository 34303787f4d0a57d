"""Sees from outside what a hostile snippet did: files, a process, sockets, secrets, processes and files left over."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PR_SET_CHILD_SUBREAPER = 36
ELSEWHERE = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/usr", "/etc", os.path.dirname(os.__file__))


class Watch:
    """A scratch home, a victim process, sockets, and secrets that nobody may see; `close` removes them.

    This process adopts whatever its descendants leave behind, so that nothing that survives stays unseen.
    """

    def __init__(self) -> None:
        adopt(True)
        self._before = descendants()  # of earlier tests, such as the program that checks schemas
        self.tag = f"midstream-hostile-{secrets.token_hex(6)}"
        self.base = Path(tempfile.mkdtemp(prefix=f"{self.tag}-"))
        self.home, self.scratch = self.base / "home", self.base / "tmp"
        self.scratch.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.scratch)  # where a worker's scratch directory is made
        names = ("file", "descriptor", "victim", "environment")
        self.secrets = {name: f"{self.tag}-{secrets.token_hex(6)}" for name in names}
        os.environ["HOSTILE_CANARY"] = self.secrets["environment"]
        self._descriptor = os.open(self.base / "open", os.O_RDWR | os.O_CREAT)
        os.write(self._descriptor, self.secrets["descriptor"].encode())
        os.set_inheritable(self._descriptor, True)
        self._listen()
        self._fill_home()
        self._start_victim()

    def _listen(self) -> None:
        unix, path = f"\0{self.tag}", str(self.base / "socket")
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        self.sockets = {
            "tcp": _bound(socket.AF_INET, stream, ("127.0.0.1", 0)),
            "udp": _bound(socket.AF_INET, datagram, ("127.0.0.1", 0)),
            "abstract": _bound(socket.AF_UNIX, stream, unix),
            "abstract datagram": _bound(socket.AF_UNIX, datagram, f"{unix}.d"),
            "path": _bound(socket.AF_UNIX, stream, path),
            "path datagram": _bound(socket.AF_UNIX, datagram, f"{path}.d"),
        }

    def _fill_home(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        (self.home / "empty").mkdir(parents=True)
        (self.home / ".netrc").write_text(self.secrets["file"])
        (self.home / ".netrc").chmod(0o600)
        self._files = tree(self.home)

    def _start_victim(self) -> None:
        environment = {"VICTIMS_KEY": self.secrets["victim"]}
        self.victim = subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True)
        self._life = life(self.victim)

    def values(self) -> dict[str, str]:
        """What a snippet's places stand for."""
        port, uport = (str(self.sockets[name].getsockname()[1]) for name in ("tcp", "udp"))
        names = {"home": str(self.home), "victim": str(self.victim.pid), "port": port, "uport": uport}
        return names | {"abstract": self.tag, "path": str(self.base / "socket"), "tag": self.tag}

    def effects(self, text: str) -> list[str]:
        """What a snippet that answered `text` did; afterwards everything is as before."""
        seen = [line for line in text.splitlines() if line.startswith("ESCAPED")][:3]
        seen += [f"read the secret of the {name}" for name, secret in self.secrets.items() if secret in text]
        seen += ["read /etc/passwd"] if "root:x:" in text else []
        if tree(self.home) != self._files:
            seen.append("changed files")
            self._fill_home()
        if life(self.victim) != self._life:
            seen.append("changed the victim")
            self._end_victim()
            self._start_victim()
        seen += [f"reached the {name} socket" for name, end in self.sockets.items() if _reached(end)]
        for place in ELSEWHERE:
            for path in Path(place).glob(f"{self.tag}*") if os.access(place, os.R_OK) else ():
                if path != self.base:
                    seen.append(f"wrote {path}")
                    path.unlink()
        return seen

    def left(self, patience_s: float = 2.0) -> list[str]:
        """New processes and scratch files that are there although every pool is closed."""
        processes = within(patience_s, lambda: descendants() - self._before - {self.victim.pid})
        return [f"process {pid}" for pid in processes] + within(patience_s, lambda: os.listdir(self.scratch))

    def close(self) -> None:
        self._end_victim()
        for end in self.sockets.values():
            end.close()
        os.close(self._descriptor)
        shutil.rmtree(self.base, ignore_errors=True)
        adopt(False)

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()


def adopt(orphans: bool) -> None:
    """Whether descendants whose parent ends become children of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _bound(family: int, kind: int, address: object) -> socket.socket:
    end = socket.socket(family, kind)
    end.bind(address)  # pyright: ignore[reportArgumentType]
    end.setblocking(False)
    if kind == socket.SOCK_STREAM:
        end.listen()
    return end


def _reached(end: socket.socket) -> bool:
    reached = False
    try:
        while True:
            if end.type == socket.SOCK_STREAM:
                end.accept()[0].close()
            else:
                end.recv(4096)
            reached = True
    except BlockingIOError:
        return reached


def tree(root: Path) -> list[object]:
    """Everything of the files below `root` that one could change (reading them changes nothing)."""
    found: list[object] = []
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        inside = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        attributes = os.listxattr(path, follow_symlinks=False)
        found.append((str(path), status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, inside, attributes))
    return found


def life(victim: subprocess.Popen[bytes]) -> object:
    """The state of a process, as far as others can change it; None if it has ended."""
    if victim.poll() is not None:
        return None
    stat = Path(f"/proc/{victim.pid}/stat").read_text().rpartition(") ")[2].split()
    state = "stopped" if stat[0] in "TtZ" else "alive"
    limits = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
    return state, stat[16], os.sched_getaffinity(victim.pid), limits


def descendants() -> set[int]:
    """This process's descendants that are not zombies."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))):
            parents[int(entry.name)] = parent
    found, level = set[int](), {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found |= level
    return found


def parent_of(pid: int) -> int | None:
    """The parent of a process; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def within(seconds: float, look: Callable[[], Iterable[T]]) -> list[T]:
    """What is still there after `seconds`, or as soon as nothing is."""
    until = time.monotonic() + seconds
    while (there := list(look())) and time.monotonic() < until:
        time.sleep(0.02)
    return there
