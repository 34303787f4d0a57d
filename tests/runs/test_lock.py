import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from midstream.runs.lock import exclusive_lock, is_locked
from support.errors import raises

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks there")

HOLD = """
import sys
from pathlib import Path
from midstream.runs.lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lock until its input ends or it is killed."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    path = tmp_path / "run.lock"
    with holder(path) as process:
        assert is_locked(path)
        with raises("run-in-use", f"process {process.pid}"), exclusive_lock(path):
            pytest.fail("locked twice")
        process.kill()  # signal 9
        process.wait()
        assert not is_locked(path)
        with exclusive_lock(path):
            assert is_locked(path)
    assert not is_locked(path)


def test_released_after_an_error(tmp_path):
    path = tmp_path / "run.lock"
    with pytest.raises(KeyError), exclusive_lock(path):
        raise KeyError
    with exclusive_lock(path):
        pass
    assert not is_locked(tmp_path / "none")


def test_a_lock_that_cannot_be_written(tmp_path):
    with raises("write-failed", "ENOENT"), exclusive_lock(tmp_path / "gone" / "run.lock"):
        pytest.fail("locked")
