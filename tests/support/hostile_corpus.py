"""Reads `hostile_corpus.txt`: hostile pieces of Python that the sandbox must hold.

**They are data: only `hostile_run.py` runs them**, after it has made sure that the sandbox confines. Each is a
template: `$home` is a scratch home that `hostile_watch.Watch` made, `$victim` a `sleep` that it started, `$port`,
`$uport`, `$abstract` and `$path` sockets that it listens on, `$tag` a random word for names. Each touches those and
nothing else; where a call could hurt the machine, it comes in a form that does no harm if it gets through
(`kill(-1, 0)`, `reboot` with a wrong magic number).

What a snippet did is seen from outside: files, the victim, sockets, secrets in the answer. Where nothing can be seen,
it prints a line that begins with ESCAPED. Otherwise it prints "held" or "tried", or raises.

A line "==== kind" begins the snippets of a kind, a line "-- name flags" a snippet. `kit`: it uses `KIT`. `slow`: it
runs until the clock stops it, and gets a short one. `leaks:TIER`: that tier is documented not to hold it
where it has no namespaces.
`ends:REASON,...`: how the sandbox must say it ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

MEMORY_MB, DISK_MB = 64, 4  # the limits under which the corpus is run
PATH = Path(__file__).with_suffix(".txt")

KIT = """\
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
intel = platform.machine() == 'x86_64'
def call(number, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(number), *wide), ctypes.get_errno()
def report(what, result, error):
    if result >= 0 or error not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        print('ESCAPED', what, result, errno.errorcode.get(error))
"""

# What code may do, so that a sandbox in which nothing works does not pass.
HONEST = {
    "import math\nmath.factorial(20)": "2432902008176640000",
    "open('a.txt', 'w').write('hi')\nprint(open('a.txt').read())": "hi",
    "from concurrent.futures import ThreadPoolExecutor as T\nsum(T(4).map(lambda x: x * x, range(10)))": "285",
    "import asyncio\nasyncio.run(asyncio.sleep(0, 'slept'))": "'slept'",
    "import tempfile\nwith tempfile.TemporaryFile() as file: print(file.write(b'abc'))": "3",
    "import os\nos.makedirs('a/b')\nos.rename('a', 'c')\nos.listdir()": "['c']",
}


@dataclass(frozen=True)
class Snippet:
    """One attack."""

    name: str
    code: str
    kind: str = ""
    slow: bool = False
    leaks: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def filled(self, values: dict[str, str]) -> str:
        return Template(self.code).substitute(values)


def parse(text: str) -> list[Snippet]:
    snippets, kind = [], ""
    for block in re.split(r"^(?===== |-- )", text, flags=re.MULTILINE)[1:]:
        if block.startswith("==== "):
            kind = block.partition("\n")[0].removeprefix("==== ")
            continue
        head, _, code = block.partition("\n")
        _, name, *flags = head.split()
        lists = {key: tuple(value.split(",")) for key, _, value in (flag.partition(":") for flag in flags) if value}
        code = code.rstrip("\n")
        code = KIT + code if "kit" in flags else code
        snippets.append(Snippet(name, code, kind, slow="slow" in flags, **lists))
    return snippets


CORPUS = parse(PATH.read_text(encoding="utf-8"))
