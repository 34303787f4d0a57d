"""seccomp: a program that the kernel runs before each system call, and that allows or refuses it (classic BPF).

`assemble` builds it once: one binary search over the call's number, then a check of arguments where there is one. The
kernel runs it for every known call when it is installed, so it has to be short. `SeccompFilter.install` puts in the
process's own id, and installs it.

Refused calls fail with EPERM, those that are new (`syscalls.NEW_CALLS`) with ENOSYS, as on a kernel without them;
callers fall back. Calls of another architecture (32-bit on x86-64) end the process. Sources: `seccomp(2)`,
`include/uapi/linux/{seccomp,audit,filter}.h`.
"""

import ctypes
import errno
import struct

from .kernel import MACHINE, control
from .syscalls import CHECKED, NEW_CALLS, PLAIN, numbers

SET_SECCOMP, FILTER_MODE = 22, 2  # of prctl
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000  # a bit in the numbers of x86-64's second ABI
RESULTS = {"allow": 0x7FFF0000, "refuse": 0x00050000 | errno.EPERM, "unknown": 0x00050000 | errno.ENOSYS}
KILL = 0x80000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCH, ARGUMENTS = 0, 4, 16  # offsets in what the kernel hands the program
# Stands for the process id, until `SeccompFilter.install`.
OWN_ID = -1

CLONE_THREAD = 0x10000
CLONE_NAMESPACES = 0x7E020080
# Duplicate, flags, locks, size of a pipe; not: who gets signals.
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
# Is it a terminal, bytes waiting, blocking, close.
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)
PR_SET_NAME = 15
# A file that never has a name, so that no directory shows it was made.
O_TMPFILE = 0x400000
AF_UNIX, SOCK_STREAM, SOCK_TYPE = 1, 1, 0xF

# One instruction: code, operand, where to jump if it holds and if not (None: the next). A string is a label.
Step = tuple[int, int, str | None, str | None] | str
REFUSE: Step = (RETURN, RESULTS["refuse"], None, None)


def one_of(argument: int, values: tuple[int, ...]) -> list[Step]:
    """Allow a call whose argument (its lower half: the kernel reads no more of these) is one of `values`."""
    return [_load(argument), *((EQUAL, value, "allow", None) for value in values), REFUSE]


def checks() -> dict[str, list[Step]]:
    """The checked calls: threads but no processes, signals and limits of the process itself, harmless queries."""
    null: list[Step] = [(EQUAL, 0, None, "refuse")]
    return {
        "clone": [_load(0), (ANY_BIT, CLONE_THREAD, None, "refuse"), (ANY_BIT, CLONE_NAMESPACES, "refuse", "allow")],
        "kill": one_of(0, (OWN_ID,)),
        "tgkill": one_of(0, (OWN_ID,)),
        "prctl": one_of(0, (PR_SET_NAME,)),
        "prlimit64": [_load(0), *null, _load(2), *null, _load(2, high=True), (EQUAL, 0, "allow", "refuse")],
        "fcntl": one_of(1, FCNTL),
        "ioctl": one_of(1, IOCTL),
        "open": [_load(1), (ANY_BIT, O_TMPFILE, "refuse", "allow")],
        "openat": [_load(2), (ANY_BIT, O_TMPFILE, "refuse", "allow")],
        "socketpair": [
            _load(0),
            (EQUAL, AF_UNIX, None, "refuse"),
            _load(1),
            (AND, SOCK_TYPE, None, None),
            (EQUAL, SOCK_STREAM, "allow", "refuse"),
        ],
        "sendto": [_load(4), *null, _load(4, high=True), (EQUAL, 0, "allow", "refuse")],  # no address
    }


def _load(argument: int, *, high: bool = False) -> Step:
    return (LOAD, ARGUMENTS + 8 * argument + 4 * high, None, None)


def assemble(machine: str = MACHINE) -> list[Step]:
    """The whole program as steps."""
    checked = numbers(CHECKED, machine)
    actions = dict.fromkeys(numbers(PLAIN, machine).values(), "allow")
    actions |= {number: name for name, number in checked.items()}
    starts = [(0, actions.get(0, "refuse"))]
    for number in range(1, max(*actions, NEW_CALLS) + 2):
        action = actions.get(number, "unknown" if number >= NEW_CALLS else "refuse")
        if action != starts[-1][1]:
            starts.append((number, action))
    starts.append((X32, "refuse"))
    program: list[Step] = [
        (LOAD, ARCH, None, None),
        (EQUAL, AUDIT_ARCH[machine], "known", None),
        (RETURN, KILL, None, None),
        "known",
        (LOAD, NUMBER, None, None),
        *_search(starts),
    ]
    for name, steps in checks().items():
        program += [name, *steps]
    for name, result in RESULTS.items():
        program += [name, (RETURN, result, None, None)]
    return program


def _search(starts: list[tuple[int, str]]) -> list[Step]:
    """A binary search: each (number, action) holds from its number up to the next one's."""
    middle = len(starts) // 2
    lower, upper = starts[:middle], starts[middle:]
    at = upper[0][0]
    low, high = (part[0][1] if len(part) == 1 else None for part in (lower, upper))
    steps: list[Step] = [(AT_LEAST, at, high or f"from {at}", low)]
    steps += [] if low else _search(lower)
    return steps + ([] if high else [f"from {at}", *_search(upper)])


def encode(program: list[Step], own_id: int) -> bytes:
    """The steps as the kernel reads them: 8 bytes each."""
    places: dict[str, int] = {}
    steps: list[tuple[int, int, str | None, str | None]] = []
    for step in program:
        if isinstance(step, str):
            places[step] = len(steps)
        else:
            steps.append(step)
    code = b""
    for index, (kind, value, yes, no) in enumerate(steps):
        jumps = [0 if label is None else places[label] - index - 1 for label in (yes, no)]
        code += struct.pack("HBBI", kind, *jumps, own_id if value == OWN_ID else value)
    return code


class SeccompFilter:
    """The program, ready for any number of processes. `calls` is how many calls it lets through, checked ones too."""

    def __init__(self) -> None:
        code = encode(assemble(), own_id=0)
        changed = encode(assemble(), own_id=2**32 - 1)
        self._places = [at + 4 for at in range(0, len(code), 8) if code[at : at + 8] != changed[at : at + 8]]
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))
        self.calls = len(numbers(PLAIN, MACHINE)) + len(numbers(CHECKED, MACHINE))

    def install(self, own_id: int) -> None:
        """Allow only the listed calls from here on. `PR_SET_NO_NEW_PRIVS` must be set. Raises `OSError` if refused."""
        for place in self._places:
            struct.pack_into("I", self._code, place, own_id)
        control(SET_SECCOMP, FILTER_MODE, ctypes.addressof(self._header))
