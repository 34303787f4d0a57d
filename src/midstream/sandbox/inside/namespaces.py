"""A file system and a process id for each call, which show nothing of the calls before it, nor of the machine's files.

A call writes into a tmpfs over the scratch directory, which only its worker sees. The kernel bounds its bytes and its
files, whatever code deletes, maps or keeps open. With it go files, inode numbers, times and free space.
"""

import os

from .kernel import libc

NEW_MOUNTS, NEW_HOST_NAME, NEW_USER = 0x20000, 0x4000000, 0x10000000  # of unshare
READ_ONLY, NOSUID, NODEV, NOATIME, BIND, RECURSIVE = 1, 2, 4, 1024, 4096, 16384  # of mount
DETACH = 2  # of umount2
BLOCK = 4096
LAST_PID = "/proc/sys/kernel/ns_last_pid"


class Namespaces:
    """Mounts a tmpfs of `megabytes` over `place`, with room for one file for each of its blocks.

    `own`: this process has its namespaces already, and the rights of their administrator (bubblewrap gave them). If it
    has none, it gets some, in which there is nothing but `seen`, files and directories, and `place`.
    Raises `OSError` if a rule of the system forbids it; nothing has changed then.
    """

    def __init__(self, place: str, megabytes: int, seen: list[str], *, own: bool) -> None:
        self._place, self._seen = place.encode(), seen
        size = megabytes * 1024 * 1024
        self._options = f"size={size},nr_inodes={size // BLOCK},mode=700".encode()
        self._own, self._id = own, str(os.getpid()).encode()
        self._last_pid = os.open(LAST_PID, os.O_WRONLY) if own and os.path.exists(LAST_PID) else None
        # Tried in a child: where code may become a new user but not mount (AppArmor), there is no way back.
        child = os.fork()
        if not child:
            try:
                self._enter()
                self.prepare(self._place)
                # The parent shares these mounts.
                if own:
                    libc("umount2", self._place, DETACH)
                    libc("umount2", b"/proc", DETACH)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise OSError("no file system can be mounted here")
        self._enter()

    def _enter(self) -> None:
        if not self._own:
            user, group = os.getuid(), os.getgid()
            libc("unshare", NEW_USER | NEW_MOUNTS | NEW_HOST_NAME)
            libc("sethostname", b"sandbox", len("sandbox"))
            for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            self._hide_the_rest("/proc")
        else:  # code cannot read /proc, but would see its names
            libc("mount", b"tmpfs", b"/proc", b"tmpfs", READ_ONLY, b"")
        self._mount()

    def _hide_the_rest(self, root: str) -> None:
        """Make a file system over `root` the root of this process, with `seen` and an empty directory for `place`."""
        libc("mount", b"tmpfs", root.encode(), b"tmpfs", NOSUID | NODEV, b"")
        for path in sorted(filter(os.path.exists, self._seen), key=len):
            target = root + path
            if os.path.exists(target):  # in a directory that is there
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(path):
                os.mkdir(target)
            else:
                open(target, "x").close()
            libc("mount", path.encode(), target.encode(), b"", BIND | RECURSIVE, b"")
        os.makedirs(root + self._place.decode())
        # Children close all descriptors.
        self._outside = os.open("/", os.O_PATH)
        os.chroot(root)

    def _mount(self) -> None:
        libc("mount", b"tmpfs", self._place, b"tmpfs", NOSUID | NODEV | NOATIME, self._options)

    def prepare(self, scratch: int | bytes) -> None:
        """Make the next child's view the same as every child's: the times of its directory and, if `own`, its id."""
        os.utime(scratch, ns=(0, 0))
        if self._last_pid is not None:
            os.pwrite(self._last_pid, self._id, 0)

    def renew(self, scratch: int) -> bool:
        """Replace the file system, whose root is open as `scratch`, if anything was made in it; returns whether.

        Whatever is made in a directory sets its time, and files without a name are refused (`seccomp`).
        """
        if os.fstat(scratch).st_mtime_ns == 0:
            return False
        # Once nothing uses it, its device number is free for the next one.
        os.close(scratch)
        os.chdir("/")
        libc("umount2", self._place, DETACH)
        self._mount()
        return True

    def leave(self) -> None:
        """See the machine's files again, and so the scratch directory itself."""
        if not self._own:
            os.fchdir(self._outside)
            os.chroot(".")
