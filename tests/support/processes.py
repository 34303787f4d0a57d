"""Whether a process is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether no process `pid` is left (a zombie counts as gone: it waits for its adoptive parent)."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and ") Z " in status.read_text():
            return True
        time.sleep(0.02)
    return False
