"""System calls that foreign code may make, and their numbers on x86-64 and arm64.

An allowlist: what is not here is refused. Left out on purpose: starting processes and programs, sockets that reach
anything, signals to others, modes, owners, times and attributes of files, limits and priorities, memory that no limit
counts (memfd, System V, io_uring), tracing, namespaces, mounts, keys, `fallocate` (it can grow a file past its limit).

Numbers: Linux's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`; a test compares them
with the system's headers. "-" stands for a call that arm64 does not have.
"""

ARCHITECTURES = ("x86_64", "aarch64")
# From here on numbers are the same everywhere, and callers must live with ENOSYS.
NEW_CALLS = 424

# Allowed whatever the arguments: files, what files are, directories, waiting, memory, threads, signals of the process
# itself, time, who and where, what a pair of sockets needs.
PLAIN = """
read 0 63 | write 1 64 | creat 85 - | close 3 57 | close_range 436 436 | lseek 8 62
pread64 17 67 | pwrite64 18 68 | readv 19 65 | writev 20 66 | preadv 295 69 | pwritev 296 70 | preadv2 327 286
pwritev2 328 287 | sendfile 40 71 | copy_file_range 326 285 | truncate 76 45 | ftruncate 77 46 | fsync 74 82
fdatasync 75 83 | fadvise64 221 223 | flock 73 32 | dup 32 23 | dup2 33 - | dup3 292 24

stat 4 - | fstat 5 80 | lstat 6 - | newfstatat 262 79 | statx 332 291 | access 21 - | faccessat 269 48
faccessat2 439 439 | readlink 89 - | readlinkat 267 78 | statfs 137 43 | fstatfs 138 44

getcwd 79 17 | chdir 80 49 | fchdir 81 50 | getdents 78 - | getdents64 217 61 | umask 95 166 | mkdir 83 -
mkdirat 258 34 | rmdir 84 - | unlink 87 - | unlinkat 263 35 | rename 82 - | renameat 264 38 | renameat2 316 276
symlink 88 - | symlinkat 266 36 | link 86 - | linkat 265 37

pipe 22 - | pipe2 293 59 | poll 7 - | ppoll 271 73 | select 23 - | pselect6 270 72 | epoll_create 213 -
epoll_create1 291 20 | epoll_ctl 233 21 | epoll_wait 232 - | epoll_pwait 281 22 | eventfd2 290 19
nanosleep 35 101 | clock_nanosleep 230 115 | pause 34 - | wait4 61 260 | waitid 247 95

mmap 9 222 | munmap 11 215 | mremap 25 216 | mprotect 10 226 | madvise 28 233 | brk 12 214

futex 202 98 | set_robust_list 273 99 | rseq 334 293 | set_tid_address 218 96 | sched_yield 24 124
sched_getaffinity 204 123 | getcpu 309 168 | exit 60 93 | exit_group 231 94

rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 | rt_sigpending 127 136
rt_sigtimedwait 128 137 | rt_sigsuspend 130 133 | sigaltstack 131 132 | restart_syscall 219 128 | alarm 37 -
getitimer 36 102 | setitimer 38 103

clock_gettime 228 113 | clock_getres 229 114 | gettimeofday 96 169 | time 201 - | times 100 153

getpid 39 172 | gettid 186 178 | getppid 110 173 | getpgrp 111 - | getpgid 121 155 | getsid 124 156
getuid 102 174 | geteuid 107 175 | getgid 104 176 | getegid 108 177 | getresuid 118 148 | getresgid 120 150
getgroups 115 158 | getrlimit 97 163 | getrusage 98 165 | uname 63 160 | sysinfo 99 179 | getrandom 318 278

getsockname 51 204 | getpeername 52 205 | getsockopt 55 209 | recvfrom 45 207 | shutdown 48 210
"""
# Allowed with some arguments only: `seccomp.checks` says which.
CHECKED = """
clone 56 220 | kill 62 129 | tgkill 234 131 | prctl 157 167 | prlimit64 302 261 | fcntl 72 25 | ioctl 16 29
open 2 - | openat 257 56 | socketpair 53 199 | sendto 44 206
"""
# What the sandbox itself calls; foreign code may not.
OWN = """
capset 126 91 | landlock_create_ruleset 444 444 | landlock_add_rule 445 445 | landlock_restrict_self 446 446
"""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Names and numbers of a table's calls on `machine` (`platform.machine()`); `OSError` for an unknown one."""
    if machine not in ARCHITECTURES:
        raise OSError(f"no system calls are known of a {machine or 'nameless'} processor")
    column = 1 + ARCHITECTURES.index(machine)
    rows = [entry.split() for line in table.split("\n") if line for entry in line.split("|")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
