"""Linux system calls for which Python has no function, through ctypes."""

import ctypes
import os
import sys

from .syscalls import OWN, numbers

MACHINE = os.uname().machine if sys.maxsize > 2**32 else "32-bit"
CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 5
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_numbers = numbers(OWN, MACHINE)
_header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
_nothing = (ctypes.c_uint32 * 6)()


def call(name: str, *values: int) -> int:
    """Make one of the calls `syscalls.OWN`, with up to four numbers or addresses. Raises `OSError`, which names it."""
    result = _syscall(_numbers[name], *values, *[0] * (4 - len(values)))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def libc(name: str, *values: int | bytes) -> None:
    """Call a function of the C library that returns a negative number if it fails. Raises `OSError`, which names it."""
    if getattr(_libc, name)(*values) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def control(option: int, value: int, address: int = 0) -> None:
    """`prctl`: change what the kernel allows this process. Raises `OSError` if it refuses."""
    if _prctl(option, value, address, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def drop_capabilities() -> None:
    """Give up every capability for good: as root too, code is then one ordinary user's."""
    call("capset", ctypes.addressof(_header), ctypes.addressof(_nothing))
