"""How much this process's resident memory grows while something runs, at its peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Growth:
    """`mb` is set at the end of the context."""

    mb = 0.0


@contextmanager
def growth_of_memory() -> Iterator[Growth]:
    """Measure by the kernel's own peak, which is set back first; skips on systems without it (Linux has it)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("no /proc/self/clear_refs: this system does not measure the peak of memory")
    growth, before = Growth(), _kilobytes("VmRSS")
    yield growth
    growth.mb = (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])
