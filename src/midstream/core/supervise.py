"""Run a command until it ends or standard input does, which happens when the process that started this one is gone.

    python supervise.py vllm serve MODEL --port 8000
    python supervise.py --within 2 ./agent.sh

Then the command and all that it started end: by SIGTERM, and by SIGKILL after some seconds (`--within`). On Linux that
holds for processes that left its session too, because orphans become children of this process. The exit code is the
command's, or 128 and the signal that ended it. Imports nothing of midstream: it must start at once, and do no more.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

TERMINATE_S = 10.0
POLL_S = 0.02
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_LINUX = sys.platform == "linux"


def main() -> int:
    """Supervise the command in `sys.argv`; returns its exit code."""
    words, within_s = sys.argv[1:], TERMINATE_S
    if words[0] == "--within":
        within_s, words = float(words[1]), words[2:]
    if _LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    command = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    while command.poll() is None:
        ready = select.select([sys.stdin, reading], [], [])[0]
        # Nothing is ever written to standard input, so this is its end.
        if sys.stdin in ready:
            break
        os.read(reading, 1 << 16)
        _reap(command)
    for number in (signal.SIGTERM, signal.SIGKILL):
        until, asked = time.monotonic() + within_s, set[int]()
        while (left := _left(command)) and time.monotonic() < until:
            for pid in left:
                # Each gets a signal once: a second one could end its handler of the first.
                if pid not in asked:
                    with suppress(ProcessLookupError, PermissionError):
                        (os.kill if _LINUX else os.killpg)(pid, number)
            asked |= set(left)
            time.sleep(POLL_S)
    status = command.wait()
    return status if status >= 0 else 128 - status


def _reap(command: subprocess.Popen[bytes]) -> None:
    """Wait for children that have ended, which leaves no zombies of adopted ones."""
    with suppress(ChildProcessError):
        while _LINUX and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            if ended.si_pid == command.pid:
                command.wait()
            else:
                os.waitpid(ended.si_pid, 0)


def _left(command: subprocess.Popen[bytes]) -> list[int]:
    """Return what still runs: on Linux all descendants, elsewhere the command's process group."""
    if not _LINUX:
        with suppress(ProcessLookupError, PermissionError):
            command.poll()
            os.killpg(command.pid, 0)
            return [command.pid]
        return []
    _reap(command)
    parents: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, seen = [], {os.getpid()}
    while seen:
        seen = {pid for pid, parent in parents.items() if parent in seen}
        found += seen
    return found


if __name__ == "__main__":
    sys.exit(main())
