"""Limits of the resources of a process."""

import mmap
import resource

PAGE = mmap.PAGESIZE
MEGABYTE = 1024 * 1024
OPEN_FILES = 64


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
