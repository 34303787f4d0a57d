"""The pool on every tier that this machine gives: what code prints, how it ends, and that nothing outlives it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from midstream.components.component import Sandbox, Tier
from midstream.core.errors import SandboxError
from midstream.sandbox import worker as worker_module
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.worker import PythonResult, Worker
from support.errors import raises
from support.processes import gone
from support.sandboxes import ON_THIS_MACHINE, change_the_zygote, descendants, make_pool, processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
everywhere = pytest.mark.parametrize("tier", ON_THIS_MACHINE)
confined = pytest.mark.parametrize("tier", ["strong", "standard"])

PARENT = "import os\nos.getppid()"
AT_SIGNALS = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
PROCESSES = {"strong": 4, "standard": 2, "unsafe": 2}  # of one worker with its child: bubblewrap has two of its own


def run(*codes: str, tier: Tier = "unsafe", **limits) -> list[PythonResult]:
    """The results of pieces of code, run one after the other in a pool of their own."""

    async def go() -> list[PythonResult]:
        pool = make_pool(tier, **limits)
        try:
            return [await pool.run(code) for code in codes]
        finally:
            await pool.close()

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this test's pools have their scratch directories, and nobody else's."""
    directory = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


PRINTED = [
    ("105 + 7", "112"),
    ("print(3)\n'a'", "3\n'a'"),
    ("x = 4\nprint(x, end='')", "4"),
    ("x = 4", ""),
    ("None", ""),
    ("print('a')\nimport sys\nsys.exit()", "a"),
    ("import sys\nprint('warned', file=sys.stderr)", "warned"),
    ("from math import comb\nfrom collections import Counter\ncomb(5, 2), Counter('aab')['a']", "(10, 2)"),
    ("from __future__ import annotations\ndef f(x: Nowhere): return x\nf(2)", "2"),
    ("print('é\\ud800')", "é\\ud800"),
    ("import gc; gc.isenabled()", "True"),
    ("__name__", "'__main__'"),
]


@pytest.mark.matrix(4)
@pytest.mark.parametrize(("code", "text"), PRINTED)
def test_prints_then_the_last_value(code: str, text: str):
    assert run(code) == [PythonResult(text, "ok")]


RAISED = [
    (
        "print('hi')\ndef f(x):\n    return 1 / x\nf(0)",
        "  line 3, in f\n    return 1 / x\nZeroDivisionError: division by zero",
    ),
    ("1 +", "line 1\n    1 +\nSyntaxError: invalid syntax"),
    ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    ("input()", "EOFError: EOF when reading a line"),
    ("class E(Exception):\n    def __str__(self): return 5\nraise E", "E: <its text cannot be made>"),
    ("\0", "null bytes"),
    ("'\ud800'", "surrogates not allowed"),
    ("(" * 500, "SyntaxError: too many nested parentheses"),
    ("raise ValueError('x' * 10**6)", "xxx"),
]


@pytest.mark.matrix(4)
@pytest.mark.parametrize(("code", "ending"), RAISED)
def test_raised_is_data(code: str, ending: str):
    (result,) = run(code)
    assert result.reason == "raised"
    assert result.text.endswith(ending)
    assert result.text.startswith("hi\n") == ("hi" in code)
    assert len(result.text) < 3000


@confined
def test_code_ends_the_same_in_every_tier(tier: Tier):
    codes = [code for code, _ in (*PRINTED, *RAISED)]
    assert run(*codes, tier=tier) == run(*codes)


@everywhere
def test_every_call_starts_clean(tier: Tier):
    results = run(
        "import math, builtins, __main__\nx = 1\nmath.pi = 3\nbuiltins.y = 2\n__main__.z = 3\nopen('f', 'w').close()",
        "import math, os\n'x' in globals(), 'y' in globals(), 'z' in globals(), math.pi > 3.1, os.listdir('.')",
        "x",
        "y",
        tier=tier,
    )
    assert results[1].text == "(False, False, False, True, [])"
    assert [result.reason for result in results[2:]] == ["raised", "raised"]


@everywhere
def test_nothing_set_on_the_standard_streams_stays(tier: Tier):
    results = run(
        "import fcntl\nfcntl.flock(0, fcntl.LOCK_EX)\nfcntl.fcntl(0, fcntl.F_SETFL, 0x800)\n'locked'",
        "import fcntl, os\nfcntl.flock(open('/dev/null'), fcntl.LOCK_EX | fcntl.LOCK_NB)\nos.get_blocking(0)",
        tier=tier,
    )
    assert [result.text for result in results] == ["'locked'", "True"]


@everywhere
def test_the_same_code_prints_the_same_text(tier: Tier):
    code = "import random\nrandom.random(), set('abcdefgh')"
    assert len({result.text for result in run(code, code, tier=tier) + run(code)}) == 1


@pytest.mark.matrix(1)
@everywhere
def test_timeout_is_data_and_the_worker_lives_on(tier: Tier):
    async def go() -> None:
        pool = make_pool(tier, timeout_s=0.1)
        await pool.run("1")
        before = processes(pool)
        for code in ("while True: pass", "import time\ntime.sleep(60)", AT_SIGNALS + "while True: pass"):
            # Five times 0.1 s on the clock: less than the second of CPU time to which that is rounded up.
            assert await pool.run(code) == PythonResult("TimeoutError: not finished after 0.5 s", "timeout")
        assert processes(pool) == before
        await pool.close()

    started = time.monotonic()
    asyncio.run(go())
    assert time.monotonic() - started < 20


@pytest.mark.matrix(1)
@everywhere
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not bound the address space")
def test_memory_bomb_is_data(tier: Tier):
    codes = "[0] * 10**11", "x = []\nwhile True: x.append(bytes(10**6))", "1"
    at_once, slowly, after = run(*codes, memory_mb=128, tier=tier)
    assert (at_once.reason, slowly.reason, after.text) == ("memory", "memory", "1")
    assert at_once.text.startswith("MemoryError")
    # What the worker itself holds does not count: 100 of 128 megabytes are there for code.
    assert [run("len(bytes(100 * 2**20))", memory_mb=size, tier=tier)[0].reason for size in (96, 128)] == [
        "memory",
        "ok",
    ]


@pytest.mark.parametrize("code", ["while True: print('ab')", "'ab' * 10**6", "print('ab' * 10**6)\n1 / 0"])
def test_big_output_is_cut(code: str):
    (result,) = run(code, output_limit=100)
    assert result.reason == "output_limit"
    printed, note = result.text.rsplit("\n", 1)
    assert 99 <= len(printed) <= 100
    assert note == "[output cut after 100 characters]"


def test_output_may_reach_the_limit():
    # Half a surrogate pair is no text: it becomes six characters, and all of them count.
    for letter, shown in (("\U0001f600", "\U0001f600"), ("\ud800", "\\ud800")):
        (result,) = run(f"print({letter!r} * {9000 // len(shown)}, end='')", output_limit=9000)
        assert result == PythonResult(shown * (9000 // len(shown)), "ok")
    (result,) = run("print('\\ud800' * 1501, end='')", output_limit=9000)
    assert result == PythonResult("\\ud800" * 1500 + "\n[output cut after 9000 characters]", "output_limit")


# Finds the memory in which a child leaves its answer, and writes another: a reason, a length, a text.
FORGE = """
import mmap, os, sys, time
def forge(reason, text, size=None):
    frame = sys._getframe()
    while not any(type(value) is mmap.mmap for value in vars(frame.f_locals.get("self", sys)).values()):
        frame = frame.f_back
    shared = frame.f_locals["self"].shared
    shared[: 5 + len(text)] = bytes([reason]) + (len(text) if size is None else size).to_bytes(4, "big") + text
"""
FORGED = [
    ("forge(1, b'x' * 9000); os._exit(0)", "output_limit", "x" * 100 + "\n[output cut after 100 characters]"),
    ("forge(2, b'x' * 9000); os._exit(0)", "output_limit", "x" * 100 + "\n[output cut after 100 characters]"),
    ("forge(4, b'x' * 9000); os._exit(0)", "output_limit", "x" * 100 + "\n[output cut after 100 characters]"),
    ("forge(1, b'', 1 << 31); os._exit(0)", "killed", "exit code 0"),
    ("forge(3, b'late'); os._exit(0)", "killed", "exit code 0"),
    ("forge(5, b'full'); os._exit(0)", "killed", "exit code 0"),
    ("forge(99, b'odd'); os._exit(0)", "killed", "exit code 0"),
    ("forge(1, b'fine'); os._exit(3)", "killed", "exit code 3"),
    ("forge(1, b'fine'); time.sleep(60)", "timeout", "TimeoutError"),
]


@everywhere
def test_an_answer_that_code_forges_keeps_the_limits(tier: Tier):
    codes = [f"{FORGE}\n{code}" for code, _, _ in FORGED]
    results = run(*codes, "1", tier=tier, output_limit=100, timeout_s=0.2)
    for result, (code, reason, text) in zip(results, FORGED, strict=False):
        assert (result.reason, text in result.text, len(result.text) < 140) == (reason, True, True), code
    assert results[-1].text == "1"


@everywhere
def test_a_child_that_dies_is_data(tier: Tier):
    codes = "import os\nos._exit(4)", "import os\nos.kill(os.getpid(), 9)", "import ctypes\nctypes.string_at(0)", "1"
    left, killed, crashed, after = run(*codes, tier=tier)
    assert [left.reason, killed.reason, crashed.reason, after.text] == ["killed", "killed", "killed", "1"]
    for result, how in ((left, "exit code 4"), (killed, "signal 9"), (crashed, "signal 11")):
        assert how in result.text


@everywhere
def test_code_sees_no_environment(tier: Tier, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    (environment,) = run("import os\ndict(os.environ)", tier=tier)
    assert "PYTHONHASHSEED" in environment.text
    assert "secret" not in environment.text


@everywhere
def test_threads_asyncio_and_temporary_files_work(tier: Tier):
    results = run(
        "from concurrent.futures import ThreadPoolExecutor as T\nsum(T(4).map(lambda x: x * x, range(10)))",
        "import asyncio\nasync def f():\n    return await asyncio.to_thread(lambda: 3)\nasyncio.run(f())",
        "import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n    open(d + '/a', 'w').close()\n"
        "    print(os.listdir(d))",
        "import sqlite3\nc = sqlite3.connect('d')\nc.execute('create table t as select 4 as a')\nc.commit()\n"
        "c.execute('select * from t').fetchall()",
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('here'))\nsignal.raise_signal(signal.SIGUSR1)",
        tier=tier,
    )
    assert [(result.reason, result.text) for result in results] == [
        ("ok", text) for text in ("285", "3", "['a']", "[(4,)]", "here")
    ]


@everywhere
def test_what_a_file_may_hold_is_bounded(tier: Tier):
    code = "f = open('big', 'wb', 0)\ntry:\n    for _ in range(9): f.write(bytes(2**18))\nfinally: print(f.tell())"
    (result,) = run(code, disk_mb=1, tier=tier)
    assert (result.reason, result.text.split("\n")[0]) == ("raised", str(2**20))
    assert "OSError" in result.text


@pytest.mark.matrix(4)
@everywhere
@pytest.mark.parametrize(
    "mess",
    [
        "for i in range(500): os.mkdir('d'); os.chdir('d')",
        "os.mkdir('locked'); open('locked/f', 'w').close(); os.mkdir('locked/in')\n"
        "fd = os.open('locked', os.O_RDONLY)\nos.umask(0o777); os.mkdir('none'); os.mkdir('locked/none')",
        "os.symlink('/', 'root'); os.symlink('.', 'loop'); open(b'\\xff\\xfe', 'w').close(); os.mkdir(b'\\xfd')",
        "open('a', 'w').close()\nfor i in range(2000): os.link('a', f'b{i}')",
    ],
)
def test_scratch_is_emptied_whatever_is_in_it(tier: Tier, mess: str, temporary: Path):
    made, after = run(f"import os\n{mess}\nprint('made')", "import os\nos.listdir('.')", tier=tier)
    assert (made.text, after.text) == ("made", "[]")
    assert not list(temporary.iterdir())


# Ways to write 32 MB, 1 MB after the other: as files, as files without a name, and what holds no data.
KEPT = "import mmap, os\nkept = []\ndef new(i): return os.open(f'f{i}', os.O_RDWR | os.O_CREAT)\n"
FILLING = {
    "many files": "for i in range(32): os.write(new(i), bytes(1 << 20))",
    "deleted, open": "for i in range(32): os.write(new(i), bytes(1 << 20)); os.unlink(f'f{i}')",
    "deleted, mapped": """
for i in range(32):
    fd = new(i)
    os.write(fd, bytes(1 << 20)); kept.append(mmap.mmap(fd, 4096)); os.close(fd); os.unlink(f'f{i}')
""",
    "written by memory": """
for i in range(32):
    fd = new(i)
    os.truncate(fd, 1 << 20); kept.append(mmap.mmap(fd, 1 << 20)); kept[-1].write(bytes(1 << 20)); os.close(fd)
""",
    "directories": "for i in range(8192): os.mkdir(f'd{i}')",
    "symbolic links": "for i in range(8192): os.symlink('x' * 4000, f's{i}')",
}


@pytest.mark.matrix(4)
@confined
@pytest.mark.parametrize("way", FILLING)
def test_all_files_together_are_bounded(tier: Tier, way: str):
    result, after = run(f"{KEPT}{FILLING[way]}\nprint('filled')", "1", tier=tier, disk_mb=4, timeout_s=5)
    assert (result.reason, "filled" in result.text, after.text) in (("raised", False, "1"), ("killed", False, "1"))


SLOW_FILLING = [pytest.param(way, marks=() if "deleted" in way else pytest.mark.slow) for way in FILLING]


@pytest.mark.parametrize("way", SLOW_FILLING)
def test_a_disk_is_watched_where_nothing_can_be_mounted(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path
):
    make_pool("standard")  # skips
    change_the_zygote(monkeypatch, tmp_path, "namespaces.py", 'libc("unshare"', 'raise OSError("no"')
    codes = f"{KEPT}{FILLING[way]}\nprint('filled')", "import os\nos.listdir()", "open('a', 'wb').write(bytes(10**6))"
    result, after, small = run(*codes, tier="standard", disk_mb=4, timeout_s=5)
    if way != "directories" or result.reason != "ok":  # some file systems write no block for an empty one
        assert (result.reason, result.text) == ("disk", "OSError: more than 4 MB written to files")
    assert (after.text, small.text) == ("[]", "1000000")
    assert not list(temporary.iterdir())


SEEN = """
import os, sys
root, place = os.stat('.'), os.statvfs('.')
print(os.listdir('.'), root, place)
os.close(os.open('new', os.O_CREAT | os.O_WRONLY))
print(os.stat('new').st_ino, os.getpid() if PIDS else '', os.times()[2:4])
frame = sys._getframe()
while frame:
    for where in (frame.f_locals, vars(frame.f_locals.get('self', sys)) if 'self' in frame.f_locals else {}):
        print({name: value for name, value in where.items() if type(value) in (int, float, bytes, bool, tuple)})
    frame = frame.f_back
"""
BEFORE = [
    "import os\nfor i in range(300): open(f'f{i}', 'w').close()\nos.mkdir('d')\nprint('x' * 500)",
    "open('f', 'wb').write(bytes(3 << 20))",
    "import os, tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'x')\nos.listdir('.')",
    "import os\nfor i in range(50): os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))",
    "import threading\nfor _ in range(20): threading.Thread(target=print).start()",
    "import os\nsum(range(10**6))\nos.kill(os.getpid(), 9)",
    "import os\nos._exit(7)",
]


@confined
def test_a_call_sees_nothing_of_the_calls_before_it(tier: Tier):
    seen = SEEN.replace("PIDS", str(tier == "strong"))  # on standard they are the machine's
    first, *others = run(*[code for before in ["1", *BEFORE] for code in (before, seen)][1:], tier=tier)
    assert first.reason == "ok"
    # The time at which the call began, and the number of its file system: the lowest that is free on the machine.
    same = re.compile(r"st_(?:ctime|dev)=\d+")
    for before, result in zip(BEFORE, others[1::2], strict=True):
        assert same.sub("", result.text) == same.sub("", first.text), before


@confined
def test_the_scratch_directory_has_the_time_of_the_call(tier: Tier):
    async def go() -> None:
        pool = make_pool(tier)
        for before in ("open('f', 'w').close()", "1"):
            await pool.run(before)
            await asyncio.sleep(0.05)
            began = time.time() - 0.02  # the clock of file systems ticks every 10 ms or more often
            assert float((await pool.run("import os\nos.stat('.').st_ctime")).text) > began
        await pool.close()

    asyncio.run(go())


@confined
def test_code_reads_and_writes_nothing_outside(tier: Tier, tmp_path: Path):
    note = tmp_path / "note"
    note.write_text("tagged")
    for how in ("open({!r}).read()", "open({!r}, 'w')", "import os\nos.unlink({!r})", "import os\nos.chmod({!r}, 0)"):
        (result,) = run(how.format(str(note)), tier=tier)
        assert result.text.splitlines()[-1].startswith(("PermissionError", "FileNotFoundError"))
    assert (note.read_text(), note.stat().st_mode & 0o777) == ("tagged", 0o644)


@pytest.mark.slow
@confined
def test_libraries_are_there_primed_and_repeat(tier: Tier):
    pytest.importorskip("sympy")
    codes = (
        "import sys\n'numpy' in sys.modules, 'sympy' in sys.modules",
        "import numpy, random\nnumpy.random.rand(), random.random()",
        "import sympy\nx = sympy.Symbol('x')\nsympy.integrate(x * sympy.exp(x), x)",
        "import numpy as np\nfloat((np.eye(300) @ np.ones(300)).sum()) == 300",
    )
    libraries = ("numpy", "sympy", "no_such_library")
    results = [run(*codes, tier=tier, libraries=libraries) for _ in range(2)]
    assert results[0] == results[1]
    assert [result.text for result in results[0]][::2] == ["(True, True)", "(x - 1)*exp(x)"]
    assert results[0][3].text == "True"
    assert make_pool(tier, libraries=libraries).libraries == ("numpy", "sympy")


def test_64_calls_at_once_each_get_their_own_answer():
    async def go() -> list[PythonResult]:
        pool = make_pool("unsafe", workers=2)
        results = await asyncio.gather(*(pool.run(f"import os\nprint(os.getppid())\n{i} * 3") for i in range(64)))
        await pool.close()
        return results

    answers = [result.text.split("\n") for result in asyncio.run(go())]
    assert [int(value) for _, value in answers] == [3 * i for i in range(64)]
    assert len({parent for parent, _ in answers}) == 2


@confined
def test_calls_leave_nothing_open_in_their_worker(tier: Tier):
    def held(pid: int) -> tuple[int, int]:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text().count("\n")
        return len(list(Path(f"/proc/{pid}/fd").iterdir())), mounts

    async def go() -> None:
        pool = make_pool(tier, workers=1, timeout_s=0.05)
        await pool.run("open('f', 'w').close()")
        await asyncio.sleep(0.5)  # the worker makes its next child ready, which has a file and a mount
        before = {pid: held(pid) for pid in (os.getpid(), *processes(pool))}
        for _ in range(20):
            for code in ("open('f', 'w').close()", "1 / 0", "import os\nos._exit(3)", "[0] * 10**11"):
                await pool.run(code)
        await pool.run("import time\ntime.sleep(9)")
        await asyncio.sleep(0.5)
        assert {pid: held(pid) for pid in (os.getpid(), *processes(pool))} == before
        await pool.close()

    asyncio.run(go())


# --- workers that die -------------------------------------------------------------------------------------------------


@everywhere
def test_an_idle_worker_that_died_is_replaced(tier: Tier, temporary: Path):
    async def go() -> None:
        pool = make_pool(tier)
        for _ in range(2):
            assert (await pool.run("1")).text == "1"
            dead = processes(pool)
            os.kill(dead[-1], signal.SIGKILL)
            assert all(map(gone, dead))
        assert (await pool.run("2")).text == "2"
        await pool.close()

    asyncio.run(go())
    assert not list(temporary.iterdir())


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize("which", [0, -2])  # the process that we started; the zygote: its child is the last
def test_a_worker_that_dies_in_a_call_is_an_error_of_that_call_alone(tier: Tier, which: int, temporary: Path):
    async def go() -> None:
        pool = make_pool(tier, workers=1)
        call = asyncio.create_task(pool.run("import time\nopen('left', 'w').close()\ntime.sleep(60)"))
        while not pool._busy or not (found := processes(pool)) or not await asleep(found[-1]):
            await asyncio.sleep(0.02)
        os.kill(found[which], signal.SIGKILL)
        with raises("worker-died"):
            await call
        assert all(map(gone, found))
        assert (await pool.run("'next'")).text == "'next'"
        await pool.close()

    asyncio.run(go())
    assert not list(temporary.iterdir())


async def asleep(pid: int) -> bool:
    """Whether the process sleeps in `time.sleep`: then it is the child, and its code is under way."""
    try:
        return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False


def test_ctrl_c_is_not_for_the_zygote():
    async def go() -> None:
        pool = make_pool("unsafe")
        pid = int((await pool.run(PARENT)).text)
        os.kill(pid, signal.SIGINT)
        assert int((await pool.run(PARENT)).text) == pid
        await pool.close()

    asyncio.run(go())


def test_serves_several_event_loops():
    pool = make_pool("unsafe", workers=1)

    async def many() -> set[str]:
        return {result.text for result in await asyncio.gather(*(pool.run(PARENT) for _ in range(4)))}

    async def left_unfinished() -> None:
        task = asyncio.create_task(pool.run("import time\ntime.sleep(60)"))
        await asyncio.sleep(0.1)
        assert not task.done()

    first, second = asyncio.run(many()), asyncio.run(many())
    assert first == second
    asyncio.run(left_unfinished())
    assert len(asyncio.run(many())) == 1
    asyncio.run(pool.close())


def test_a_cancelled_call_leaves_nothing_to_the_next():
    async def go() -> None:
        pool = make_pool("unsafe", workers=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.run("import time\ntime.sleep(1)\n'late'")
        assert (await pool.run("'next'")).text == "'next'"
        await pool.close()

    asyncio.run(go())


def test_removing_what_a_cancelled_call_left_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    others_continued, seen = threading.Event(), []
    monkeypatch.setattr(Worker, "_remove_scratch", lambda self: seen.append(others_continued.wait(20)))

    async def go() -> None:
        pool = make_pool("unsafe", workers=1)
        await pool.run("1")
        call = asyncio.create_task(pool.run("import time\ntime.sleep(60)"))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.sleep(0.05)
        others_continued.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        await pool.close()

    asyncio.run(go())
    assert seen == [True]


@everywhere
def test_close_ends_every_process_and_every_call(tier: Tier, temporary: Path):
    async def go() -> list[int]:
        pool = make_pool(tier, workers=2)
        await pool.run("1")
        running = [asyncio.create_task(pool.run("import time\ntime.sleep(60)")) for _ in range(2)]
        while len(found := processes(pool)) < 2 * PROCESSES[tier]:
            await asyncio.sleep(0.02)
        await pool.close()
        for call in running:
            with pytest.raises(SandboxError):
                await call
        with raises("sandbox-closed"):
            await pool.run("1")
        return found

    assert all(map(gone, asyncio.run(go())))
    assert not list(temporary.iterdir())


@pytest.mark.matrix(1)
@everywhere
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_parent_that_is_ended(tier: Tier, how: signal.Signals, temporary: Path):
    script = (
        "import asyncio\nfrom support.sandboxes import make_pool\nasync def go():\n"
        f"    pool = make_pool({tier!r}, workers=2, timeout_s=30)\n    await pool.run('1')\n    print(flush=True)\n"
        '    await asyncio.gather(*(pool.run(\'open("f", "w")\\nwhile True: pass\') for _ in range(2)))\n'
        "asyncio.run(go())"
    )
    make_pool(tier)  # skips
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        while len(found := descendants(parent.pid)) < 2 * PROCESSES[tier]:
            time.sleep(0.02)
        parent.send_signal(how)
    assert all(map(gone, found))
    until = time.monotonic() + 5
    while list(temporary.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not list(temporary.iterdir())


def test_a_worker_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, temporary: Path):
    monkeypatch.setattr("midstream.sandbox.launch.BOOT", "raise OSError('no such luck')")
    with raises("worker-not-started", "OSError: no such luck", "midstream doctor"):
        run("1")
    monkeypatch.setattr("midstream.sandbox.launch.BASE_PYTHON", str(temporary / "python"))
    with raises("worker-not-started", temporary / "python"):
        run("1")
    assert not list(temporary.iterdir())


@confined
@pytest.mark.parametrize("step", ["drop_capabilities()", "landlock.restrict(self._rules)", "self._filter.install"])
def test_code_that_cannot_be_confined_is_not_run(
    tier: Tier, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A zygote with one step of its confinement broken: no answer, an error, and its code has not printed anything."""
    make_pool(tier)  # skips
    change_the_zygote(monkeypatch, tmp_path, "confinement.py", step, f"(1 / 0) or {step}")
    with raises("worker-died"):
        run("'ran'", tier=tier)


def test_a_worker_that_says_nothing_did_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("midstream.sandbox.launch.BOOT", "import time; time.sleep(60)")
    monkeypatch.setattr(worker_module, "START_S", 0.1)
    with raises("worker-not-started", "within 0.1 s"):
        run("1")


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_arithmetic_tier():
    assert run("105 + 7", "1 / 0", "import os", "2 ** 300", tier="arithmetic", output_limit=70) == [
        PythonResult("112", "ok"),
        PythonResult("ZeroDivisionError: division by zero", "raised"),
        PythonResult("NotArithmetic: invalid syntax: only one arithmetic expression can be evaluated here", "raised"),
        PythonResult(f"{str(2**300)[:70]}\n[output cut after 70 characters]", "output_limit"),
    ]


def test_arithmetic_needs_no_process(monkeypatch: pytest.MonkeyPatch):
    async def go() -> None:
        pool = PythonPool(CodeLimits(workers=2), Sandbox(tier="arithmetic"))
        assert {result.text for result in await asyncio.gather(*(pool.run("6 * 7") for _ in range(8)))} == {"42"}
        assert processes(pool) == []
        await pool.close()
        with raises("sandbox-closed"):
            await pool.run("6 * 7")

    monkeypatch.delattr(os, "fork")
    asyncio.run(go())
