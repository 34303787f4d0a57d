"""Run a command until it ends or standard input does, which happens when the process that started this one is gone.

    python supervise.py vllm serve MODEL --port 8000

Then the command and all that it started end: by SIGTERM, and by SIGKILL after some seconds. The exit code is the
command's. Imports nothing of midstream: it must start at once, and do nothing else.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

TERMINATE_S = 10.0
POLL_S = 0.2


def main() -> int:
    """Supervise the command in `sys.argv`; returns its exit code."""
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    while command.poll() is None:
        if select.select([sys.stdin], [], [], POLL_S)[0]:  # nothing is ever written: this is its end
            break
    for number in (signal.SIGTERM, signal.SIGKILL):  # of its own processes too, whether it ended by itself or not
        try:
            os.killpg(command.pid, number)
        except ProcessLookupError:
            break
        with suppress(subprocess.TimeoutExpired):
            command.wait(TERMINATE_S)
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
