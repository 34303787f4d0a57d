"""Programs around one tool: real processes, honest ones and hostile ones."""

from __future__ import annotations

import asyncio
import builtins
import keyword
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from midstream.components.component import Sandbox, Tier
from midstream.core.errors import EngineError, SandboxError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call, Observation
from midstream.sandbox import code_runner
from midstream.sandbox.code_runner import NOTHING, CodeRunnerConfig, ProgramRunner, function_name
from midstream.tools.local_search import Document, LocalSearch
from midstream.tools.python import PythonConfig, PythonTool
from support.errors import raises
from support.processes import gone
from support.sandboxes import processes, sandbox

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
TIERS: tuple[Tier, ...] = ("strong", "standard") if sys.platform == "linux" else ("unsafe",)
CHOSEN: list[Tier] = [TIERS[0]]  # the tier that `run` and `with_runner` take

# How hostile code gets at its channel: `fd` is it, `send` writes a whole message.
AT_CHANNEL = (
    "import os, time\n"
    "fd = dict(zip(echo.__code__.co_freevars, echo.__closure__))['channel'].cell_contents\n"
    "def send(body): os.write(fd, len(body).to_bytes(4, 'big') + body)\n"
)


@dataclass
class Echo:
    """Repeats its text after `delay_s`; raises `failure` at call `breaks_at`; "no" has no result, "slow" none soon."""

    delay_s: float = 0.0
    timeout_s: float = 30.0
    output_tokens: int = 100_000
    breaks_at: int = 0
    failure: Exception | None = None
    name: str = "echo"
    description: str = "repeats"
    said: list[str] = field(default_factory=list)
    watched: ProgramRunner | None = None  # whose processes `there` are, as seen at every call
    kills: bool = False  # it ends their worker
    there: list[int] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer"}},
            "required": ["text"],
        }
    )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        text, times = str(arguments["text"]), arguments.get("times", 1)
        assert isinstance(times, int)
        self.said.append(text)
        self.there += processes(self.watched._pool) if self.watched else []
        if self.kills:
            os.kill(self.there[-2], signal.SIGKILL)  # the zygote: its child is the last
        await asyncio.sleep(60 if text == "slow" else self.delay_s)
        if self.failure and len(self.said) == self.breaks_at:
            raise self.failure
        return ToolResult(text=text * times, ok=text != "no", calls=(Call(role="tool", completion=text),))

    async def close(self) -> None: ...


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Tier:
    CHOSEN[0] = request.param
    return request.param


everywhere = pytest.mark.usefixtures("tier")


def run(*codes: str, tool: Tool | None = None, **settings: Any) -> list[Observation]:
    """The observations of programs, one after the other on one runner; one more must behave as if alone."""

    async def go() -> list[Observation]:
        runner = ProgramRunner(CodeRunnerConfig(**settings), sandbox(CHOSEN[0]))
        try:
            observations = [(await runner.run(code, tool or Echo()))[0] for code in codes]
            after, _ = await runner.run("print(echo(text='next'), echo(text='one'))", Echo())
            assert (after.status, after.text, len(after.tool_calls)) == ("ok", "next one", 2)
            return observations
        finally:
            await runner.close()

    return asyncio.run(go())


# --- what a program can do --------------------------------------------------------------------------------------------


@everywhere
def test_a_program_calls_its_tool_branches_and_computes():
    documents = [Document(id="a", text="Amberbank height 105"), Document(id="b", text="Coldmere height 7")]
    code = (
        "total = 0\n"
        "for name in ('Amberbank', 'Nowhere', 'Coldmere'):\n"
        "    try:\n"
        "        total += int(local_search(query=name + ' height').split()[-1])\n"
        "    except ToolError as error:\n"
        "        print(error)\n"
        "total"
    )
    [observation] = run(code, tool=LocalSearch.from_documents(documents))
    assert (observation.status, observation.text) == ("ok", "no document matches 'Nowhere height'\n112")
    assert [(call.status, call.text) for call in observation.tool_calls] == [
        ("ok", "Amberbank height 105"),
        ("error", "no document matches 'Nowhere height'"),
        ("ok", "Coldmere height 7"),
    ]
    assert observation.tool_calls[0].arguments == {"query": "Amberbank height"}
    assert observation.duration_s >= sum(call.duration_s for call in observation.tool_calls) > 0


@pytest.mark.matrix(6)
@everywhere
@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print(echo('a', times=2) + echo('b', 3))", "ok", "aabbb"),
        ("print(echo(text='é\\n\\x00😀'), end='')", "ok", "é\n\x00😀"),
        ("x = echo(text='a')", "ok", NOTHING),
        ("echo(text='a')", "ok", "'a'"),
        ("echo.__name__, ToolError.__mro__[1] is Exception", "ok", "('echo', True)"),
        ("import threading\necho(text='a')", "ok", "'a'"),
        ("echo(text='no')", "error", "ToolError: no"),
        ("print('seen')\necho()", "error", 'ToolError: invalid arguments for echo: "text" is a required property'),
        ("echo(text='a', times='b')", "error", '"b" is not of type "integer"'),
        ("echo(word='a', text='b')", "error", "unknown arguments word (known: text, times)"),
        ("echo('a', text='b')", "error", "TypeError: echo() takes each of these arguments once: text, times"),
        ("echo('a', 1, 2)", "error", "TypeError: echo() takes each of these arguments once: text, times"),
        ("echo(text={1, 2})", "error", "TypeError: Object of type set is not JSON serializable"),
        ("echo(text='a', times=float('inf'))", "error", "ValueError: Out of range float values"),
        ("echo(text='\\ud800')", "error", "surrogates not allowed"),
        ("x = []\nfor _ in range(40): x = [x]\necho(text=x)", "error", "more than 32 levels"),
        ("x = []\nx.append(x)\necho(text=x)", "error", "ValueError: Circular reference detected"),
        ("echo(text='x' * 2_000_000)", "error", "ValueError: echo() takes 1000000 bytes of arguments at most"),
        ("def f(): f()\nf()", "error", "RecursionError"),
        pytest.param(
            "while True: print('ab')",
            "ok",
            ("ab\n" * 2000)[:4000] + "\n[output cut after 4000 characters]",
            id="too much output",
        ),
        ("1 +", "error", "SyntaxError: invalid syntax"),
        ("import os\nos._exit(4)", "error", "exit code 4"),
    ],
)
def test_how_a_program_ends(code: str, status: str, text: str):
    [observation] = run(code)
    assert observation.status == status
    assert observation.text == text if status == "ok" else text in observation.text
    assert Observation.model_validate_json(observation.model_dump_json()) == observation


@everywhere
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not bound the address space")
def test_memory_is_bounded():
    [observation] = run("[0] * 10**11", memory_mb=128)
    assert (observation.status, observation.text) == ("error", "MemoryError: out of memory")


@everywhere
def test_a_long_result_is_cut():
    [observation] = run("len(echo(text='ab', times=3 * 10**5))")
    # At four characters a token of the tool's limit.
    cut = 400_000 + len("\n[cut: 600000 characters, of which the first 400000 are shown]")
    assert (observation.text, len(observation.tool_calls[0].text)) == (str(cut), cut)


@everywhere
def test_results_far_larger_than_a_pipe_arrive_whole():
    code = "text = '\\U0001f600' * 10_000\nall(echo(text=text, times=9) == text * 9 for _ in range(3))"
    assert run(code)[0].text == "True"


@given(st.text())
def test_a_tool_is_a_function_by_a_name_that_hides_nothing(tool: str):
    name = function_name(tool)
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert not hasattr(builtins, name)
    assert name != "ToolError"


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize(("name", "called"), [("wiki.find-page", "wiki_find_page"), ("print", "print_"), ("2d", "_2d")])
def test_a_tool_whose_name_is_no_identifier_can_be_called(name: str, called: str):
    [observation] = run(f"print({called}(text='a'))", tool=Echo(name=name))
    assert (observation.text, observation.tool_calls[0].tool) == ("a", name)


@everywhere
def test_requests_of_the_tool_are_handed_back():
    async def go(runner: ProgramRunner) -> None:
        _, calls = await runner.run("echo(text='a')\necho(text='b')\n1 / 0", Echo())
        assert [call.completion for call in calls] == ["a", "b"]

    with_runner(go)


def with_runner(go: Callable[[ProgramRunner], Any], **settings: Any) -> None:
    async def wrapped() -> None:
        runner = ProgramRunner(CodeRunnerConfig(**settings), sandbox(CHOSEN[0]))
        try:
            await go(runner)
        finally:
            await runner.close()

    asyncio.run(wrapped())


# --- bounds -----------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("swallow", ["Exception", "BaseException"])
def test_one_call_too_many_ends_a_program(swallow: str):
    tool = Echo()
    code = f"print('seen')\nwhile True:\n    try: echo(text='a')\n    except {swallow}: pass"
    [observation] = run(code, tool=tool, max_tool_calls=3)
    assert (observation.status, len(observation.tool_calls), len(tool.said)) == ("error", 3, 3)
    assert "more than 3 calls of echo" in observation.text
    assert observation.text.startswith("seen\n") == (swallow == "Exception")


@everywhere
def test_as_many_calls_as_allowed():
    assert run("for i in range(3): print(echo(text=str(i)))", max_tool_calls=3)[0].text == "0\n1\n2"


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("while True: pass", "not finished after"),
        ("import time\ntime.sleep(60)", "not finished after 0.5 s, the time of echo not counted"),
        ("echo(text='a')\nimport time\nwhile True: time.sleep(0.05)", "not finished after 0.5 s"),
    ],
)
def test_a_program_that_does_not_end_is_ended(code: str, text: str):
    started = time.monotonic()
    [observation] = run(code, timeout_s=0.1)
    assert (observation.status, text in observation.text) == ("error", True)
    assert len(observation.tool_calls) == code.count("echo")
    assert time.monotonic() - started < 10


@everywhere
def test_a_programs_time_adds_up_over_its_calls():
    code = "import time\nfor _ in range(16):\n    time.sleep(0.1)\n    echo(text='a')"
    [observation] = run(code, timeout_s=0.1)
    assert "not finished after 0.5 s" in observation.text
    assert len(observation.tool_calls) < 6


@everywhere
def test_the_tools_time_is_not_the_programs():
    code = "for _ in range(3): print(echo(text='a'))"
    [observation] = run(code, tool=Echo(delay_s=0.4), timeout_s=0.2)
    assert (observation.status, observation.text) == ("ok", "a\na\na")
    assert observation.duration_s > 1.2  # a second more than the program's own wall clock would allow


@everywhere
def test_a_slow_tool_is_a_tool_error():
    [observation] = run("try: echo(text='a')\nexcept ToolError as e: print(e)", tool=Echo(delay_s=60, timeout_s=0.1))
    assert (observation.status, observation.text) == ("ok", "echo gave no result within 0.1 s")
    assert [call.status for call in observation.tool_calls] == ["error"]


# --- what is written into the channel ---------------------------------------------------------------------------------


@pytest.mark.matrix(6)
@everywhere
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("os.write(fd, b'garbage' * 100)", "the program sent its tool 1734439522 bytes, more than 1000000"),
        ("os.write(fd, b'\\xff' * 4)\ntime.sleep(60)", "more than 1000000"),
        ("send(b'[')\ntime.sleep(60)", "which is no JSON object"),
        ("send(b'[]')\ntime.sleep(60)", "which is no JSON object"),
        ("send(b'')\ntime.sleep(60)", "which is no JSON object"),
        ("send(b'[' * 50_000)\ntime.sleep(60)", "which is no JSON object"),
        ("send(b'\\xff\\xfe')\ntime.sleep(60)", "which is no JSON object"),
        ("while True: os.write(fd, b'\\0' * 4 * 10**6)", "which is no JSON object"),
        ('body = b\'{"text": "a"}\'\nwhile True: send(body)', "more than 16 calls of echo"),
        ("os.write(fd, b'\\0\\0\\0\\x09{')\ntime.sleep(60)", "not finished after 1 s"),
        ('send(b\'{"text": "\\\\u20ac", "times": 90000}\')\ntime.sleep(60)', "not finished after 1 s"),
        ("os.write(fd, b'\\0\\0\\0\\x09{')\nos._exit(3)", "exit code 3"),
        ('send(b\'{"text": "a"}\')\nos.kill(os.getpid(), 9)', "signal 9"),
        ("os.close(fd)\necho(text='a')", "Bad file descriptor"),
        ("os.close(fd)\ntime.sleep(60)", "not finished after 1 s"),
        ("os.closerange(0, 64)\nwhile True: pass", "not finished after"),
        ("fd2 = os.dup(fd)\nos.close(fd)\nos.read(fd2, 1)", "not finished after 1 s"),
    ],
)
def test_a_program_that_misuses_its_channel_ends_and_leaves_nothing_to_the_next(code: str, text: str):
    [observation] = run(AT_CHANNEL + code, timeout_s=0.2)
    assert (observation.status, text in observation.text) == ("error", True), observation.text


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("os.write(fd, b'\\0\\0\\0\\x09{')\nprint('done')", "done"),
        ("send(b'{\"text\": \"left\"}')\nprint('done')", "done"),
        ("send(b'{\"text\": \"a\"}')\nprint(echo(text='b'), echo(text='c'))", "a b"),
        ("os.close(fd)\nprint('done')", "done"),
    ],
)
def test_a_program_can_only_confuse_itself(code: str, text: str):
    [observation] = run(AT_CHANNEL + code)
    assert (observation.status, observation.text) == ("ok", text)


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize("forged", ["b'\\x09' + b'\\0' * 4", "b'\\x01' + b'\\xff' * 4", "b'\\xff' * 5"])
def test_a_forged_answer_is_a_program_that_left_none(forged: str):
    code = (
        "import os, sys\nframe = sys._getframe()\nwhile 'self' not in frame.f_locals: frame = frame.f_back\n"
        f"frame.f_locals['self'].shared[:5] = {forged}\nos._exit(0)"
    )
    [observation] = run(code)
    assert (observation.status, observation.text) == ("error", "the process ended early (exit code 0)")


@given(st.binary())
def test_any_bytes_are_arguments_or_end_the_program(body: bytes):
    try:
        arguments = code_runner._read_arguments(body)
    except code_runner._Ended:
        return
    assert isinstance(arguments, dict)


# --- many at once, and what breaks ------------------------------------------------------------------------------------


@everywhere
def test_many_programs_share_few_workers_and_each_gets_its_own_results():
    async def go(runner: ProgramRunner) -> None:
        codes = [f"print([echo(text='{i}-' + str(j)) for j in range(3)])" for i in range(24)]
        tool = Echo(delay_s=0.01)
        observations = await asyncio.gather(*(runner.run(code, tool) for code in codes))
        assert [one.text for one, _ in observations] == [str([f"{i}-{j}" for j in range(3)]) for i in range(24)]
        assert all([call.text for call in one.tool_calls] == eval(one.text) for one, _ in observations)

    with_runner(go, workers=3)


@everywhere
def test_programs_may_run_python_even_where_every_worker_waits_for_it():
    async def go(runner: ProgramRunner) -> None:
        tool = PythonTool(PythonConfig(workers=1))
        code = "print(sum(int(python(code=f'{i} * 2')) for i in range(4)))"
        observations = await asyncio.gather(*(runner.run(code, tool) for _ in range(6)))
        await tool.close()
        assert {one.text for one, _ in observations} == {"12"}

    with_runner(go, workers=2)


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize("failure", [ToolServerError, SandboxError, EngineError, TimeoutError])
def test_a_broken_tool_is_raised_and_its_program_is_gone(failure: type[Exception]):
    async def go(runner: ProgramRunner) -> None:
        tool = Echo(breaks_at=2, failure=failure("broken"), watched=runner)
        raised = ToolServerError if failure is TimeoutError else failure
        with pytest.raises(raised) as error:
            await runner.run("try:\n  echo('first')\n  echo('a')\nexcept: echo('b')", tool)
        assert len(tool.there) >= 4
        assert all(map(gone, tool.there))
        assert [call.completion for call in getattr(error.value, "calls", ())] == [tool.said[0]]
        assert len(tool.said) == 2
        assert (await runner.run("echo('c')", Echo()))[0].text == "'c'"

    with_runner(go, workers=1)


@pytest.mark.matrix(2)
@everywhere
@pytest.mark.parametrize("code", ["time.sleep(60)", "echo('slow')", "while True: pass"])
def test_a_cancelled_program_is_gone(code: str):
    async def go(runner: ProgramRunner) -> None:
        tool = Echo(watched=runner)
        running = asyncio.create_task(runner.run(f"import time\necho('first')\n{code}", tool))
        while not tool.said:
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await running
        assert len(tool.there) >= 2
        assert all(map(gone, tool.there))
        assert (await runner.run("echo('c')", Echo()))[0].text == "'c'"

    with_runner(go, workers=1)


@everywhere
def test_close_ends_programs_and_nothing_runs_after_it():
    async def go(runner: ProgramRunner) -> None:
        tool = Echo(watched=runner)
        running = asyncio.create_task(runner.run("import time\necho('first')\ntime.sleep(60)", tool))
        while not tool.said:
            await asyncio.sleep(0.01)
        await runner.close()
        with pytest.raises(SandboxError):
            await running
        assert all(map(gone, tool.there))
        with raises("sandbox-closed"):
            await runner.run("1", Echo())

    with_runner(go)


@everywhere
def test_a_worker_that_dies_is_an_error_and_an_idle_one_is_replaced():
    async def go(runner: ProgramRunner) -> None:
        await runner.run("1", Echo())
        dead = processes(runner._pool)
        os.kill(dead[-1], signal.SIGKILL)
        assert all(map(gone, dead))
        tool = Echo(watched=runner, kills=True)
        with raises("worker-died", "agent.executor.program"):
            await runner.run("echo('a')", tool)
        assert all(map(gone, tool.there))
        assert (await runner.run("echo('c')", Echo()))[0].text == "'c'"

    with_runner(go, workers=1)


@pytest.mark.matrix(1)
@everywhere
def test_no_program_outlives_its_host(tier: Tier, tmp_path: Path):
    sandbox(tier)  # skips
    pids = tmp_path / "pids"
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom midstream.core.tool import ToolResult\n"
        "from midstream.sandbox.code_runner import CodeRunnerConfig, ProgramRunner\n"
        "from support.sandboxes import processes, sandbox\n"
        "class Record:\n    name, description, parameters = 'record', '', {'properties': {}}\n"
        "    timeout_s, output_tokens = 9.0, 100\n    async def call(self, arguments):\n"
        f"        Path({str(pids)!r}).write_text(' '.join(map(str, processes(runner._pool))) + ' .')\n"
        "        return ToolResult(text='')\n"
        f"runner = ProgramRunner(CodeRunnerConfig(timeout_s=30.0), sandbox({tier!r}))\n"
        "asyncio.run(runner.run('import time\\nrecord()\\ntime.sleep(60)', Record()))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as host:
        until = time.monotonic() + 30
        while not (pids.exists() and pids.read_text().endswith(".")) and time.monotonic() < until:
            time.sleep(0.05)
        host.kill()
    found = pids.read_text().split()[:-1]
    assert len(found) >= 2
    assert all(gone(int(pid)) for pid in found)


@pytest.mark.parametrize("named", ["remote", "arithmetic"])
def test_a_tier_without_a_channel_is_refused(named: Tier):
    with raises("setting-conflict", named, 'mode = "arguments"'):
        ProgramRunner(CodeRunnerConfig(), Sandbox(tier=named))
