"""Agents of other programs that misbehave: what is scored, what is an error, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import midstream as ms
from midstream.components.agent_record import LONGEST_TEXT, Outcome
from midstream.core.engine import Request
from midstream.core.errors import BudgetError, EngineError, PromptTooLongError, RecipeError, RefusedError
from midstream.core.trajectory import Call
from support.gateway_sessions import Model, ask, chat, client, run, run_agent
from support.processes import gone

# What a program needs to ask; `asks` is its whole client.
HEAD = """
import json, os, signal, subprocess, sys, time, urllib.request
def asks(text="hello", **fields):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}], **fields}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
def answers(text, mode="w"):
    with open(os.environ["MIDSTREAM_ANSWER"], mode) as file:
        file.write(text)
"""


def program(path: Path, text: str) -> list[str]:
    path = path / "agent.py"
    path.write_text(HEAD + text)
    return [sys.executable, str(path)]


async def asking(session: Any, text: str = "hello", **fields: Any) -> tuple[int, Any]:
    async with client() as http:
        return await ask(http, session.base_url, chat(text, **fields), key=session.api_key)


# --- functions ---------------------------------------------------------------------------------------------------


async def asks_and_answers(question, session):
    await asking(session)
    return "right"


async def only_answers(question, session):
    return "right"


async def neither(question, session):
    return None


async def asks_only(question, session):
    await asking(session)


async def asks_and_raises(question, session):
    await asking(session)
    raise ValueError("a bug")


async def asks_and_exits(question, session):
    await asking(session)
    sys.exit(1)


async def asks_and_cancels(question, session):
    await asking(session)
    raise asyncio.CancelledError


async def returns_an_object(question, session):
    await asking(session)
    return object()


async def returns_an_outcome(question, session):
    await asking(session)
    return Outcome(answer="wrong", reward=0.5, feedback="half")


async def returns_half_a_pair(question, session):
    await asking(session)
    return "right\ud800"


async def raises_half_a_pair(question, session):
    await asking(session)
    raise ValueError("\ud800")


async def is_rewarded_in_half_a_pair(question, session):
    await asking(session)
    address, body = session.base_url.removesuffix("/v1") + "/reward", b'{"reward": 1, "feedback": "\\ud800"}'
    async with client() as http, http.post(address, data=body) as reply:
        assert reply.status == 200


class Odd(BaseException):
    """No `Exception`."""


async def raises_what_is_no_exception(question, session):
    raise Odd


async def blocks(question, session):
    await asking(session)
    time.sleep(1)
    return "right"


async def rewards_and_raises(question, session):
    async with client() as http:
        await ask(http, session.base_url)
        async with http.post(session.base_url.removesuffix("/v1") + "/reward", json={"reward": 1.0}) as reply:
            assert reply.status == 200
    raise ValueError("after its reward")


@pytest.mark.parametrize(
    ("agent", "status", "reward"),
    [
        (asks_and_answers, "ok", 1),
        (only_answers, "ok", 1),
        (neither, "error", None),
        (asks_only, "ok", 0),
        (asks_and_raises, "error", None),
        (asks_and_exits, "error", None),
        (asks_and_cancels, "error", None),
        (returns_an_object, "error", None),
        (returns_an_outcome, "ok", 0.5),
        (returns_half_a_pair, "ok", 0),
        (raises_half_a_pair, "error", None),
        (is_rewarded_in_half_a_pair, "ok", 1),
        (raises_what_is_no_exception, "error", None),
        (blocks, "ok", 1),
        (rewards_and_raises, "error", None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_becomes_of_a_function(agent, status, reward):
    found = run(agent)
    assert (found.status, found.reward.value if found.reward else None) == (status, reward)
    assert found.model_validate_json(found.model_dump_json()) == found
    assert found.attempts == 1
    if "asks" in agent.__name__:
        assert len(found.calls) == 1
        assert found.calls[0].delivered


def test_an_error_is_tried_again_and_its_key_is_in_no_record():
    keys = []

    async def solve(session):
        keys.append(session.api_key)
        await asking(session, f"my key is {len(keys)}")
        raise ValueError(f"no route to {session.base_url}")

    found = run(solve, attempts=3)
    assert found.attempts == len(keys) == 3
    assert "agent-failed" not in found.error.message
    assert not [key for key in keys if key in found.model_dump_json()]


@pytest.mark.slow
def test_a_thousand_calls_and_a_limit_that_is_the_policys_own():
    async def solve(session):
        async with client() as http:
            for number in range(1000):
                status, _ = await ask(http, session.base_url, chat(str(number)))
                assert status == 200
            status, refused = await ask(http, session.base_url)
            assert (status, refused["error"]["code"]) == (400, "call-limit")
            raise RuntimeError("no more calls")

    found = run(solve, max_calls=1000)
    assert (found.status, found.stop_reason, found.reward.value) == ("ok", "turn_limit", 0)
    assert len(found.calls) == 1000


def test_a_limit_holds_although_a_call_from_before_it_succeeds_after_it():
    model = Model(pause_s=0.2)

    async def solve(session):
        first = asyncio.ensure_future(asking(session, "slow"))
        await asyncio.sleep(0.1)
        assert (await asking(session, "too many"))[0] == 400
        assert (await first)[0] == 200
        raise RuntimeError("stopped by the limit")

    found = run(solve, model, max_calls=1)
    assert (found.status, found.stop_reason) == ("ok", "turn_limit")


def test_fifty_at_once():
    async def solve(session):
        async with client() as http:
            replies = await asyncio.gather(*(ask(http, session.base_url, chat(str(n))) for n in range(50)))
        assert {status for status, _ in replies} == {200}
        return "right"

    found = run(solve, Model(pause_s=0.05))
    assert found.status == "ok"
    assert sorted(call.messages[-1].content for call in found.calls) == sorted(map(str, range(50)))
    assert found.duration_s < 3


@pytest.mark.parametrize("limit", ["idle_s", "deadline_s"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_function_that_hangs_ends(limit, stubborn, monkeypatch):
    monkeypatch.setattr("midstream.gateway.session_agent._END_S", 0.1)
    later = []

    async def solve(session):
        await asking(session)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not stubborn:
                raise
        await asyncio.sleep(1)
        later.append((await asking(session))[0])

    async def both():
        [found] = await run_agent(solve, **{limit: 0.3})
        return found

    began = time.monotonic()
    found = asyncio.run(both())
    assert (found.status, found.reward) == ("error", None)
    assert time.monotonic() - began < 3


def test_after_the_end_a_request_is_refused():
    kept = []

    async def solve(session):
        async def late():
            await asyncio.sleep(0.2)
            kept.append(await asking(session))

        kept.append(asyncio.ensure_future(late()))
        await asking(session)
        return "right"

    async def both():
        found = await asyncio.gather(run_agent(solve), run_agent(waits))
        return found[0][0]

    async def waits(session):
        await asyncio.sleep(0.5)
        return "right"

    found = asyncio.run(both())
    assert len(found.calls) == 1


# --- engines -----------------------------------------------------------------------------------------------------


class Broken(Model):
    """Raises `failure` at the request of a number."""

    def __init__(self, failure: Exception, at: int = 0) -> None:
        super().__init__(lambda request: "")
        self.failure, self.at = failure, at

    async def sample(self, request: Request) -> Call:
        if len(self.requests) == self.at:
            raise self.failure
        return await super().sample(request)


async def asks_twice(session):
    for text in ("one", "two"):
        status, reply = await asking(session, text)
        if status != 200:
            raise ConnectionError(str(reply))
    return "right"


@pytest.mark.parametrize(
    ("failure", "at", "status", "stop"),
    [
        (EngineError("down"), 0, "error", "error"),
        (EngineError("down"), 1, "error", "error"),
        (RuntimeError("a bug"), 0, "error", "error"),
        (PromptTooLongError("too long"), 0, "error", "error"),
        (PromptTooLongError("too long"), 1, "ok", "context_limit"),
        (BudgetError("spent"), 1, "error", "error"),
    ],
)
def test_an_engine_that_fails(failure, at, status, stop):
    found = run(asks_twice, Broken(failure, at))
    assert (found.status, found.stop_reason) == (status, stop)
    assert (found.reward is None) == (status == "error")
    assert len(found.calls) >= at


def test_a_refused_key_stops_the_run():
    with pytest.raises(RefusedError):
        run(asks_twice, Broken(RefusedError("wrong key")))


def test_an_empty_completion_is_one():
    found = run(asks_twice, Broken(RuntimeError(), at=9))
    assert [call.completion for call in found.calls] == ["", ""]
    assert found.status == "ok"


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix(6)
@pytest.mark.parametrize(
    ("text", "status", "answer"),
    [
        ("asks(); answers(' right\\n')", "ok", "right"),
        ("answers('right')", "ok", "right"),
        ("", "error", None),
        ("asks()", "ok", None),
        ("asks(); sys.exit(3)", "error", None),
        ("asks(); os._exit(0)", "ok", None),
        ("asks(); os.kill(os.getpid(), signal.SIGKILL)", "error", None),
        ("os.write(1, b'\\xff\\xfe' * 9); answers('right')", "ok", "right"),
        ("open(os.environ['MIDSTREAM_ANSWER'], 'wb').write(b'r\\xffght')", "ok", "r\ufffdght"),
        ("os.mkdir(os.environ['MIDSTREAM_ANSWER']); asks()", "ok", None),
        ("os.mkfifo(os.environ['MIDSTREAM_ANSWER']); asks()", "ok", None),
        ("asks(); os.close(1); os.close(2); answers('right')", "ok", "right"),
    ],
)
def test_what_becomes_of_a_command(text, status, answer, tmp_path):
    found = run(program(tmp_path, text))
    assert (found.status, found.answer) == (status, answer)
    assert (found.reward is None) == (status == "error")


def test_a_long_answer_is_cut(tmp_path):
    found = run(program(tmp_path, "answers('x' * 10_000_000)"))
    assert found.answer == "x" * LONGEST_TEXT


def test_floods_of_output_take_little_memory_and_the_last_lines_are_in_the_error(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = "line = b'x' * 1_000_000\nfor _ in range(100): os.write(1, line)\nprint('\\nthe last')\nsys.exit(1)"
    found = run(program(tmp_path, text))
    assert "the last" in found.error.message
    assert len(found.error.message) < 12_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


def test_output_holds_no_key(tmp_path):
    found = run(program(tmp_path, "asks(); print(os.environ['OPENAI_BASE_URL']); sys.exit(1)"))
    line = next(line for line in found.error.message.splitlines() if "http" in line)
    assert line.endswith("/s/KEY/v1")


CHILDREN = """
words = [sys.executable, "-c", "import signal, time; {ignores}; time.sleep(60)"]
children = [subprocess.Popen(words, start_new_session=new, env={{}} if bare else None)
            for new in (False, True) for bare in (False, True)]
open({pids!r}, "w").write(json.dumps([child.pid for child in children]))
time.sleep(0.3)
{end}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
@pytest.mark.parametrize("ignores", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["plain", "ignore"])
@pytest.mark.parametrize(
    "end",
    [
        "answers('right')",
        pytest.param("sys.exit(1)", marks=pytest.mark.slow),
        "time.sleep(60)",
    ],
    ids=["ends", "fails", "hangs"],
)
def test_no_child_is_left(ignores, end, tmp_path, monkeypatch):
    """In its group, with a session of its own, with an empty environment, deaf to SIGTERM."""
    monkeypatch.setattr("midstream.gateway.session_agent._END_S", 0.5)
    pids = tmp_path / "pids"
    found = run(
        program(tmp_path, CHILDREN.format(ignores=ignores, end=end, pids=str(pids))),
        deadline_s=2 if "60" in end else 60,
    )
    assert found.status == ("ok" if "answers" in end else "error")
    children = json.loads(pids.read_text())
    assert len(children) == 4
    assert all(gone(pid, 0.2) for pid in children)


def test_a_command_that_is_not_there_stops_the_run(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command in (["no-such-program"], [plain], ["./nothing"]):
        with pytest.raises(RecipeError) as caught:
            run(command)
        assert caught.value.code == "command-not-found"
    with pytest.raises(RecipeError) as caught:
        run([sys.executable], cwd=tmp_path / "nowhere")
    assert caught.value.code == "file-not-found"
    plain.chmod(0o755)
    assert run([plain]).status == "error"  # executable, and no program


def test_a_command_finds_its_task_and_no_admin_key(tmp_path, monkeypatch):
    monkeypatch.setenv("MIDSTREAM_ADMIN_KEY", "secret")
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    text = """asks()
task = json.load(open(os.environ["MIDSTREAM_TASK"]))
assert set(task) == {"id", "question", "metadata"}
answers(" ".join([task["question"], os.path.basename(os.getcwd()), str("MIDSTREAM_ADMIN_KEY" in os.environ)]))"""
    assert run(program(tmp_path, text), cwd=tmp_path / "there").answer == "question 0 there False"


# --- functions in threads ----------------------------------------------------------------------------------------


def asked(session: Any) -> None:
    """Ask as a blocking client does."""
    body = json.dumps(chat()).encode()
    headers = {"authorization": f"Bearer {session.api_key}"}
    urllib.request.urlopen(urllib.request.Request(f"{session.base_url}/chat/completions", body, headers)).read()


def answers_setting(question, session, tools, times: int = 2, place: Path = Path("/x")):
    asked(session)
    return f"{question} {times + 1} {place.name} {tools['add'](a=1, b=2)} {tools['add'](a='x')[:20]} {os.getpid()}"


def gives_an_outcome(session):
    return Outcome(answer="no", reward=0.25)


def raises(session):
    asked(session)
    raise ValueError(session.base_url)


def exits(session):
    asked(session)
    sys.exit(0)


def stops_iterating(session):
    asked(session)
    next(iter(()))


def gives_a_coroutine(session):
    asked(session)
    return asks_and_answers("", session)


@pytest.mark.parametrize(
    ("agent", "status", "answer", "reward"),
    [
        (gives_an_outcome, "ok", "no", 0.25),
        (raises, "error", None, None),
        (exits, "error", None, None),
        (stops_iterating, "error", None, None),
        (gives_a_coroutine, "ok", "right", 1),
    ],
)
def test_what_becomes_of_a_function_in_a_thread(agent, status, answer, reward):
    found = run(agent)
    assert (found.status, found.answer, found.reward.value if found.reward else None) == (status, answer, reward)


def test_a_function_in_a_thread_has_settings_and_calls_tools():
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    found = run(answers_setting, tools=[ms.tool(add)], times=7, place="/over/there")
    assert found.answer.startswith("question 0 8 there 3 ")
    assert found.answer.endswith(f" {os.getpid()}")


def test_a_decorated_async_function_awaits_tools():
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def traced(function):
        @functools.wraps(function)
        def call(*arguments, **named):
            return function(*arguments, **named)

        return call

    @traced
    async def awaits(session, tools):
        await asyncio.to_thread(asked, session)
        return await tools["add"](a=1, b=2)

    assert run(awaits, tools=[ms.tool(add)]).answer == "3"


def test_a_function_that_blocks_is_left_behind_and_asks_in_vain():
    let_go, late = threading.Event(), []

    def blocks_long(session):
        asked(session)
        let_go.wait(20)
        try:
            asked(session)
        except OSError as refused:
            late.append(refused)

    async def both():
        [found] = await run_agent(blocks_long, deadline_s=0.5)
        return found

    found = asyncio.run(both())
    let_go.set()
    assert (found.status, len(found.calls)) == ("error", 1)


def test_environment_is_unchanged():
    before = dict(os.environ)
    run(only_answers)
    assert dict(os.environ) == before
