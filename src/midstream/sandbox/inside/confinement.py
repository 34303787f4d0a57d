"""The confinement of a forked child before any foreign code: no capabilities, Landlock, a seccomp allowlist.

Made once in the zygote; `enter` is a handful of system calls.
"""

import os

from . import landlock
from .kernel import control, drop_capabilities
from .seccomp import SeccompFilter

SET_PDEATHSIG, SET_DUMPABLE, SET_NO_NEW_PRIVS = 1, 4, 38  # of prctl
SIGKILL = 9
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class Confinement:
    """Landlock rules and a seccomp program, for the children of this process.

    Children may read what is beneath `readable` and write into the directory of `allow`. `least` is the Landlock
    version without which this is no sandbox; 0: it may be missing. Raises `OSError` if the kernel or the processor
    lacks something.
    """

    def __init__(self, readable: list[str], least: int) -> None:
        self.landlock = landlock.version()
        if self.landlock < least:
            raise OSError(f"the kernel has Landlock version {self.landlock}, and {least} is needed")
        self._readable, self._rules = [*readable, *DEVICES], None
        self._filter = SeccompFilter()
        self.calls = self._filter.calls

    def allow(self, scratch: str) -> None:
        """Let children write beneath `scratch`: the directory that is there now, not one mounted over it later."""
        if self._rules is not None:
            os.close(self._rules)
        if self.landlock:
            self._rules = landlock.make_rules(self._readable, [scratch, "/dev/null"], self.landlock)

    def enter(self, zygote: int, *, watched: bool) -> None:
        """Confine this process, a fresh child of process `zygote`, which may read its counters if it is `watched`.

        Raises `OSError` if something is refused, or the zygote is gone; no foreign code may run then.
        """
        control(SET_PDEATHSIG, SIGKILL)
        if os.getppid() != zygote:
            raise OSError("the zygote is gone")
        control(SET_DUMPABLE, watched)
        drop_capabilities()
        control(SET_NO_NEW_PRIVS, 1)
        if self._rules is not None:
            landlock.restrict(self._rules)
        self._filter.install(os.getpid())
