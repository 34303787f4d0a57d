"""The filter: its numbers against the system's headers, its program on an interpreter of its own, and in a process."""

from __future__ import annotations

import errno
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.sandbox.inside import syscalls
from midstream.sandbox.inside.syscalls import ARCHITECTURES, CHECKED, NEW_CALLS, OWN, PLAIN, numbers

if sys.platform != "linux":
    pytest.skip("seccomp is Linux's", allow_module_level=True)

from midstream.sandbox.inside import seccomp
from midstream.sandbox.inside.kernel import MACHINE

SOURCE = Path(__file__).parents[2] / "src/midstream/sandbox"
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
CALLED_OTHERWISE = {"newfstatat": "fstatat"}  # in the generic header
OWN_ID = 4711
ALLOW, REFUSE, UNKNOWN, KILL = *seccomp.RESULTS.values(), seccomp.KILL


def result(number: int, arguments: tuple[int, ...] = (), machine: str = "x86_64", arch: int | None = None) -> int:
    """What the program returns for a call: classic BPF, as the kernel's documentation says it runs."""
    code = seccomp.encode(seccomp.assemble(machine), OWN_ID)
    steps = [struct.unpack_from("HBBI", code, at) for at in range(0, len(code), 8)]
    values = [value & 2**64 - 1 for value in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number & 2**32 - 1, arch or seccomp.AUDIT_ARCH[machine], 0, *values)
    at = register = 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        if kind == seccomp.RETURN:
            return value
        if kind == seccomp.LOAD:
            [register] = struct.unpack_from("<I", data, value)
        elif kind == seccomp.AND:
            register &= value
        else:
            tests = {seccomp.EQUAL: register == value, seccomp.AT_LEAST: register >= value}
            at += yes if tests.get(kind, bool(register & value)) else no


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_are_those_of_the_systems_headers(machine: str):
    header = next((path for name in HEADERS[machine] if (path := Path(name)).is_file()), None)
    if header is None:
        pytest.skip(f"no header of {machine} here: apt-get install linux-libc-dev")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text(), re.MULTILINE)
    known = {name: int(number) for name, number in found}
    for table in (PLAIN, CHECKED, OWN):
        ours = numbers(table, machine)
        theirs = {name: known[name if machine == "x86_64" else CALLED_OTHERWISE.get(name, name)] for name in ours}
        assert ours == theirs
    # And what is said not to be there is not.
    every = set(numbers(PLAIN, "x86_64")) - set(numbers(PLAIN, machine))
    assert not every & set(known)


def test_a_processor_without_numbers_is_refused():
    with pytest.raises(OSError, match="no system calls are known of a riscv64 processor"):
        numbers(PLAIN, "riscv64")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_number_gets_its_own_answer(machine: str):
    plain, checked = set(numbers(PLAIN, machine).values()), set(numbers(CHECKED, machine).values())
    assert not plain & checked
    for number in (*range(NEW_CALLS + 100), 2**30 - 1, 2**31 - 1, 2**31, 2**32 - 1):
        if number in checked:
            continue
        refused = UNKNOWN if NEW_CALLS <= number < seccomp.X32 else REFUSE
        assert result(number, machine=machine) == (ALLOW if number in plain else refused), number


@given(st.integers(0, 2**32 - 1))
def test_another_architecture_is_killed(number: int):
    assert result(number, arch=0x40000003) == KILL  # i386, as `int 0x80` would be


@given(st.integers(0, 2**30 - 1))
def test_the_second_abi_of_x86_is_refused(number: int):
    assert result(number | seccomp.X32) == REFUSE


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("clone", (0x3D0F00,), True),  # as glibc makes threads
        ("clone", (0x11,), False),  # as it forks
        ("clone", (0x10000 | 0x10000000,), False),  # a thread in a user namespace of its own
        ("clone", (0x10000 | 0x80,), False),  # and a time namespace
        ("kill", (OWN_ID, 9), True),
        ("kill", (OWN_ID + 1, 9), False),
        ("kill", (-1, 9), False),
        ("kill", (0, 9), False),
        ("tgkill", (OWN_ID, 1, 9), True),
        ("tgkill", (1, OWN_ID, 9), False),
        ("prctl", (15,), True),
        ("prctl", (22, 2), False),
        ("prctl", (1, 0), False),
        ("prctl", (4, 1), False),
        ("prlimit64", (0, 7, 0, 99), True),
        ("prlimit64", (0, 7, 99, 0), False),
        ("prlimit64", (0, 7, 1 << 32, 0), False),
        ("prlimit64", (OWN_ID - 1, 7, 0, 99), False),
        ("fcntl", (3, 1), True),
        ("fcntl", (3, 8, 1), False),  # F_SETOWN: signals to others
        ("fcntl", (3, 10, 9), False),  # F_SETSIG: which one
        ("ioctl", (3, 0x5401), True),
        ("ioctl", (3, 0x5412), False),  # TIOCSTI: typing for somebody
        ("ioctl", (3, 0x8901), False),  # FIOSETOWN
        ("socketpair", (1, 1 | 0o2004000, 0), True),
        ("socketpair", (1, 2, 0), False),
        ("socketpair", (2, 1, 0), False),
        ("openat", (-100, 99, 0x241, 0o600), True),
        ("openat", (-100, 99, 0x410002, 0o600), False),  # O_TMPFILE: a file that no directory shows
        ("sendto", (3, 99, 1, 0, 0, 0), True),
        ("sendto", (3, 99, 1, 0, 99, 16), False),
        ("sendto", (3, 99, 1, 0, 1 << 40, 16), False),
    ],
)
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_arguments_are_checked(machine: str, name: str, arguments: tuple[int, ...], allowed: bool):
    assert result(numbers(CHECKED, machine)[name], arguments, machine) == (ALLOW if allowed else REFUSE)


@pytest.mark.parametrize(
    "name",
    "fork vfork execve execveat ptrace process_vm_readv socket connect bind sendmsg sendmmsg mount chroot unshare "
    "setns chmod fchmodat chown utimensat setxattr mknod memfd_create userfaultfd bpf perf_event_open keyctl shmget "
    "tkill rt_sigqueueinfo pidfd_send_signal io_uring_setup clone3 openat2 memfd_secret setrlimit setuid capset "
    "seccomp setsid setpgid fallocate landlock_restrict_self name_to_handle_at timer_create vmsplice".split(),
)
def test_what_the_list_leaves_out(name: str):
    for machine in ARCHITECTURES:
        assert name not in numbers(PLAIN, machine) | numbers(CHECKED, machine)


def test_in_a_process_of_its_own():
    code = (
        "import os\nfrom midstream.sandbox.inside import seccomp\nfrom midstream.sandbox.inside.kernel import control\n"
        "control(38, 1)\nseccomp.SeccompFilter().install(os.getpid())\n"
        "for attempt in (os.fork, lambda: os.kill(os.getppid(), 0), lambda: os.chmod('/dev/null', 0), os.setsid,\n"
        "                lambda: os.memfd_create('a'), lambda: os.pidfd_open(os.getpid())):\n"
        "    try: print(attempt())\n    except OSError as error: print(error.errno)\n"
        "os.kill(os.getpid(), 0)\nprint(len(os.listdir('/')) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": f"{SOURCE.parents[1]}"},
    )
    assert done.stdout.split() == [*[str(errno.EPERM)] * 5, str(errno.ENOSYS), "True"], done.stderr


def test_how_many_calls_are_allowed_is_reported():
    assert seccomp.SeccompFilter().calls == len(numbers(PLAIN, MACHINE)) + len(numbers(CHECKED, MACHINE)) > 100
    assert set(seccomp.checks()) == set(numbers(CHECKED, "x86_64")) == set(numbers(CHECKED, "aarch64")) | {"open"}
    assert "-" not in {entry.split()[1] for line in syscalls.PLAIN.split("\n") if line for entry in line.split("|")}
