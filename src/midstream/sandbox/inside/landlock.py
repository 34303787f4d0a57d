"""Landlock: the kernel restricts which files a process and its descendants can open.

Rules are made once, as a file descriptor, and applied by any number of processes. Files are read beneath some
directories, and written beneath one; nothing can be executed. It does not hide that a file exists, nor its size and
times. Newer versions (`version`) also refuse TCP, ioctls of devices, and signals and abstract sockets of processes
outside. Source: `include/uapi/linux/landlock.h`.
"""

import ctypes
import os
import stat
import struct

from .kernel import call

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
# Other rights are a directory's alone.
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
BIND_AND_CONNECT_TCP = 3
ABSTRACT_SOCKETS_AND_SIGNALS = 3
QUERY_VERSION = 1
PATH_BENEATH = 1


def version() -> int:
    """The kernel's Landlock version (its "ABI"), 0 where it has none or it is switched off."""
    try:
        return call("landlock_create_ruleset", 0, 0, QUERY_VERSION)
    except OSError:
        return 0


def handled(known: int) -> tuple[int, int, int]:
    """The rights that version `known` can refuse: to files, to TCP, and what is scoped to the process itself."""
    rights = (1 << 13) - 1
    rights |= (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0) | (IOCTL_DEV if known >= 5 else 0)
    return rights, BIND_AND_CONNECT_TCP if known >= 4 else 0, ABSTRACT_SOCKETS_AND_SIGNALS if known >= 6 else 0


def make_rules(readable: list[str], writable: list[str], known: int) -> int:
    """A file descriptor of the rules: everything refused but reading beneath `readable`, writing beneath `writable`.

    Paths that do not exist or cannot be reached are left out. Raises `OSError` if the kernel refuses the rules.
    """
    rights, network, scoped = handled(known)
    attributes = struct.pack("QQQ", rights, network, scoped)[: 8 if known < 4 else 16 if known < 6 else 24]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    rules = call("landlock_create_ruleset", ctypes.addressof(buffer), len(attributes), 0)
    for paths, allowed in ((readable, READ), (writable, WRITE)):
        for path in paths:
            _allow(rules, path, allowed & rights)
    return rules


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            allowed &= OF_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place), 12)
        call("landlock_add_rule", rules, PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(place)


def restrict(rules: int) -> None:
    """Apply the rules for good. `PR_SET_NO_NEW_PRIVS` must be set. Raises `OSError` if the kernel refuses."""
    call("landlock_restrict_self", rules, 0)
