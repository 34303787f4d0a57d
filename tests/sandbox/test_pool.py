import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream.core.errors import SandboxError, UnsupportedError
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.worker import REASONS, PythonResult
from support.processes import gone

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
PARENT = "import os\nos.getppid()"


def run(*codes: str, **settings) -> list[PythonResult]:
    """The results of pieces of code, run one after the other in a pool of their own."""

    async def go() -> list[PythonResult]:
        pool = PythonPool(**settings)
        try:
            return [await pool.run(code) for code in codes]
        finally:
            await pool.close()

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("code", "text"),
    [
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
    ],
)
def test_prints_then_the_last_value(code: str, text: str):
    assert run(code) == [PythonResult(True, text, "ok")]


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        (
            "print('hi')\ndef f(x):\n    return 1 / x\nf(0)",
            "  line 3, in f\n    return 1 / x\nZeroDivisionError: division by zero",
        ),
        ("1 +", "line 1\n    1 +\nSyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("input()", "EOFError: EOF when reading a line"),
        ("\0", "null bytes"),
        ("'\ud800'", "surrogates not allowed"),
        ("(" * 500, "SyntaxError: too many nested parentheses"),
        ("raise ValueError('x' * 10**6)", "xxx"),
    ],
)
def test_raised_is_data(code: str, ending: str):
    (result,) = run(code)
    assert (result.ok, result.reason) == (False, "raised")
    assert result.text.endswith(ending)
    assert result.text.startswith("hi\n") == ("hi" in code)
    assert len(result.text) < 3000


def test_every_call_starts_clean():
    results = run(
        "import math, builtins, __main__\nx = 1\nmath.pi = 3\nbuiltins.y = 2\n__main__.z = 3",
        "import math\n'x' in globals(), 'y' in globals(), 'z' in globals(), math.pi > 3.1",
        "x",
        "y",
    )
    assert results[1].text == "(False, False, False, True)"
    assert [result.reason for result in results[2:]] == ["raised", "raised"]


def test_the_same_code_prints_the_same_text():
    code = "import random\nrandom.random(), set('abcdefgh')"
    assert len({result.text for result in run(code, code) + run(code)}) == 1


@pytest.mark.parametrize("code", ["while True: pass", "import time\ntime.sleep(60)"])
def test_timeout_is_data_and_the_worker_lives_on(code: str):
    started = time.monotonic()
    before, result, after = run(PARENT, code, PARENT, timeout_s=0.3)
    assert result == PythonResult(False, "TimeoutError: not finished after 0.3 s", "timeout")
    assert before == after
    assert time.monotonic() - started < 5


def test_the_clock_ignores_what_code_does_to_signals():
    code = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
    assert run(code + "while True: pass", timeout_s=0.3)[0].reason == "timeout"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not bound the address space")
def test_memory_bomb_is_data():
    at_once, slowly, after = run("[0] * 10**11", "x = []\nwhile True: x.append(bytes(10**6))", "1", memory_mb=128)
    assert (at_once.reason, slowly.reason, after.text) == ("memory", "memory", "1")
    assert at_once.text.startswith("MemoryError")
    assert [run("len(bytes(200 * 10**6))", memory_mb=size)[0].reason for size in (128, 512)] == ["memory", "ok"]


@pytest.mark.parametrize("code", ["while True: print('ab')", "'ab' * 10**6", "print('ab' * 10**6)\n1 / 0"])
def test_big_output_is_cut(code: str):
    (result,) = run(code, output_limit=100)
    assert (result.ok, result.reason) == (False, "output_limit")
    printed, note = result.text.rsplit("\n", 1)
    assert 99 <= len(printed) <= 100
    assert note == "[output cut after 100 characters]"


def test_output_may_reach_the_limit():
    assert run("print('\U0001f600' * 4000, end='')")[0] == PythonResult(True, "\U0001f600" * 4000, "ok")


@pytest.mark.parametrize(
    ("code", "how"), [("import os\nos._exit(4)", "exit code 4"), ("import os\nos.kill(os.getpid(), 9)", "signal 9")]
)
def test_a_child_that_dies_is_data(code: str, how: str):
    result, after = run(code, "1")
    assert (result.ok, result.reason, after.text) == (False, "killed", "1")
    assert how in result.text


def test_code_sees_no_environment_and_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    target = tmp_path / "written"
    environment, writing = run("import os\ndict(os.environ)", f"open({str(target)!r}, 'w', buffering=1).write('a\\n')")
    assert "secret" not in environment.text
    assert (writing.reason, target.read_text()) == ("raised", "")


def test_64_calls_at_once_each_get_their_own_answer():
    async def go() -> list[PythonResult]:
        pool = PythonPool(workers=2)
        results = await asyncio.gather(*(pool.run(f"import os\nprint(os.getppid())\n{i} * 3") for i in range(64)))
        await pool.close()
        return results

    answers = [result.text.split("\n") for result in asyncio.run(go())]
    assert [int(value) for _, value in answers] == [3 * i for i in range(64)]
    assert len({parent for parent, _ in answers}) == 2


def test_a_killed_zygote_is_replaced():
    async def go() -> None:
        pool = PythonPool(workers=2)
        pids = {(await pool.run(PARENT)).text}
        pids |= {result.text for result in await asyncio.gather(*(pool.run(PARENT) for _ in range(8)))}
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        later = await asyncio.gather(*(pool.run(PARENT) for _ in range(8)))
        assert all(result.ok for result in later)
        assert not pids & {result.text for result in later}
        await pool.close()

    asyncio.run(go())


def test_ctrl_c_is_not_for_the_zygote():
    pid, _, after = run(PARENT, "import os, signal\nos.kill(os.getppid(), signal.SIGINT)", PARENT)
    assert pid == after


def test_a_call_is_retried_once_then_an_error(tmp_path: Path):
    once = tmp_path / "once"
    kill = "os.kill(os.getppid(), 9); time.sleep(5)"
    retried = (
        f"import os, time\nif not os.path.exists({str(once)!r}):\n    open({str(once)!r}, 'w')\n    {kill}\n'again'"
    )
    assert run(retried)[0].text == "'again'"
    with pytest.raises(SandboxError, match="broke down twice"):
        run(f"import os, time\n{kill}")


def test_serves_several_event_loops():
    pool = PythonPool(workers=1)

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
        pool = PythonPool(workers=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.run("import time\ntime.sleep(1)\n'late'")
        assert (await pool.run("'next'")).text == "'next'"
        await pool.close()

    asyncio.run(go())


def test_close_ends_every_process_and_every_call(tmp_path: Path):
    async def go() -> list[int]:
        pool = PythonPool(workers=2)
        zygote = int((await pool.run(PARENT)).text)
        note = tmp_path / "pid"
        os.mkfifo(note)
        tell = f"fd = os.open({str(note)!r}, os.O_WRONLY)\nos.write(fd, str(os.getpid()).encode())\nos.close(fd)"
        code = f"import os, time\n{tell}\ntime.sleep(60)"
        running = asyncio.create_task(pool.run(code))
        child = int(await asyncio.to_thread(note.read_text))
        await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await running
        with pytest.raises(SandboxError, match="closed"):
            await pool.run("1")
        return [zygote, child]

    for pid in asyncio.run(go()):
        assert gone(pid)


def test_nothing_outlives_a_killed_parent():
    script = (
        "import asyncio, os\nfrom midstream.sandbox.pool import PythonPool\nasync def go():\n"
        f"    pool = PythonPool(workers=1, timeout_s=1.0)\n    print((await pool.run({PARENT!r})).text, flush=True)\n"
        "    await pool.run('while True: pass')\nasyncio.run(go())"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        zygote = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    assert gone(zygote)


def test_arithmetic_tier():
    assert run("105 + 7", "1 / 0", "import os", tier="arithmetic") == [
        PythonResult(True, "112", "ok"),
        PythonResult(False, "ZeroDivisionError: division by zero", "raised"),
        PythonResult(False, "NotArithmetic: SyntaxError: invalid syntax (<unknown>, line 1)", "raised"),
    ]


def test_tier_without_fork(monkeypatch: pytest.MonkeyPatch):
    assert PythonPool().tier == "process"
    monkeypatch.delattr(os, "fork")
    assert PythonPool().tier == "arithmetic"
    with pytest.raises(UnsupportedError):
        PythonPool(tier="process")


def test_the_worker_knows_the_same_reasons():
    zygote = (Path(__file__).parents[2] / "src/midstream/sandbox/zygote.py").read_text()
    assert f"REASONS = {REASONS}".replace("'", '"') in zygote
