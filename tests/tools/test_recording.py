"""Recorded tools are called once for each request; replayed tools are never called."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import SandboxError, StorageError, ToolServerError, UsageError
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Call, Usage
from midstream.tools.recording import FILE, RecordedTool, Recording, RecordingOrigin, digest

ORIGIN = RecordingOrigin(table="counter", settings={"type": "counter", "top_k": 3, "api_key_env": "SECRET_NAME"})


class Counter:
    """Answers with the number of its calls; `free` releases them, `failure` is what they raise."""

    name, description = "counter", "Counts."
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    timeout_s, output_tokens = 5.0, 20

    def __init__(self, failure=None, text="{}. answer"):
        self.asked, self.failure, self.text = [], failure, text
        self.entered, self.free, self.closed = threading.Event(), threading.Event(), False
        self.free.set()

    async def call(self, arguments):
        self.asked.append(arguments)
        self.entered.set()
        while not self.free.is_set():
            await asyncio.sleep(0.002)
        if self.failure is not None:
            raise self.failure
        calls = (Call(role="counter", completion="hm", usage=Usage(prompt_tokens=7, cost_usd=0.25)),)
        return ToolResult(text=self.text.format(len(self.asked)), ok=len(self.asked) % 2 == 1, calls=calls)

    async def close(self):
        self.closed = True


def record(directory: Path, tool, origin: RecordingOrigin = ORIGIN) -> Tool:
    [recorded] = Recording(directory, write=True).record([tool], origin)
    assert isinstance(recorded, Tool)
    return recorded


def replay(directory: Path, origin: RecordingOrigin = ORIGIN) -> Tool:
    [replayed] = Recording(directory).replay(origin)
    assert isinstance(replayed, Tool)
    return replayed


def ask(tool: Tool, *queries: str) -> list[ToolResult]:
    """One after the other, each in an event loop of its own; then the tool is closed."""
    results = [asyncio.run(call_tool(tool, {"query": query})) for query in queries]
    asyncio.run(tool.close())
    return results


# --- recording ------------------------------------------------------------------------------------------------------


def test_each_request_is_made_once(tmp_path):
    tool = Counter()
    first, other, again = ask(record(tmp_path, tool), "a", "b", "a")
    assert (first.text, first.ok, first.calls[0].usage.cost_usd) == ("1. answer", True, 0.25)
    assert (other.text, other.ok) == ("2. answer", False)
    assert again == first
    assert tool.asked == [{"query": "a"}, {"query": "b"}]
    assert tool.closed
    later = Counter()
    assert ask(record(tmp_path, later), "b", "a") == [other, first]
    assert not later.asked


def test_a_recorded_tool_answers_as_the_tool_itself(tmp_path):
    """Limits are the tool's own: a text is cut once, a slow call is reported with the tool's time."""
    long = Counter(text="x" * 200)
    assert ask(record(tmp_path / "long", long), "a") == ask(Counter(text="x" * 200), "a")
    assert ask(replay(tmp_path / "long"), "a") == ask(Counter(text="x" * 200), "a")
    slow = Counter()
    slow.timeout_s = 0.02
    slow.free.clear()
    timed_out = ToolResult(text="counter gave no result within 0.02 s", ok=False)
    assert ask(record(tmp_path / "slow", slow), "a") == ask(replay(tmp_path / "slow"), "a") == [timed_out]


@pytest.mark.parametrize("kind", [ToolServerError, SandboxError])
def test_a_failure_is_not_recorded(tmp_path, kind):
    tool = Counter(kind("no answer", cause="it is down", fix="start it"))
    recorded = record(tmp_path, tool)
    for _ in range(2):
        with pytest.raises(kind, match="it is down"):
            asyncio.run(recorded.call({"query": "a"}))
    tool.failure = None
    assert ask(recorded, "a")[0].text == "3. answer"


def test_equal_requests_at_once_make_one_call_in_each_event_loop(tmp_path):
    tool = Counter()
    tool.free.clear()
    recorded = record(tmp_path, tool)

    async def many(count: int) -> list[ToolResult]:
        calls = [asyncio.create_task(call_tool(recorded, {"query": "a"})) for _ in range(count)]
        await asyncio.to_thread(tool.entered.wait, 5)
        tool.free.set()
        return await asyncio.gather(*calls)

    results: list[ToolResult] = []
    loops = [threading.Thread(target=lambda: results.extend(asyncio.run(many(8)))) for _ in range(3)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(20)
    assert len(results) == 24
    assert len({result.text for result in results}) == 1, "the first answer stored is everyone's answer"
    assert len(tool.asked) <= len(loops)
    asyncio.run(recorded.close())


def test_a_waiting_caller_retries_when_the_first_is_cancelled(tmp_path):
    tool = Counter()
    tool.free.clear()
    recorded = record(tmp_path, tool)

    async def go() -> list[ToolResult]:
        first, second, third = (asyncio.create_task(recorded.call({"query": "a"})) for _ in range(3))
        await asyncio.to_thread(tool.entered.wait, 5)
        second.cancel()  # cancelling a waiting caller cancels no other
        first.cancel()
        tool.free.set()
        results = await asyncio.gather(first, second, third, return_exceptions=True)
        assert [type(result) for result in results[:2]] == [asyncio.CancelledError] * 2
        return results[2:]

    assert [result.text for result in asyncio.run(go())] == ["2. answer"]
    asyncio.run(recorded.close())


def test_after_a_failure_each_waiting_caller_calls_for_itself(tmp_path):
    failure = ToolServerError("no answer", cause="it is down")
    failure.retryable, failure.calls = False, (Call(role="counter"),)
    tool = Counter(failure)
    tool.free.clear()
    recorded = record(tmp_path, tool)

    async def go() -> list[BaseException | ToolResult]:
        calls = [asyncio.create_task(recorded.call({"query": "a"})) for _ in range(3)]
        await asyncio.to_thread(tool.entered.wait, 5)
        tool.free.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    failures = asyncio.run(go())
    assert [(type(error), str(error), error.retryable, len(error.calls)) for error in failures] == [
        (ToolServerError, str(failure), False, 1)
    ] * 3
    assert len(tool.asked) == 3
    asyncio.run(recorded.close())


# --- keys -----------------------------------------------------------------------------------------------------------


def test_the_key_is_of_tool_settings_and_arguments():
    base = digest(["t", {"a": 1, "b": 2}, {"x": 1, "y": [2]}])
    assert base == digest(["t", {"b": 2, "a": 1}, {"y": [2], "x": 1}])
    others = [
        ("u", {"a": 1, "b": 2}, {"x": 1, "y": [2]}),
        ("t", {"a": 1}, {"x": 1, "y": [2]}),
        ("t", {"a": 1, "b": 2}, {}),
    ]
    assert len({base, *(digest([*parts]) for parts in others)}) == 4


def test_settings_are_part_of_the_request_and_names_of_keys_are_not(tmp_path):
    ask(record(tmp_path, Counter()), "a")
    moved = RecordingOrigin(table="counter", settings={**ORIGIN.settings, "api_key_env": "OTHER", "env_pass": ["X"]})
    assert ask(replay(tmp_path, moved), "a")[0].text == "1. answer"
    wider = RecordingOrigin(table="counter", settings={**ORIGIN.settings, "top_k": 5})
    tool = Counter()
    ask(record(tmp_path, tool, wider), "a")
    assert len(tool.asked) == 1
    assert "SECRET_NAME" not in (tmp_path / FILE).read_bytes().decode("latin-1")


# --- replay ---------------------------------------------------------------------------------------------------------


def test_replay_needs_no_tool(tmp_path):
    recorded = ask(record(tmp_path, Counter()), "a", "b")
    tool = replay(tmp_path)
    assert (tool.name, tool.description, tool.parameters) == ("counter", "Counts.", Counter.parameters)
    assert ask(tool, "b", "a") == recorded[::-1]


def test_an_unseen_request_is_an_error_that_is_not_retried(tmp_path):
    ask(record(tmp_path, Counter()), "a")
    tool = replay(tmp_path)
    with pytest.raises(ToolServerError) as caught:
        asyncio.run(call_tool(tool, {"query": "b" * 1000}))
    assert caught.value.code == "not-recorded"
    assert '{"query":"bbb' in caught.value.what
    assert len(caught.value.what) < 500
    assert f"--record {tmp_path}" in caught.value.fix
    assert not caught.value.retryable
    asyncio.run(tool.close())


def test_a_table_keeps_the_order_of_its_tools_and_the_newest_of_them(tmp_path):
    def named(*names: str) -> list[Tool]:
        made = [Counter() for _ in names]
        for tool, name in zip(made, names, strict=True):
            tool.name = name
        return made

    def replayed() -> list[str]:
        recording = Recording(tmp_path)
        with closing(recording.file):
            return [tool.name for tool in recording.replay(ORIGIN)]

    for names in (("z", "a", "m"), ("m", "b")):
        recording = Recording(tmp_path, write=True)
        with closing(recording.file):
            assert [tool.name for tool in recording.record(named(*names), ORIGIN)] == [*names]
        assert replayed() == [*names]


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        (RecordingOrigin(table="other", settings=ORIGIN.settings), "it holds counter"),
        (RecordingOrigin(table="counter", settings={"type": "counter", "top_k": 5}), "top_k was 3, and is 5"),
    ],
)
def test_an_unrecorded_table_is_refused_with_what_the_file_holds(tmp_path, origin, cause):
    ask(record(tmp_path, Counter()), "a")
    with pytest.raises(UsageError) as refused:
        replay(tmp_path, origin)
    assert (refused.value.code, refused.value.cause) == ("not-recorded", cause)


def test_results_of_two_sandboxes_do_not_mix(tmp_path):
    strong = RecordingOrigin(table="python", settings={"type": "python"}, sandbox="strong")
    ask(record(tmp_path, Counter(), strong), "a")
    with pytest.raises(UsageError) as refused:
        record(tmp_path, Counter(), RecordingOrigin(table="python", settings={"type": "python"}, sandbox="unsafe"))
    assert refused.value.code == "setting-conflict"
    assert "from sandbox 'strong', not 'unsafe'" in refused.value.what
    recording = Recording(tmp_path)
    with closing(recording.file):
        assert recording.sandbox(RecordingOrigin(table="python", settings={"type": "python"})) == "strong"


# --- the file -------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    recording = Recording(tmp_path_factory.mktemp("any"), write=True)
    with closing(recording.file):
        yield recording


@given(arguments=st.dictionaries(st.text(), JSON, max_size=3), text=st.text(st.characters()))
def test_any_arguments_and_any_text_come_back(shared, arguments, text):
    """Half a surrogate pair too: in arguments as it is, in text as `call_tool` gives it."""

    class Says(Counter):
        output_tokens = 10_000

        async def call(self, arguments):
            return ToolResult(text=text)

    settings = {"text": text.encode("utf-8", "replace").decode()}
    plain = asyncio.run(call_tool(Says(), arguments))
    for _ in range(2):
        assert asyncio.run(call_tool(RecordedTool(Says(), shared, settings), arguments)) == plain
    assert shared.find(digest(["counter", settings, arguments])) == plain


def write(path: Path, content: bytes | str | None) -> None:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(content)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"<html>" + b"x" * 9000,
        "CREATE TABLE mine (x); PRAGMA user_version = 1",
        "CREATE TABLE mine (x); PRAGMA application_id = 0x6D73746D; PRAGMA user_version = 9",
    ],
    ids=["html", "another program", "another version"],
)
def test_another_file_is_refused_and_left_unchanged(tmp_path, content, writes):
    path = tmp_path / "there" / FILE
    write(path, content)
    before = path.read_bytes()
    with pytest.raises(UsageError) as refused:
        Recording(path.parent, write=writes)
    assert refused.value.code == "file-invalid"
    assert path.read_bytes() == before


def test_a_directory_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as refused:
            Recording(directory, write=True)
        assert refused.value.code == "directory-unusable"
        assert "--record" in refused.value.fix
    assert (tmp_path / "file").read_text() == "mine"


def test_replay_without_a_recording_is_refused(tmp_path):
    with pytest.raises(UsageError) as refused:
        Recording(tmp_path / "none")
    assert refused.value.code == "file-not-found"
    assert "--record" in refused.value.fix
    assert not (tmp_path / "none").exists()


def test_a_closed_or_damaged_recording_is_an_error(tmp_path):
    recorded = record(tmp_path, Counter())
    ask(recorded, "a")
    with pytest.raises(StorageError):
        asyncio.run(recorded.call({"query": "a"}))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("UPDATE results SET calls = '[{]'")
    tool = replay(tmp_path)
    with pytest.raises(StorageError):
        asyncio.run(tool.call({"query": "a"}))
    asyncio.run(tool.close())


COLUMNS = ("tables.value", "results.text", "results.calls")


@pytest.mark.parametrize("column", COLUMNS)
def test_odd_values_in_a_recording_are_an_error(tmp_path, column):
    ask(record(tmp_path, Counter()), "a")
    table, name = column.split(".")
    values = [None, b"\xff"]
    if name != "text":  # which may be any text
        values += [5, "", "[", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "null"]
    recording = Recording(tmp_path)

    def use() -> None:
        asyncio.run(recording.replay(ORIGIN)[0].call({"query": "a"}))

    for value in values:
        with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
            connection.execute(f"UPDATE {table} SET {name} = ?", (value,))
        with pytest.raises(StorageError):
            use()
    asyncio.run(recording.close())


def test_a_full_disk_is_not_taken_for_an_invalid_file(tmp_path):
    """In a separate process, whose files may not grow."""
    script = f"""
import resource, signal
from pathlib import Path
from midstream.core.errors import StorageError
from midstream.tools.recording import Recording
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    Recording(Path({str(tmp_path)!r}), write=True)
except StorageError as error:
    print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "storage\n"


def test_a_directory_with_odd_characters(tmp_path):
    place = tmp_path / "a b#c?d%20é"
    result = ask(record(place, Counter()), "a")
    assert ask(replay(place), "a") == result


WRITER = """
import sys
from pathlib import Path
from midstream.core.tool import ToolResult
from midstream.tools.recording import Recording
file = Recording(Path(sys.argv[1]), write=True)
number = 0
while True:
    kept = file.keep(f"{number}", "t", {}, ToolResult(text=sys.argv[2] * 3000), 0.0)
    print(kept.text[0], flush=True)
    number += 1
"""


@pytest.mark.slow
def test_processes_write_at_once_and_one_that_is_killed_breaks_nothing(tmp_path):
    """Several start at once on no file, all are killed in the middle: every answer is one writer's, whole."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "abc"]
    try:
        firsts = {writer.stdout.readline().strip() for writer in writers}
        for writer in writers:
            for _ in range(20):
                writer.stdout.readline()
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate(timeout=20)
    assert len(firsts) == 1, "the first answer stored is every writer's answer"
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        texts = [text for (text,) in connection.execute("SELECT text FROM results")]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(texts) > 20
    assert all(text == text[0] * 3000 for text in texts)
    assert ask(record(tmp_path, Counter()), "a")[0].text == "1. answer"
