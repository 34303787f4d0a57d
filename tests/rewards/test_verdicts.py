"""The judge's cache: shared by processes and threads, and never somebody else's file."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from midstream.core.errors import StorageError, UsageError
from midstream.core.trajectory import Call
from midstream.rewards.once import Once
from midstream.rewards.verdicts import FILE, Verdict, Verdicts

YES = Verdict(correct=True, calls=(Call(role="judge", completion="yes \u2028"),))
NO = Verdict(correct=False, calls=())
WRITER = """
import sys
from pathlib import Path
from midstream.rewards.verdicts import Verdict, Verdicts
kept = Verdicts(Path(sys.argv[1]))
for number in range(50):
    kept.keep(str(number), Verdict(correct=sys.argv[2] == "yes", calls=()))
kept.close()
"""


def test_what_was_kept_first_stays(tmp_path):
    kept = Verdicts(tmp_path / "new" / "place")
    assert kept.find("a") is None
    assert kept.keep("a", YES) == YES
    assert kept.keep("a", NO) == YES
    kept.close()
    kept.close()
    again = Verdicts(tmp_path / "new" / "place")
    assert (again.find("a"), again.find("b")) == (YES, None)
    again.close()
    with pytest.raises(StorageError, match="could not be read"):
        again.find("a")


def test_processes_and_threads_share_the_file(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), said]) for said in ("yes", "no")]
    kept = Verdicts(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: kept.keep(str(number), YES), range(50, 100)))
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert all(kept.find(str(number)) for number in range(100))
    kept.close()


@pytest.mark.parametrize("content", [b"not a database, and long enough to be looked at" * 40, None])
def test_another_programs_file_is_left_alone(tmp_path, content):
    path = tmp_path / FILE
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE verdicts (key TEXT, verdict TEXT)")
        other.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"not a judge's cache"):
        Verdicts(tmp_path)
    assert path.read_bytes() == before


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be created[\s\S]*set `cache`"):
        Verdicts(tmp_path / "file")


def test_a_row_that_is_no_verdict_is_an_error(tmp_path):
    kept = Verdicts(tmp_path)
    kept.keep("a", YES)
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("UPDATE verdicts SET value = '{}'")
    other.close()
    with pytest.raises(StorageError, match="could not be read"):
        kept.find("a")
    kept.close()


# --- once -------------------------------------------------------------------------------------------------------------


def test_equal_jobs_are_done_once_and_failures_again():
    done: list[str] = []

    async def job(name: str) -> int:
        done.append(name)
        await asyncio.sleep(0.001)
        if done.count("broken") == 1:
            raise OSError(name)
        return len(done)

    async def run() -> None:
        once: Once[int] = Once(size=2)
        assert await asyncio.gather(*(once.get("a", lambda: job("a")) for _ in range(5))) == [1] * 5
        failed = await asyncio.gather(*(once.get("b", lambda: job("broken")) for _ in range(3)), return_exceptions=True)
        assert isinstance(failed[0], OSError)
        assert failed[1:] == [3, 3]
        await once.get("c", lambda: job("c"))  # drops "a", the one that was asked for longest ago
        await once.get("b", lambda: job("b"))
        await once.get("a", lambda: job("a"))

    asyncio.run(run())
    assert done == ["a", "broken", "broken", "c", "a"]


def test_a_cancelled_job_is_done_by_the_next():
    async def run() -> int:
        once: Once[int] = Once()

        async def never() -> int:
            await asyncio.sleep(60)
            return 0

        async def one() -> int:
            return 1

        first = asyncio.create_task(once.get("a", never))
        await asyncio.sleep(0)
        second = asyncio.create_task(once.get("a", one))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(run()) == 1
